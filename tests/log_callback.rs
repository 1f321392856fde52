//! Log records reach the host's callback, until it is taken away.

mod common;

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Mutex;

use common::{PREFIX, Tensor, checksum, compare, expect};
use weight_checker::ffi::wc_set_log_callback;
use weight_checker::status::Status;

type Heard = Mutex<Vec<(i32, String, String)>>;

unsafe extern "C" fn hear(level: i32, target: *const c_char, message: *const c_char, heard: *mut c_void) {
    // SAFETY: the library gives strings for the call, and the pointer that the test gave it.
    let (heard, target, message) =
        unsafe { (&*heard.cast::<Heard>(), CStr::from_ptr(target), CStr::from_ptr(message)) };
    let text = |text: &CStr| text.to_str().unwrap().to_owned();
    heard.lock().unwrap().push((level, text(target), text(message)));
}

/// Determines `a`; the others are of a type that no 1 is filled into.
const PLAN: &str = r#"{
    "format": "weight-checker-plan", "version": 1, "sources": {},
    "ranks": [{"rank": {"dp": 0, "pp": 0, "pcp": 0, "tp": 0}, "parameters": {
        "a": {"dtype": "int8", "shape": [], "pieces": [{"constant": 1, "shape": [], "offset": 0, "strides": []}]},
        "b": {"dtype": "float8_e8m0fnu", "shape": [], "pieces": [{"constant": 1, "shape": [], "offset": 0, "strides": []}]},
        "c": {"dtype": "float8_e8m0fnu", "shape": [], "pieces": [{"constant": 1, "shape": [], "offset": 0, "strides": []}]}
    }}]
}"#;

#[test]
fn records_are_forwarded() {
    let heard = Heard::default();
    let tensors = [Tensor::bytes("a", b"bytes")];
    assert_eq!(wc_set_log_callback(Some(hear), (&raw const heard).cast_mut().cast()), Status::Ok);
    checksum(&tensors).unwrap();
    compare(&tensors, &format!(r#"{{"{PREFIX}a": "no digest"}}"#)).unwrap();
    expect(PLAN, None, &[], 0).unwrap();
    assert_eq!(wc_set_log_callback(None, ptr::null_mut()), Status::Ok);
    let count = heard.lock().unwrap().len();
    checksum(&tensors).unwrap();
    let heard = heard.into_inner().unwrap();
    assert_eq!(heard.len(), count, "a record was forwarded after the callback was taken away");
    assert!(heard.iter().all(|(_, target, _)| target.starts_with("weight_checker")));
    assert!(heard.iter().any(|(level, _, message)| *level == 4 && message.contains("1 tensors, 5 bytes")), "{heard:?}");
    let left_out = ["2 parameters", "'dp0:pp0:pcp0:tp0:b'", "float8_e8m0fnu"];
    let says = |message: &str| left_out.iter().all(|word| message.contains(word));
    assert!(heard.iter().any(|(level, _, message)| *level == 2 && says(message)), "{heard:?}");
    let warning = format!("'{PREFIX}a'");
    assert!(heard.iter().any(|(level, _, message)| *level == 2 && message.contains(&warning)), "{heard:?}");
}
