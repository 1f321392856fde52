//! Elements of a parameter that two pieces write, from different elements of sources.

use super::cover::Part;
use super::region::{Region, TooFine, Work};
use crate::plan::{Origin, Piece};

/// What was found in one parameter.
pub(super) struct Overlaps<'a> {
    pieces: &'a [Piece],
    pub elements: u64,
    /// The first such element, and two sources that it gets.
    pub first: Option<(u64, (usize, usize))>,
}

/// How two pieces' source elements differ over a part: by `start` in its first element, and by so much more from one to
/// the next in each digit. `None`: everywhere, since their sources do.
type Difference = Option<(i128, Vec<i128>)>;

impl<'a> Overlaps<'a> {
    pub fn new(pieces: &'a [Piece]) -> Self {
        Self { pieces, elements: 0, first: None }
    }

    /// Takes note of a part that several pieces write.
    pub fn add(&mut self, part: &Part<'_>, work: &mut Work) -> Result<(), TooFine> {
        let copies = part.ids.iter().filter_map(|id| Copy::of(&self.pieces[*id]));
        let copies: Vec<Copy<'_>> = copies.collect();
        let Some((one, others)) = copies.split_first() else { return Ok(()) };
        work.spend((others.len() * part.cell.len()) as u64)?;
        let mut equations = Vec::new();
        let mut first: Option<(u64, (usize, usize))> = None;
        let mut never = false;
        for other in others {
            let difference = one.difference(other, part);
            let Some(element) = first_different(&difference, part) else { continue };
            if first.is_none_or(|(earliest, _)| element < earliest) {
                first = Some((element, (one.source, other.source)));
            }
            match difference {
                Some((start, steps)) if steps.iter().any(|step| *step != 0) => equations.push((start, steps)),
                _ => never = true,
            }
        }
        let Some((element, sources)) = first else { return Ok(()) };
        let equal = if never { 0 } else { equal_elements(&equations, part, work)? };
        self.elements += part.elements() - equal;
        if self.first.is_none_or(|(earliest, _)| element < earliest) {
            self.first = Some((element, sources));
        }
        Ok(())
    }
}

/// A piece that copies from a source.
pub(super) struct Copy<'a> {
    piece: &'a Piece,
    source: usize,
    offset: u64,
}

impl<'a> Copy<'a> {
    pub fn of(piece: &'a Piece) -> Option<Self> {
        match piece.origin {
            Origin::Source { source, offset, .. } => Some(Self { piece, source, offset }),
            _ => None,
        }
    }

    /// The source element that goes to `element` of the parameter, which the piece writes.
    fn from(&self, element: u64) -> i128 {
        let mut rest = element - self.piece.offset;
        let steps = self.piece.dims.iter().map(|dim| {
            let index = rest / dim.target;
            rest %= dim.target;
            i128::from(index) * i128::from(dim.source)
        });
        i128::from(self.offset) + steps.sum::<i128>()
    }

    /// The source elements that go to `part` of the parameter, all of which the piece writes.
    pub fn read(&self, part: &Part<'_>) -> Option<Region> {
        let first = part.first();
        let start = self.from(first);
        let dims = part.cell.iter().zip(part.digits.units()).filter(|((from, to), _)| to - from > 1);
        // A piece's numbers fit into 63 bits, which was checked when it was read.
        let step = |unit: u64| i64::try_from(self.from(first + unit) - start).ok();
        let dims: Option<Vec<(u64, i64)>> = dims.map(|((from, to), unit)| Some((to - from, step(*unit)?))).collect();
        Region::stepping(i64::try_from(start).ok()?, dims?.into_iter())
    }

    fn difference(&self, other: &Self, part: &Part<'_>) -> Difference {
        if self.source != other.source {
            return None;
        }
        let first = part.first();
        let at = |element| other.from(element) - self.from(element);
        let start = at(first);
        let step = |((from, to), unit): (&(u64, u64), &u64)| if to - from > 1 { at(first + unit) - start } else { 0 };
        Some((start, part.cell.iter().zip(part.digits.units()).map(step).collect()))
    }
}

/// The first element of `part` that differs.
fn first_different(difference: &Difference, part: &Part<'_>) -> Option<u64> {
    let first = part.first();
    match difference {
        None => Some(first),
        Some((start, _)) if *start != 0 => Some(first),
        // Below the lowest digit that makes a difference nothing does.
        Some((_, steps)) => steps.iter().position(|step| *step != 0).map(|digit| first + part.digits.units()[digit]),
    }
}

/// How many elements of `part` differ in none of `equations`.
fn equal_elements(equations: &[(i128, Vec<i128>)], part: &Part<'_>, work: &mut Work) -> Result<u64, TooFine> {
    let matters = |digit: &usize| equations.iter().any(|(_, steps)| steps[*digit] != 0);
    let (digits, free): (Vec<usize>, Vec<usize>) = (0..part.cell.len()).partition(matters);
    let extent = |digit: &usize| part.cell[*digit].1 - part.cell[*digit].0;
    let mut dims: Vec<(u64, Vec<i128>)> = digits
        .iter()
        .map(|digit| (extent(digit), equations.iter().map(|(_, steps)| steps[*digit]).collect()))
        .collect();
    // The longest is solved for, the others are tried.
    dims.sort_by_key(|(extent, _)| *extent);
    let starts: Vec<i128> = equations.iter().map(|(start, _)| *start).collect();
    Ok(solutions(&dims, &starts, work)? * free.iter().map(extent).product::<u64>())
}

/// How many choices of an index below each extent bring all of `starts` to 0.
fn solutions(dims: &[(u64, Vec<i128>)], starts: &[i128], work: &mut Work) -> Result<u64, TooFine> {
    work.spend(starts.len() as u64)?;
    let Some(((extent, steps), rest)) = dims.split_first() else {
        return Ok(u64::from(starts.iter().all(|start| *start == 0)));
    };
    let moved = |index: u64| -> Vec<i128> {
        starts.iter().zip(steps).map(|(start, step)| start + i128::from(index) * step).collect()
    };
    if !rest.is_empty() {
        return (0..*extent).try_fold(0, |sum, index| Ok(sum + solutions(rest, &moved(index), work)?));
    }
    let Some(equation) = steps.iter().position(|step| *step != 0) else {
        return Ok(if starts.iter().all(|start| *start == 0) { *extent } else { 0 });
    };
    let index = u64::try_from(-starts[equation] / steps[equation]).unwrap_or(u64::MAX);
    Ok(u64::from(index < *extent && moved(index).iter().all(|start| *start == 0)))
}
