//! Executing a plan: the logical bytes of a parameter, from the memory of its sources, without making the parameter.

use std::ops::Range;

pub use super::ready::Data;
use super::ready::{self, From, Ready, Stage};
use super::window::{Part, clip};
use super::{Parameter, Piece};
use crate::dtype::DType;
use crate::reader::{Bytes, Logical, Scattered, TOGETHER};
use crate::status;

/// The most bytes of any element.
const MOST_ELEMENT_BYTES: usize = 16;

/// Whether the pieces of `parameter` can be executed; `dtype` gives the type of a source by its index.
///
/// An error says which piece cannot: it is computed, or it is cast in a way that this library does not know.
pub fn check(parameter: &Parameter, dtype: impl Fn(usize) -> DType) -> Result<(), String> {
    some(parameter).try_for_each(|(number, piece)| {
        ready::check(piece, parameter.tensor.dtype, &dtype).map_err(|what| format!("piece {number}: {what}"))
    })
}

/// The pieces that have elements, each with its number.
fn some(parameter: &Parameter) -> impl Iterator<Item = (usize, &Piece)> {
    parameter.pieces.iter().enumerate().filter(|(_, piece)| piece.elements() > 0)
}

/// A parameter with the data of its sources. Its bytes are put together as they are read.
pub struct Planned<'v> {
    name: &'v str,
    element: u64,
    bytes: u64,
    pieces: Vec<Ready<'v>>,
    /// Indices of the pieces, by their first element, and for each the furthest end of all up to it.
    order: Vec<(usize, u64)>,
    /// Bytes that should be read together, so that what the processor reads together is used.
    together: u64,
}

impl<'v> Planned<'v> {
    /// Prepares `parameter`, all of whose elements must be written by pieces that stay inside of it and of their
    /// sources; `data` gives those by their index.
    ///
    /// An error is that of [`check`].
    pub fn new(parameter: &'v Parameter, data: impl Fn(usize) -> Data<'v>) -> Result<Self, String> {
        let tensor = &parameter.tensor;
        let mut pieces = Vec::with_capacity(parameter.pieces.len());
        for (number, piece) in some(parameter) {
            let ready = Ready::new(piece, tensor.dtype, &data).map_err(|what| format!("piece {number}: {what}"))?;
            pieces.push(ready);
        }
        let mut order: Vec<(usize, u64)> = pieces.iter().map(|piece| piece.target.end).enumerate().collect();
        order.sort_by_key(|(index, _)| pieces[*index].target.start);
        let mut furthest = 0;
        for (_, end) in &mut order {
            furthest = furthest.max(*end);
            *end = furthest;
        }
        let element = tensor.element_bytes();
        let together = pieces.iter().map(Ready::together).max().unwrap_or(0).saturating_mul(element);
        Ok(Self { name: &tensor.name, element, bytes: tensor.elements() * element, pieces, order, together })
    }

    /// The pieces that decide elements of `window`, in order. What is overwritten there as a whole is left out.
    fn pieces_in(&self, window: &Range<u64>) -> Vec<&Ready<'v>> {
        let end = self.order.partition_point(|(index, _)| self.pieces[*index].target.start < window.end);
        let start = self.order[..end].partition_point(|(_, furthest)| *furthest <= window.start);
        let mut found: Vec<usize> = self.order[start..end].iter().map(|(index, _)| *index).collect();
        found.retain(|index| self.pieces[*index].target.end > window.start);
        found.sort_unstable();
        let covers = |index: &usize| {
            let Ready { target, is_dense, .. } = &self.pieces[*index];
            *is_dense && target.start <= window.start && target.end >= window.end
        };
        let first = found.iter().rposition(covers).unwrap_or(0);
        found[first..].iter().map(|index| &self.pieces[*index]).collect()
    }

    /// The elements of `window` where they lie, if they do so side by side and are taken as they are.
    fn in_place(&self, window: &Range<u64>) -> Option<&'v [u8]> {
        let pieces = self.pieces_in(window);
        let [Ready { steps, start, target, from: From::Memory(memory, size), casts, .. }] = pieces[..] else {
            return None;
        };
        let mut place = None;
        clip(steps, *start, target.start, window, &mut |part| {
            let is_run = match part.steps {
                [] => true,
                [step] => (step.source, step.target) == (*size as i64, 1),
                _ => false,
            };
            if is_run && part.elements() == window.end - window.start {
                place = Some(part.source);
            }
        });
        let offset = place.filter(|_| casts.is_empty())?;
        Some(memory.slice(offset as u64, (window.end - window.start) * size))
    }

    /// Writes the elements of `window` to `out`, which is exactly as long.
    fn read_elements(&self, window: Range<u64>, out: &mut [u8], stage: &mut Stage) {
        for piece in self.pieces_in(&window) {
            clip(&piece.steps, piece.start, piece.target.start, &window, &mut |part| {
                let from = Part { target: part.target - window.start, ..part };
                piece.write(from, self.element, out, stage);
            });
        }
    }
}

impl Logical for Planned<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn length(&self) -> u64 {
        self.bytes
    }

    fn read(&self, range: Range<u64>) -> Bytes<'_> {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} is not in the parameter");
        let is_whole = range.start.is_multiple_of(self.element) && range.end.is_multiple_of(self.element);
        if is_whole && let Some(bytes) = self.in_place(&(range.start / self.element..range.end / self.element)) {
            return Bytes::Contiguous(bytes);
        }
        Bytes::Scattered(Box::new(Reader { parameter: self, at: range.start, end: range.end }))
    }
}

/// The most bytes that are read together: they are kept until they are hashed.
const MOST_TOGETHER: u64 = 1 << 20;

/// Reads the bytes of a parameter in order.
struct Reader<'v> {
    parameter: &'v Planned<'v>,
    at: u64,
    end: u64,
}

impl<'v> Scattered<'v> for Reader<'v> {
    fn left(&self) -> u64 {
        self.end - self.at
    }

    fn together(&self) -> u64 {
        self.parameter.together.clamp(TOGETHER, MOST_TOGETHER).next_power_of_two()
    }

    fn rewind(&mut self, bytes: u64) {
        self.at -= bytes;
    }

    fn read(&mut self, out: &mut [u8]) -> status::Result<usize> {
        let wanted = out.len().min(usize::try_from(self.left()).unwrap_or(usize::MAX));
        let size = self.parameter.element;
        let mut stage = Stage::default();
        let mut out = &mut out[..wanted];
        while !out.is_empty() {
            let (element, within) = (self.at / size, (self.at % size) as usize);
            let whole = if within == 0 { out.len() as u64 / size } else { 0 };
            let bytes = if whole > 0 {
                let bytes = (whole * size) as usize;
                self.parameter.read_elements(element..element + whole, &mut out[..bytes], &mut stage);
                bytes
            } else {
                // The range starts or ends within an element.
                let mut one = [0; MOST_ELEMENT_BYTES];
                let one = &mut one[..size as usize];
                self.parameter.read_elements(element..element + 1, one, &mut stage);
                let bytes = out.len().min(one.len() - within);
                out[..bytes].copy_from_slice(&one[within..within + bytes]);
                bytes
            };
            self.at += bytes as u64;
            out = &mut out[bytes..];
        }
        Ok(wanted)
    }
}
