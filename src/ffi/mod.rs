//! The C ABI. Each function is a panic boundary around checks, one call into the safe crate, and writing outputs.
//!
//! Shared rules, said once here and in the header: all functions may be called from several threads at once; inputs are borrowed for the
//! call; outputs are written only on `WC_STATUS_OK`; when any tensor of a call is refused, nothing is hashed or written.

mod guard;
mod log;
pub mod types;

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use once_cell::race::OnceBox;

use self::guard::{guard, not_null, rank, tensors, text, with_options, write_json};
use self::types::{WC_ABI_VERSION, WC_DIGEST_SIZE, WcLogCallback, WcOptions, WcRank, WcTensor};
use crate::hash;
use crate::mapped::Access;
use crate::ops;
use crate::status::{Error, Status};
use crate::view::views;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version holds no NUL"),
};

/// The number of the ABI that this library speaks. Compare it with `WC_ABI_VERSION` of your header before any other call.
#[unsafe(no_mangle)]
pub extern "C" fn wc_abi_version() -> u32 {
    WC_ABI_VERSION
}

/// The library's version, such as "0.1.0". Static: do not free.
#[unsafe(no_mangle)]
pub extern "C" fn wc_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The name of the hash backend in use, such as "avx512+shani": what fills lanes, and what runs few messages fast. Static: do not
/// free. NULL when the environment variable `WC_BACKEND` forces a backend that this processor lacks; `wc_last_error` says so.
#[unsafe(no_mangle)]
pub extern "C" fn wc_backend() -> *const c_char {
    static NAME: OnceBox<CString> = OnceBox::new();
    let mut name = ptr::null();
    guard(|| {
        let found = hash::backend_name()?;
        name = NAME.get_or_init(|| Box::new(CString::new(found).unwrap_or_default())).as_ptr();
        Ok(())
    });
    name
}

/// Hashes tensors and gives their digests under the keys of a rank.
///
/// Parameters:
/// - `tensors`, `count`: borrowed; may be NULL when `count` is 0.
/// - `rank`: borrowed; whose keys.
/// - `options`: borrowed; NULL for the defaults.
/// - `out_json`: receives a NUL-terminated JSON object `{key: digest}` in the order of the tensors, a baseline for
///   `wc_compare`; the caller owns it and frees it with `wc_string_free`.
///
/// Returns `WC_STATUS_OK`, or why nothing could be said: any of the statuses 1 to 15 for a bad input, `CANCELLED`, `SYSTEM`,
/// `PANIC`. `wc_last_error` has the message.
///
/// Threads: blocks until done; uses up to `options.threads` threads that end with the call. No memory that grows with
/// the tensors is used; a tensor with gaps between its elements is gathered through 256 KiB a thread.
///
/// # Safety
/// The pointers are NULL or valid as said above, for the whole call; nobody writes to the tensors' memory or unmaps it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wc_checksum(
    tensors: *const WcTensor,
    count: usize,
    rank: *const WcRank,
    options: *const WcOptions,
    out_json: *mut *mut c_char,
) -> Status {
    // SAFETY: the caller's promise above is what each of these asks for.
    guard(|| unsafe {
        not_null(out_json, "out_json")?;
        let rank = self::rank(rank)?;
        let tensors = self::tensors(tensors, count)?;
        let report = with_options(options, |options| ops::checksum(&views(&tensors, Access::Read)?, rank, options))?;
        write_json(out_json, &report.to_json())
    })
}

/// Hashes tensors and writes their raw digests into the caller's memory.
///
/// Parameters:
/// - `tensors`, `count`, `options`: as for `wc_checksum`.
/// - `out_digests`: receives `WC_DIGEST_SIZE` (32) bytes for each tensor, in order. May be NULL when `count` is 0.
/// - `out_size`: the bytes at `out_digests`, at least 32 * `count`.
///
/// Returns as `wc_checksum`, and `BUFFER_TOO_SMALL`. On any status but `OK` nothing is written.
///
/// # Safety
/// As `wc_checksum`; `out_digests` is valid for writing `out_size` bytes and lies in none of the tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wc_digest(
    tensors: *const WcTensor,
    count: usize,
    options: *const WcOptions,
    out_digests: *mut u8,
    out_size: usize,
) -> Status {
    // SAFETY: the caller's promise above is what each of these asks for.
    guard(|| unsafe {
        let needed = count.saturating_mul(WC_DIGEST_SIZE);
        if count > 0 {
            not_null(out_digests, "out_digests")?;
        }
        if out_size < needed {
            let what = format!("argument 'out_size' is {out_size}, but {count} digests take {needed} bytes");
            return Err(Error::new(Status::BufferTooSmall, what));
        }
        let tensors = self::tensors(tensors, count)?;
        let digests = with_options(options, |options| ops::digests(&views(&tensors, Access::Read)?, options))?;
        for (index, digest) in digests.iter().enumerate() {
            out_digests.add(index * WC_DIGEST_SIZE).copy_from_nonoverlapping(digest.bytes().as_ptr(), WC_DIGEST_SIZE);
        }
        Ok(())
    })
}

