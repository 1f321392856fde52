//! What every C function shares: the panic boundary, the last error, and turning C pointers into checked values.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::types::{WcOptions, WcProgressCallback, WcRank, WcTensor};
use crate::cuda::Producer;
use crate::digest::Algorithm;
use crate::layout::MAX_NDIM;
use crate::ops::Options;
use crate::rank::Rank;
use crate::status::{Error, Result, Status};
use crate::view::RawTensor;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of a C function: its error or panic becomes the status, and the message of [`last_error`].
pub fn guard(body: impl FnOnce() -> Result<()>) -> Status {
    // The body's captures are read-only inputs of the call and outputs that it writes last, so nothing half done is seen.
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        Err(Error::new(Status::Panic, format!("a bug in weight-checker: {}", panic_text(panic.as_ref()))))
    });
    let (status, message) = match &outcome {
        Ok(()) => (Status::Ok, ""),
        Err(error) => (error.status(), error.message()),
    };
    // A name cannot hold a NUL, but a JSON key can.
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    LAST_ERROR.set(message);
    status
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("panic without a message")
}

/// This thread's last message; valid until its next call into the library.
pub fn last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|message| message.as_ptr())
}

/// Refuses a NULL pointer, by the name of its argument.
pub fn not_null<T>(pointer: *const T, argument: &str) -> Result<()> {
    if pointer.is_null() {
        return Err(Error::new(Status::NullPointer, format!("argument '{argument}' is NULL")));
    }
    Ok(())
}

/// The text behind `pointer`. An error says what is wrong with it; the caller adds what it is.
///
/// # Safety
/// `pointer` is NULL or a NUL-terminated string that outlives `'a`.
pub unsafe fn text<'a>(pointer: *const c_char, not_utf8: Status) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(Error::new(Status::NullPointer, "is NULL"));
    }
    // SAFETY: not NULL; the caller vouches for the rest.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map_err(|error| Error::new(not_utf8, format!("is not UTF-8: {error}")))
}

/// The text of the argument called `name`, which must be there.
///
/// # Safety
/// As [`text`].
pub unsafe fn argument_text<'a>(pointer: *const c_char, name: &str, not_utf8: Status) -> Result<&'a str> {
    // SAFETY: by the caller.
    let text = unsafe { text(pointer, not_utf8) };
    text.map_err(|error| Error::new(error.status(), format!("argument '{name}' {error}")))
}

/// The path behind `pointer`, in whatever bytes the system takes; `None` when it is NULL.
///
/// # Safety
/// As [`text`].
pub unsafe fn path<'a>(pointer: *const c_char) -> Option<&'a Path> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: not NULL; the caller vouches for the rest.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    Some(Path::new(OsStr::from_bytes(bytes.to_bytes())))
}

/// `count` values behind `pointer`, which may be NULL when there are none.
///
/// # Safety
/// `pointer` is NULL or points to `count` initialised values that outlive `'a`.
pub unsafe fn slice<'a, T>(pointer: *const T, count: usize, argument: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    not_null(pointer, argument)?;
    if !pointer.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        let what = format!("argument '{argument}' is misaligned or its {count} values do not fit into memory");
        return Err(Error::new(Status::SizeOverflow, what));
    }
    // SAFETY: not NULL, aligned, small enough; the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// The tensors as the caller describes them; `view::views` checks what they say.
///
/// # Safety
/// As the header says of `tensors` and `count`: readable structs whose pointers are NULL or valid for the call.
pub unsafe fn tensors<'a>(pointer: *const WcTensor, count: usize) -> Result<Vec<RawTensor<'a>>> {
    // A caller built with another header has its structs elsewhere, so the first size is looked at before the slice is.
    if count > 0 {
        not_null(pointer, "tensors")?;
        // SAFETY: not NULL and at least one struct, by the caller; every version of it starts with its size.
        struct_size(unsafe { pointer.cast::<usize>().read_unaligned() }, size_of::<WcTensor>(), "WcTensor")?;
    }
    // SAFETY: the caller vouches for it.
    let tensors: &[WcTensor] = unsafe { slice(pointer, count, "tensors") }?;
    // SAFETY: likewise for each tensor's pointers.
    tensors.iter().enumerate().map(|(index, tensor)| unsafe { raw_tensor(tensor, index) }).collect()
}

