//! checksum: the digest of every tensor.

use std::time::Instant;

use super::Options;
use crate::cuda::transfer::{Share, Source, Transfer};
use crate::cuda::{self, tree};
use crate::digest::{Algorithm, Digest};
use crate::hash;
use crate::parallel;
use crate::progress::Progress;
use crate::rank::Rank;
use crate::reader::Logical;
use crate::report::ChecksumReport;
use crate::status::Result;
use crate::view::{HostTensor, TensorView, first_of_same_memory, total_bytes};

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
    let call = cuda::Call::open(&unique, options.stream)?;
    let total = total_bytes(unique.iter().copied());
    let progress = Progress::start(total, options.progress)?;
    let found = match options.algorithm {
        Algorithm::Sha256 => chains(&unique, &call, options, &progress),
        Algorithm::Sha256Tree => trees(&unique, &call, options, &progress),
    }?;
    progress.finish()?;
    log::debug!("{} of {} tensors, {total} bytes: {:?}", options.algorithm.name(), views.len(), started.elapsed());
    Ok(first.iter().map(|index| found[position[*index]]).collect())
}

/// SHA-256 of all tensors by the host's lanes; those of devices come to the host meanwhile.
fn chains(
    views: &[&TensorView<'_>],
    call: &cuda::Call<'_>,
    options: &Options<'_>,
    progress: &Progress<'_>,
) -> Result<Vec<Digest>> {
    let asked = if options.threads == 0 { parallel::allowed_cores() } else { options.threads };
    let devices = call.sessions().len();
    let share = Share::new(options.max_host_bytes, devices.max(1), asked, hash::most_lanes()?, views.len())?;
    let transfers = call.sessions().iter().map(|session| Transfer::open(session, share)).collect::<Result<Vec<_>>>()?;
    let found = {
        let mut tensors: Vec<(usize, Box<dyn Logical + '_>)> = Vec::with_capacity(views.len());
        tensors.extend(on_host(views).map(|(index, tensor)| (index, Box::new(tensor) as _)));
        for (session, transfer) in call.sessions().iter().zip(&transfers) {
            let source = |(index, tensor): &(usize, _)| (*index, Box::new(Source::new(transfer, *tensor)) as _);
            tensors.extend(session.tensors().iter().map(source));
        }
        tensors.sort_by_key(|(index, _)| *index);
        let tensors: Vec<&(dyn Logical + '_)> = tensors.iter().map(|(_, tensor)| tensor.as_ref()).collect();
        let threads = if devices == 0 { options.threads } else { share.threads };
        hash::digests(&tensors, Algorithm::Sha256, threads, progress)
    };
    // Each is closed, whatever comes of the others.
    let closed: Vec<Result<()>> = transfers.into_iter().map(Transfer::close).collect();
    let digests = found?;
    closed.into_iter().collect::<Result<()>>()?;
    Ok(digests)
}

/// The tree's root of all tensors: each device hashes its own, and the host the others, at the same time.
fn trees(
    views: &[&TensorView<'_>],
    call: &cuda::Call<'_>,
    options: &Options<'_>,
    progress: &Progress<'_>,
) -> Result<Vec<Digest>> {
    type Job<'j> = Box<dyn FnOnce() -> Result<Vec<(usize, Digest)>> + Send + 'j>;
    let here: Vec<_> = on_host(views).collect();
    let mut jobs: Vec<Job<'_>> = Vec::new();
    if !here.is_empty() || call.sessions().is_empty() {
        jobs.push(Box::new(|| {
            let tensors: Vec<&HostTensor<'_>> = here.iter().map(|(_, tensor)| tensor).collect();
            let digests = hash::digests(&tensors, Algorithm::Sha256Tree, options.threads, progress)?;
            Ok(here.iter().map(|(index, _)| *index).zip(digests).collect())
        }));
    }
    for session in call.sessions() {
        jobs.push(Box::new(move || {
            let roots = tree::roots(session, tree::Limits::default(), progress)?;
            let digest = |((index, _), roots): (&(usize, _), Vec<_>)| Ok((*index, hash::join(&roots)?));
            session.tensors().iter().zip(roots).map(digest).collect()
        }));
    }
    let mut found: Vec<(usize, Digest)> = Vec::with_capacity(views.len());
    for part in parallel::together(jobs) {
        found.extend(part?);
    }
    found.sort_by_key(|(index, _)| *index);
    Ok(found.into_iter().map(|(_, digest)| digest).collect())
}

/// The tensors in host memory, with their places among `views`.
fn on_host<'v>(views: &[&'v TensorView<'v>]) -> impl Iterator<Item = (usize, HostTensor<'v>)> {
    views.iter().enumerate().filter_map(|(index, view)| Some((index, view.on_host()?)))
}
