//! The functions of the CUDA driver that this crate calls, with their errors as statuses and what they make as values that
//! are given back. The only file that names cudarc, which finds libcuda when it is first needed.
//!
//! Source of what is said of functions here: NVIDIA's CUDA Driver API reference.

use std::ffi::{CStr, c_char, c_void};
use std::ops::{Deref, Range};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys;

use crate::status::{Error, Result, Status};

/// Calls a function of the driver; its name and error become an [`Error`].
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        succeeded(stringify!($function), sys::$function($($argument),*) as u32)
    };
}

fn succeeded(function: &str, code: u32) -> Result<()> {
    if code == sys::CUresult::CUDA_SUCCESS as u32 { Ok(()) } else { Err(failure(function, code)) }
}

/// The error of a call that gave `code`, which is not 0.
fn failure(function: &str, code: u32) -> Error {
    use sys::CUresult as Code;
    const OUT_OF_MEMORY: u32 = Code::CUDA_ERROR_OUT_OF_MEMORY as u32;
    const UNSUPPORTED_PTX: u32 = Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION as u32;
    const FIRST_OF_CAPTURE: u32 = Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as u32;
    const LAST_OF_CAPTURE: u32 = Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD as u32;
    const UNAVAILABLE: [u32; 7] = [
        Code::CUDA_ERROR_NOT_INITIALIZED as u32,
        Code::CUDA_ERROR_DEINITIALIZED as u32,
        Code::CUDA_ERROR_STUB_LIBRARY as u32,
        Code::CUDA_ERROR_NO_DEVICE as u32,
        Code::CUDA_ERROR_INVALID_DEVICE as u32,
        Code::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH as u32,
        Code::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE as u32,
    ];
    let (status, advice) = match code {
        OUT_OF_MEMORY => (Status::OutOfDeviceMemory, "; the check needs some MiB: leave them free"),
        FIRST_OF_CAPTURE..=LAST_OF_CAPTURE => {
            (Status::StreamCapturing, "; check when no CUDA graph is captured, or name another stream")
        }
        UNSUPPORTED_PTX => (Status::CudaUnavailable, "; the driver is too old for this library's kernels"),
        code if UNAVAILABLE.contains(&code) => (Status::CudaUnavailable, ""),
        _ => (Status::Cuda, ""),
    };
    Error::new(status, format!("{function} failed: {}{advice}", describe(code)))
}

