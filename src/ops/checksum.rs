//! checksum: the digest of every tensor.

use std::time::Instant;

use super::Options;
use crate::digest::Digest;
use crate::hash;
use crate::progress::Progress;
use crate::rank::Rank;
use crate::report::ChecksumReport;
use crate::status::Result;
use crate::view::{TensorView, first_of_same_memory, total_bytes};

/// The digests of `views` under the keys of `rank`.
pub fn checksum(views: &[TensorView<'_>], rank: Rank, options: &Options<'_>) -> Result<ChecksumReport> {
    let digests = digests(views, options)?;
    let checksums = views.iter().zip(digests).map(|(view, digest)| (rank.key(view.name()), digest)).collect();
    Ok(ChecksumReport { checksums })
}

/// The digest of each view, in order. Memory that several views share is hashed once.
pub fn digests(views: &[TensorView<'_>], options: &Options<'_>) -> Result<Vec<Digest>> {
    let started = Instant::now();
    let first = first_of_same_memory(views);
    let mut position = vec![0; views.len()];
    let mut unique = Vec::new();
    for (index, view) in views.iter().enumerate().filter(|(index, _)| first[*index] == *index) {
        position[index] = unique.len();
        unique.push(view);
    }
    let total = total_bytes(unique.iter().copied());
    let progress = Progress::start(total, options.progress)?;
    let found = hash::digests(&unique, options.algorithm, options.threads, &progress)?;
    progress.finish()?;
    log::debug!("{} of {} tensors, {total} bytes: {:?}", options.algorithm.name(), views.len(), started.elapsed());
    Ok(first.iter().map(|index| found[position[*index]]).collect())
}
