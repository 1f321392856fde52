//! Everything that expect refuses: by its status, with a message that names the thing.

#[path = "common/checkpoints.rs"]
mod checkpoints;
mod common;

use std::fs;
use std::path::Path;

use checkpoints::{folder, plan, safetensors, with_header};
use common::{FLOAT32, Tensor, expect, last_error};
use proptest::prelude::*;
use serde_json::{Value, json};
use weight_checker::status::Status;

/// A plan that copies float32 `w` of 2 by 3 whole; `change` edits the document.
fn document(change: impl FnOnce(&mut Value)) -> Value {
    let piece = json!({ "source": "w", "source_offset": 0, "source_strides": [3, 1], "shape": [2, 3], "offset": 0,
        "strides": [3, 1] });
    let parameters = json!({ "p": { "dtype": "float32", "shape": [2, 3], "pieces": [piece] } });
    let mut document = plan(json!({ "w": { "dtype": "float32", "shape": [2, 3] } }), parameters);
    change(&mut document);
    document
}

fn tensor() -> Tensor {
    static DATA: [f32; 6] = [0.0; 6];
    Tensor::new("w", DATA.as_ptr().cast(), FLOAT32, &[2, 3])
}

fn refused(plan: &str, status: Status, words: &[&str]) {
    assert_eq!(expect(plan, None, &[tensor()], 0).unwrap_err(), status, "{plan}: {}", last_error());
    let message = last_error();
    assert!(words.iter().all(|word| message.contains(word)), "{words:?} in {message}");
}

#[test]
fn plans_that_are_wrong() {
    let bad = |words: &[&str], change: &dyn Fn(&mut Value)| {
        refused(&document(change).to_string(), Status::BadPlan, words);
    };
    let piece = |field: &'static str, value: Value| {
        move |plan: &mut Value| plan["ranks"][0]["parameters"]["p"]["pieces"][0][field] = value.clone()
    };
    expect(&document(|_| ()).to_string(), None, &[tensor()], 0).unwrap();
    expect(&document(|plan| plan["later"] = json!(1)).to_string(), None, &[tensor()], 0).unwrap();
    refused("[", Status::BadPlan, &["not a plan document"]);
    bad(&["version 2", "reads version 1"], &|plan| plan["version"] = json!(2));
    bad(&["format 'x'"], &|plan| plan["format"] = json!("x"));
    bad(&["no version"], &|plan| {
        plan.as_object_mut().unwrap().remove("version");
    });
    bad(&["missing field `sources`"], &|plan| {
        plan.as_object_mut().unwrap().remove("sources");
    });
    bad(&["source 'w'", "'float31'"], &|plan| plan["sources"]["w"]["dtype"] = json!("float31"));
    bad(&["'w'", "-2"], &|plan| plan["sources"]["w"]["shape"] = json!([-2, 3]));
    bad(&["source 'w'", "63 bits"], &|plan| plan["sources"]["w"]["shape"] = json!([1u64 << 40, 1u64 << 40]));
    bad(&["source 'w'", "33 dimensions"], &|plan| plan["sources"]["w"]["shape"] = json!(vec![1; 33]));
    bad(&["rank dp0:pp0:pcp0:tp0", "twice"], &|plan| {
        let rank = plan["ranks"][0].clone();
        plan["ranks"].as_array_mut().unwrap().push(rank);
    });
    bad(&["parameter 'p'", "piece 0", "'v'", "not among the sources"], &piece("source", json!("v")));
    bad(&["parameter 'p'", "piece 0", "exactly one"], &piece("constant", json!(1)));
    bad(&["parameter 'p'", "piece 0", "extents"], &piece("strides", json!([1])));
    bad(&["parameter 'p'", "piece 0", "source strides"], &piece("source_strides", json!([1, 2, 3])));
    bad(&["parameter 'p'", "stride 0"], &piece("strides", json!([0, 1])));
    bad(&["parameter 'p'", "stride -3"], &piece("strides", json!([-3, 1])));
    bad(&["parameter 'p'", "twice"], &piece("strides", json!([2, 1])));
    bad(&["parameter 'p'", "2^63"], &piece("offset", json!(u64::MAX)));
    bad(&["parameter 'p'", "2^63"], &piece("source_strides", json!([i64::MAX, i64::MAX])));
    bad(&["parameter 'p'", "piece 0", "elements 1 to 7 of 6"], &piece("offset", json!(1)));
    bad(&["parameter 'p'", "elements 1 to 7 of 6 of source 'w'"], &piece("source_offset", json!(1)));
    bad(&["parameter 'p'", "elements -3 to"], &piece("source_strides", json!([-3, 1])));
    bad(&["parameter 'p'", "'float31'"], &piece("via", json!(["float31"])));
    bad(&["parameter 'p'", "float32 to complex64"], &piece("via", json!(["complex64"])));
    bad(&["'unused'", "'v'"], &|plan| plan["ranks"][0]["unused"] = json!({ "v": "tied" }));
    bad(&["determines no parameter", "of 1,"], &piece("shape", json!([1, 3])));
    bad(&["no rank"], &|plan| plan["ranks"] = json!([]));
    bad(&["no parameter"], &|plan| plan["ranks"][0]["parameters"] = json!({}));
    let twice =
        document(|_| ()).to_string().replace("\"sources\":{", "\"sources\":{\"w\":{\"dtype\":\"int8\",\"shape\":[]},");
    refused(&twice, Status::BadPlan, &["'w' comes twice"]);
}

