//! Digests of many tensors at once, as fast as the processor can.
//!
//! `backend` and its files are the block function for each kind of processor; `lanes` fills their lanes; `schedule` says which
//! messages a thread takes; `chains` hashes whole tensors with them and `tree` leaves and nodes of a Merkle tree.

pub mod backend;
#[cfg(test)]
mod backend_tests;
mod chains;
mod lanes;
mod message;
mod portable;
pub mod schedule;
mod tree;
#[cfg(target_arch = "x86_64")]
mod x86_avx2;
#[cfg(target_arch = "x86_64")]
mod x86_avx512;
#[cfg(target_arch = "x86_64")]
mod x86_shani;
#[cfg(target_arch = "x86_64")]
mod x86_wide;

use self::backend::{Choice, State, choose};
use self::schedule::Speeds;
use crate::digest::{Algorithm, Digest};
use crate::progress::Progress;
use crate::reader::Logical;
use crate::status::Result;

/// The digests of the logical bytes of `tensors`, in order, by at most `threads` threads (0: all allowed cores).
///
/// # Errors
/// `BadOption` when the environment forces a backend that is not there; `Cancelled` by `progress`.
pub fn digests<L: Logical + ?Sized>(
    tensors: &[&L],
    algorithm: Algorithm,
    threads: usize,
    progress: &Progress<'_>,
) -> Result<Vec<Digest>> {
    let engine = Engine::new()?;
    match algorithm {
        Algorithm::Sha256 => chains::digests(tensors, &engine, threads, progress),
        Algorithm::Sha256Tree => tree::digests(tensors, &engine, threads, progress),
    }
}

/// The digest of the tree whose subtrees have these roots, from left to right: all of the same number of leaves, a power of
/// two, but the last, which may have fewer. Without any, that of no bytes.
pub fn join(roots: &[State]) -> Result<Digest> {
    Ok(tree::join(roots, &Engine::new()?))
}

/// How many tensors a thread hashes at once at most.
pub fn most_lanes() -> Result<usize> {
    let choice = choose()?;
    Ok(choice.wide.lanes().max(choice.fast.lanes()))
}

/// The name of the backend in use, such as "avx512+shani".
pub fn backend_name() -> Result<String> {
    Ok(choose()?.name())
}

/// The backends of this process and their speeds.
struct Engine {
    choice: &'static Choice,
    speeds: Speeds,
}

impl Engine {
    fn new() -> Result<Self> {
        let choice = choose()?;
        Ok(Self { choice, speeds: Speeds::of(choice) })
    }

    /// Advances each state over its blocks, by the backend that is faster for so many.
    fn compress(&self, states: &mut [State], blocks: &[&[u8]]) {
        let lanes = self.speeds.prefers_lanes(states.len());
        let backend = if lanes { self.choice.wide } else { self.choice.fast };
        let width = backend.lanes();
        for (states, blocks) in states.chunks_mut(width).zip(blocks.chunks(width)) {
            backend.compress(states, blocks);
        }
    }
}
