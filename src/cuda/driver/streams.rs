//! Streams, ours and the caller's, and the events that order them.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys;

use super::context::{Context, Owned, twice};
use super::{call, succeeded};
use crate::status::{Error, Result, Status};

/// A stream of this library.
pub struct Stream(Owned);

impl Stream {
    /// A new one in the current context `context`. It does not wait for the legacy default stream. Its priority is the lowest that
    /// there is, which is also that of streams made without one: only an engine's streams of a higher one go first.
    pub fn new(context: Context) -> Result<Self> {
        let (mut lowest, mut highest, mut stream) = (0, 0, ptr::null_mut());
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: each writes its values.
        unsafe {
            call!(cuCtxGetStreamPriorityRange(&raw mut lowest, &raw mut highest))?;
            call!(cuStreamCreateWithPriority(&raw mut stream, flags, lowest))?;
        }
        // SAFETY: made above, given back once.
        let release = |stream: *mut c_void| unsafe { call!(cuStreamDestroy_v2(stream.cast())) };
        Ok(Self(Owned { context, handle: stream.cast(), release }))
    }

    /// Its handle.
    pub fn raw(&self) -> sys::CUstream {
        self.0.handle.cast()
    }

    /// Makes what comes later in this stream wait for `event`.
    pub fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: both are alive.
        unsafe { call!(cuStreamWaitEvent(self.raw(), event.raw(), 0)) }
    }

    /// Waits until all work in it is done.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: it is alive.
        twice(|| unsafe { call!(cuStreamSynchronize(self.raw())) })
    }
}

/// The stream of a caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Producer(usize);

impl Producer {
    /// The stream with this handle, which must be alive for as long as the value is used: a `cudaStream_t` or `CUstream`.
    pub fn new(handle: *mut c_void) -> Self {
        Self(handle.addr())
    }

    fn raw(self) -> sys::CUstream {
        ptr::with_exposed_provenance_mut(self.0)
    }

    /// Whether it stands for the default stream of whatever context is current: NULL, `CU_STREAM_LEGACY` and
    /// `CU_STREAM_PER_THREAD`.
    pub fn is_default(self) -> bool {
        self.0 <= 2
    }

    /// The context that it belongs to.
    pub fn context(self) -> Result<Context> {
        let mut context = ptr::null_mut();
        // SAFETY: the caller of `new` keeps the stream alive; writes one handle.
        unsafe { call!(cuStreamGetCtx(self.raw(), &raw mut context)) }?;
        Ok(Context(context))
    }

    /// Refuses a stream that is being captured into a graph: what is queued in it is not run.
    pub fn refuse_capture(self) -> Result<()> {
        const NOT_CAPTURING: u32 = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32;
        let mut status = NOT_CAPTURING;
        // SAFETY: as in `context`.
        unsafe { call!(cuStreamIsCapturing(self.raw(), &raw mut status)) }?;
        if status == NOT_CAPTURING {
            return Ok(());
        }
        let what =
            "the stream is being captured into a CUDA graph, and what is captured does not run: check before or after";
        Err(Error::new(Status::StreamCapturing, what))
    }
}

/// A point in a stream.
pub struct Event(Owned);

impl Event {
    /// A new one in the current context `context`. Whoever waits for it sleeps: the cores are needed to hash.
    pub fn new(context: Context) -> Result<Self> {
        let mut event = ptr::null_mut();
        let flags =
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        // SAFETY: writes one handle.
        unsafe { call!(cuEventCreate(&raw mut event, flags)) }?;
        // SAFETY: made above, given back once.
        let release = |event: *mut c_void| unsafe { call!(cuEventDestroy_v2(event.cast())) };
        Ok(Self(Owned { context, handle: event.cast(), release }))
    }

    fn raw(&self) -> sys::CUevent {
        self.0.handle.cast()
    }

    /// Makes it the point that `stream` has come to.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both are alive and of one context.
        unsafe { call!(cuEventRecord(self.raw(), stream.raw())) }
    }

    /// Makes it the point that a caller's stream, of the same context, has come to.
    pub fn record_in(&self, producer: Producer) -> Result<()> {
        // SAFETY: the event is alive, and the stream by the caller of `Producer::new`.
        unsafe { call!(cuEventRecord(self.raw(), producer.raw())) }
    }

    /// Waits until the stream has passed it.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: it is alive.
        unsafe { call!(cuEventSynchronize(self.raw())) }
    }

    /// Gives it back; a stream that waits for it goes on to.
    pub fn close(self) -> Result<()> {
        self.0.close()
    }
}