#[test]
fn lists_are_no_objects() {
    let bad = |change: &dyn Fn(&mut Value)| {
        refused(&document(change).to_string(), Status::BadPlan, &["not a plan document", "expected an object"]);
        assert!(!last_error().contains("struct"), "{}", last_error());
    };
    refused("[]", Status::BadPlan, &["expected an object"]);
    refused("[\"weight-checker-plan\", 1]", Status::BadPlan, &["expected an object"]);
    bad(&|plan| plan["sources"] = json!([["w", ["float32", [2, 3]]]]));
    bad(&|plan| plan["sources"]["w"] = json!(["float32", [2, 3]]));
    bad(&|plan| plan["ranks"][0]["rank"] = json!([0, 0, 0, 0]));
    bad(&|plan| plan["ranks"][0] = json!([plan["ranks"][0]["rank"], plan["ranks"][0]["parameters"], {}]));
    bad(&|plan| plan["ranks"][0]["parameters"]["p"] = json!(["float32", [2, 3], []]));
    bad(&|plan| plan["ranks"][0]["unused"] = json!([["w", "tied"]]));
    bad(&|plan| {
        let piece = json!(["w", 0, [3, 1], null, null, null, [2, 3], 0, [3, 1], []]);
        plan["ranks"][0]["parameters"]["p"]["pieces"] = json!([piece]);
    });
}

#[test]
fn constants_are_numbers() {
    for constant in [json!("NaN"), json!([1]), json!({})] {
        let plan = document(|plan| {
            let piece = json!({ "constant": constant, "shape": [2, 3], "offset": 0, "strides": [3, 1] });
            plan["ranks"][0]["parameters"]["p"]["pieces"] = json!([piece]);
        });
        refused(&plan.to_string(), Status::BadPlan, &["parameter 'p'", "piece 0", "is no number"]);
    }
}