/// Overwrites every element of the tensors, and nothing between strides.
///
/// Parameters:
/// - `tensors`, `count`, `options`: as for `wc_checksum`; the algorithm is not used. Tensors that are exactly the same
///   memory are written once; others that overlap are written in the order given.
/// - `fill`: `WC_FILL_ZERO`, `WC_FILL_RANDOM` (valid values of the dtype: finite floats, bools 0 or 1; the same bytes for the same
///   seed and name on every run), or `WC_FILL_POISON` (bytes 0xFF: NaN for floats, but for
///   the two float8 types whose name ends in fnuz).
/// - `seed`: any number; used by `WC_FILL_RANDOM` only.
/// - `out_json`: receives `{"tensors", "written", "shared", "bytes"}`, where tensors = written + shared; owned by the caller,
///   freed with `wc_string_free`.
///
/// Returns as `wc_checksum`. After `CANCELLED` some tensors are overwritten and others are not; after any other status
/// but `OK` and `PANIC` none is.
///
/// # Safety
/// As `wc_checksum`; nobody reads the tensors' memory during the call either.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wc_reset(
    tensors: *const WcTensor,
    count: usize,
    fill: u32,
    seed: u64,
    options: *const WcOptions,
    out_json: *mut *mut c_char,
) -> Status {
    // SAFETY: the caller's promise above is what each of these asks for.
    guard(|| unsafe {
        not_null(out_json, "out_json")?;
        let fill = ops::Fill::from_code(fill, seed)?;
        let tensors = self::tensors(tensors, count)?;
        let report = with_options(options, |options| ops::reset(&views(&tensors, Access::Write)?, fill, options))?;
        write_json(out_json, &report.to_json())
    })
}

/// Hashes tensors and compares their digests with a baseline.
///
/// Parameters:
/// - `tensors`, `count`, `rank`, `options`: as for `wc_checksum`.
/// - `baseline_json`: borrowed, NUL-terminated JSON object `{key: digest}`. Keys of other ranks are ignored.
/// - `out_json`: receives `{"match", "mismatches", "differing", "missing", "unexpected", "tensors", "compared", "equal", "bytes"}`:
///   `missing` keys are in the baseline and not on this rank, `unexpected` ones the reverse, `mismatches` all three, each list
///   sorted; tensors = compared + unexpected, compared = equal + differing. Owned by the caller, freed with `wc_string_free`.
///
/// Returns as `wc_checksum`; a mismatch is a result and `WC_STATUS_OK`. Also `BAD_BASELINE`, `ALGORITHM_MISMATCH` (digests of
/// another algorithm are never compared), and `NOTHING_COMPARED` when no tensor has a key in the baseline.
///
/// # Safety
/// As `wc_checksum`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wc_compare(
    tensors: *const WcTensor,
    count: usize,
    rank: *const WcRank,
    baseline_json: *const c_char,
    options: *const WcOptions,
    out_json: *mut *mut c_char,
) -> Status {
    // SAFETY: the caller's promise above is what each of these asks for.
    guard(|| unsafe {
        not_null(out_json, "out_json")?;
        let rank = self::rank(rank)?;
        let baseline = text(baseline_json, Status::BadBaseline)
            .map_err(|error| Error::new(error.status(), format!("argument 'baseline_json' {error}")))?;
        let tensors = self::tensors(tensors, count)?;
        let report =
            with_options(options, |options| ops::compare(&views(&tensors, Access::Read)?, rank, baseline, options))?;
        write_json(out_json, &report.to_json())
    })
}

/// Frees a string that this library gave to the caller. NULL is fine; the same string twice is not.
///
/// # Safety
/// `string` is NULL, or was given by this library and not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wc_string_free(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: made by `CString::into_raw` in `write_json`, by the caller's promise not freed yet.
        drop(unsafe { CString::from_raw(string) });
    }
}

/// The message of this thread's last call, empty after a success: what is wrong, with which tensor, and what to do.
///
/// Owned by the library; valid until this thread's next call of a function that returns a status. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wc_last_error() -> *const c_char {
    guard::last_error()
}

/// Sends the library's log records to `callback`, with `user_data`; NULL ends that.
///
/// When it returns, the callback before is not running any more; so it must not be called from inside a callback.
/// Records of one process go to one receiver.
///
/// Returns `WC_STATUS_OK`, or `SYSTEM` when the process has another logger installed in this library's copy of the `log` crate.
#[unsafe(no_mangle)]
pub extern "C" fn wc_set_log_callback(callback: WcLogCallback, user_data: *mut c_void) -> Status {
    guard(|| log::set_callback(callback, user_data))
}
