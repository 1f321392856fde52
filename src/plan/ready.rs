//! A piece with the data of its source, ready to be written into a buffer.

use std::ops::Range;

use super::compose::compose;
use super::window::{Part, Step, steps};
use super::{Dim, Origin, Piece};
use crate::cast::{Caster, Constant, Value, caster, constant};
use crate::dtype::DType;
use crate::layout::Layout;
use crate::memory::{Memory, Run};

/// Elements that pass through casts together: small enough for the nearest cache.
const STAGED: u64 = 2048;

/// Elements of one row of those, when rows lie closer together than elements.
const STAGED_COLUMNS: u64 = 64;

/// Bytes of a source that should be read together when they are far from the next ones: some lines of the cache, for one look
/// at where their page is.
const READ_TOGETHER: u64 = 256;

/// The data of a source.
#[derive(Clone, Copy)]
pub struct Data<'v> {
    memory: Memory<'v>,
    dtype: DType,
    /// `None` when its elements lie side by side.
    layout: Option<&'v Layout>,
}

impl<'v> Data<'v> {
    /// Of elements of `dtype` that lie in `memory` as `layout` says; `None`: side by side, in row-major order.
    pub fn new(memory: Memory<'v>, dtype: DType, layout: Option<&'v Layout>) -> Self {
        Self { memory, dtype, layout: layout.filter(|layout| !layout.is_contiguous()) }
    }
}

/// A piece that can be read.
pub struct Ready<'v> {
    pub target: Range<u64>,
    /// Whether it writes everything in `target`.
    pub is_dense: bool,
    /// Source strides count bytes, or elements of a layout.
    pub steps: Vec<Step>,
    pub start: i64,
    pub from: From<'v>,
    pub casts: Vec<(Caster, u64)>,
}

/// Where elements are read from.
pub enum From<'v> {
    /// At distances in memory, elements of so many bytes.
    Memory(Memory<'v>, u64),
    /// By their index in row-major order.
    Layout(Memory<'v>, &'v Layout, u64),
    /// From nowhere: always the same.
    Constant(Vec<u8>),
}

/// Elements on their way through casts.
#[derive(Default)]
pub struct Stage {
    now: Vec<u8>,
    next: Vec<u8>,
}

/// Whether a piece of a parameter of type `to` can be executed; `dtype` gives that of a source. An error says why not.
pub fn check(piece: &Piece, to: DType, dtype: impl Fn(usize) -> DType) -> Result<(), String> {
    match &piece.origin {
        Origin::Computed { reason, .. } => Err(format!("it is computed: {reason}")),
        Origin::Constant { value, via } => filled(*value, via, to).map(drop),
        Origin::Source { source, via, .. } => casts(dtype(*source), via, to).map(drop),
    }
}

/// An element of a constant piece.
fn filled(value: Constant, via: &[DType], to: DType) -> Result<Value, String> {
    constant(value, via, to).ok_or_else(|| format!("this library does not fill a constant into {}", names(via, to)))
}

impl<'v> Ready<'v> {
    pub fn new(piece: &Piece, to: DType, data: &impl Fn(usize) -> Data<'v>) -> Result<Self, String> {
        let target = piece.target_range();
        let is_dense = piece.elements() == target.end - target.start;
        let (start, dims, from, casts) = match &piece.origin {
            Origin::Computed { reason, .. } => return Err(format!("it is computed: {reason}")),
            Origin::Constant { value, via } => {
                let value = filled(*value, via, to)?.as_ref().to_vec();
                (0, piece.dims.clone(), From::Constant(value), Vec::new())
            }
            Origin::Source { source, offset, via } => {
                let data = data(*source);
                let (start, dims, from) = data.place(*offset, &piece.dims);
                (start, dims, from, casts(data.dtype, via, to)?)
            }
        };
        Ok(Self { target, is_dense, steps: steps(dims.into_iter()), start, from, casts })
    }

    /// Elements of the parameter that should be written together: when its rows are columns of the source, as many as make
    /// reading those worth it.
    pub fn together(&self) -> u64 {
        let (From::Memory(_, size), Some((inner, outer))) = (&self.from, self.steps.split_last()) else { return 0 };
        let is_closer = |step: &&Step| step.source.unsigned_abs() < inner.source.unsigned_abs();
        let rows = outer.iter().filter(is_closer).map(|step| step.target * step.extent.min(READ_TOGETHER / size));
        rows.max().unwrap_or(0)
    }

    /// Writes a part of this piece to `out`, which starts at element 0 of the part's target.
    pub fn write(&self, part: Part<'_>, element: u64, out: &mut [u8], stage: &mut Stage) {
        let run = |extent: u64, step: &Step| Run { count: extent, source: step.source, target: step.target * element };
        let (outer, inner) = match part.steps {
            [] => (ONE, ONE),
            [step] => (ONE, run(part.extent, step)),
            [outer, inner] => (run(part.extent, outer), run(inner.extent, inner)),
            [outer, rest @ ..] => {
                for index in 0..part.extent {
                    let source = part.source + index as i64 * outer.source;
                    let target = part.target + index * outer.target;
                    self.write(Part { extent: rest[0].extent, steps: rest, source, target }, element, out, stage);
                }
                return;
            }
        };
        let out = &mut out[(part.target * element) as usize..];
        match &self.from {
            From::Memory(memory, _) if self.casts.is_empty() => {
                memory.copy(part.source as u64, outer, inner, element, out);
            }
            _ => self.write_staged(part.source, outer, inner, element, out, stage),
        }
    }

