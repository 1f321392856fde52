//! Proves of a plan, without moving a byte, that every element of the checkpoint is placed and every element of every
//! parameter is written, once. Exact: elements are never counted by sampling or estimates. Where a hostile plan would
//! make that too much work, the report says so, and is not complete.

mod constants;
mod cover;
mod overlap;
mod region;
mod report;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use self::constants::Constants;
use self::overlap::{Copy, Overlaps};
pub use self::region::Work;
use self::region::{Region, TooFine};
pub use self::report::{AuditReport, Overlapping, PartlyPlaced, PastTheEnd, Replicas, Unaudited, Unplaced, Unwritten};
use super::{Origin, Parameter, Piece, Plan};
use crate::rank::Rank;

/// Steps for one tensor; its boxes then stay below 100 MB.
const TENSOR_STEPS: u64 = 1 << 24;

/// Audits `plan`. Ranks that hold the same slices are looked at once.
pub fn audit(plan: &Plan) -> AuditReport {
    let mut audit = Audit {
        plan,
        taken: plan.sources.iter().map(|_| Taken::default()).collect(),
        work: Work::default(),
        report: AuditReport { ranks: plan.ranks.len(), sources: plan.sources.len(), ..AuditReport::default() },
    };
    let shared = Shared::all(plan);
    for shared in &shared {
        audit.parameter(shared);
    }
    audit.sources();
    audit.report.replicas = replicas(&shared);
    audit.report
}

/// Whether pieces write all of `parameter`, for those who need no more than that.
///
/// # Errors
/// That it is cut too finely to tell, with what is left of `work`.
pub fn is_written(parameter: &Parameter, work: &mut Work) -> Result<bool, String> {
    let Parameter { tensor, pieces } = parameter;
    if tensor.elements() == 0 {
        return Ok(true);
    }
    let some = pieces.iter().filter(|piece| piece.elements() > 0);
    let regions: Vec<Region> = some.map(Region::written).collect();
    let all = |work: &mut Work| cover::missing(&Region::row(0..tensor.elements()), &regions, work);
    match work.at_most(TENSOR_STEPS, all) {
        Ok(missing) => Ok(missing.elements == 0),
        Err(TooFine) => Err("its pieces cut it too finely to be looked at".to_owned()),
    }
}

/// A parameter, and all the places that have one of the same type, shape and pieces.
struct Shared<'a> {
    parameter: &'a Parameter,
    places: Vec<(Rank, &'a str)>,
}

impl<'a> Shared<'a> {
    /// In the order of their first places.
    fn all(plan: &'a Plan) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        let mut index = HashMap::new();
        for rank in &plan.ranks {
            for parameter in &rank.parameters {
                let alike = (parameter.tensor.dtype, &parameter.tensor.shape, &parameter.pieces);
                let at = *index.entry(alike).or_insert_with(|| {
                    all.push(Self { parameter, places: Vec::new() });
                    all.len() - 1
                });
                all[at].places.push((rank.rank, &parameter.tensor.name));
            }
        }
        all
    }

    fn keys(&self) -> impl Iterator<Item = String> {
        self.places.iter().map(|(rank, name)| rank.key(name))
    }
}

/// What pieces take of a source.
#[derive(Default)]
struct Taken {
    regions: HashSet<Region>,
    /// It went into arithmetic, which may have used all of it.
    whole: bool,
    /// It goes to a parameter that is cut too finely: perhaps more is taken.
    unknown: bool,
}

struct Audit<'a> {
    plan: &'a Plan,
    taken: Vec<Taken>,
    work: Work,
    report: AuditReport,
}

