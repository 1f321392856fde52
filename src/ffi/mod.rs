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

use self::guard::{argument_text, guard, not_null, path, rank, tensors, with_options, write_json};
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
/// `PANIC`; with tensors on CUDA devices also 27 to 32, and `CUDA` stands for every error of the driver that has no status of its own.
/// `wc_last_error` has the message.
///
/// Threads: blocks until done; uses up to `options.threads` threads that end with the call. No memory that grows with
/// the tensors is used; a tensor with gaps between its elements is gathered through 256 KiB a thread.
///
/// CUDA devices: tensors may be on several, and others in host memory. The devices wait for what `options.stream` has in its
/// queue; all work of the call is done when it returns, in streams of its own. The calling thread's current context is as it was. By
/// `WC_ALGORITHM_SHA256_TREE` tensors are hashed where they are, with at most 16 MiB of device memory; by `WC_ALGORITHM_SHA256`
/// they are copied to the host, piece by piece, through `options.max_host_bytes` of pinned memory, with at most 2 MiB on the
/// device. Of both as much as was used is kept for the next call on the device, as are streams, events and kernels, which the
/// first call compiles (the driver caches them); a call with a smaller `options.max_host_bytes` frees pinned memory. After
/// `cudaDeviceReset` the process can hash no more on that device; after a fork the child cannot (`CUDA_UNAVAILABLE`), as CUDA cannot.
///
/// # Safety
/// The pointers are NULL or valid as said above, for the whole call; nobody writes to the tensors' memory or unmaps it.
/// `options.stream` is a stream that has not been destroyed. A tensor on a CUDA device is in memory of its primary context.
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
/// Returns as `wc_checksum`. After `CANCELLED`, and after `OUT_OF_DEVICE_MEMORY` and `CUDA`, some tensors may be overwritten and others not;
/// after any other status but `OK` and `PANIC` none is.
///
/// CUDA devices: as `wc_checksum`; tensors there are overwritten where they are, with the same bytes as in host memory.
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
        let baseline = argument_text(baseline_json, "baseline_json", Status::BadBaseline)?;
        let tensors = self::tensors(tensors, count)?;
        let report =
            with_options(options, |options| ops::compare(&views(&tensors, Access::Read)?, rank, baseline, options))?;
        write_json(out_json, &report.to_json())
    })
}

/// Says what every rank must hold after loading, without the engine: executes a plan on a checkpoint and hashes the results.
///
/// Parameters:
/// - `plan_json`: borrowed, NUL-terminated plan document of one or many ranks.
/// - `checkpoint`: borrowed, NUL-terminated path of a folder of safetensors files or of one such file; or NULL, and then
/// - `sources`, `count`: the checkpoint's tensors in host memory, borrowed, under the names that the plan gives them. More than the
///   plan names are fine. They must be NULL and 0 with a checkpoint.
/// - `options`: as for `wc_checksum`; bytes are the logical bytes of the parameters hashed.
/// - `out_json`: receives `{key: digest}`, a baseline for `wc_compare`, in the order of the plan: every parameter of every
///   rank whose bytes the plan determines. One that arithmetic made or that has elements which nothing writes is left out.
///   So is one that this library cannot put together, and a warning in the log (`wc_set_log_callback`) gives their number,
///   the first one and why: it is cut too finely to be looked at, or has a piece in a dtype without casts. Casts are known
///   between float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8 to int64, uint8 to uint64 and bool; in
///   every other dtype values are copied, or are the constant 0, and pass through no other dtype.
///   Owned by the caller, freed with `wc_string_free`.
///
/// Returns as `wc_checksum`. Also `BAD_PLAN` (also when the plan determines no parameter at all), `BAD_CHECKPOINT`,
/// `MISSING_SOURCE` and `SOURCE_MISMATCH`: a tensor that is read is not there, or of another dtype or shape than the plan
/// says; and `BAD_OPTION` with both a checkpoint and sources.
///
/// Threads: as `wc_checksum`. Files are mapped; other memory stays under 256 MiB whatever their size.
///
/// # Safety
/// As `wc_checksum`. Nobody writes to the files or makes them shorter during the call: a file that becomes shorter while it is
/// read ends the process (SIGBUS). One that was changed is refused when that is seen before or after.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wc_expect(
    plan_json: *const c_char,
    checkpoint: *const c_char,
    sources: *const WcTensor,
    count: usize,
    options: *const WcOptions,
    out_json: *mut *mut c_char,
) -> Status {
    // SAFETY: the caller's promise above is what each of these asks for.
    guard(|| unsafe {
        not_null(out_json, "out_json")?;
        let plan = argument_text(plan_json, "plan_json", Status::BadPlan)?;
        let checkpoint = path(checkpoint);
        if checkpoint.is_some() && !(sources.is_null() && count == 0) {
            let what = "arguments 'checkpoint' and 'sources' are both given: the tensors are in one of them";
            return Err(Error::new(Status::BadOption, what));
        }
        let tensors = self::tensors(sources, count)?;
        let report = with_options(options, |options| match checkpoint {
            Some(path) => ops::expect(plan, ops::Sources::Files(path), options),
            None => ops::expect(plan, ops::Sources::Memory(&views(&tensors, Access::Read)?), options),
        })?;
        write_json(out_json, &report.to_json())
    })
}

/// Says what a plan leaves out or places wrongly, without any tensor.
///
/// Parameters:
/// - `plan_json`: borrowed, NUL-terminated plan document; of all ranks, for one rank alone places its slices only.
/// - `out_json`: receives `{"complete", "ranks", "parameters", "pieces", "sources", "placed", "unplaced", "partly_placed", "unwritten",
///   "overlapping", "past_the_end", "unaudited", "replicas"}`; owned by the caller, freed with `wc_string_free`. Counted in
///   elements, and `first` is the coordinates of the first one:
///   - `unplaced`: `{"source", "explained"}`, checkpoint tensors of which no rank takes an element; sources = placed + unplaced.
///     What later constants overwrite in a parameter is not taken.
///   - `partly_placed`: `{"source", "elements", "of", "first"}`, of which some elements are missing.
///   - `unwritten`: `{"key", "elements", "of", "first"}`, parameters with elements that no piece writes.
///   - `overlapping`: `{"key", "elements", "first", "sources"}`, with elements that get two different ones of the checkpoint.
///   - `past_the_end`: `{"key", "source", "first_beyond", "of"}`, pieces that leave a source, or with null the parameter.
///   - `unaudited`: `{"key", "source"}`, one of them null: tensors cut so finely that they would take minutes.
///   - `replicas`: `{"ranks", "parameters"}`, sets of ranks with the number of parameters that they hold alike.
///
///   `complete` is true when all lists are empty but `replicas` and what is explained in `unplaced`.
///
/// Returns `WC_STATUS_OK` whatever is found; `NULL_POINTER`, `BAD_PLAN` (also for a plan without any parameter), `PANIC`.
///
/// Threads: uses the calling one. Takes at most some seconds beyond reading the text, and 256 MiB beyond what that takes.
///
/// # Safety
/// The pointers are NULL or valid as said above, for the whole call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wc_audit(plan_json: *const c_char, out_json: *mut *mut c_char) -> Status {
    // SAFETY: the caller's promise above is what each of these asks for.
    guard(|| unsafe {
        not_null(out_json, "out_json")?;
        let plan = argument_text(plan_json, "plan_json", Status::BadPlan)?;
        write_json(out_json, &ops::audit(plan)?.to_json())
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
