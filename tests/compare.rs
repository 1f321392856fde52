//! compare names what differs, with counts that add up.

mod common;

use common::{PREFIX, Tensor, checksum, compare};
use serde_json::{Value, json};

const MEMORY: [&[u8]; 4] = [b"first", b"second", b"third", b""];
const NAMES: [&str; 4] = ["a", "b", "c", "empty"];

fn tensors() -> Vec<Tensor> {
    NAMES.iter().zip(MEMORY).map(|(name, bytes)| Tensor::bytes(name, bytes)).collect()
}

fn baseline(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> String {
    let mut json = checksum(&tensors()).unwrap();
    change(json.as_object_mut().unwrap());
    json.to_string()
}

fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

#[test]
fn equal() {
    let report = compare(&tensors(), &baseline(|_| ())).unwrap();
    let expected = json!({
        "match": true, "mismatches": [], "differing": [], "missing": [], "unexpected": [],
        "tensors": 4, "compared": 4, "equal": 4, "bytes": 16,
    });
    assert_eq!(report, expected);
}

#[test]
fn differing_missing_and_unexpected() {
    let text = baseline(|json| {
        json[&key("c")] = json!("0".repeat(64));
        json[&key("a")] = json!("no digest at all");
        json.remove(&key("b"));
        json.insert(key("z"), json!("1".repeat(64)));
        json.insert(key("extra"), json!("2"));
        json.insert("dp9:pp1:pcp2:tp3:a".into(), json!("3".repeat(64)));
    });
    let report = compare(&tensors(), &text).unwrap();
    let expected = json!({
        "match": false,
        "mismatches": [key("a"), key("b"), key("c"), key("extra"), key("z")],
        "differing": [key("a"), key("c")],
        "missing": [key("extra"), key("z")],
        "unexpected": [key("b")],
        "tensors": 4, "compared": 3, "equal": 1, "bytes": 16,
    });
    assert_eq!(report, expected);
}

#[test]
fn a_digest_of_other_case_differs() {
    let text = baseline(|json| {
        let upper = json[&key("a")].as_str().unwrap().to_uppercase();
        json[&key("a")] = json!(upper);
    });
    assert_eq!(compare(&tensors(), &text).unwrap()["differing"], json!([key("a")]));
}
