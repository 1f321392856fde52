//! The driver's functions themselves, found in libcuda when they are first called.
//!
//! cudarc declares them too, with an enumeration as their result that a newer driver's codes are not in; here the result is a
//! number, and a function that an old driver lacks is an error.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUjit_option, CUmodule, CUpointer_attribute, CUstream,
    CUstreamCaptureMode, culib,
};

use crate::status::{Error, Result, Status};

macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the CUDA Driver API: its result, which is 0 for success.")]
        ///
        /// # Errors
        /// `CudaUnavailable` when the driver lacks it.
        ///
        /// # Safety
        /// libcuda has been found; and what the Driver API says of the arguments.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "it is NVIDIA's")]
        pub unsafe fn $name($($argument: $kind),*) -> Result<u32> {
            type Call = unsafe extern "C" fn($($kind),*) -> u32;
            static FOUND: OnceLock<Option<Call>> = OnceLock::new();
            let name = stringify!($name);
            // SAFETY: the driver's function of this name has these parameters (cuda.h), and its result is an enumeration of C.
            let found = FOUND.get_or_init(|| unsafe { culib().get::<Call>(name.as_bytes()).ok().map(|call| *call) });
            let Some(call) = found else {
                let what = format!("the CUDA driver has no {name}: it is too old, install one of 450 or later");
                return Err(Error::new(Status::CudaUnavailable, what));
            };
            // SAFETY: by the caller.
            Ok(unsafe { call($($argument),*) })
        }
    )*};
}

functions! {
    fn cuInit(flags: c_uint);
    fn cuGetErrorName(code: u32, name: *mut *const c_char);
    fn cuGetErrorString(code: u32, text: *mut *const c_char);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuCtxPushCurrent_v2(context: CUcontext);
    fn cuCtxPopCurrent_v2(context: *mut CUcontext);
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxGetStreamPriorityRange(lowest: *mut c_int, highest: *mut c_int);
    fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut u32);
    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemFreeHost(address: *mut c_void);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        count: c_uint,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
    );
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    fn cuPointerGetAttributes(
        count: c_uint,
        attributes: *mut CUpointer_attribute,
        values: *mut *mut c_void,
        address: CUdeviceptr,
    );
    fn cuMemGetAddressRange_v2(start: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr);
}