impl Audit<'_> {
    fn parameter(&mut self, shared: &Shared<'_>) {
        let Parameter { tensor, pieces } = shared.parameter;
        self.report.parameters += shared.places.len();
        self.report.pieces += shared.places.len() * pieces.len();
        // A piece without elements does nothing.
        let some = pieces.iter().enumerate().filter(|(_, piece)| piece.elements() > 0);
        let written: Vec<(usize, Region)> = some.map(|(id, piece)| (id, Region::written(piece))).collect();
        let mut overlaps = Overlaps::new(pieces);
        let taken = self.past_the_end(shared).and_then(|()| self.take(pieces, &written));
        if taken.is_err() {
            self.unknown(pieces);
        }
        let missing = match (taken, tensor.elements()) {
            (Err(TooFine), _) => Err(TooFine),
            (Ok(()), 0) => Ok(cover::Missing::default()),
            (Ok(()), elements) => self.work.at_most(TENSOR_STEPS, |work| {
                let regions = written.iter().map(|(id, region)| (*id, region));
                let overlap = |part: &cover::Part<'_>, work: &mut Work| overlaps.add(part, work);
                cover::missing_and_shared(&Region::row(0..elements), regions, work, overlap)
            }),
        };
        match missing {
            Ok(missing) => self.written(shared, missing, &overlaps),
            Err(TooFine) => self.report.unaudited.extend(shared.keys().map(Unaudited::Parameter)),
        }
    }

    /// Notes that nobody knows what `pieces` take.
    fn unknown(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            match &piece.origin {
                Origin::Source { source, .. } => self.taken[*source].unknown = true,
                Origin::Computed { sources, .. } => {
                    sources.iter().for_each(|source| self.taken[*source].unknown = true)
                }
                Origin::Constant { .. } => {}
            }
        }
    }

    fn written(&mut self, shared: &Shared<'_>, missing: cover::Missing, overlaps: &Overlaps<'_>) {
        let tensor = &shared.parameter.tensor;
        if missing.elements > 0 {
            let (elements, of) = (missing.elements, tensor.elements());
            let first = coordinates(missing.first, &tensor.shape);
            self.report.unwritten.extend(shared.keys().map(|key| Unwritten {
                key,
                elements,
                of,
                first: first.clone(),
            }));
        }
        if let Some((element, sources)) = overlaps.first {
            let name = |source: usize| self.plan.sources[source].name.clone();
            let (first, sources) = (coordinates(element, &tensor.shape), [name(sources.0), name(sources.1)]);
            self.report.overlapping.extend(shared.keys().map(|key| Overlapping {
                key,
                elements: overlaps.elements,
                first: first.clone(),
                sources: sources.clone(),
            }));
        }
    }

    /// Notes for each source what `pieces`, which write the regions of `written`, take of it: what goes only to elements
    /// that later constants overwrite is not taken.
    fn take(&mut self, pieces: &[Piece], written: &[(usize, Region)]) -> Result<(), TooFine> {
        let constants = written.iter().filter(|(id, _)| matches!(pieces[*id].origin, Origin::Constant { .. }));
        let mut later = Constants::new(&constants.map(|(_, region)| region).collect::<Vec<_>>());
        for (id, region) in written.iter().rev() {
            match &pieces[*id].origin {
                Origin::Constant { .. } => later.add_last(),
                Origin::Computed { sources, .. } => sources.iter().for_each(|source| self.taken[*source].whole = true),
                Origin::Source { source, offset, .. } => {
                    // One that starts below 0 is a finding of its own.
                    let Some(read) = Region::read(&pieces[*id], *offset) else { continue };
                    let hidden = later.near(&region.range(), &mut self.work)?;
                    let taken = &mut self.taken[*source].regions;
                    if hidden.is_empty() {
                        taken.insert(read);
                        continue;
                    }
                    let copy = Copy::of(&pieces[*id]);
                    let visible = |part: &cover::Part<'_>| taken.extend(copy.as_ref().and_then(|copy| copy.read(part)));
                    self.work.at_most(TENSOR_STEPS, |work| cover::outside(region, &hidden, work, visible))?;
                }
            }
        }
        Ok(())
    }

    /// Pieces that read outside their sources or write outside the parameter: for each such tensor one entry.
    fn past_the_end(&mut self, shared: &Shared<'_>) -> Result<(), TooFine> {
        let Parameter { tensor, pieces } = shared.parameter;
        let mut found: BTreeMap<Option<usize>, (i64, u64)> = BTreeMap::new();
        for piece in pieces.iter().filter(|piece| piece.elements() > 0) {
            let mut note = |tensor, first: i64, of| {
                let entry = found.entry(tensor).or_insert((first, of));
                entry.0 = entry.0.min(first);
            };
            let (end, of) = (piece.target_range().end, tensor.elements());
            if end > of {
                note(None, self.first_in(of..end, &Region::written(piece))?.cast_signed(), of);
            }
            let (Some(range), Origin::Source { source, offset, .. }) = (piece.source_range(), &piece.origin) else {
                continue;
            };
            let (end, of) = (range.end.cast_unsigned(), self.plan.sources[*source].elements());
            match Region::read(piece, *offset) {
                None => note(Some(*source), range.start, of),
                Some(region) if end > of => note(Some(*source), self.first_in(of..end, &region)?.cast_signed(), of),
                Some(_) => {}
            }
        }
        for (source, (first_beyond, of)) in found {
            let source = source.map(|source| self.plan.sources[source].name.clone());
            let entries = shared.keys().map(|key| PastTheEnd { key, source: source.clone(), first_beyond, of });
            self.report.past_the_end.extend(entries);
        }
        Ok(())
    }

    /// The first element that `region` has in `range`, whose last one it has.
    fn first_in(&mut self, range: Range<u64>, region: &Region) -> Result<u64, TooFine> {
        self.work.at_most(TENSOR_STEPS, |work| cover::first(range, region, work))
    }

    fn sources(&mut self) {
        let mut reasons: HashMap<usize, &str> = HashMap::new();
        for (source, reason) in self.plan.ranks.iter().flat_map(|rank| &rank.unused) {
            reasons.entry(*source).or_insert(reason);
        }
        for (index, taken) in std::mem::take(&mut self.taken).into_iter().enumerate() {
            let source = &self.plan.sources[index];
            let (name, of) = (source.name.clone(), source.elements());
            let missing = self.work.at_most(TENSOR_STEPS, |work| match taken.whole || of == 0 {
                true => Ok(cover::Missing::default()),
                false => cover::missing(&Region::row(0..of), &taken.regions.into_iter().collect::<Vec<_>>(), work),
            });
            match missing {
                Ok(missing) if missing.elements > 0 && taken.unknown => {
                    self.report.unaudited.push(Unaudited::Source(name));
                }
                Ok(missing) if missing.elements == of && of > 0 => {
                    let explained = reasons.get(&index).map(|reason| (*reason).to_owned());
                    self.report.unplaced.push(Unplaced { source: name, explained });
                }
                Ok(missing) if missing.elements > 0 => {
                    let (elements, first) = (missing.elements, coordinates(missing.first, &source.shape));
                    self.report.partly_placed.push(PartlyPlaced { source: name, elements, of, first });
                }
                Ok(_) => {}
                Err(TooFine) => self.report.unaudited.push(Unaudited::Source(name)),
            }
        }
    }
}

/// Where `element`, counted in row-major order, is in a tensor of `shape`.
fn coordinates(element: u64, shape: &[u64]) -> Vec<u64> {
    let mut rest = element;
    let mut coordinates: Vec<u64> = shape.iter().rev().map(|extent| (rest % extent, rest /= extent).0).collect();
    coordinates.reverse();
    coordinates
}

/// The sets of ranks that hold the same slices, with the number of parameters that each set shares.
fn replicas(shared: &[Shared<'_>]) -> Vec<Replicas> {
    let mut sets: BTreeMap<Vec<Rank>, usize> = BTreeMap::new();
    for shared in shared {
        let mut by_name: HashMap<&str, Vec<Rank>> = HashMap::new();
        for (rank, name) in &shared.places {
            by_name.entry(name).or_default().push(*rank);
        }
        for ranks in by_name.into_values().filter(|ranks| ranks.len() > 1) {
            *sets.entry(ranks).or_default() += 1;
        }
    }
    sets.into_iter().map(|(ranks, parameters)| Replicas { ranks, parameters }).collect()
}