#[test]
fn sources_that_are_absent_or_others() {
    let plan = document(|_| ()).to_string();
    assert_eq!(expect(&plan, None, &[], 0).unwrap_err(), Status::MissingSource);
    assert!(last_error().contains("'w'"));
    refused(
        &plan.replace("\"float32\"", "\"int32\""),
        Status::SourceMismatch,
        &["'w'", "float32", "int32", "record the plan anew"],
    );
    let other = document(|plan| plan["sources"]["w"]["shape"] = json!([3, 2])).to_string();
    refused(&other, Status::SourceMismatch, &["'w'", "[2, 3]", "[3, 2]"]);
    let folder = folder("absent");
    fs::write(folder.join("a.safetensors"), safetensors(&[("v", "F32", &[1], &[0; 4])])).unwrap();
    assert_eq!(expect(&plan, Some(&folder), &[], 0).unwrap_err(), Status::MissingSource);
    assert_eq!(expect(&plan, Some(&folder), &[tensor()], 0).unwrap_err(), Status::BadOption);
}

fn bad_checkpoint(path: &Path, words: &[&str]) {
    let plan = document(|_| ()).to_string();
    assert_eq!(expect(&plan, Some(path), &[], 0).unwrap_err(), Status::BadCheckpoint, "{words:?}: {}", last_error());
    let message = last_error();
    assert!(words.iter().all(|word| message.contains(word)), "{words:?} in {message}");
}