/// Name and description of an error code.
fn describe(code: u32) -> String {
    type Explain = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;
    let explain = |name: &[u8]| {
        // SAFETY: both functions have this signature (cuda.h), the code by its number, as newer drivers have newer codes;
        // the text that they give is static. The library is there, since a call of it has failed.
        unsafe {
            let function = sys::culib().get::<Explain>(name).ok()?;
            let mut text = ptr::null();
            let is_known = function(code, &raw mut text) == 0 && !text.is_null();
            is_known.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    match (explain(b"cuGetErrorName\0"), explain(b"cuGetErrorString\0")) {
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

/// A context of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context(sys::CUcontext);

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
struct Current;

impl Current {
    fn push(context: Context) -> Result<Self> {
        // SAFETY: a context that is alive: primary ones are retained for as long as the process runs.
        unsafe { call!(cuCtxPushCurrent_v2(context.0)) }.map(|()| Self)
    }

    fn leave(self) -> Result<()> {
        std::mem::forget(self);
        Self::pop()
    }

    fn pop() -> Result<()> {
        let mut popped = ptr::null_mut();
        // SAFETY: writes one handle. What is popped is what `push` has pushed on this thread, which `enter` does not leave.
        let pop = || unsafe { call!(cuCtxPopCurrent_v2(&raw mut popped)) };
        twice(pop)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        warn(Self::pop());
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

/// Gives something back to the driver. A failure is reported, as it may be that of earlier work, but what can be given back
/// by trying again is not lost for it.
fn twice(release: impl FnMut() -> Result<()>) -> Result<()> {
    let mut release = release;
    release().inspect_err(|_| {
        let _ = release();
    })
}

/// Reports a failure where there is nobody to give it to.
fn warn(result: Result<()>) {
    if let Err(error) = result {
        log::warn!("while giving back to the CUDA driver: {error}");
    }
}

/// Something that the driver has made in a context and must get back.
struct Owned {
    context: Context,
    handle: *mut c_void,
    release: fn(*mut c_void) -> Result<()>,
}

// SAFETY: handles of the driver and addresses of its memory may be used and given back by any thread.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    fn close(self) -> Result<()> {
        let result = self.give_back();
        std::mem::forget(self);
        result
    }

    fn give_back(&self) -> Result<()> {
        let mut is_released = false;
        let mut release = || {
            if !is_released {
                (self.release)(self.handle)?;
                is_released = true;
            }
            Ok(())
        };
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
        warn(twice(|| unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.device)) }));
    }
}

/// A stream of this library.
pub struct Stream(Owned);

impl Stream {
    /// A new one in the current context `context`. It does not wait for the legacy default stream, and has the lowest priority: kernels
    /// of an engine that serves meanwhile go first.
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

    fn raw(&self) -> sys::CUstream {
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
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: as in `context`.
        unsafe { call!(cuStreamIsCapturing(self.raw(), &raw mut status)) }?;
        if status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
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

/// Memory of a device that this library has allocated.
pub struct DeviceMemory {
    owned: Owned,
    bytes: u64,
}

impl DeviceMemory {
    /// `bytes` of the current context `context`, aligned to 256 bytes, with whatever is in them.
    pub fn new(context: Context, bytes: u64) -> Result<Self> {
        let mut address = 0;
        // SAFETY: writes one address.
        unsafe { call!(cuMemAlloc_v2(&raw mut address, bytes as usize)) }?;
        // SAFETY: allocated above, given back once.
        let release = |address: *mut c_void| unsafe { call!(cuMemFree_v2(address.addr() as u64)) };
        let handle = ptr::without_provenance_mut(address as usize);
        Ok(Self { owned: Owned { context, handle, release }, bytes })
    }

    /// The address, on the device, of `range` of it.
    ///
    /// # Panics
    /// When the range is not in it.
    pub fn address(&self, range: Range<u64>) -> u64 {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        self.owned.handle.addr() as u64 + range.start
    }

    /// Copies `bytes` to `offset`, when `stream` has come to it; they may be changed at once.
    pub fn write(&self, offset: u64, bytes: &[u8], stream: &Stream) -> Result<()> {
        let to = self.address(offset..offset + bytes.len() as u64);
        // SAFETY: as many bytes as there are on both sides. The source is pageable, and of such the driver returns only when
        // it has taken a copy.
        unsafe { call!(cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), stream.raw())) }
    }

    /// Copies what is at `offset` to `bytes` and waits for it.
    pub fn read(&self, offset: u64, bytes: &mut [u8], stream: &Stream) -> Result<()> {
        let from = self.address(offset..offset + bytes.len() as u64);
        // SAFETY: as many bytes as there are on both sides; the copy has ended when this returns, or nothing can be said of
        // what is in `bytes`, which are plain.
        unsafe { call!(cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, bytes.len(), stream.raw())) }?;
        stream.synchronize()
    }

    /// Gives it back; nothing may be in a queue that uses it.
    pub fn close(self) -> Result<()> {
        self.owned.close()
    }
}

/// Host memory that devices can write to while the host goes on.
pub struct PinnedMemory {
    owned: Owned,
    bytes: usize,
}

impl PinnedMemory {
    /// `bytes` in the current context `context`, for all devices.
    pub fn new(context: Context, bytes: usize) -> Result<Self> {
        let mut address = ptr::null_mut();
        // SAFETY: writes one address.
        unsafe { call!(cuMemHostAlloc(&raw mut address, bytes, sys::CU_MEMHOSTALLOC_PORTABLE)) }?;
        // SAFETY: allocated above, given back once.
        let release = |address: *mut c_void| unsafe { call!(cuMemFreeHost(address)) };
        Ok(Self { owned: Owned { context, handle: address, release }, bytes })
    }

