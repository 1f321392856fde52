//! Sets of elements as pieces name them, and their cutting into boxes of one number system.

use std::cmp::Reverse;
use std::ops::Range;

use crate::plan::Piece;

/// What an audit may still spend, so that a hostile plan costs neither minutes nor gigabytes.
///
/// A step is some nanoseconds. Boxes, which take memory too, cost eight a digit.
pub struct Work {
    left: u64,
}

/// The work has been spent.
pub(super) struct TooFine;

const BOX: u64 = 8;

/// Steps for all tensors of a plan together: about a second.
const ALL_STEPS: u64 = 1 << 27;

impl Default for Work {
    /// What may be spent on a plan.
    fn default() -> Self {
        Self { left: ALL_STEPS }
    }
}

impl Work {
    pub(super) fn spend(&mut self, steps: u64) -> Result<(), TooFine> {
        self.left = self.left.checked_sub(steps).ok_or(TooFine)?;
        Ok(())
    }

    /// Runs `task` with at most `steps` of this.
    pub(super) fn at_most<T>(
        &mut self,
        steps: u64,
        task: impl FnOnce(&mut Work) -> Result<T, TooFine>,
    ) -> Result<T, TooFine> {
        let given = steps.min(self.left);
        let mut part = Work { left: given };
        let result = task(&mut part);
        // Failing takes all: otherwise many tensors that fail late would cost more than was meant.
        self.left -= if result.is_ok() { given - part.left } else { given };
        result
    }
}

/// The elements `offset + k1 * stride1 + k2 * stride2 + ...` with each k below its extent.
///
/// Strides ascend and extents exceed 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Region {
    offset: u64,
    /// (extent, stride)
    dims: Vec<(u64, u64)>,
}

impl Region {
    /// The elements of its parameter that `piece`, which has some, writes: one dimension for each of the piece's.
    pub fn written(piece: &Piece) -> Self {
        Self { offset: piece.offset, dims: piece.dims.iter().rev().map(|dim| (dim.extent, dim.target)).collect() }
    }

    /// The elements of its source that `piece`, which has some, reads; `None` when they begin below 0. Equal for pieces
    /// that read the same in another order.
    pub fn read(piece: &Piece, offset: u64) -> Option<Self> {
        Self::stepping(i64::try_from(offset).ok()?, piece.dims.iter().map(|dim| (dim.extent, dim.source)))
    }

    /// The elements from `offset` on by (extent, stride), of which some may be 0 or negative; `None` when they begin below
    /// 0.
    pub fn stepping(mut offset: i64, dims: impl Iterator<Item = (u64, i64)>) -> Option<Self> {
        let mut forward = Vec::new();
        for (extent, stride) in dims.filter(|(_, stride)| *stride != 0) {
            if stride < 0 {
                offset = offset.checked_add(stride.checked_mul(i64::try_from(extent - 1).ok()?)?)?;
            }
            forward.push((extent, stride.unsigned_abs()));
        }
        Some(Self { offset: u64::try_from(offset).ok()?, dims: joined(forward) })
    }

    /// The elements from `range.start` to `range.end`, of which there are some.
    pub fn row(range: Range<u64>) -> Self {
        Self { offset: range.start, dims: joined(vec![(range.end - range.start, 1)]) }
    }

    /// From the first to behind the last element.
    pub fn range(&self) -> Range<u64> {
        let reach: u64 = self.dims.iter().map(|(extent, stride)| (extent - 1) * stride).sum();
        self.offset..self.offset + reach + 1
    }
}

/// `dims` by stride, each joined with the next one when both together are one row of equal steps.
fn joined(mut dims: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    dims.sort_by_key(|(_, stride)| *stride);
    let mut joined: Vec<(u64, u64)> = Vec::with_capacity(dims.len());
    for (extent, stride) in dims.into_iter().filter(|(extent, _)| *extent > 1) {
        match joined.last_mut() {
            Some((inner, step)) if stride % *step == 0 && stride / *step <= *inner => {
                *inner += stride / *step * (extent - 1);
            }
            _ => joined.push((extent, stride)),
        }
    }
    joined
}

/// A mixed-radix number system for element offsets: digit i counts `units[i]`, and each unit divides the next.
pub(super) struct Digits {
    units: Vec<u64>,
}