/// # Safety
/// As [`tensors`].
unsafe fn raw_tensor<'a>(tensor: &WcTensor, index: usize) -> Result<RawTensor<'a>> {
    struct_size(tensor.struct_size, size_of::<WcTensor>(), "WcTensor")?;
    // SAFETY: the caller vouches that the name is NULL or a string.
    let name = unsafe { text(tensor.name, Status::BadName) }
        .map_err(|error| Error::new(error.status(), format!("tensors[{index}].name {error}")))?;
    let refuse = |status, what: String| Error::of_tensor(status, name, what);
    let ndim = usize::try_from(tensor.ndim)
        .ok()
        .filter(|ndim| *ndim <= MAX_NDIM)
        .ok_or_else(|| refuse(Status::BadNdim, format!("ndim {} is not in 0 to {MAX_NDIM}", tensor.ndim)))?;
    // SAFETY: the caller vouches that shape is NULL or points to ndim extents.
    let shape =
        unsafe { slice(tensor.shape, ndim, "shape") }.map_err(|error| refuse(error.status(), error.to_string()))?;
    let strides = match tensor.strides.is_null() {
        true => None,
        // SAFETY: the caller vouches that strides points to ndim strides.
        false => Some(
            unsafe { slice(tensor.strides, ndim, "strides") }
                .map_err(|error| refuse(error.status(), error.to_string()))?,
        ),
    };
    Ok(RawTensor {
        name,
        data: tensor.data.cast(),
        device: (tensor.device.device_type, tensor.device.device_id),
        dtype: (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes),
        shape,
        strides,
        byte_offset: tensor.byte_offset,
    })
}

fn struct_size(found: usize, expected: usize, name: &str) -> Result<()> {
    if found != expected {
        let what =
            format!("{name}.struct_size is {found}, this library's is {expected}: use the header of its version");
        return Err(Error::new(Status::BadStructSize, what));
    }
    Ok(())
}

/// The rank behind `pointer`.
///
/// # Safety
/// `pointer` is NULL or points to a rank.
pub unsafe fn rank(pointer: *const WcRank) -> Result<Rank> {
    not_null(pointer, "rank")?;
    // SAFETY: not NULL; the caller vouches for the rest.
    let WcRank { dp, pp, pcp, tp } = unsafe { pointer.read_unaligned() };
    Ok(Rank { dp, pp, pcp, tp })
}

/// Calls `work` with the options behind `pointer`, the defaults when it is NULL.
///
/// # Safety
/// `pointer` is NULL or points to options whose callback may be called as the header says.
pub unsafe fn with_options<T>(pointer: *const WcOptions, work: impl FnOnce(&Options<'_>) -> Result<T>) -> Result<T> {
    if pointer.is_null() {
        return work(&Options::default());
    }
    // SAFETY: not NULL; every version of the struct starts with its size.
    struct_size(unsafe { pointer.cast::<usize>().read_unaligned() }, size_of::<WcOptions>(), "WcOptions")?;
    // SAFETY: of this library's size, so all fields are there.
    let options = unsafe { pointer.read_unaligned() };
    let report = UserCallback { function: options.progress, data: options.progress_data };
    let progress = |done, total| report.tell(done, total);
    work(&Options {
        algorithm: Algorithm::from_code(options.algorithm)?,
        threads: options.threads as usize,
        progress: if options.progress.is_some() { Some(&progress) } else { None },
        stream: Producer::new(options.stream),
        max_host_bytes: options.max_host_bytes,
    })
}

/// The caller's progress callback with the pointer that belongs to it.
struct UserCallback {
    function: WcProgressCallback,
    data: *mut std::ffi::c_void,
}

// SAFETY: the header says that the callback is called from any thread of the call, one at a time, with `data`.
unsafe impl Sync for UserCallback {}

impl UserCallback {
    fn tell(&self, done: u64, total: u64) -> ControlFlow<()> {
        // SAFETY: the caller gave this function with this data to be called so.
        match self.function.map(|function| unsafe { function(done, total, self.data) }) {
            Some(0) | None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(()),
        }
    }
}

/// Writes a report as a string that the caller owns.
///
/// # Safety
/// `out` is valid for writing a pointer; the caller has refused NULL before the work.
pub unsafe fn write_json(out: *mut *mut c_char, report: &serde_json::Value) -> Result<()> {
    let text = CString::new(report.to_string())
        .map_err(|_| Error::new(Status::System, "the report holds a NUL, which JSON text never does"))?;
    // SAFETY: by the caller.
    unsafe { out.write_unaligned(text.into_raw()) };
    Ok(())
}