    /// Writes elements to the start of `out` that must be found or cast first, in blocks.
    fn write_staged(&self, source: i64, outer: Run, inner: Run, element: u64, out: &mut [u8], stage: &mut Stage) {
        let is_transposed = outer.count > 1 && outer.source.unsigned_abs() < inner.source.unsigned_abs();
        let width = inner.count.min(if is_transposed { STAGED_COLUMNS } else { STAGED });
        let height = outer.count.min(STAGED / width);
        for top in (0..outer.count).step_by(height as usize) {
            let rows = Run { count: height.min(outer.count - top), ..outer };
            for left in (0..inner.count).step_by(width as usize) {
                let row = Run { count: width.min(inner.count - left), ..inner };
                let source = source + top as i64 * outer.source + left as i64 * inner.source;
                let out = &mut out[(top * outer.target + left * inner.target) as usize..];
                self.write_block(source, rows, row, element, out, stage);
            }
        }
    }

    /// Writes a block of elements to the start of `out`. What lies side by side is cast where it is.
    fn write_block(&self, source: i64, rows: Run, row: Run, element: u64, out: &mut [u8], stage: &mut Stage) {
        let count = rows.count * row.count;
        let Stage { now, next } = stage;
        let in_place = match self.from {
            From::Memory(memory, size) if rows.count == 1 && (row.source == size as i64 || row.count == 1) => {
                Some(memory.slice(source as u64, count * size))
            }
            _ => {
                self.from.read(source, rows, row, now);
                None
            }
        };
        let is_side_by_side = rows.count == 1 && (row.target == element || row.count == 1);
        let mut from = in_place;
        for (number, (cast, size)) in self.casts.iter().enumerate() {
            if number + 1 == self.casts.len() && is_side_by_side {
                cast.run(from.unwrap_or(now), &mut out[..(count * element) as usize]);
                return;
            }
            next.resize((count * size) as usize, 0);
            cast.run(from.take().unwrap_or(now), next);
            std::mem::swap(now, next);
        }
        let packed = |run: Run, source: u64| Run { source: source as i64, ..run };
        Memory::from(&now[..]).copy(0, packed(rows, row.count * element), packed(row, element), element, out);
    }
}

/// A single element.
const ONE: Run = Run { count: 1, source: 0, target: 0 };

impl From<'_> {
    /// Reads the elements of `row` for each of `rows` to `out`, side by side.
    fn read(&self, source: i64, rows: Run, row: Run, out: &mut Vec<u8>) {
        match self {
            From::Memory(memory, size) => {
                out.resize((rows.count * row.count * size) as usize, 0);
                let packed = |run: Run, target: u64| Run { target, ..run };
                memory.copy(source as u64, packed(rows, row.count * size), packed(row, *size), *size, out);
            }
            From::Layout(memory, layout, size) => {
                out.clear();
                for at in (0..rows.count as i64).map(|index| source + index * rows.source) {
                    for index in 0..row.count as i64 {
                        let position = (at + index * row.source) as u64 * size;
                        out.extend_from_slice(memory.slice(layout.locate(position), *size));
                    }
                }
            }
            From::Constant(value) => {
                out.clear();
                (0..rows.count * row.count).for_each(|_| out.extend_from_slice(value));
            }
        }
    }
}

impl<'v> Data<'v> {
    /// Where a piece starts and leads, and what that counts.
    fn place(self, offset: u64, dims: &[Dim]) -> (i64, Vec<Dim>, From<'v>) {
        let size = self.dtype.element_bits() / 8;
        let Some(layout) = self.layout else {
            let bytes = |dim: &Dim| Dim { source: dim.source * size as i64, ..*dim };
            return ((offset * size) as i64, dims.iter().map(bytes).collect(), From::Memory(self.memory, size));
        };
        match compose(layout, size, offset, dims) {
            Some((start, dims)) => (start as i64, dims, From::Memory(self.memory, size)),
            None => (offset as i64, dims.to_vec(), From::Layout(self.memory, layout, size)),
        }
    }
}

/// The casts on the way from one type to another, each with the bytes of an element behind it.
fn casts(from: DType, via: &[DType], to: DType) -> Result<Vec<(Caster, u64)>, String> {
    let mut casts = Vec::new();
    let mut now = from;
    for next in via.iter().copied().chain([to]) {
        if next != now {
            let cast = caster(now, next).ok_or_else(|| format!("this library does not cast {now} to {next}"))?;
            casts.push((cast, next.element_bits() / 8));
        }
        now = next;
    }
    Ok(casts)
}

/// For a message.
fn names(via: &[DType], to: DType) -> String {
    via.iter().chain([&to]).map(DType::to_string).collect::<Vec<_>>().join(" and then ")
}