    /// Copies `bytes` of a device, from `address` on, to `offset`, when `stream` has come to it.
    ///
    /// # Safety
    /// The bytes at `address` are allocated and stay so, and nobody reads or writes those here or gives this memory back,
    /// until the stream has passed the copy.
    pub unsafe fn copy_from(&self, offset: usize, address: u64, bytes: usize, stream: &Stream) -> Result<()> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "{offset} + {bytes} of {}", self.bytes);
        // SAFETY: inside of this memory by the assertion; the caller vouches for the rest.
        unsafe {
            let to = self.owned.handle.cast::<u8>().add(offset);
            call!(cuMemcpyDtoHAsync_v2(to.cast(), address, bytes, stream.raw()))
        }
    }

    /// Bytes of it.
    ///
    /// # Safety
    /// No copy to them is in a queue for as long as the slice lives.
    pub unsafe fn slice(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {}", self.bytes);
        // SAFETY: inside of this memory, which comes from the system and so has values; the caller vouches that nobody writes.
        unsafe { std::slice::from_raw_parts(self.owned.handle.cast::<u8>().add(range.start), range.len()) }
    }

    /// Gives it back; no copy to it may be in a queue.
    pub fn close(self) -> Result<()> {
        self.owned.close()
    }
}

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

/// What the driver knows of an address.
#[derive(Clone, Debug)]
pub struct Pointer {
    /// Whether it is memory of a device, of the host, or unknown.
    pub kind: Memory,
    /// The device's ordinal.
    pub ordinal: i32,
    /// The addresses of the allocation that it is in, or of the reservation: some of one may not be mapped. Empty when it is
    /// not known.
    pub allocation: Range<u64>,
}

/// Kinds of memory, as the driver tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Not allocated by CUDA, or not any more.
    Unknown,
    /// The host's.
    Host,
    /// A device's.
    Device,
}

/// Looks an address up.
pub fn pointer(address: u64) -> Result<Pointer> {
    use sys::CUpointer_attribute as Attribute;
    let mut attributes = [
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    ];
    // Each attribute is a value of 4 or 8 bytes, and the rest of its place stays 0.
    let mut values = [0u64; 4];
    let mut places = values.each_mut().map(|value| ptr::from_mut(value).cast());
    // SAFETY: as many attributes as places, each of 8 bytes; the address is only looked up.
    unsafe {
        let count = attributes.len() as u32;
        call!(cuPointerGetAttributes(count, attributes.as_mut_ptr(), places.as_mut_ptr(), address))
    }?;
    let [kind, ordinal, start, bytes] = values;
    let kind = match kind as u32 {
        kind if kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 => Memory::Device,
        kind if kind == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32 => Memory::Host,
        _ => Memory::Unknown,
    };
    Ok(Pointer { kind, ordinal: ordinal as u32 as i32, allocation: start..start.saturating_add(bytes) })
}

/// The addresses that are mapped together with this one; `None` when it is not mapped.
pub fn mapped(address: u64) -> Result<Option<Range<u64>>> {
    const NOT_MAPPED: [u32; 2] =
        [sys::CUresult::CUDA_ERROR_NOT_FOUND as u32, sys::CUresult::CUDA_ERROR_INVALID_VALUE as u32];
    let (mut start, mut bytes) = (0, 0);
    // SAFETY: writes two values; the address is only looked up.
    let code = unsafe { sys::cuMemGetAddressRange_v2(&raw mut start, &raw mut bytes, address) } as u32;
    if NOT_MAPPED.contains(&code) {
        return Ok(None);
    }
    succeeded("cuMemGetAddressRange_v2", code)?;
    let range = start..start.saturating_add(bytes as u64);
    Ok(range.contains(&address).then_some(range))
}
