//! Every bad input is refused by its own status, with a message that names the tensor, before anything is hashed or written.

mod common;

use std::ffi::{CString, c_void};
use std::io::{Seek, Write};
use std::ptr;

use common::pages::{PAGE, Pages};
use common::{
    FLOAT32, PREFIX, RANK, Tensor, UINT8, checksum, compare, digests, hex, json_of, last_error, options, raw, reset,
    sha256,
};
use weight_checker::ffi::types::{WcOptions, WcTensor};
use weight_checker::ffi::{wc_checksum, wc_compare, wc_digest, wc_reset};
use weight_checker::status::Status;

/// Checks that all verbs refuse `bad` with `status`, naming it, and that a good tensor beside it is not written.
fn refused(bad: Tensor, status: Status) {
    let memory = [7u8; 64];
    let tensors = [Tensor::bytes("good", &memory), bad];
    let baseline = format!(r#"{{"{PREFIX}good": "{}"}}"#, hex(&sha256(&memory)));
    let outcomes = [
        ("checksum", checksum(&tensors).unwrap_err()),
        ("digest", digests(&tensors, 0).unwrap_err()),
        ("reset", reset(&tensors, 0, 0).unwrap_err()),
        ("compare", compare(&tensors, &baseline).unwrap_err()),
    ];
    for (verb, found) in outcomes {
        assert_eq!(found, status, "{verb}: {}", last_error());
    }
    assert!(last_error().contains("tensor 'bad'"), "{}", last_error());
    assert_eq!(memory, [7; 64], "a good tensor was written although another was refused");
}

fn bad(change: impl FnOnce(&mut WcTensor)) -> Tensor {
    static MEMORY: [u8; 64] = [1; 64];
    let mut tensor = Tensor::bytes("bad", &MEMORY);
    change(&mut tensor.raw);
    tensor
}

fn shaped(shape: &[i64]) -> Tensor {
    Tensor::new("bad", [1u8; 64].as_ptr(), UINT8, shape)
}

#[test]
fn descriptions() {
    refused(bad(|raw| raw.data = ptr::null_mut()), Status::NullPointer);
    refused(bad(|raw| raw.shape = ptr::null()), Status::NullPointer);
    refused(bad(|raw| raw.ndim = -1), Status::BadNdim);
    refused(bad(|raw| raw.ndim = 33), Status::BadNdim);
    refused(bad(|raw| raw.ndim = i32::MIN), Status::BadNdim);
    refused(shaped(&[2, -1]), Status::NegativeShape);
    refused(shaped(&[i64::MIN]), Status::NegativeShape);
    refused(shaped(&[1 << 32, 1 << 32]), Status::SizeOverflow);
    refused(shaped(&[i64::MAX, 2, 2]), Status::SizeOverflow);
    refused(shaped(&[4]).strided(&[-1]), Status::NegativeStride);
    refused(shaped(&[4, 2]).strided(&[i64::MIN, 1]), Status::NegativeStride);
    refused(shaped(&[3]).strided(&[i64::MAX]), Status::OutOfAddressSpace);
    refused(bad(|raw| raw.byte_offset = u64::MAX), Status::OutOfAddressSpace);
    refused(bad(|raw| raw.dtype.code = 3), Status::UnsupportedDtype);
    refused(bad(|raw| raw.dtype.code = 200), Status::UnsupportedDtype);
    refused(bad(|raw| raw.dtype.bits = 7), Status::UnsupportedDtype);
    refused(bad(|raw| raw.dtype.lanes = 0), Status::UnsupportedDtype);
    for device in [0, 10, 13, -1, i32::MAX] {
        refused(bad(|raw| raw.device.device_type = device), Status::UnsupportedDevice);
    }
    let no_such_device = |raw: &mut WcTensor| (raw.device.device_type, raw.device.device_id) = (2, 1000);
    refused(bad(no_such_device), Status::CudaUnavailable);
    refused(Tensor::new("bad", [1u8; 64].as_ptr(), (17, 4), &[4, 4]).strided(&[1, 4]), Status::UnsupportedLayout);
    refused(Tensor::new("bad", [1u8; 64].as_ptr(), (17, 4), &[3]), Status::UnsupportedLayout);
}

#[test]
fn memory_that_is_not_there() {
    refused(bad(|raw| raw.data = ptr::without_provenance_mut(8)), Status::UnmappedMemory);
    let pages = Pages::new(3);
    pages.unmap(1);
    for (start, length) in [(0, PAGE + 1), (0, 3 * PAGE), (PAGE, 1), (PAGE - 1, 2), (2 * PAGE - 1, 1)] {
        refused(Tensor::new("bad", pages.at(start), UINT8, &[length as i64]), Status::UnmappedMemory);
    }
    let strided = Tensor::new("bad", pages.at(0), FLOAT32, &[2, 2]).strided(&[PAGE as i64 / 4, 1]);
    refused(strided, Status::UnmappedMemory);
    assert!(checksum(&[Tensor::new("fine", pages.at(0), UINT8, &[PAGE as i64])]).is_ok());
}

#[test]
fn memory_without_the_right() {
    let pages = Pages::new(3);
    pages.protect(1, libc::PROT_NONE);
    refused(Tensor::new("bad", pages.at(PAGE - 1), UINT8, &[2]), Status::MemoryProtected);
    pages.protect(1, libc::PROT_READ);
    let tensor = || [Tensor::new("t", pages.at(PAGE - 1), UINT8, &[PAGE as i64 + 2])];
    assert!(checksum(&tensor()).is_ok());
    for fill in 0..3 {
        assert_eq!(reset(&tensor(), fill, 0).unwrap_err(), Status::MemoryProtected);
        assert!(last_error().contains("tensor 't'") && last_error().contains("written"), "{}", last_error());
    }
}

#[test]
fn memory_behind_the_end_of_a_file() {
    let path = std::env::temp_dir().join(format!("weight-checker-{}", std::process::id()));
    let mut file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(&[3u8; 3 * PAGE]).unwrap();
    file.rewind().unwrap();
    let pages = Pages::of_file(&file, 3);
    let tensor = |length: usize| Tensor::new("bad", pages.at(0), UINT8, &[length as i64]);
    assert!(checksum(&[tensor(3 * PAGE)]).is_ok());
    file.set_len(PAGE as u64 + 1).unwrap();
    refused(tensor(3 * PAGE), Status::UnmappedMemory);
    refused(tensor(2 * PAGE + 1), Status::UnmappedMemory);
    assert!(checksum(&[tensor(2 * PAGE)]).is_ok());
}

#[test]
fn names() {
    let memory = [1u8; 4];
    let twice = [Tensor::bytes("same", &memory), Tensor::bytes("other", &memory), Tensor::bytes("same", &memory)];
    assert_eq!(checksum(&twice).unwrap_err(), Status::DuplicateName);
    assert!(last_error().contains("'same'") && last_error().contains("0 and 2"), "{}", last_error());
    let not_utf8 = c"caf\xe9";
    let mut tensor = Tensor::bytes("x", &memory);
    tensor.raw.name = not_utf8.as_ptr();
    assert_eq!(checksum(&[tensor]).unwrap_err(), Status::BadName);
    assert!(last_error().contains("tensors[0].name"), "{}", last_error());
    let mut tensor = Tensor::bytes("x", &memory);
    tensor.raw.name = ptr::null();
    assert_eq!(checksum(&[tensor]).unwrap_err(), Status::NullPointer);
}

#[test]
fn sizes_of_structs() {
    for wrong in [0, 8, size_of::<WcTensor>() - 1, size_of::<WcTensor>() + 8, usize::MAX] {
        let mut tensor = Tensor::bytes("x", &[1]);
        tensor.raw.struct_size = wrong;
        assert_eq!(checksum(&[tensor]).unwrap_err(), Status::BadStructSize);
        let options = WcOptions { struct_size: wrong, ..options(0) };
        let tensors = [Tensor::bytes("x", &[1])];
        let raw = raw(&tensors);
        // SAFETY: valid but for the size, which is looked at first.
        let outcome = json_of(|out| unsafe { wc_checksum(raw.as_ptr(), 1, &RANK, &options, out) });
        assert_eq!(outcome.unwrap_err(), Status::BadStructSize);
        assert!(last_error().contains("WcOptions.struct_size"), "{}", last_error());
    }
}

#[test]
fn arguments() {
    let memory = [9u8; 32];
    let tensors = [Tensor::bytes("x", &memory)];
    let raw = raw(&tensors);
    let (one, none) = (raw.as_ptr(), ptr::null::<WcTensor>());
    let null = ptr::null_mut::<*mut std::ffi::c_char>();
    let baseline = CString::new("{}").unwrap();
    // SAFETY: every pointer is valid or NULL, which the functions must refuse.
    unsafe {
        assert_eq!(wc_checksum(one, 1, &RANK, none.cast(), null), Status::NullPointer);
        assert!(last_error().contains("out_json"));
        assert_eq!(json_of(|out| wc_checksum(none, 1, &RANK, none.cast(), out)).unwrap_err(), Status::NullPointer);
        assert_eq!(json_of(|out| wc_checksum(one, 1, ptr::null(), none.cast(), out)).unwrap_err(), Status::NullPointer);
        assert_eq!(
            json_of(|out| wc_checksum(one, usize::MAX, &RANK, none.cast(), out)).unwrap_err(),
            Status::SizeOverflow
        );
        assert_eq!(wc_digest(one, 1, none.cast(), null.cast(), 32), Status::NullPointer);
        let mut digest = [0x5au8; 32];
        assert_eq!(wc_digest(one, 1, none.cast(), digest.as_mut_ptr(), 31), Status::BufferTooSmall);
        assert_eq!(digest, [0x5a; 32]);
        assert_eq!(wc_digest(none, 0, none.cast(), null.cast(), 0), Status::Ok);
        assert_eq!(wc_reset(one, 1, 0, 0, none.cast(), null), Status::NullPointer);
        assert_eq!(json_of(|out| wc_reset(one, 1, 3, 0, none.cast(), out)).unwrap_err(), Status::BadOption);
        assert_eq!(wc_compare(one, 1, &RANK, baseline.as_ptr(), none.cast(), null), Status::NullPointer);
        let outcome = json_of(|out| wc_compare(one, 1, &RANK, ptr::null(), none.cast(), out));
        assert_eq!(outcome.unwrap_err(), Status::NullPointer);
        let strange = WcOptions { algorithm: 9, ..options(0) };
        assert_eq!(json_of(|out| wc_checksum(one, 1, &RANK, &strange, out)).unwrap_err(), Status::BadOption);
    }
    assert_eq!(memory, [9; 32]);
}

#[test]
fn baselines() {
    let memory = [9u8; 32];
    let tensors = [Tensor::bytes("x", &memory)];
    for text in ["", "[]", "{", r#"{"a": 1}"#, r#"{"a": "b", "a": "b"}"#, "nul", r#"{"a": ["b"]}"#] {
        assert_eq!(compare(&tensors, text).unwrap_err(), Status::BadBaseline, "{text}");
    }
    let not_utf8 = c"{\"\xff\": \"\"}";
    let raw = raw(&tensors);
    // SAFETY: all valid; the text is not UTF-8.
    let outcome = json_of(|out| unsafe { wc_compare(raw.as_ptr(), 1, &RANK, not_utf8.as_ptr(), ptr::null(), out) });
    assert_eq!(outcome.unwrap_err(), Status::BadBaseline);
    let tree = format!(r#"{{"{PREFIX}x": "sha256-tree:{}"}}"#, "0".repeat(64));
    assert_eq!(compare(&tensors, &tree).unwrap_err(), Status::AlgorithmMismatch);
    for text in ["{}".to_owned(), format!(r#"{{"{PREFIX}y": "z"}}"#), r#"{"dp0:pp1:pcp2:tp4:x": "z"}"#.to_owned()] {
        assert_eq!(compare(&tensors, &text).unwrap_err(), Status::NothingCompared, "{text}");
        assert!(last_error().contains("dp0:pp1:pcp2:tp3"), "{}", last_error());
    }
    assert_eq!(compare(&[], "{}").unwrap_err(), Status::NothingCompared);
}

#[test]
fn a_callback_cancels() {
    unsafe extern "C" fn stop(_: u64, _: u64, heard: *mut c_void) -> i32 {
        // SAFETY: the test passes a counter, and one call runs at a time.
        unsafe { *heard.cast::<u32>() += 1 };
        -1
    }
    let memory = [5u8; 100];
    let tensors = [Tensor::bytes("x", &memory)];
    let raw = raw(&tensors);
    let mut heard = 0u32;
    let options = WcOptions { progress: Some(stop), progress_data: (&raw mut heard).cast(), ..options(0) };
    // SAFETY: all valid.
    let outcome = json_of(|out| unsafe { wc_reset(raw.as_ptr(), 1, 0, 0, &options, out) });
    assert_eq!(outcome.unwrap_err(), Status::Cancelled);
    assert_eq!((heard, memory), (1, [5; 100]), "cancelled at the start, nothing may be written");
}
