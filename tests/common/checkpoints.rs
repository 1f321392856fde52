//! Safetensors files and plan documents, written by hand.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A folder of its own, empty.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A safetensors file of (name, dtype, shape, bytes).
pub fn safetensors(tensors: &[(&str, &str, &[u64], &[u8])]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert((*name).to_owned(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
        data.extend_from_slice(bytes);
    }
    with_header(&Value::Object(header).to_string(), &data)
}

/// A file of this header and data, whatever they are.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// The document of one rank.
pub fn plan(sources: Value, parameters: Value) -> Value {
    let rank = json!({ "dp": 0, "pp": 0, "pcp": 0, "tp": 0 });
    let ranks = [json!({ "rank": rank, "parameters": parameters })];
    json!({ "format": "weight-checker-plan", "version": 1, "sources": sources, "ranks": ranks })
}
