//! The plan document as it is written in JSON, before anything is looked at but its form.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::named::{Named, Object};
use crate::status::{Error, Result, Status};

/// What `format` says.
const FORMAT: &str = "weight-checker-plan";

/// The version that this library reads.
const VERSION: u64 = 1;

/// What says how to read the rest.
#[derive(Deserialize)]
struct Head {
    format: Option<String>,
    version: Option<serde_json::Value>,
}

/// The document. Fields that are not known are ignored, so that a later addition is readable.
#[derive(Deserialize)]
pub struct Document {
    pub sources: Named<Object<Tensor>>,
    pub ranks: Vec<Object<RankPlan>>,
}

#[derive(Deserialize)]
pub struct Tensor {
    pub dtype: String,
    pub shape: Vec<u64>,
}

#[derive(Deserialize)]
pub struct RankPlan {
    pub rank: Object<Rank>,
    pub parameters: Named<Object<Parameter>>,
    #[serde(default)]
    pub unused: Named<String>,
}

#[derive(Clone, Copy, Deserialize)]
pub struct Rank {
    pub dp: u32,
    pub pp: u32,
    pub pcp: u32,
    pub tp: u32,
}

#[derive(Deserialize)]
pub struct Parameter {
    pub dtype: String,
    pub shape: Vec<u64>,
    pub pieces: Vec<Object<Piece>>,
}

/// Of any kind: exactly one of `source`, `constant` and `computed` is there.
#[derive(Deserialize)]
pub struct Piece {
    pub source: Option<String>,
    pub source_offset: Option<u64>,
    pub source_strides: Option<Vec<i64>>,
    /// As it is written: an integer that no type holds must not become a float.
    pub constant: Option<Box<RawValue>>,
    pub computed: Option<String>,
    pub sources: Option<Vec<String>>,
    pub shape: Vec<u64>,
    pub offset: u64,
    pub strides: Vec<i64>,
    #[serde(default)]
    pub via: Vec<String>,
}

impl Document {
    /// Reads JSON text.
    pub fn parse(json: &str) -> Result<Self> {
        let bad = |what: String| Error::new(Status::BadPlan, format!("the plan {what}"));
        let unreadable = |error: serde_json::Error| bad(format!("is not a plan document: {error}"));
        let Object(head): Object<Head> = serde_json::from_str(json).map_err(unreadable)?;
        match head.format.as_deref() {
            Some(FORMAT) => {}
            Some(other) => return Err(bad(format!("has the format '{other}', not '{FORMAT}'"))),
            None => return Err(bad(format!("does not say \"format\": \"{FORMAT}\""))),
        }
        match head.version {
            Some(version) if version.as_u64() == Some(VERSION) => {}
            Some(other) => {
                return Err(bad(format!(
                    "is of version {other}; this library reads version {VERSION}: record it anew"
                )));
            }
            None => return Err(bad("has no version".to_owned())),
        }
        let Object(document) = serde_json::from_str(json).map_err(unreadable)?;
        Ok(document)
    }
}
