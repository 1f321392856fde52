//! A piece of a source that does not lie compactly: its strides, which count elements of the source in row-major order,
//! as distances in memory.

use super::Dim;
use crate::layout::Layout;

/// A level of the source: `count` elements or blocks, `logical` elements apart in row-major order and `memory` bytes apart.
struct Level {
    count: u64,
    logical: u64,
    memory: u64,
}

/// The byte offset and the dimensions (whose source strides count bytes then) of the piece of a source of `layout` that
/// starts at element `offset`; `None` when no strides in memory say the same.
pub fn compose(layout: &Layout, element: u64, offset: u64, dims: &[Dim]) -> Option<(u64, Vec<Dim>)> {
    let levels = levels(layout, element);
    let dims: Vec<Dim> = dims.iter().flat_map(|dim| split(*dim, &levels)).collect();
    // The element of the source with the smallest index, from where all strides lead up.
    let down = |dim: &Dim| (dim.extent - 1) as i64 * dim.source.min(0);
    let lowest = offset.checked_add_signed(dims.iter().map(down).sum())?;
    let mut reached = digits(lowest, &levels);
    let mut start: i64 = reached.iter().zip(&levels).map(|(digit, level)| (digit * level.memory) as i64).sum();
    let mut composed = Vec::with_capacity(dims.len());
    for dim in dims {
        let each = digits(dim.source.unsigned_abs(), &levels);
        for (reached, digit) in reached.iter_mut().zip(&each) {
            *reached = reached.checked_add(digit.checked_mul(dim.extent - 1)?)?;
        }
        let stride: i64 = each.iter().zip(&levels).map(|(digit, level)| (digit * level.memory) as i64).sum();
        let stride = stride * dim.source.signum();
        start -= (dim.extent - 1) as i64 * stride.min(0);
        composed.push(Dim { source: stride, ..dim });
    }
    // Where no level overflows into the one above it, the digits add up one by one, and so do the distances.
    let is_affine = reached.iter().zip(&levels).all(|(reached, level)| *reached < level.count);
    is_affine.then_some((u64::try_from(start).ok()?, composed))
}

/// The levels of a source with elements, outermost first.
fn levels(layout: &Layout, element: u64) -> Vec<Level> {
    let (_, block) = layout.row_shape();
    let mut levels = vec![Level { count: block / element, logical: 1, memory: element }];
    let mut logical = block / element;
    for (count, memory) in layout.dims().iter().rev() {
        levels.push(Level { count: *count, logical, memory: *memory });
        logical *= count;
    }
    levels.reverse();
    levels
}

/// How many of each level make up `index`. The outermost takes all that is left, even more than it has.
fn digits(index: u64, levels: &[Level]) -> Vec<u64> {
    let mut left = index;
    let digit = |level: &Level| {
        let digit = left / level.logical;
        left %= level.logical;
        digit
    };
    levels.iter().map(digit).collect()
}

/// Splits a dimension that runs over several levels, where it fills them, into one for each.
fn split(dim: Dim, levels: &[Level]) -> Vec<Dim> {
    let distance = dim.source.unsigned_abs();
    let mut parts = Vec::new();
    let mut rest = dim;
    for level in levels.iter().rev().take_while(|_| distance > 0) {
        let step = rest.source.unsigned_abs();
        let span = level.logical * level.count;
        let (inner, is_whole) = (span / step, span.is_multiple_of(step));
        if step < level.logical || !is_whole || inner < 2 || inner >= rest.extent || !rest.extent.is_multiple_of(inner)
        {
            continue;
        }
        parts.push(Dim { extent: inner, ..rest });
        rest.extent /= inner;
        rest.source *= inner as i64;
        rest.target *= inner;
    }
    parts.push(rest);
    parts.reverse();
    parts
}
