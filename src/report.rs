//! What the verbs tell, as data and as JSON.

use serde_json::{Map, Value, json};

use crate::digest::Digest;

/// The digest of every tensor, in the order given.
#[derive(Debug)]
pub struct ChecksumReport {
    /// (key, digest).
    pub checksums: Vec<(String, Digest)>,
}

impl ChecksumReport {
    /// `{key: digest}`: a baseline for compare.
    pub fn to_json(&self) -> Value {
        let pairs = self.checksums.iter().map(|(key, digest)| (key.clone(), Value::String(digest.to_string())));
        Value::Object(pairs.collect::<Map<_, _>>())
    }
}

/// What reset has written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ResetReport {
    /// Tensors whose elements were written.
    pub written: usize,
    /// Tensors that are exactly the memory of an earlier one, which was written for both.
    pub shared: usize,
    /// Bytes written.
    pub bytes: u64,
}

impl ResetReport {
    /// The counts; `tensors` = `written` + `shared`.
    pub fn to_json(&self) -> Value {
        let Self { written, shared, bytes } = self;
        json!({ "tensors": written + shared, "written": written, "shared": shared, "bytes": bytes })
    }
}

/// How the tensors of a rank differ from a baseline. All lists are sorted.
#[derive(Debug, Default)]
pub struct CompareReport {
    /// Keys on both sides with different digests.
    pub differing: Vec<String>,
    /// Keys in the baseline that are not on this rank.
    pub missing: Vec<String>,
    /// Keys on this rank that are not in the baseline.
    pub unexpected: Vec<String>,
    /// How many keys are on both sides with the same digest.
    pub equal: usize,
    /// Logical bytes of all tensors.
    pub bytes: u64,
}

impl CompareReport {
    /// Keys on both sides.
    pub fn compared(&self) -> usize {
        self.equal + self.differing.len()
    }

    /// Whether nothing differs, is missing or is unexpected.
    pub fn is_match(&self) -> bool {
        self.differing.is_empty() && self.missing.is_empty() && self.unexpected.is_empty()
    }

    /// The lists, and counts that add up: `tensors` = `compared` + unexpected, `compared` = `equal` + differing.
    pub fn to_json(&self) -> Value {
        let mut mismatches: Vec<&String> = self.differing.iter().chain(&self.missing).chain(&self.unexpected).collect();
        mismatches.sort();
        json!({
            "match": self.is_match(),
            "mismatches": mismatches,
            "differing": self.differing,
            "missing": self.missing,
            "unexpected": self.unexpected,
            "tensors": self.compared() + self.unexpected.len(),
            "compared": self.compared(),
            "equal": self.equal,
            "bytes": self.bytes,
        })
    }
}
