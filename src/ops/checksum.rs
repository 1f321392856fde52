//! checksum: the digest of every tensor.

use std::sync::OnceLock;
use std::time::Instant;

use super::Options;
use crate::digest::Digest;
use crate::hash;
use crate::parallel;
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
    let unique: Vec<usize> = (0..views.len()).filter(|index| first[*index] == *index).collect();
    let sizes: Vec<u64> = unique.iter().map(|index| views[*index].bytes()).collect();
    let total = total_bytes(unique.iter().map(|index| &views[*index]));
    let progress = Progress::start(total, options.progress)?;
    let found: Vec<OnceLock<Digest>> = views.iter().map(|_| OnceLock::new()).collect();
    parallel::for_each(&sizes, options.threads, |scratch, job| {
        let index = unique[job];
        let digest = hash::digest(&views[index], options.algorithm, scratch, &progress)?;
        found[index].get_or_init(|| digest);
        Ok(())
    })?;
    progress.finish()?;
    log::debug!("{} of {} tensors, {total} bytes: {:?}", options.algorithm.name(), views.len(), started.elapsed());
    Ok(first.iter().map(|index| *found[*index].get().expect("every job has run, or for_each has failed")).collect())
}
