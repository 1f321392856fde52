//! Contexts: the device's primary one, entering one, and giving back what was made in one.

use std::ffi::c_void;
use std::ops::Deref;
use std::ptr;

use cudarc::driver::sys;

use super::{call, succeeded};
use crate::status::Result;

/// A context of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context(pub(super) sys::CUcontext);

// SAFETY: a handle that all threads may use (Driver API, "Context Management").
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Runs `work` with this context as the calling thread's current one, and leaves the thread as it was found.
    ///
    /// Meanwhile the thread's stream capture mode is relaxed: otherwise memory that is allocated here would break a graph
    /// that another thread captures.
    pub fn enter<T>(self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let relaxed = CaptureMode::relax()?;
        let current = Current::push(self)?;
        let result = work();
        let popped = current.leave();
        let restored = relaxed.restore();
        result.and_then(|value| popped.and(restored).map(|()| value))
    }
}

/// The context on top of the calling thread's stack, until this is dropped.
struct Current(Context);

impl Current {
    fn push(context: Context) -> Result<Self> {
        // SAFETY: a context that is alive: primary ones are retained for as long as the process runs.
        unsafe { call!(cuCtxPushCurrent_v2(context.0)) }.map(|()| Self(context))
    }

    fn leave(self) -> Result<()> {
        let popped = self.pop();
        std::mem::forget(self);
        popped
    }

    /// Pops it, and when that fails once more, if it is still there: a context below it is the caller's.
    fn pop(&self) -> Result<()> {
        let (mut popped, mut current) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: writes one handle. What is popped is what `push` has pushed on this thread, which `enter` does not leave.
        let mut pop = || unsafe { call!(cuCtxPopCurrent_v2(&raw mut popped)) };
        pop().inspect_err(|_| {
            // SAFETY: writes one handle.
            let asked = unsafe { call!(cuCtxGetCurrent(&raw mut current)) };
            if asked.is_ok() && current == self.0.0 {
                let _ = pop();
            }
        })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        warn(self.pop());
    }
}

/// The calling thread's stream capture mode, as it was; it is that again when this is dropped.
struct CaptureMode(sys::CUstreamCaptureMode);

impl CaptureMode {
    fn relax() -> Result<Self> {
        Self::exchange(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).map(Self)
    }

    fn restore(self) -> Result<()> {
        let mode = self.0;
        std::mem::forget(self);
        twice(|| Self::exchange(mode).map(|_| ()))
    }

    fn exchange(mut mode: sys::CUstreamCaptureMode) -> Result<sys::CUstreamCaptureMode> {
        // SAFETY: exchanges one value of this thread.
        unsafe { call!(cuThreadExchangeStreamCaptureMode(&raw mut mode)) }.map(|()| mode)
    }
}

impl Drop for CaptureMode {
    fn drop(&mut self) {
        warn(twice(|| Self::exchange(self.0).map(|_| ())));
    }
}

/// Does what may be done twice, and does it again when it fails: the driver may report the failure of earlier work, but the
/// thread and the streams must be as they should be. The first failure is the result.
pub fn twice(mut act: impl FnMut() -> Result<()>) -> Result<()> {
    act().inspect_err(|_| {
        let _ = act();
    })
}

/// Reports a failure where there is nobody to give it to.
fn warn(result: Result<()>) {
    if let Err(error) = result {
        log::warn!("while giving back to the CUDA driver: {error}");
    }
}

/// Something that the driver has made in a context and must get back.
pub struct Owned {
    /// The context.
    pub context: Context,
    /// Its handle or address.
    pub handle: *mut c_void,
    /// Gives the handle back.
    pub release: fn(*mut c_void) -> Result<()>,
}

// SAFETY: handles of the driver and addresses of its memory may be used and given back by any thread.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    /// Gives it back now.
    pub fn close(self) -> Result<()> {
        let result = self.give_back();
        std::mem::forget(self);
        result
    }

    fn give_back(&self) -> Result<()> {
        // Once at most: a driver that reports the failure of earlier work has given it back all the same, and what has its
        // address or handle by then is somebody else's.
        let mut is_tried = false;
        let mut release = || if std::mem::replace(&mut is_tried, true) { Ok(()) } else { (self.release)(self.handle) };
        twice(|| self.context.enter(&mut release))
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        warn(self.give_back());
    }
}

/// A device's primary context, the one that PyTorch uses, kept alive until this is dropped.
pub struct PrimaryContext {
    device: sys::CUdevice,
    context: Context,
}

impl PrimaryContext {
    /// The one of the device with this ordinal, which must be there.
    pub fn retain(ordinal: i32) -> Result<Self> {
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: each writes one value.
        unsafe {
            call!(cuDeviceGet(&raw mut device, ordinal))?;
            call!(cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        }
        Ok(Self { device, context: Context(context) })
    }
}

impl Deref for PrimaryContext {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: retained once by this value, whose users have ended.
        warn(unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.device)) });
    }
}
