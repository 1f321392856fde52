//! The functions of the CUDA driver that this crate calls, with their errors as statuses and what they make as values that
//! are given back. Only this folder names cudarc, which finds libcuda when it is first needed.
//!
//! Source of what is said of functions here: NVIDIA's CUDA Driver API reference.

mod context;
mod functions;
mod kernels;
mod memory;
mod pointers;
mod streams;

use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys;

pub use self::context::{Context, PrimaryContext, twice};
pub use self::kernels::{Function, Module};
pub use self::memory::{DeviceMemory, PinnedMemory};
pub use self::pointers::{Memory, mapped, pointer};
pub use self::streams::{Event, Producer, Stream};
use crate::status::{Error, Result, Status};

/// Calls a function of the driver; its name and error become an [`Error`].
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::cuda::driver::functions::$function($($argument),*).and_then(|code| succeeded(stringify!($function), code))
    };
}

use call;

fn succeeded(function: &str, code: u32) -> Result<()> {
    if code == sys::CUresult::CUDA_SUCCESS as u32 {
        return Ok(());
    }
    let (status, advice) = meaning(code);
    Err(Error::new(status, format!("{function} failed: {}{advice}", describe(code))))
}

/// The status of an error code, and what to do.
fn meaning(code: u32) -> (Status, &'static str) {
    use sys::CUresult as Code;
    const OUT_OF_MEMORY: u32 = Code::CUDA_ERROR_OUT_OF_MEMORY as u32;
    const UNSUPPORTED_PTX: u32 = Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION as u32;
    const STUB: u32 = Code::CUDA_ERROR_STUB_LIBRARY as u32;
    const FIRST_OF_CAPTURE: u32 = Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as u32;
    const LAST_OF_CAPTURE: u32 = Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD as u32;
    const UNAVAILABLE: [u32; 6] = [
        Code::CUDA_ERROR_NOT_INITIALIZED as u32,
        Code::CUDA_ERROR_DEINITIALIZED as u32,
        Code::CUDA_ERROR_NO_DEVICE as u32,
        Code::CUDA_ERROR_INVALID_DEVICE as u32,
        Code::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH as u32,
        Code::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE as u32,
    ];
    match code {
        OUT_OF_MEMORY => (Status::OutOfDeviceMemory, "; the check needs some MiB: leave them free"),
        FIRST_OF_CAPTURE..=LAST_OF_CAPTURE => {
            (Status::StreamCapturing, "; check when no CUDA graph is captured, or name another stream")
        }
        UNSUPPORTED_PTX => (Status::CudaUnavailable, "; the driver is too old for this library's kernels"),
        STUB => (Status::CudaUnavailable, "; a toolkit's stub was found before the driver: see LD_LIBRARY_PATH"),
        code if UNAVAILABLE.contains(&code) => (Status::CudaUnavailable, ""),
        _ => (Status::Cuda, ""),
    }
}

/// Name and description of an error code.
fn describe(code: u32) -> String {
    type Explain = unsafe fn(u32, *mut *const c_char) -> Result<u32>;
    let explain = |function: Explain| {
        let mut text = ptr::null();
        // SAFETY: writes one pointer, to a text that is static.
        unsafe {
            let is_known = function(code, &raw mut text).is_ok_and(|result| result == 0) && !text.is_null();
            is_known.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    match (explain(functions::cuGetErrorName), explain(functions::cuGetErrorString)) {
        (Some(name), Some(text)) => format!("{name}, {text}"),
        _ => format!("CUDA error {code}"),
    }
}

/// Finds libcuda and initialises it; later calls only look whether it still can be used, as it cannot after a fork.
pub fn load() -> Result<()> {
    static IS_LOADED: AtomicBool = AtomicBool::new(false);
    // SAFETY: loading libcuda runs its initialisers, which any CUDA program does.
    if !IS_LOADED.load(Ordering::Acquire) && !unsafe { sys::is_culib_present() } {
        let what = "libcuda.so.1 cannot be loaded: install NVIDIA's driver, or check tensors in host memory";
        return Err(Error::new(Status::CudaUnavailable, what));
    }
    IS_LOADED.store(true, Ordering::Release);
    // SAFETY: any thread may call it at any time.
    unsafe { call!(cuInit(0)) }
}

/// How many CUDA devices this process has.
pub fn device_count() -> Result<i32> {
    let mut count = 0;
    // SAFETY: writes one integer.
    unsafe { call!(cuDeviceGetCount(&raw mut count)) }?;
    Ok(count)
}
