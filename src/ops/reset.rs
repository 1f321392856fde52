//! reset: every element overwritten, so that an update which does not arrive is seen.

use std::ops::Range;

use sha2::{Digest as _, Sha256};

use super::Options;
use crate::cuda::fill::Words;
use crate::cuda::{self, DeviceTensor, Session};
use crate::host;
use crate::parallel;
use crate::progress::Progress;
use crate::report::ResetReport;
use crate::status::{Error, Result, Status};
use crate::view::{HostTensor, TensorView, first_of_same_memory, total_bytes};

/// What is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// All bytes 0: what vLLM's own checker writes.
    #[default]
    Zero,
    /// Valid values of the tensor's dtype (floats are finite, bools 0 or 1), the same on every run for one seed and
    /// tensor name, on whatever device and however many threads.
    Random {
        /// Any number.
        seed: u64,
    },
    /// All bytes 0xFF: NaN for floats (not for the float8 types that end in fnuz), so that a model which uses a weight that
    /// never arrived shows it at once.
    Poison,
}

impl Fill {
    /// The fill of the C ABI's number: 0 zero, 1 random, 2 poison.
    pub fn from_code(code: u32, seed: u64) -> Result<Self> {
        match code {
            0 => Ok(Self::Zero),
            1 => Ok(Self::Random { seed }),
            2 => Ok(Self::Poison),
            other => Err(Error::new(
                Status::BadOption,
                format!("fill {other} does not exist: 0 is zero, 1 is random, 2 is poison"),
            )),
        }
    }
}

/// Overwrites every element of `views`, which must have been checked for writing; nothing between strides is touched.
///
/// Memory that several views share exactly is written once, by the first of them. Views that overlap otherwise are
/// written one after the other in the order given, so the result does not depend on the threads.
///
/// # Errors
/// `Cancelled` by the progress callback; some tensors are overwritten then and others are not.
pub fn reset(views: &[TensorView<'_>], fill: Fill, options: &Options<'_>) -> Result<ResetReport> {
    let first = first_of_same_memory(views);
    let unique: Vec<&TensorView<'_>> =
        views.iter().enumerate().filter(|(index, _)| first[*index] == *index).map(|(_, view)| view).collect();
    let call = cuda::Call::open(&unique, options.stream)?;
    let total = total_bytes(unique.iter().copied());
    let progress = Progress::start(total, options.progress)?;
    type Job<'j> = Box<dyn FnOnce() -> Result<()> + Send + 'j>;
    let mut jobs: Vec<Job<'_>> = Vec::new();
    for session in call.sessions() {
        jobs.push(Box::new(|| on_device(session, fill, &progress)));
    }
    if unique.iter().any(|view| view.on_host().is_some()) {
        jobs.push(Box::new(|| on_host(&unique, fill, options.threads, &progress)));
    }
    parallel::together(jobs).into_iter().collect::<Result<()>>()?;
    progress.finish()?;
    log::debug!("reset of {} tensors, {total} bytes, with {fill:?}", views.len());
    Ok(ResetReport { written: unique.len(), shared: views.len() - unique.len(), bytes: total })
}

/// Overwrites those of `views` that are in host memory.
fn on_host(views: &[&TensorView<'_>], fill: Fill, threads: usize, progress: &Progress<'_>) -> Result<()> {
    let tensors: Vec<HostTensor<'_>> = views.iter().filter_map(|view| view.on_host()).collect();
    let groups = overlapping(tensors.iter().map(|tensor| tensor.view().addresses()).collect());
    let bytes_of = |group: &Vec<usize>| total_bytes(group.iter().map(|index| tensors[*index].view()));
    let sizes: Vec<u64> = groups.iter().map(bytes_of).collect();
    parallel::for_each(&sizes, threads, |_: &mut (), job| {
        groups[job].iter().try_for_each(|index| fill_here(tensors[*index], fill, progress))
    })
}

fn fill_here(tensor: HostTensor<'_>, fill: Fill, progress: &Progress<'_>) -> Result<()> {
    let Words { stream, keep, set } = words(tensor.view(), fill);
    if keep == 0 {
        return host::fill(tensor, progress, |_| set);
    }
    host::fill(tensor, progress, |index| random_word(stream, index) & keep | set)
}

/// Overwrites the tensors of a device: together, but those that overlap after one another.
fn on_device(session: &Session<'_>, fill: Fill, progress: &Progress<'_>) -> Result<()> {
    let tensors: Vec<DeviceTensor<'_>> = session.tensors().iter().map(|(_, tensor)| *tensor).collect();
    let groups = overlapping(tensors.iter().map(|tensor| tensor.view().addresses()).collect());
    let rounds = groups.iter().map(Vec::len).max().unwrap_or(0);
    (0..rounds).try_for_each(|round| {
        let of_round = groups.iter().filter_map(|group| group.get(round)).map(|index| tensors[*index]);
        let of_round: Vec<_> = of_round.map(|tensor| (tensor, words(tensor.view(), fill))).collect();
        cuda::fill::fill(session, &of_round, progress)
    })
}

/// What a tensor is filled with.
fn words(view: &TensorView<'_>, fill: Fill) -> Words {
    match fill {
        Fill::Zero => Words { stream: 0, keep: 0, set: 0 },
        Fill::Poison => Words { stream: 0, keep: 0, set: u64::MAX },
        Fill::Random { seed } => {
            let (keep, set) = view.dtype().valid_masks();
            Words { stream: stream_of(seed, view.name()), keep, set }
        }
    }
}

/// The start of a tensor's random stream, so that tensors of the same shape do not get the same bytes.
fn stream_of(seed: u64, name: &str) -> u64 {
    let digest = Sha256::new().chain_update(seed.to_le_bytes()).chain_update(name).finalize();
    digest.iter().take(8).rev().fold(0, |stream, byte| stream << 8 | u64::from(*byte))
}

/// Word `index` of a stream: SplitMix64 (Steele, Lea and Flood 2014), which gives any word without those before it.
fn random_word(stream: u64, index: u64) -> u64 {
    let mut z = stream.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Groups tensors, by their indices, whose address ranges overlap; each group in the order given.
fn overlapping(addresses: Vec<Range<usize>>) -> Vec<Vec<usize>> {
    let mut sorted: Vec<usize> = (0..addresses.len()).collect();
    sorted.sort_by_key(|index| (addresses[*index].start, *index));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut end = 0;
    for index in sorted {
        let addresses = &addresses[index];
        match groups.last_mut() {
            Some(group) if addresses.start < end => group.push(index),
            _ => groups.push(vec![index]),
        }
        end = end.max(addresses.end);
    }
    groups.iter_mut().for_each(|group| group.sort_unstable());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of SplitMix64 for the seed 1234567, as published with its reference code.
    #[test]
    fn words_are_splitmix64() {
        let published =
            [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821];
        assert_eq!(std::array::from_fn(|index| random_word(1234567, index as u64)), published);
    }
}
