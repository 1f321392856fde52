//! Kernels: compiling and launching them.

use std::ffi::{CStr, c_void};
use std::ptr;

use cudarc::driver::sys;

use super::context::{Context, Owned};
use super::streams::Stream;
use super::{call, succeeded};
use crate::status::{Error, Result};

/// Kernels, compiled for a device.
pub struct Module(Owned);

impl Module {
    /// Compiles `ptx` for the device of the current context `context`; the driver keeps what it has compiled for the next process.
    pub fn new(context: Context, ptx: &CStr) -> Result<Self> {
        use sys::CUjit_option::{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
        let mut module = ptr::null_mut();
        let mut log = [0u8; 4096];
        let mut options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast(), ptr::without_provenance_mut(log.len())];
        // SAFETY: the text ends with a NUL; the log's address and size are what these two options take.
        let loaded = unsafe {
            let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
            call!(cuModuleLoadDataEx(&raw mut module, ptx.as_ptr().cast(), 2, options, values))
        };
        loaded.map_err(|error| {
            let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
            Error::new(error.status(), format!("{error} {}", log.trim()).trim_end().to_owned())
        })?;
        // SAFETY: made above, given back once.
        let release = |module: *mut c_void| unsafe { call!(cuModuleUnload(module.cast())) };
        Ok(Self(Owned { context, handle: module.cast(), release }))
    }

    /// The kernel of this name; it lives as long as the module.
    pub fn function(&self, name: &CStr) -> Result<Function> {
        let mut function = ptr::null_mut();
        // SAFETY: the module is alive; writes one handle.
        unsafe { call!(cuModuleGetFunction(&raw mut function, self.0.handle.cast(), name.as_ptr())) }?;
        Ok(Function(function))
    }
}

/// A kernel.
#[derive(Clone, Copy)]
pub struct Function(sys::CUfunction);

// SAFETY: a handle that all threads may use.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Queues it in `stream`: `blocks` of `threads` each, with `arguments` that are copied now.
    ///
    /// # Safety
    /// The arguments point to values of the types that the kernel takes. What it reads and writes is allocated, and nobody
    /// else writes to it, until the stream has passed it. Its module is loaded.
    pub unsafe fn launch(self, blocks: u32, threads: u32, stream: &Stream, arguments: &[*const c_void]) -> Result<()> {
        let mut arguments: Vec<*mut c_void> = arguments.iter().map(|argument| argument.cast_mut()).collect();
        let arguments = arguments.as_mut_ptr();
        // SAFETY: the driver copies the arguments and does not write to them; the caller vouches for the rest.
        unsafe {
            let (function, stream) = (self.0, stream.raw());
            call!(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, ptr::null_mut()))
        }
    }
}
