//! A piece: a box of a parameter's elements, and where their values are from.

use std::ops::Range;

use super::document;
use crate::cast::{Constant, takes};
use crate::dtype::DType;
use crate::layout::MAX_NDIM;

/// Elements of a parameter that have one origin. What it writes, it writes once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The first element, in row-major order of the parameter.
    pub offset: u64,
    /// Largest target stride first; each stride exceeds the reach of all after it together. No extent is 1, and none that
    /// continues its neighbour (on both sides) is left, so equal pieces are written in one way. A piece without
    /// elements has one dimension of extent 0.
    pub dims: Vec<Dim>,
    /// Where the values are from.
    pub origin: Origin,
}

/// One dimension of a piece, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// How many.
    pub extent: u64,
    /// From one to the next in the source; 0 when there is none.
    pub source: i64,
    /// From one to the next in the parameter.
    pub target: u64,
}

/// Where a piece's values are from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Elements of a source.
    Source {
        /// Its index in the plan.
        source: usize,
        /// The element for the piece's first, in row-major order of the source.
        offset: u64,
        /// The types that values pass on their way to the parameter's.
        via: Vec<DType>,
    },
    /// One value.
    Constant {
        /// As it is written.
        value: Constant,
        /// The types that it passes on its way to the parameter's.
        via: Vec<DType>,
    },
    /// Arithmetic of sources: what is written cannot be told from them by copying.
    Computed {
        /// What was done.
        reason: String,
        /// Their indices in the plan.
        sources: Vec<usize>,
    },
}

/// The value of a constant piece, written as `text`. An error says what is wrong with it.
fn constant(text: &str) -> std::result::Result<Constant, String> {
    use serde_json::Value;
    // JSON has one kind of number: what is written without a fraction and an exponent is an integer.
    if text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit()) {
        let signed = text.parse().map(Constant::Int);
        return signed.or_else(|_| text.parse().map(Constant::UInt)).map_err(|_| {
            let shown = shown(text);
            format!("its constant {shown} fits neither into int64 nor into uint64, so nothing can be filled with it")
        });
    }
    let float = match serde_json::from_str(text) {
        Ok(Value::Bool(value)) => return Ok(Constant::Bool(value)),
        Ok(Value::Number(number)) => number.as_f64(),
        Ok(Value::String(name)) => match name.as_str() {
            "nan" => Some(f64::NAN),
            "inf" => Some(f64::INFINITY),
            "-inf" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    };
    float.map(|value| Constant::Float(value.to_bits())).ok_or_else(|| {
        let shown = shown(text);
        format!("its constant {shown} is no number that float64 holds, true, false, \"nan\", \"inf\" or \"-inf\"")
    })
}

/// As much of what should be a constant as a message shows.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

