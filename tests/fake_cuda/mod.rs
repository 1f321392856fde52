//! The fake CUDA driver of this folder: built, loaded as this process's libcuda, its control calls wrapped.
//!
//! `Fake::start` must come before the library looks for libcuda. Tests that use it run one at a time.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, OnceLock};

use libc::{RTLD_GLOBAL, RTLD_NOW, dlerror, dlopen, dlsym};

pub const LEGACY_STREAM: u64 = 1;
pub const PER_THREAD_STREAM: u64 = 2;
/// Some of the driver's error codes.
pub const OUT_OF_MEMORY: i32 = 2;
pub const INVALID_PTX: i32 = 218;
pub const UNKNOWN: i32 = 999;

/// Modes of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    Global,
    ThreadLocal,
    Relaxed,
}

/// What the library holds; see fake_cuda.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub contexts: [u64; 8],
    pub streams: u64,
    pub events: u64,
    pub modules: u64,
    pub device_allocations: u64,
    pub device_bytes: u64,
    pub pinned_allocations: u64,
    pub pinned_bytes: u64,
    pub most_device_bytes: u64,
    pub most_pinned_bytes: u64,
    pub queued: u64,
    pub queued_elsewhere: u64,
}

macro_rules! control_calls {
    ($(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        struct Calls {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Calls {
            /// # Safety
            /// `library` is the fake driver.
            unsafe fn of(library: NonNull<c_void>) -> Self {
                // SAFETY: fake_cuda.h declares the functions with these parameters and results.
                unsafe {
                    Self {
                        $($name: std::mem::transmute::<
                            NonNull<c_void>,
                            unsafe extern "C" fn($($argument),*) $(-> $result)?,
                        >(symbol(library, stringify!($name))),)*
                    }
                }
            }
        }
    };
}

control_calls! {
    fn fake_reset();
    fn fake_counts(*mut Counts);
    fn fake_device_count(c_int);
    fn fake_device_limit(u64);
    fn fake_pinned_limit(u64);
    fn fake_alloc(c_int, u64) -> u64;
    fn fake_free(u64) -> c_int;
    fn fake_offload(u64) -> u64;
    fn fake_reserve(c_int, u64) -> u64;
    fn fake_map(u64, u64) -> c_int;
    fn fake_unmap(u64, u64) -> c_int;
    fn fake_split(u64, u64) -> c_int;
    fn fake_unreserve(u64) -> c_int;
    fn fake_write(u64, *const u8, u64) -> c_int;
    fn fake_read(*mut u8, u64, u64) -> c_int;
    fn fake_stream(c_int) -> u64;
    fn fake_stream_free(u64) -> c_int;
    fn fake_write_later(u64, u64, *const u8, u64) -> c_int;
    fn fake_run(c_int);
    fn fake_push_context(c_int) -> c_int;
    fn fake_pop_context() -> c_int;
    fn fake_capture(u64, c_int) -> c_int;
    fn fake_capture_invalidated(u64) -> c_int;
    fn fake_context_depth() -> c_int;
    fn fake_context_device() -> c_int;
    fn fake_capture_mode() -> c_int;
    fn fake_fail(*const c_char, u64, c_int);
    fn fake_fail_nth(u64, c_int);
    fn fake_clear_failures();
    fn fake_failures_left() -> u64;
    fn fake_call_count() -> u64;
    fn fake_call_name(u64) -> *const c_char;
    fn fake_clear_log();
    fn fake_misuse_count() -> u64;
    fn fake_misuse(u64) -> *const c_char;
    fn fake_clear_misuses();
}

fn symbol(library: NonNull<c_void>, name: &str) -> NonNull<c_void> {
    let name = CString::new(name).unwrap();
    // SAFETY: the library is open and stays so; the name is a C string.
    NonNull::new(unsafe { dlsym(library.as_ptr(), name.as_ptr()) }).unwrap_or_else(|| panic!("no {name:?}"))
}

fn load() -> Calls {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_cuda/build.sh");
    // Where the tests in Python build it too.
    let output = concat!(env!("CARGO_MANIFEST_DIR"), "/target/fake_cuda");
    let built = Command::new("bash").args([sources, output]).status().expect("bash runs");
    assert!(built.success(), "the fake driver builds");
    let path = CString::new(format!("{output}/libcuda.so.1")).unwrap();
    // SAFETY: the fake's initialisers only fill its own tables.
    let library = NonNull::new(unsafe { dlopen(path.as_ptr(), RTLD_NOW | RTLD_GLOBAL) });
    // SAFETY: after a dlopen that failed there is an error text.
    let library = library.unwrap_or_else(|| panic!("{:?}", unsafe { CStr::from_ptr(dlerror()) }));
    // SAFETY: it is the fake that was built above.
    unsafe { Calls::of(library) }
}

/// The driver that this process has, in its first state, for as long as this lives.
pub struct Fake {
    calls: &'static Calls,
    _one_at_a_time: MutexGuard<'static, ()>,
}

impl Fake {
    pub fn start() -> Self {
        static LOCK: Mutex<()> = Mutex::new(());
        static CALLS: OnceLock<Calls> = OnceLock::new();
        // A test that failed says nothing about this one, which begins with a reset.
        let guard = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let fake = Self { calls: CALLS.get_or_init(load), _one_at_a_time: guard };
        fake.reset();
        fake
    }

    pub fn reset(&self) {
        unsafe { (self.calls.fake_reset)() }
    }

    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        unsafe { (self.calls.fake_counts)(&raw mut counts) };
        counts
    }

    pub fn device_count(&self, devices: i32) {
        unsafe { (self.calls.fake_device_count)(devices) }
    }

    pub fn device_limit(&self, bytes: u64) {
        unsafe { (self.calls.fake_device_limit)(bytes) }
    }

    pub fn pinned_limit(&self, bytes: u64) {
        unsafe { (self.calls.fake_pinned_limit)(bytes) }
    }

    pub fn alloc(&self, device: i32, bytes: usize) -> DeviceMemory<'_> {
        let address = unsafe { (self.calls.fake_alloc)(device, bytes as u64) };
        assert_ne!(address, 0, "{bytes} bytes on device {device}");
        DeviceMemory { fake: self, address, bytes }
    }

    /// Memory that holds `data`.
    pub fn put(&self, device: i32, data: &[u8]) -> DeviceMemory<'_> {
        let memory = self.alloc(device, data.len());
        memory.write(0, data);
        memory
    }

    /// Host memory that devices read, until the next reset.
    pub fn offload(&self, data: &[u8]) -> u64 {
        let address = unsafe { (self.calls.fake_offload)(data.len() as u64) };
        assert_ne!(address, 0, "{} bytes of pinned memory", data.len());
        // SAFETY: as long as the data, and nobody else's.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address as usize).copy_from(data.as_ptr(), data.len()) };
        address
    }

    /// Addresses without memory, until the next reset; `map` gives them some.
    pub fn reserve(&self, device: i32, bytes: usize) -> u64 {
        let address = unsafe { (self.calls.fake_reserve)(device, bytes as u64) };
        assert_ne!(address, 0, "{bytes} bytes of addresses on device {device}");
        address
    }

    /// Makes two reservations of one.
    pub fn split(&self, address: u64, bytes: usize) {
        assert_eq!(unsafe { (self.calls.fake_split)(address, bytes as u64) }, 1, "split");
    }

    pub fn map(&self, address: u64, bytes: usize) {
        assert_eq!(unsafe { (self.calls.fake_map)(address, bytes as u64) }, 1, "map");
    }

    pub fn unmap(&self, address: u64, bytes: usize) {
        assert_eq!(unsafe { (self.calls.fake_unmap)(address, bytes as u64) }, 1, "unmap");
    }

    /// At once, whatever is queued.
    pub fn write(&self, address: u64, data: &[u8]) {
        assert_eq!(unsafe { (self.calls.fake_write)(address, data.as_ptr(), data.len() as u64) }, 1, "write");
    }

    /// As it is now; nothing queued runs.
    pub fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        assert_eq!(unsafe { (self.calls.fake_read)(data.as_mut_ptr(), address, bytes as u64) }, 1, "read");
        data
    }

    /// A producer's stream, until the next reset.
    pub fn stream(&self, device: i32) -> u64 {
        let handle = unsafe { (self.calls.fake_stream)(device) };
        assert_ne!(handle, 0, "a stream of device {device}");
        handle
    }

    pub fn stream_free(&self, stream: u64) {
        assert_eq!(unsafe { (self.calls.fake_stream_free)(stream) }, 1, "stream_free");
    }

    /// Queued: the work of a producer.
    pub fn write_later(&self, stream: u64, address: u64, data: &[u8]) {
        let done = unsafe { (self.calls.fake_write_later)(stream, address, data.as_ptr(), data.len() as u64) };
        assert_eq!(done, 1, "write_later");
    }

    /// Time passes: everything queued on the device runs.
    pub fn run(&self, device: i32) {
        unsafe { (self.calls.fake_run)(device) }
    }

    /// This thread gets a current context, as a framework sets one.
    pub fn push_context(&self, device: i32) {
        assert_eq!(unsafe { (self.calls.fake_push_context)(device) }, 1, "push_context");
    }

    pub fn pop_context(&self) {
        assert_eq!(unsafe { (self.calls.fake_pop_context)() }, 1, "pop_context");
    }

    /// Of this thread.
    pub fn context_depth(&self) -> i32 {
        unsafe { (self.calls.fake_context_depth)() }
    }

    /// The device of this thread's current context; -1 without one.
    pub fn context_device(&self) -> i32 {
        unsafe { (self.calls.fake_context_device)() }
    }

    /// Begins a capture of the stream by this thread, which must end it.
    pub fn begin_capture(&self, stream: u64, mode: Capture) {
        assert_eq!(unsafe { (self.calls.fake_capture)(stream, mode as c_int) }, 1, "begin_capture");
    }

    /// Ends it; whether something invalidated it.
    pub fn end_capture(&self, stream: u64) -> bool {
        assert_eq!(unsafe { (self.calls.fake_capture)(stream, -1) }, 1, "end_capture");
        unsafe { (self.calls.fake_capture_invalidated)(stream) == 1 }
    }

    /// This thread's mode: 0 unless it was left changed.
    pub fn capture_mode(&self) -> i32 {
        unsafe { (self.calls.fake_capture_mode)() }
    }

    /// The nth call from now of a driver function (1: the next one) gives `error` and does nothing.
    pub fn fail(&self, name: &str, nth: u64, error: i32) {
        let name = CString::new(name).unwrap();
        unsafe { (self.calls.fake_fail)(name.as_ptr(), nth, error) }
    }

    /// The nth call from now of any driver function.
    pub fn fail_nth(&self, nth: u64, error: i32) {
        unsafe { (self.calls.fake_fail_nth)(nth, error) }
    }

    pub fn clear_failures(&self) {
        unsafe { (self.calls.fake_clear_failures)() }
    }

    /// How many of the failures asked for have not come.
    pub fn failures_left(&self) -> u64 {
        unsafe { (self.calls.fake_failures_left)() }
    }

    /// The driver calls since the last reset or `clear_log`.
    pub fn log(&self) -> Vec<String> {
        let count = unsafe { (self.calls.fake_call_count)() };
        (0..count).map(|index| text(unsafe { (self.calls.fake_call_name)(index) })).collect()
    }

    pub fn clear_log(&self) {
        unsafe { (self.calls.fake_clear_log)() }
    }

    /// What the library did that a real driver forbids or leaves undefined.
    pub fn misuses(&self) -> Vec<String> {
        let count = unsafe { (self.calls.fake_misuse_count)() };
        (0..count).map(|index| text(unsafe { (self.calls.fake_misuse)(index) })).collect()
    }

    pub fn clear_misuses(&self) {
        unsafe { (self.calls.fake_clear_misuses)() }
    }
}

fn text(from: *const c_char) -> String {
    assert!(!from.is_null());
    // SAFETY: the fake's texts end with 0 and stay until the next driver call.
    unsafe { CStr::from_ptr(from) }.to_str().unwrap().to_owned()
}

/// Memory of a framework on a fake device; freed when dropped.
pub struct DeviceMemory<'f> {
    fake: &'f Fake,
    pub address: u64,
    pub bytes: usize,
}

impl DeviceMemory<'_> {
    pub fn write(&self, offset: u64, data: &[u8]) {
        self.fake.write(self.address + offset, data);
    }

    pub fn write_later(&self, stream: u64, offset: u64, data: &[u8]) {
        self.fake.write_later(stream, self.address + offset, data);
    }

    pub fn read(&self) -> Vec<u8> {
        self.fake.read(self.address, self.bytes)
    }
}

impl Drop for DeviceMemory<'_> {
    fn drop(&mut self) {
        // A reset has freed it already when this says 0.
        unsafe { (self.fake.calls.fake_free)(self.address) };
    }
}
