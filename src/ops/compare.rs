//! compare: the digests of a rank's tensors against a baseline.

use std::collections::HashSet;

use super::{Options, checksum};
use crate::baseline::Baseline;
use crate::rank::Rank;
use crate::report::CompareReport;
use crate::status::{Error, Result, Status};
use crate::view::{TensorView, total_bytes};

/// Compares `views` with the keys of `rank` in the JSON text `baseline`.
///
/// Keys of other ranks are ignored: whether all ranks of a baseline have answered is for the caller to see.
///
/// # Errors
/// `NothingCompared` when no key is on both sides, besides those of [`Baseline::parse`] and [`checksum()`]. The baseline is
/// read before anything is hashed.
pub fn compare(views: &[TensorView<'_>], rank: Rank, baseline: &str, options: &Options<'_>) -> Result<CompareReport> {
    let baseline = Baseline::parse(baseline, &rank.prefix(), options.algorithm)?;
    if !views.iter().any(|view| baseline.get(&rank.key(view.name())).is_some()) {
        return Err(nothing_compared(views, rank, &baseline));
    }
    let mut report = CompareReport { bytes: total_bytes(views), ..CompareReport::default() };
    let mut seen = HashSet::new();
    for (key, digest) in checksum(views, rank, options)?.checksums {
        match baseline.get(&key) {
            Some(expected) if expected == digest.to_string() => report.equal += 1,
            Some(_) => report.differing.push(key.clone()),
            None => report.unexpected.push(key.clone()),
        }
        seen.insert(key);
    }
    report.missing = baseline.keys().filter(|key| !seen.contains(*key)).map(str::to_owned).collect();
    report.differing.sort();
    report.unexpected.sort();
    log::debug!("compare on {rank}: {} of {} keys equal", report.equal, report.compared());
    Ok(report)
}

fn nothing_compared(views: &[TensorView<'_>], rank: Rank, baseline: &Baseline) -> Error {
    Error::new(
        Status::NothingCompared,
        format!(
            "nothing compared on rank {rank}: none of its {} tensors has a key in the baseline, which holds {}",
            views.len(),
            baseline.summary()
        ),
    )
}