impl Piece {
    /// Checks what a piece of a document says of a parameter of type `to`; `source` gives the index of a name. An error
    /// says what is wrong.
    pub(super) fn read(
        raw: document::Piece,
        to: DType,
        source: impl Fn(&str) -> std::result::Result<usize, String>,
    ) -> std::result::Result<Self, String> {
        let kinds = [raw.source.is_some(), raw.constant.is_some(), raw.computed.is_some()];
        if kinds.iter().filter(|is_there| **is_there).count() != 1 {
            return Err("it must have exactly one of 'source', 'constant' and 'computed'".to_owned());
        }
        let via = raw.via.iter().map(|name| super::dtype(name)).collect::<std::result::Result<Vec<_>, _>>()?;
        let strides = match (&raw.source, raw.source_strides) {
            (Some(_), None) => return Err("it has a source and no 'source_strides'".to_owned()),
            (Some(_), Some(strides)) => strides,
            (None, _) => vec![0; raw.shape.len().min(MAX_NDIM)],
        };
        let dims = dims(&raw.shape, &strides, &raw.strides)?;
        let origin = if let Some(name) = &raw.source {
            let offset = raw.source_offset.ok_or("it has a source and no 'source_offset'")?;
            Origin::Source { source: source(name)?, offset, via }
        } else if let Some(value) = &raw.constant {
            let constant = constant(value.get())?;
            let first = *via.first().unwrap_or(&to);
            if !takes(constant, first) {
                return Err(format!("its constant {} does not fit into {first}", shown(value.get())));
            }
            Origin::Constant { value: constant, via }
        } else {
            let names = raw.sources.unwrap_or_default();
            let sources = names.iter().map(|name| source(name)).collect::<std::result::Result<Vec<_>, _>>()?;
            Origin::Computed { reason: raw.computed.unwrap_or_default(), sources }
        };
        let piece = Self { offset: raw.offset, dims, origin };
        piece.reach().ok_or("its offsets and strides lead beyond 2^63 elements")?;
        Ok(piece)
    }

    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.dims.iter().map(|dim| dim.extent).product()
    }

    /// From the first to behind the last element of the parameter that it writes.
    pub fn target_range(&self) -> Range<u64> {
        self.reach().map_or(0..0, |(target, _)| target)
    }

    /// From the first to behind the last element of its source that it reads; `None` without a source. It may start below
    /// 0, when the plan is wrong.
    pub fn source_range(&self) -> Option<Range<i64>> {
        self.reach().and_then(|(_, source)| source)
    }

    /// Both ranges; `None` when a number does not fit. Without elements they are empty.
    fn reach(&self) -> Option<(Range<u64>, Option<Range<i64>>)> {
        let from = match self.origin {
            Origin::Source { offset, .. } => Some(i64::try_from(offset).ok()?),
            _ => None,
        };
        let start = i64::try_from(self.offset).ok()?;
        if self.dims.iter().any(|dim| dim.extent == 0) {
            return Some((self.offset..self.offset, from.map(|from| from..from)));
        }
        let (mut end, mut low, mut high) = (start, from.unwrap_or(0), from.unwrap_or(0));
        for dim in &self.dims {
            let last = i64::try_from(dim.extent - 1).ok()?;
            end = end.checked_add(last.checked_mul(i64::try_from(dim.target).ok()?)?)?;
            let step = last.checked_mul(dim.source)?;
            (low, high) = (low.checked_add(step.min(0))?, high.checked_add(step.max(0))?);
        }
        let target = self.offset..u64::try_from(end.checked_add(1)?).ok()?;
        Some((target, from.map(|_| low..high.saturating_add(1))))
    }
}

/// The dimensions in the one way to write them.
fn dims(shape: &[u64], source: &[i64], target: &[i64]) -> std::result::Result<Vec<Dim>, String> {
    if shape.len() > MAX_NDIM {
        return Err(format!("it has {} dimensions; at most {MAX_NDIM} are supported", shape.len()));
    }
    if source.len() != shape.len() || target.len() != shape.len() {
        let counts = (shape.len(), source.len(), target.len());
        return Err(format!("it has {} extents, {} source strides and {} strides", counts.0, counts.1, counts.2));
    }
    if shape.contains(&0) {
        return Ok(vec![Dim { extent: 0, source: 0, target: 1 }]);
    }
    let mut dims = Vec::with_capacity(shape.len());
    for ((extent, source), target) in shape.iter().zip(source).zip(target).filter(|((extent, _), _)| **extent > 1) {
        match u64::try_from(*target) {
            Ok(target) if target > 0 => dims.push(Dim { extent: *extent, source: *source, target }),
            _ => return Err(format!("its stride {target} over {extent} elements is not above 0")),
        }
    }
    dims.sort_by_key(|dim| std::cmp::Reverse(dim.target));
    let mut reach = 0u64;
    for dim in dims.iter().rev() {
        if dim.target <= reach {
            return Err(format!("its shape {shape:?} and strides {target:?} write an element twice"));
        }
        let next = dim.target.checked_mul(dim.extent - 1).and_then(|step| step.checked_add(reach));
        reach = next.filter(|reach| *reach < i64::MAX as u64).ok_or("its strides lead beyond 2^63 elements")?;
    }
    Ok(merged(dims))
}

/// Joins each dimension with the next smaller one that it continues on both sides.
fn merged(dims: Vec<Dim>) -> Vec<Dim> {
    let mut merged: Vec<Dim> = Vec::with_capacity(dims.len());
    for dim in dims {
        match merged.last_mut() {
            Some(outer) if continues(outer, &dim) => *outer = Dim { extent: outer.extent * dim.extent, ..dim },
            _ => merged.push(dim),
        }
    }
    merged
}

fn continues(outer: &Dim, inner: &Dim) -> bool {
    let extent = i128::from(inner.extent);
    i128::from(outer.target) == i128::from(inner.target) * extent
        && i128::from(outer.source) == i128::from(inner.source) * extent
}
