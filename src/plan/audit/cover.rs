//! Which elements of a set some regions have, and which they share: a sweep over boxes, one digit after another.

use std::ops::Range;

use super::region::{Boxes, Cell, Digits, Region, TooFine, Work};

/// What a part costs for each digit that somebody keeps: it takes memory until all of the plan was looked at.
const KEPT: u64 = 128;

/// A part of the set whose elements are in the same regions.
pub(super) struct Part<'a> {
    pub digits: &'a Digits,
    pub cell: &'a Cell,
    /// The ids of the regions, each once for every box of it.
    pub ids: &'a [usize],
}

impl Part<'_> {
    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.cell.iter().map(|(from, to)| to - from).product()
    }

    /// The first of them.
    pub fn first(&self) -> u64 {
        self.digits.element(self.cell.iter().map(|(from, _)| *from))
    }
}

/// Elements that no region has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    pub elements: u64,
    pub first: u64,
}

impl Missing {
    /// Takes note of a part that may be missing.
    fn add(&mut self, part: &Part<'_>) {
        if part.ids.is_empty() {
            self.first = if self.elements == 0 { part.first() } else { self.first.min(part.first()) };
            self.elements += part.elements();
        }
    }
}

/// The elements of `set` that none of `regions` has.
pub(super) fn missing(set: &Region, regions: &[Region], work: &mut Work) -> Result<Missing, TooFine> {
    let mut missing = Missing::default();
    if regions.contains(set) {
        return Ok(missing);
    }
    sweep(set, regions.iter().enumerate(), work, |part, _| {
        missing.add(part);
        Ok(())
    })?;
    Ok(missing)
}

/// The first element in `range` that `region` has; the last one of the range when there is none.
pub(super) fn first(range: Range<u64>, region: &Region, work: &mut Work) -> Result<u64, TooFine> {
    let mut first = range.end - 1;
    sweep(&Region::row(range), std::iter::once((0, region)), work, |part, _| {
        if !part.ids.is_empty() {
            first = first.min(part.first());
        }
        Ok(())
    })?;
    Ok(first)
}

/// As [`missing`], and calls `shared` for each part that more than one region has.
pub(super) fn missing_and_shared<'a>(
    set: &Region,
    regions: impl Iterator<Item = (usize, &'a Region)> + Clone,
    work: &mut Work,
    mut shared: impl FnMut(&Part<'_>, &mut Work) -> Result<(), TooFine>,
) -> Result<Missing, TooFine> {
    let mut missing = Missing::default();
    sweep(set, regions, work, |part, work| {
        missing.add(part);
        if part.ids.len() > 1 { shared(part, work) } else { Ok(()) }
    })?;
    Ok(missing)
}

/// Calls `found` for parts that together are the elements of `set` that none of `regions` has.
pub(super) fn outside(
    set: &Region,
    regions: &[&Region],
    work: &mut Work,
    mut found: impl FnMut(&Part<'_>),
) -> Result<(), TooFine> {
    sweep(set, regions.iter().copied().enumerate(), work, |part, work| {
        if part.ids.is_empty() {
            work.spend(KEPT * part.cell.len() as u64)?;
            found(part);
        }
        Ok(())
    })
}

/// Calls `visit` for parts that together are `set`.
fn sweep<'a>(
    set: &Region,
    regions: impl Iterator<Item = (usize, &'a Region)> + Clone,
    work: &mut Work,
    visit: impl FnMut(&Part<'_>, &mut Work) -> Result<(), TooFine>,
) -> Result<(), TooFine> {
    let digits = Digits::of(regions.clone().map(|(_, region)| region).chain([set]));
    let (mut sets, mut boxes) = (Boxes::new(&digits), Boxes::new(&digits));
    digits.cut(set, 0, &mut sets, work)?;
    for (id, region) in regions {
        digits.cut(region, id, &mut boxes, work)?;
    }
    let all: Vec<usize> = (0..boxes.len()).collect();
    let mut sweep = Sweep { digits: &digits, boxes: &boxes, cell: vec![(0, 0); digits.units().len()], visit, work };
    (0..sets.len()).try_for_each(|set| sweep.digit(digits.units().len(), &all, sets.cell(set)))
}

struct Sweep<'a, V> {
    digits: &'a Digits,
    boxes: &'a Boxes,
    cell: Vec<(u64, u64)>,
    visit: V,
    work: &'a mut Work,
}

impl<V: FnMut(&Part<'_>, &mut Work) -> Result<(), TooFine>> Sweep<'_, V> {
    /// Visits the parts of `within`, whose digits from `below` on are chosen and are in the boxes `active`.
    fn digit(&mut self, below: usize, active: &[usize], within: &Cell) -> Result<(), TooFine> {
        self.work.spend(1 + active.len() as u64)?;
        if active.is_empty() || below == 0 {
            self.cell[..below].copy_from_slice(&within[..below]);
            let ids: Vec<usize> = active.iter().map(|index| self.boxes.id(*index)).collect();
            return (self.visit)(&Part { digits: self.digits, cell: &self.cell, ids: &ids }, self.work);
        }
        let digit = below - 1;
        let (from, to) = within[digit];
        let range = |index: &usize| self.boxes.cell(*index)[digit];
        let mut waiting: Vec<usize> =
            active.iter().copied().filter(|index| range(index).0 < to && range(index).1 > from).collect();
        waiting.sort_by_key(|index| range(index).0);
        let mut cuts: Vec<u64> =
            waiting.iter().flat_map(|index| [range(index).0.max(from), range(index).1.min(to)]).collect();
        cuts.extend([from, to]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut waiting = waiting.into_iter().peekable();
        let mut inside: Vec<usize> = Vec::new();
        for pair in cuts.windows(2) {
            inside.retain(|index| self.boxes.cell(*index)[digit].1 > pair[0]);
            while let Some(index) = waiting.next_if(|index| self.boxes.cell(*index)[digit].0 <= pair[0]) {
                inside.push(index);
            }
            self.cell[digit] = (pair[0], pair[1]);
            self.digit(digit, &inside, within)?;
        }
        Ok(())
    }
}
