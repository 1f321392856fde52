//! Lanes: many messages side by side through one backend, filled and refilled.
//!
//! Pure bookkeeping over [`Stream`]: no instruction sets and no tensors here.

use super::backend::{BLOCK_BYTES, State};
use crate::status::Result;

/// Something that is hashed block by block.
pub trait Stream {
    /// Its hash so far.
    fn state(&self) -> State;
    /// Sets its hash.
    fn set_state(&mut self, state: State);
    /// Makes its next blocks ready; only when they are needed now, since it may cost memory and reading, which may fail.
    fn prepare(&mut self) -> Result<()>;
    /// Whole blocks that are ready: at least one after `prepare`, unless it is done.
    fn blocks(&self) -> &[u8];
    /// Says that so many bytes of its blocks are hashed.
    fn advance(&mut self, bytes: usize);
    /// Whether all of it is hashed.
    fn is_done(&self) -> bool;
}

/// Hashes up to `bytes` (whole blocks) of every stream of `active`, refilling from `next` as they end, and hands each that is done to
/// `done`. Afterwards `active` holds those that are not.
///
/// At most `width` streams are active. After an error `active` holds some of them as they were. `compress` advances the states over as many equally long slices of blocks.
pub fn run<S: Stream>(
    active: &mut Vec<S>,
    width: usize,
    bytes: usize,
    mut next: impl FnMut() -> Result<Option<S>>,
    mut done: impl FnMut(S),
    mut compress: impl FnMut(&mut [State], &[&[u8]]),
) -> Result<()> {
    let mut states = Vec::with_capacity(width);
    let mut left = bytes / BLOCK_BYTES * BLOCK_BYTES;
    loop {
        while active.len() < width
            && let Some(stream) = next()?
        {
            active.push(stream);
        }
        active.iter_mut().try_for_each(Stream::prepare)?;
        let Some(ready) = active.iter().map(|stream| stream.blocks().len()).min() else { return Ok(()) };
        let step = ready.min(left);
        states.clear();
        states.extend(active.iter().map(Stream::state));
        let blocks: Vec<&[u8]> = active.iter().map(|stream| &stream.blocks()[..step]).collect();
        compress(&mut states, &blocks);
        for index in (0..active.len()).rev() {
            active[index].set_state(states[index]);
            active[index].advance(step);
            if active[index].is_done() {
                done(active.swap_remove(index));
            }
        }
        left -= step;
        if left == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A job of blocks that all say whose they are; its state counts and checks them.
    struct Job {
        id: u8,
        state: State,
        blocks: Vec<u8>,
        at: usize,
        /// Where the blocks end that are ready.
        ready: usize,
    }

    /// Blocks that a job makes ready at once.
    const READY: usize = 2;

    impl Stream for Job {
        fn state(&self) -> State {
            self.state
        }
        fn set_state(&mut self, state: State) {
            self.state = state;
        }
        fn prepare(&mut self) -> Result<()> {
            self.ready = (self.at + READY * BLOCK_BYTES).min(self.blocks.len());
            Ok(())
        }
        fn blocks(&self) -> &[u8] {
            &self.blocks[self.at..self.ready]
        }
        fn is_done(&self) -> bool {
            self.at == self.blocks.len()
        }
        fn advance(&mut self, bytes: usize) {
            self.at += bytes;
        }
    }

    fn job(id: usize, blocks: usize) -> Job {
        let mut bytes = vec![0u8; blocks * BLOCK_BYTES];
        for (number, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
            block[..2].copy_from_slice(&[id as u8, number as u8]);
        }
        Job { id: id as u8, state: [id as u32, 0, 0, 0, 0, 0, 0, 0], blocks: bytes, at: 0, ready: 0 }
    }

    /// Word 1 of a state counts its blocks; each must be the next one of the job that word 0 names.
    fn compress(states: &mut [State], blocks: &[&[u8]]) {
        assert_eq!(states.len(), blocks.len());
        for (state, blocks) in states.iter_mut().zip(blocks) {
            assert!(!blocks.is_empty());
            for block in blocks.chunks(BLOCK_BYTES) {
                assert_eq!(block.len(), BLOCK_BYTES);
                assert_eq!([u32::from(block[0]), u32::from(block[1])], [state[0], state[1]]);
                state[1] += 1;
            }
        }
    }

    /// Runs jobs of these block counts, in slices of `slice` blocks, and gives how often `compress` was called.
    fn hash_all(lanes: usize, counts: &[usize], slice: usize) -> usize {
        let mut waiting = counts.iter().enumerate().map(|(id, blocks)| job(id, *blocks));
        let mut found = BTreeMap::new();
        let mut active = Vec::new();
        let mut calls = 0;
        loop {
            let done = |job: Job| assert!(found.insert(job.id, job.state[1]).is_none());
            run(
                &mut active,
                lanes,
                slice * BLOCK_BYTES,
                || Ok(waiting.next()),
                done,
                |states, blocks| {
                    assert!(states.len() <= lanes);
                    calls += 1;
                    compress(states, blocks);
                },
            )
            .unwrap();
            if active.is_empty() && found.len() == counts.len() {
                break;
            }
        }
        let expected = counts.iter().enumerate().map(|(id, blocks)| (id as u8, *blocks as u32));
        assert_eq!(found, expected.collect());
        calls
    }

    #[test]
    fn every_job_is_hashed_once_and_in_order() {
        let mut cases = 0;
        for lanes in 1..=4 {
            for jobs in 0..=9u32 {
                for code in 0..3usize.pow(jobs) {
                    let counts: Vec<usize> = (0..jobs).map(|job| 1 + code / 3usize.pow(job) % 3).collect();
                    for slice in [1, 2, usize::MAX / BLOCK_BYTES] {
                        hash_all(lanes, &counts, slice);
                        cases += 1;
                    }
                }
            }
        }
        assert_eq!(cases, 4 * 3 * (3usize.pow(10) - 1) / 2);
    }

    #[test]
    fn no_lane_is_idle_while_a_job_waits() {
        // 9 equal jobs on 3 lanes: three rounds, each of as many calls as its blocks take.
        assert_eq!(hash_all(3, &[5; 9], 100), 3 * 5usize.div_ceil(READY));
        // One long among short ones: the long one never waits for another to be finished.
        assert_eq!(hash_all(2, &[6, 1, 1, 1, 1, 1, 1], 100), 6);
    }
}