impl Digits {
    /// A system in which `regions` are few boxes. Where their strides do not divide one another, those that step most
    /// often make the digits; a region is cut apart along its others.
    pub fn of<'a>(regions: impl Iterator<Item = &'a Region>) -> Self {
        let mut steps: Vec<(u64, u64)> = regions.flat_map(|region| &region.dims).copied().collect();
        // Each stride with the most steps that it is taken in one region; then those with more steps first.
        steps.sort_unstable_by_key(|(extent, stride)| (*stride, Reverse(*extent)));
        steps.dedup_by_key(|(_, stride)| *stride);
        steps.sort_by_key(|(extent, _)| Reverse(*extent));
        let mut units = vec![1];
        for (_, stride) in steps {
            if !units.contains(&stride) && units.iter().all(|unit| stride % unit == 0 || unit % stride == 0) {
                units.push(stride);
            }
        }
        units.sort_unstable();
        Self { units }
    }

    pub fn units(&self) -> &[u64] {
        &self.units
    }

    /// The element that has these digits.
    pub fn element(&self, digits: impl Iterator<Item = u64>) -> u64 {
        self.units.iter().zip(digits).map(|(unit, digit)| unit * digit).sum()
    }

    /// Appends `region`, cut into boxes. Each dimension counts in digits of its own, and those of a row ascend.
    pub fn cut(&self, region: &Region, id: usize, boxes: &mut Boxes, work: &mut Work) -> Result<(), TooFine> {
        let is_digit = |(_, stride): &(u64, u64)| self.units.binary_search(stride).is_ok();
        let (inner, loose): (Vec<_>, Vec<_>) = region.dims.iter().copied().partition(is_digit);
        // Elements that come twice must not: an extent would reach over the next stride.
        let twice = inner.windows(2).any(|pair| pair[1].1 / pair[0].1 < pair[0].0);
        let mut dims = if twice { joined(inner) } else { inner };
        if dims.first().is_none_or(|(_, stride)| *stride > 1) {
            dims.insert(0, (1, 1));
        }
        let mut cutter = Cutter { digits: self, dims: &dims, cell: vec![(0, 0); self.units.len()], id, boxes, work };
        let mut at = vec![0; loose.len()];
        loop {
            let offset = region.offset + at.iter().zip(&loose).map(|(index, (_, stride))| index * stride).sum::<u64>();
            cutter.cut(offset, 0, 0)?;
            let Some(next) = (0..loose.len()).find(|dim| at[*dim] + 1 < loose[*dim].0) else { return Ok(()) };
            at[..next].fill(0);
            at[next] += 1;
        }
    }
}

/// A range of each digit, lowest digit first: from, and behind the last.
pub(super) type Cell = [(u64, u64)];

/// Boxes of digits, each with the id of the region that it is of.
pub(super) struct Boxes {
    digits: usize,
    cells: Vec<(u64, u64)>,
    ids: Vec<usize>,
}

impl Boxes {
    pub fn new(digits: &Digits) -> Self {
        Self { digits: digits.units.len(), cells: Vec::new(), ids: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn cell(&self, index: usize) -> &Cell {
        &self.cells[index * self.digits..][..self.digits]
    }

    pub fn id(&self, index: usize) -> usize {
        self.ids[index]
    }
}

/// Cuts one region: each of its dimensions counts in one digit or several neighbouring ones.
struct Cutter<'a> {
    digits: &'a Digits,
    dims: &'a [(u64, u64)],
    cell: Vec<(u64, u64)>,
    id: usize,
    boxes: &'a mut Boxes,
    work: &'a mut Work,
}

impl Cutter<'_> {
    /// Cuts along dimension `dim` and those above it; `carry` comes from below.
    fn cut(&mut self, offset: u64, dim: usize, carry: u64) -> Result<(), TooFine> {
        let Some((extent, stride)) = self.dims.get(dim).copied() else {
            self.work.spend(BOX * self.cell.len() as u64)?;
            self.boxes.cells.extend_from_slice(&self.cell);
            self.boxes.ids.push(self.id);
            return Ok(());
        };
        // No extent reaches over the next stride, so at most one is carried.
        let radix = self.dims.get(dim + 1).map(|(_, above)| above / stride);
        let from = offset / stride % radix.unwrap_or(u64::MAX) + carry;
        let to = from + extent;
        let radix = radix.unwrap_or(u64::MAX);
        if from < radix {
            self.row((from, to.min(radix)), offset, dim, 0)?;
        }
        if to > radix { self.row((from.max(radix) - radix, to - radix), offset, dim, 1) } else { Ok(()) }
    }

    /// Cuts the numbers in `range` of dimension `dim` into boxes of the digits that it counts in, and goes on above.
    fn row(&mut self, range: (u64, u64), offset: u64, dim: usize, carry: u64) -> Result<(), TooFine> {
        let place = |stride: u64| self.digits.units.partition_point(|unit| *unit < stride);
        let low = place(self.dims[dim].1);
        let top = self.dims.get(dim + 1).map_or(self.digits.units.len(), |(_, above)| place(*above)) - 1;
        self.span(range, (low, top), &mut |cutter| cutter.cut(offset, dim + 1, carry))
    }

    /// Calls `done` with each box that `range`, a row of the digits `low..=top` counted in the lowest, is made of.
    fn span(
        &mut self,
        range: (u64, u64),
        (low, top): (usize, usize),
        done: &mut dyn FnMut(&mut Self) -> Result<(), TooFine>,
    ) -> Result<(), TooFine> {
        let units = &self.digits.units;
        let whole = units[top] / units[low];
        let (first, last) = (range.0 / whole, range.1 / whole);
        let (head, tail) = (range.0 % whole, range.1 % whole);
        if head > 0 || first == last {
            self.cell[top] = (first, first + 1);
            let end = if first == last { tail } else { whole };
            self.span((head, end), (low, top - 1), done)?;
        }
        let first_whole = first + u64::from(head > 0);
        if first_whole < last {
            for digit in low..top {
                self.cell[digit] = (0, self.digits.units[digit + 1] / self.digits.units[digit]);
            }
            self.cell[top] = (first_whole, last);
            done(self)?;
        }
        if tail > 0 && first < last {
            self.cell[top] = (last, last + 1);
            self.span((0, tail), (low, top - 1), done)?;
        }
        Ok(())
    }
}
