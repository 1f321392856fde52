//! Calls the C functions as a C program would, with tensors that own what their descriptions point to.
#![allow(dead_code, reason = "every test file uses a part of it")]

pub mod pages;

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use weight_checker::ffi::types::{WcDataType, WcDevice, WcOptions, WcRank, WcTensor};
use weight_checker::ffi::{wc_checksum, wc_compare, wc_digest, wc_expect, wc_last_error, wc_reset, wc_string_free};
use weight_checker::status::Status;

pub const RANK: WcRank = WcRank { dp: 0, pp: 1, pcp: 2, tp: 3 };
pub const PREFIX: &str = "dp0:pp1:pcp2:tp3:";

/// DLPack's (code, bits) of the types that the tests use.
pub const UINT8: (u8, u8) = (1, 8);
pub const FLOAT32: (u8, u8) = (2, 32);
pub const BFLOAT16: (u8, u8) = (4, 16);

/// A description of a tensor. It does not own the tensor's memory.
pub struct Tensor {
    name: CString,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    pub raw: WcTensor,
}

impl Tensor {
    /// A compact tensor of `shape` at `data`.
    pub fn new(name: &str, data: *const u8, dtype: (u8, u8), shape: &[i64]) -> Self {
        let raw = WcTensor {
            struct_size: size_of::<WcTensor>(),
            name: ptr::null(),
            data: data.cast_mut().cast(),
            device: WcDevice { device_type: 1, device_id: 0 },
            ndim: shape.len() as i32,
            dtype: WcDataType { code: dtype.0, bits: dtype.1, lanes: 1 },
            shape: ptr::null(),
            strides: ptr::null(),
            byte_offset: 0,
        };
        Self { name: CString::new(name).unwrap(), shape: shape.to_vec(), strides: None, raw }.linked()
    }

    /// All of `memory` as bytes.
    pub fn bytes(name: &str, memory: &[u8]) -> Self {
        Self::new(name, memory.as_ptr(), UINT8, &[memory.len() as i64])
    }

    /// With strides, in elements.
    pub fn strided(mut self, strides: &[i64]) -> Self {
        self.strides = Some(strides.to_vec());
        self.linked()
    }

    /// Points the description at the parts that this value owns: they are on the heap, so moving it does not move them.
    fn linked(mut self) -> Self {
        self.raw.name = self.name.as_ptr();
        self.raw.shape = self.shape.as_ptr();
        self.raw.strides = self.strides.as_ref().map_or(ptr::null(), |strides| strides.as_ptr());
        self
    }
}

pub fn raw(tensors: &[Tensor]) -> Vec<WcTensor> {
    tensors.iter().map(|tensor| tensor.raw).collect()
}

pub fn options(threads: u32) -> WcOptions {
    WcOptions {
        struct_size: size_of::<WcOptions>(),
        algorithm: 0,
        threads,
        progress: None,
        progress_data: ptr::null_mut::<c_void>(),
        stream: ptr::null_mut(),
        max_host_bytes: 0,
    }
}

pub fn last_error() -> String {
    // SAFETY: the library gives a string that is valid until this thread's next call.
    unsafe { CStr::from_ptr(wc_last_error()) }.to_str().unwrap().to_owned()
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

pub fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs `call` with an output pointer; on success takes the JSON, on failure checks that the output is untouched.
pub fn json_of(call: impl FnOnce(*mut *mut c_char) -> Status) -> Result<Value, Status> {
    let untouched = ptr::without_provenance_mut::<c_char>(0x5a5a);
    let mut out = untouched;
    let status = call(&mut out);
    if status != Status::Ok {
        assert_eq!(out, untouched, "the output was written although the status is {status:?}");
        assert!(!last_error().is_empty());
        return Err(status);
    }
    assert_eq!(last_error(), "");
    // SAFETY: on success the library gives a string that we own, and free once.
    unsafe {
        let value = serde_json::from_slice(CStr::from_ptr(out).to_bytes()).unwrap();
        wc_string_free(out);
        Ok(value)
    }
}

pub fn checksum(tensors: &[Tensor]) -> Result<Value, Status> {
    let raw = raw(tensors);
    // SAFETY: the tests pass tensors that live through the call, or broken ones on purpose.
    json_of(|out| unsafe { wc_checksum(raw.as_ptr(), raw.len(), &RANK, ptr::null(), out) })
}

pub fn reset(tensors: &[Tensor], fill: u32, seed: u64) -> Result<Value, Status> {
    let raw = raw(tensors);
    // SAFETY: as in `checksum`; the tests own the memory and read it only afterwards.
    json_of(|out| unsafe { wc_reset(raw.as_ptr(), raw.len(), fill, seed, ptr::null(), out) })
}

pub fn compare(tensors: &[Tensor], baseline: &str) -> Result<Value, Status> {
    let raw = raw(tensors);
    let baseline = CString::new(baseline).unwrap();
    // SAFETY: as in `checksum`.
    json_of(|out| unsafe { wc_compare(raw.as_ptr(), raw.len(), &RANK, baseline.as_ptr(), ptr::null(), out) })
}

/// What `plan` gives on a checkpoint's path, or on `tensors`, with an algorithm's code.
pub fn expect(plan: &str, checkpoint: Option<&Path>, tensors: &[Tensor], algorithm: u32) -> Result<Value, Status> {
    let raw = raw(tensors);
    let plan = CString::new(plan).unwrap();
    let path = checkpoint.map(|path| CString::new(path.as_os_str().as_bytes()).unwrap());
    let path = path.as_ref().map_or(ptr::null(), |path| path.as_ptr());
    let tensors = if raw.is_empty() { ptr::null() } else { raw.as_ptr() };
    let options = WcOptions { algorithm, ..options(0) };
    // SAFETY: as in `checksum`; the text and the path live through the call.
    json_of(|out| unsafe { wc_expect(plan.as_ptr(), path, tensors, raw.len(), &options, out) })
}

pub fn digests(tensors: &[Tensor], threads: u32) -> Result<Vec<[u8; 32]>, Status> {
    digests_with(tensors, &options(threads))
}

pub fn digests_with(tensors: &[Tensor], options: &WcOptions) -> Result<Vec<[u8; 32]>, Status> {
    let raw = raw(tensors);
    let untouched = [0x5a; 32];
    let mut out = vec![untouched; tensors.len()];
    let size = out.len() * 32;
    // SAFETY: as in `checksum`; `out` has room for all digests.
    let status = unsafe { wc_digest(raw.as_ptr(), raw.len(), options, out.as_mut_ptr().cast(), size) };
    if status != Status::Ok {
        assert!(
            out.iter().all(|digest| *digest == untouched),
            "digests were written although the status is {status:?}"
        );
        return Err(status);
    }
    Ok(out)
}