#[test]
fn files_that_are_wrong() {
    let folder = folder("wrong");
    let file = folder.join("x.safetensors");
    bad_checkpoint(&folder.join("none"), &["none", "cannot be read"]);
    bad_checkpoint(&folder, &["holds no safetensors file"]);
    let entry = |dtype: &str, shape: &str, from: u64, to: u64| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let one = |entry: &str| format!(r#"{{"w":{entry}}}"#);
    let two = |a: &str, b: &str| format!(r#"{{"w":{a},"v":{b}}}"#);
    for (bytes, word) in [
        (vec![], "0 bytes"),
        (vec![1; 7], "7 bytes"),
        (u64::MAX.to_le_bytes().to_vec(), "header says"),
        (with_header("{", &[]), "header"),
        (with_header("[]", &[]), "header"),
        (with_header(r#"{"w":["F32",[1],[0,4]]}"#, &[0; 4]), "'w': invalid type: sequence, expected an object"),
        (with_header(&one(&entry("F31", "[1]", 0, 4)), &[0; 4]), "'F31'"),
        (with_header(&one(&entry("F32", "[2]", 0, 4)), &[0; 4]), "takes 8"),
        (with_header(&one(&entry("F32", "[-1]", 0, 4)), &[0; 4]), "-1"),
        (with_header(&one(&entry("F32", "[1]", 4, 8)), &[0; 4]), "4 to 8 of 4"),
        (with_header(&one(&entry("F32", "[1]", 4, 0)), &[0; 4]), "4 to 0"),
        (
            with_header(&one(&entry("F32", "[4611686018427387904,4]", 0, 4)), &[0; 4]),
            "'w' that cannot exist: the size of",
        ),
        (with_header(&one(&entry("F32", "[1]", 0, 4)), &[0; 5]), "5 bytes of data"),
        (with_header(&one(&entry("F32", "[1]", 4, 8)), &[0; 8]), "leaves a hole"),
        (with_header(&two(&entry("F32", "[1]", 0, 4), &entry("I32", "[1]", 0, 4)), &[0; 4]), "overlaps"),
        (
            with_header(
                &two(&entry("F32", "[1]", 0, 4), &entry("F32", "[1]", 4, 8)).replace("\"v\"", "\"w\""),
                &[0; 8],
            ),
            "comes twice",
        ),
    ] {
        fs::write(&file, &bytes).unwrap();
        bad_checkpoint(&file, &["x.safetensors", word]);
    }
    fs::remove_file(&file).unwrap();
    let fifo = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
    // SAFETY: a valid path.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    bad_checkpoint(&file, &["not a regular file"]);
    bad_checkpoint(Path::new("/dev/zero"), &["not a regular file"]);
}

#[test]
fn indices_name_files_of_their_folder_that_hold_what_they_say() {
    let folder = folder("indices");
    let index = |map: Value| {
        fs::write(folder.join("model.safetensors.index.json"), json!({ "weight_map": map }).to_string()).unwrap();
    };
    let good = safetensors(&[("w", "F32", &[2, 3], &[0; 24])]);
    fs::write(folder.join("a.safetensors"), &good).unwrap();
    fs::write(folder.parent().unwrap().join("outside.safetensors"), &good).unwrap();
    for name in
        ["../outside.safetensors", "/etc/passwd", "..", ".", "", "./a.safetensors", "x/../a.safetensors", "a\\b"]
    {
        index(json!({ "w": name }));
        bad_checkpoint(&folder, &["'w'", "no file name"]);
    }
    index(json!({ "w": "b.safetensors" }));
    bad_checkpoint(&folder, &["b.safetensors", "cannot be read"]);
    index(json!({ "v": "a.safetensors" }));
    bad_checkpoint(&folder, &["'v'", "does not hold it"]);
    fs::write(folder.join("b.safetensors"), &good).unwrap();
    index(json!({ "w": "a.safetensors", "v": "b.safetensors" }));
    bad_checkpoint(&folder, &["'w'", "b.safetensors"]);
    fs::write(folder.join("model.safetensors.index.json"), "{}").unwrap();
    bad_checkpoint(&folder, &["no index", "weight_map"]);
    fs::write(folder.join("model.safetensors.index.json"), r#"[{"w": "a.safetensors"}]"#).unwrap();
    bad_checkpoint(&folder, &["no index", "expected an object"]);
    // As in the cache of the Hugging Face hub: a link to a file elsewhere.
    fs::remove_file(folder.join("a.safetensors")).unwrap();
    std::os::unix::fs::symlink("../outside.safetensors", folder.join("a.safetensors")).unwrap();
    index(json!({ "w": "a.safetensors" }));
    expect(&document(|_| ()).to_string(), Some(&folder), &[], 0).unwrap();
}

/// A text or file with some bytes replaced, left out or doubled.
fn damaged(bytes: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4), 1..5);
    changes.prop_map(move |changes| {
        let mut bytes = bytes.clone();
        for (index, byte, kind) in changes {
            let at = index.index(bytes.len().max(1)).min(bytes.len().saturating_sub(1));
            match kind {
                _ if bytes.is_empty() => bytes.push(byte),
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"0919-{}[]\",:"[usize::from(byte) % 12]),
                _ => bytes.truncate(at),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn damaged_plans_end_in_a_status(text in damaged(document(|_| ()).to_string().into_bytes())) {
        let text = String::from_utf8_lossy(&text).replace('\0', "");
        if let Err(status) = expect(&text, None, &[tensor()], 0) {
            prop_assert!([Status::BadPlan, Status::MissingSource, Status::SourceMismatch].contains(&status), "{}", last_error());
        }
    }

    #[test]
    fn damaged_files_end_in_a_status(bytes in damaged(safetensors(&[("w", "F32", &[2, 3], &[0; 24]), ("v", "F4", &[2], &[0])]))) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = folder.join("damaged.safetensors");
        fs::write(&file, &bytes).unwrap();
        if let Err(status) = expect(&document(|_| ()).to_string(), Some(&file), &[], 0) {
            let allowed = [Status::BadCheckpoint, Status::MissingSource, Status::SourceMismatch];
            prop_assert!(allowed.contains(&status), "{}", last_error());
        }
    }
}

#[test]
fn deep_nesting_is_no_stack_overflow() {
    refused(&"[".repeat(1_000_000), Status::BadPlan, &["not a plan document"]);
    refused(&format!("{{\"format\":{}", "{\"a\":".repeat(1_000_000)), Status::BadPlan, &["not a plan document"]);
    let unknown = format!("{{\"later\":{}{},", "[".repeat(100_000), "]".repeat(100_000));
    let plan = document(|_| ()).to_string().replacen('{', &unknown, 1);
    let _ = expect(&plan, None, &[tensor()], 0);
}
