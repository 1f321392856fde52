//! The baseline: what a caller says that every key's digest must be.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserializer;
use serde::de::{MapAccess, Visitor};

use crate::digest::{Algorithm, DigestText};
use crate::status::{Error, Result, Status};

/// The part of a baseline that is about one rank: its keys in order, each with a digest.
#[derive(Debug, Default)]
pub struct Baseline {
    digests: BTreeMap<String, String>,
    others: Others,
}

/// What a baseline holds besides.
#[derive(Debug, Default)]
struct Others {
    keys: usize,
    example: Option<String>,
}

impl Baseline {
    /// Reads JSON text `{key: digest}` and keeps the keys that start with `prefix`.
    ///
    /// # Errors
    /// `BadBaseline` when the text is not an object of strings or holds a key twice; `AlgorithmMismatch` when a digest, of
    /// whatever rank, is of another algorithm than `algorithm`. A string that is no digest equals none, so it differs.
    pub fn parse(json: &str, prefix: &str, algorithm: Algorithm) -> Result<Self> {
        let bad = |error: serde_json::Error| {
            Error::new(Status::BadBaseline, format!("the baseline is not a JSON object {{key: digest}}: {error}"))
        };
        let mut reader = serde_json::Deserializer::from_str(json);
        let pairs = reader.deserialize_map(Pairs).map_err(bad)?;
        reader.end().map_err(bad)?;
        let mut baseline = Self::default();
        let mut strange = Vec::new();
        for (key, digest) in pairs {
            match DigestText::of(&digest) {
                DigestText::Of(found) if found == algorithm => {}
                DigestText::None => strange.push(key.clone()),
                DigestText::Of(found) => return Err(other_algorithm(&key, found.name(), algorithm)),
                DigestText::OfOther(name) => return Err(other_algorithm(&key, name, algorithm)),
            }
            baseline.insert(key, digest, prefix);
        }
        if let Some(key) = strange.first() {
            log::warn!(
                "{} strings of the baseline are no digests and equal none; the first is of '{key}'",
                strange.len()
            );
        }
        Ok(baseline)
    }

    fn insert(&mut self, key: String, digest: String, prefix: &str) {
        if key.starts_with(prefix) {
            self.digests.insert(key, digest);
        } else {
            self.others.keys += 1;
            self.others.example.get_or_insert(key);
        }
    }

    /// The digest that `key` must have, if the baseline says one.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.digests.get(key).map(String::as_str)
    }

    /// All keys of the rank, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.digests.keys().map(String::as_str)
    }

    /// What it holds, for a message.
    pub fn summary(&self) -> String {
        let example = self.others.example.as_deref().map(|key| format!(" (such as '{key}')")).unwrap_or_default();
        format!("{} keys of this rank and {} other keys{example}", self.digests.len(), self.others.keys)
    }
}

fn other_algorithm(key: &str, found: &str, asked: Algorithm) -> Error {
    Error::new(
        Status::AlgorithmMismatch,
        format!(
            "the baseline's digest of '{key}' is {found}, but {} was asked for; use one algorithm for both",
            asked.name()
        ),
    )
}

/// Reads the object, refusing a key that comes twice (JSON leaves open which of the two would count).
struct Pairs;

impl<'de> Visitor<'de> for Pairs {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut pairs = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            let digest: serde_json::Value = map.next_value()?;
            let serde_json::Value::String(digest) = digest else {
                return Err(serde::de::Error::custom(format!("the digest of '{key}' is not a string")));
            };
            if pairs.contains_key(&key) {
                return Err(serde::de::Error::custom(format!("the key '{key}' comes twice")));
            }
            pairs.insert(key, digest);
        }
        Ok(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "dp0:pp0:pcp0:tp0:";

    fn parse(json: &str) -> Result<Baseline> {
        Baseline::parse(json, PREFIX, Algorithm::Sha256)
    }

    #[test]
    fn only_an_object_of_strings_is_a_baseline() {
        for json in
            ["", "[]", "null", "1", "{", "{\"a\":1}", "{\"a\":null}", "{\"a\":{}}", "{} x", "{\"a\":\"b\",\"a\":\"b\"}"]
        {
            assert_eq!(parse(json).unwrap_err().status(), Status::BadBaseline, "{json}");
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn keys_of_other_ranks_are_counted_and_left_out() {
        let baseline = parse(r#"{"dp0:pp0:pcp0:tp1:a": "x", "dp0:pp0:pcp0:tp0:a": "y", "b": "z"}"#).unwrap();
        assert_eq!(baseline.keys().collect::<Vec<_>>(), ["dp0:pp0:pcp0:tp0:a"]);
        assert_eq!(baseline.get("dp0:pp0:pcp0:tp0:a"), Some("y"));
        assert!(baseline.summary().contains("1 keys of this rank and 2 other keys (such as 'b')"));
    }

    #[test]
    fn algorithms_are_never_mixed_not_even_on_another_rank() {
        for other in ["sha256-tree", "blake3"] {
            let json = format!(r#"{{"dp9:pp0:pcp0:tp0:a": "{other}:{}"}}"#, "0".repeat(64));
            let error = parse(&json).unwrap_err();
            assert_eq!(error.status(), Status::AlgorithmMismatch);
            assert!(error.message().contains("dp9:pp0:pcp0:tp0:a") && error.message().contains(other));
        }
    }
}
