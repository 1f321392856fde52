//! What an audit has found, as data and as JSON.

use serde_json::{Value, json};

use crate::rank::Rank;

/// The findings. Those about parameters are one for each rank that has them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Ranks in the plan.
    pub ranks: usize,
    /// Parameters of all ranks.
    pub parameters: usize,
    /// Pieces of all parameters.
    pub pieces: usize,
    /// Checkpoint tensors.
    pub sources: usize,
    /// Sources of which no rank takes an element.
    pub unplaced: Vec<Unplaced>,
    /// Sources of which some elements are taken and some are not.
    pub partly_placed: Vec<PartlyPlaced>,
    /// Parameters with elements that no piece writes.
    pub unwritten: Vec<Unwritten>,
    /// Parameters with elements that get several different elements of sources.
    pub overlapping: Vec<Overlapping>,
    /// Pieces that lead out of a tensor.
    pub past_the_end: Vec<PastTheEnd>,
    /// Tensors that are cut too finely to be audited: nothing is said about them.
    pub unaudited: Vec<Unaudited>,
    /// Sets of ranks that hold the same slices. No finding.
    pub replicas: Vec<Replicas>,
}

/// A source of which no rank takes an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// Its name.
    pub source: String,
    /// The plan's reason: then it is no fault.
    pub explained: Option<String>,
}

/// A source of which some elements are missing everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartlyPlaced {
    /// Its name.
    pub source: String,
    /// How many elements are missing.
    pub elements: u64,
    /// How many it has.
    pub of: u64,
    /// Coordinates of the first that is missing.
    pub first: Vec<u64>,
}

/// A parameter with elements that no piece writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritten {
    /// Its key.
    pub key: String,
    /// How many.
    pub elements: u64,
    /// How many it has.
    pub of: u64,
    /// Coordinates of the first.
    pub first: Vec<u64>,
}

/// A parameter with elements that get two different sources, or two elements of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlapping {
    /// Its key.
    pub key: String,
    /// How many.
    pub elements: u64,
    /// Coordinates of the first.
    pub first: Vec<u64>,
    /// Two sources that the first one gets.
    pub sources: [String; 2],
}

/// Pieces that read outside a source, or write outside the parameter. What they have inside still counts as placed and
/// written; but a piece that reads below 0 places nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastTheEnd {
    /// The parameter's key.
    pub key: String,
    /// The source; `None` when it is the parameter that they leave.
    pub source: Option<String>,
    /// The first element that does not exist: below 0, or from `of` on.
    pub first_beyond: i64,
    /// How many exist.
    pub of: u64,
}

/// A tensor about which nothing can be said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unaudited {
    /// A parameter, by its key.
    Parameter(String),
    /// A source, by its name.
    Source(String),
}

/// Ranks that hold the same slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// At least two.
    pub ranks: Vec<Rank>,
    /// How many parameters all of them have, with the same pieces.
    pub parameters: usize,
}

impl AuditReport {
    /// Whether every element is placed and written, once, or is explained.
    pub fn is_complete(&self) -> bool {
        self.unplaced.iter().all(|unplaced| unplaced.explained.is_some())
            && self.partly_placed.is_empty()
            && self.unwritten.is_empty()
            && self.overlapping.is_empty()
            && self.past_the_end.is_empty()
            && self.unaudited.is_empty()
    }

    /// All of it. `sources` = `placed` + unplaced.
    pub fn to_json(&self) -> Value {
        fn list<T>(items: &[T], json: impl Fn(&T) -> Value) -> Value {
            items.iter().map(json).collect()
        }
        json!({
            "complete": self.is_complete(),
            "ranks": self.ranks,
            "parameters": self.parameters,
            "pieces": self.pieces,
            "sources": self.sources,
            "placed": self.sources - self.unplaced.len(),
            "unplaced": list(&self.unplaced, |Unplaced { source, explained }| {
                json!({ "source": source, "explained": explained })
            }),
            "partly_placed": list(&self.partly_placed, |PartlyPlaced { source, elements, of, first }| {
                json!({ "source": source, "elements": elements, "of": of, "first": first })
            }),
            "unwritten": list(&self.unwritten, |Unwritten { key, elements, of, first }| {
                json!({ "key": key, "elements": elements, "of": of, "first": first })
            }),
            "overlapping": list(&self.overlapping, |Overlapping { key, elements, first, sources }| {
                json!({ "key": key, "elements": elements, "first": first, "sources": sources })
            }),
            "past_the_end": list(&self.past_the_end, |PastTheEnd { key, source, first_beyond, of }| {
                json!({ "key": key, "source": source, "first_beyond": first_beyond, "of": of })
            }),
            "unaudited": list(&self.unaudited, |unaudited| match unaudited {
                Unaudited::Parameter(key) => json!({ "key": key, "source": null }),
                Unaudited::Source(source) => json!({ "key": null, "source": source }),
            }),
            "replicas": list(&self.replicas, |Replicas { ranks, parameters }| {
                let ranks: Vec<String> = ranks.iter().map(Rank::to_string).collect();
                json!({ "ranks": ranks, "parameters": parameters })
            }),
        })
    }
}
