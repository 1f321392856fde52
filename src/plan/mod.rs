//! The plan: where every element of every parameter comes from, as recorded from an engine's own loader.
//!
//! A document is untrusted input. What [`Plan::parse`] gives has a sound form: names are known, dtypes exist, no piece
//! writes an element twice, all numbers fit into 63 bits. That pieces stay inside their tensors is not part of it: the audit
//! reports those that do not, and nothing else may execute them.

pub mod apply;
pub mod audit;
mod compose;
mod document;
mod piece;
mod ready;
mod window;

use std::collections::{HashMap, HashSet};

pub use self::piece::{Dim, Origin, Piece};
use crate::dtype::DType;
use crate::layout::{Layout, MAX_NDIM};
use crate::named::Object;
use crate::rank::Rank;
use crate::status::{Error, Result, Status};

/// A plan of one or many ranks.
#[derive(Debug)]
pub struct Plan {
    /// The checkpoint tensors, all that the loader was offered. Pieces name them by index.
    pub sources: Vec<Tensor>,
    /// Each rank once.
    pub ranks: Vec<RankPlan>,
}

/// A named tensor without data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    /// Unique among the sources, or among a rank's parameters.
    pub name: String,
    /// The type of its elements: of whole bytes.
    pub dtype: DType,
    /// At most 32 extents; the size in bytes fits into 63 bits.
    pub shape: Vec<u64>,
}

/// What one rank holds.
#[derive(Debug)]
pub struct RankPlan {
    /// Which one.
    pub rank: Rank,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// (index of a source, why it is not placed on this rank).
    pub unused: Vec<(usize, String)>,
}

/// A parameter and where its elements are from.
#[derive(Debug)]
pub struct Parameter {
    /// What it is.
    pub tensor: Tensor,
    /// In order: a later one overwrites an earlier one.
    pub pieces: Vec<Piece>,
}

impl Parameter {
    /// Whether its pieces are told by sources and constants alone.
    pub fn is_copied(&self) -> bool {
        self.pieces.iter().all(|piece| !matches!(piece.origin, Origin::Computed { .. }))
    }

    /// Refuses pieces that write outside of the parameter or read outside of their source.
    ///
    /// # Errors
    /// `BadPlan`, with the `rank` that it is about.
    pub fn check_bounds(&self, sources: &[Tensor], rank: Rank) -> Result<()> {
        let room = self.tensor.elements();
        for (number, piece) in self.pieces.iter().enumerate() {
            let refuse = |what: String| {
                let place = format!("rank {rank}, parameter '{}', piece {number}", self.tensor.name);
                Err(bad(&place, &what))
            };
            let target = piece.target_range();
            if target.end > room {
                return refuse(format!("it writes elements {} to {} of {room}", target.start, target.end));
            }
            if let (Origin::Source { source, .. }, Some(range)) = (&piece.origin, piece.source_range()) {
                let (name, there) = (&sources[*source].name, sources[*source].elements());
                if range.start < 0 || range.end as u64 > there {
                    let (start, end) = (range.start, range.end);
                    return refuse(format!("it reads elements {start} to {end} of {there} of source '{name}'"));
                }
            }
        }
        Ok(())
    }
}

impl Plan {
    /// Reads a plan document. It has at least one parameter.
    ///
    /// # Errors
    /// `BadPlan`, with the place.
    pub fn parse(json: &str) -> Result<Self> {
        let document = document::Document::parse(json)?;
        let sources = document.sources.0.into_iter().map(|(name, Object(tensor))| {
            let place = format!("source '{name}'");
            Tensor::new(name, &tensor.dtype, tensor.shape).map_err(|what| bad(&place, &what))
        });
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let index: HashMap<&str, usize> =
            sources.iter().enumerate().map(|(index, source)| (source.name.as_str(), index)).collect();
        let ranks = document.ranks.into_iter().map(|Object(rank)| RankPlan::read(rank, &index));
        let ranks = ranks.collect::<Result<Vec<_>>>()?;
        let mut seen = HashSet::new();
        if let Some(twice) = ranks.iter().find(|rank| !seen.insert(rank.rank)) {
            return Err(bad(&format!("rank {}", twice.rank), "it comes twice"));
        }
        // Nothing found in nothing would be taken for a pass.
        let nothing = |what: &str| Error::new(Status::BadPlan, format!("the plan has no {what}: it says nothing"));
        if ranks.is_empty() {
            return Err(nothing("rank"));
        }
        if ranks.iter().all(|rank| rank.parameters.is_empty()) {
            return Err(nothing("parameter"));
        }
        Ok(Self { sources, ranks })
    }
}

impl Tensor {
    fn new(name: String, dtype: &str, shape: Vec<u64>) -> std::result::Result<Self, String> {
        let dtype = self::dtype(dtype)?;
        if shape.len() > MAX_NDIM {
            return Err(format!("it has {} dimensions; at most {MAX_NDIM} are supported", shape.len()));
        }
        // An extent that i64 does not hold is too large whatever the others are.
        let signed: Vec<i64> = shape.iter().map(|extent| i64::try_from(*extent).unwrap_or(i64::MAX)).collect();
        Layout::new(&signed, None, dtype.element_bits()).map_err(|(_, what)| what)?;
        Ok(Self { name, dtype, shape })
    }

    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product() }
    }

    /// Bytes of one element.
    pub fn element_bytes(&self) -> u64 {
        self.dtype.element_bits() / 8
    }
}

impl RankPlan {
    fn read(raw: document::RankPlan, sources: &HashMap<&str, usize>) -> Result<Self> {
        let Object(document::Rank { dp, pp, pcp, tp }) = raw.rank;
        let rank = Rank { dp, pp, pcp, tp };
        let find = |name: &str| {
            sources.get(name).copied().ok_or_else(|| format!("it names '{name}', which is not among the sources"))
        };
        let parameter = |(name, Object(raw)): (String, Object<document::Parameter>)| {
            let place = |what: &str| bad(&format!("rank {rank}, parameter '{name}'"), what);
            let tensor = Tensor::new(name.clone(), &raw.dtype, raw.shape).map_err(|what| place(&what))?;
            let pieces = raw.pieces.into_iter().enumerate().map(|(number, Object(piece))| {
                Piece::read(piece, tensor.dtype, find).map_err(|what| place(&format!("piece {number}: {what}")))
            });
            let pieces = pieces.collect::<Result<_>>()?;
            Ok(Parameter { tensor, pieces })
        };
        let unused = raw.unused.0.into_iter().map(|(name, reason)| match find(&name) {
            Ok(source) => Ok((source, reason)),
            Err(what) => Err(bad(&format!("rank {rank}, 'unused'"), &what)),
        });
        let unused = unused.collect::<Result<_>>()?;
        Ok(Self { rank, parameters: raw.parameters.0.into_iter().map(parameter).collect::<Result<_>>()?, unused })
    }
}

/// The element type that a plan calls `name`.
fn dtype(name: &str) -> std::result::Result<DType, String> {
    DType::from_torch(name).ok_or_else(|| format!("'{name}' is no dtype of torch's that this library knows"))
}

fn bad(place: &str, what: &str) -> Error {
    Error::new(Status::BadPlan, format!("the plan, {place}: {what}"))
}
