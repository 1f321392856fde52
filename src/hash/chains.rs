//! `sha256`: one chain a tensor, many tensors side by side over all threads.

use std::ops::RangeInclusive;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use super::Engine;
use super::lanes;
use super::message::{MOST_GATHERED_BYTES, Message};
use super::schedule::Pool;
use crate::digest::Digest;
use crate::parallel;
use crate::progress::Progress;
use crate::reader::Logical;
use crate::status::{Error, Result};

/// The bytes of a message that are hashed before the schedule is looked at again: some milliseconds, but enough that
/// looking costs nothing.
const BYTES_A_TURN: RangeInclusive<u64> = 64 << 10..=1 << 20;

/// The same when a tensor is far: the first bytes of each turn are waited for.
const BYTES_A_FAR_TURN: RangeInclusive<u64> = 2 << 20..=8 << 20;

/// How often the schedule is looked at in a call, at least, for a call that is not tiny.
const TURNS: u64 = 32;

/// A tensor that waits.
enum Job<'v> {
    /// By its index.
    Fresh(usize),
    /// With its hash so far. It holds no buffer.
    Begun(Box<Message<'v>>),
}

/// What the threads of a call share.
struct Call<'c, 'v, L: ?Sized> {
    tensors: &'c [&'v L],
    engine: &'c Engine,
    progress: &'c Progress<'c>,
    bytes_a_turn: usize,
    /// By each message, at once. No more than a turn: what is not hashed in it is read again.
    most_gathered: usize,
    found: Vec<OnceLock<Digest>>,
    state: Mutex<CallState<'v>>,
    changed: Condvar,
}

struct CallState<'v> {
    pool: Pool<Job<'v>>,
    /// Set by the first thread that fails; the others stop at their next turn.
    failure: Option<Error>,
    /// A thread has panicked, so what it took never comes back.
    is_lost: bool,
}

/// The SHA-256 of each of `tensors`.
pub fn digests<L: Logical + ?Sized>(
    tensors: &[&L],
    engine: &Engine,
    threads: usize,
    progress: &Progress<'_>,
) -> Result<Vec<Digest>> {
    let sizes: Vec<u64> = tensors.iter().map(|tensor| tensor.length()).collect();
    let threads = parallel::useful_threads(&sizes, threads);
    let total = sizes.iter().fold(0u64, |total, size| total.saturating_add(*size));
    let turn = total / (threads * engine.choice.wide.lanes()) as u64 / TURNS;
    let is_far = tensors.iter().any(|tensor| tensor.is_far());
    let (turn, range) = if is_far { (turn * 4, BYTES_A_FAR_TURN) } else { (turn, BYTES_A_TURN) };
    let bytes_a_turn = turn.clamp(*range.start(), *range.end()) as usize;
    let gathered = (MOST_GATHERED_BYTES / (threads * engine.choice.wide.lanes())).clamp(1, bytes_a_turn);
    // Powers of two, so that a turn ends where what was gathered does.
    let (bytes_a_turn, most_gathered) = (1 << bytes_a_turn.ilog2(), 1 << gathered.ilog2());
    let jobs = sizes.iter().enumerate().map(|(index, size)| (*size, Job::Fresh(index)));
    let call = Call {
        tensors,
        engine,
        progress,
        bytes_a_turn,
        most_gathered,
        found: tensors.iter().map(|_| OnceLock::new()).collect(),
        state: Mutex::new(CallState { pool: Pool::new(jobs, threads, engine.speeds), failure: None, is_lost: false }),
        changed: Condvar::new(),
    };
    parallel::on_threads(threads, || while call.turn() {});
    if let Some(error) = call.lock().failure.take() {
        return Err(error);
    }
    Ok(call.found.iter().map(|digest| *digest.get().expect("every message is done when the pool is")).collect())
}

impl<'v, L: Logical + ?Sized> Call<'_, 'v, L> {
    fn lock(&self) -> MutexGuard<'_, CallState<'v>> {
        parallel::lock(&self.state)
    }

    /// Takes some messages, hashes a part of each and gives the rest back. False when there is nothing left to do.
    fn turn(&self) -> bool {
        let Some(taken) = self.wait_for_work() else { return false };
        let mut turn = Turn { call: self, taken: 0, is_over: false };
        let refills = self.engine.speeds.prefers_lanes(taken.len());
        let width = if refills { self.engine.choice.wide.lanes() } else { taken.len() };
        let mut active = Vec::with_capacity(width);
        let hash = || {
            for (left, job) in taken {
                active.push(turn.begin(left, job)?);
            }
            lanes::run(
                &mut active,
                width,
                self.bytes_a_turn,
                || {
                    let next = if refills { self.lock().pool.take_one() } else { None };
                    next.map(|(left, job)| turn.begin(left, job)).transpose()
                },
                |message: Message<'v>| {
                    let digest = message.digest();
                    self.found[message.id].get_or_init(|| digest);
                },
                |states, blocks| self.engine.compress(states, blocks),
            )
        };
        if let Err(error) = hash() {
            self.lock().failure.get_or_insert(error);
            return false;
        }
        turn.end(active);
        true
    }

    /// What this thread hashes next; waits while others may still give something back.
    fn wait_for_work(&self) -> Option<Vec<(u64, Job<'v>)>> {
        let mut state = self.lock();
        loop {
            if state.failure.is_some() || state.is_lost || state.pool.is_done() {
                return None;
            }
            let taken = state.pool.take();
            if !taken.is_empty() {
                return Some(taken);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A thread's turn. Whatever ends it, the other threads hear of it.
struct Turn<'t, 'c, 'v, L: Logical + ?Sized> {
    call: &'t Call<'c, 'v, L>,
    /// Bytes left in all messages taken, as they were then.
    taken: u64,
    is_over: bool,
}

impl<'v, L: Logical + ?Sized> Turn<'_, '_, 'v, L> {
    fn begin(&mut self, left: u64, job: Job<'v>) -> Result<Message<'v>> {
        self.taken += left;
        let mut message = match job {
            Job::Begun(message) => *message,
            Job::Fresh(index) => {
                let tensor = self.call.tensors[index];
                #[cfg(feature = "test-hooks")]
                assert_ne!(tensor.name(), "test-hook: panic", "the test asked for a panic");
                Message::new(index, &[], tensor.read(0..tensor.length()), self.call.most_gathered)?
            }
        };
        message.take_up(self.call.bytes_a_turn)?;
        Ok(message)
    }

    fn end(mut self, rest: Vec<Message<'v>>) {
        let rest = rest.into_iter().map(|mut message| {
            message.park();
            (message.left(), Job::Begun(Box::new(message)))
        });
        let rest: Vec<_> = rest.collect();
        let left: u64 = rest.iter().map(|(left, _)| *left).sum();
        let outcome = self.call.progress.advance(self.taken - left);
        let mut state = self.call.lock();
        state.pool.put_back(self.taken, rest);
        if let Err(error) = outcome {
            state.failure.get_or_insert(error);
        }
        self.is_over = true;
        self.call.changed.notify_all();
    }
}

impl<L: Logical + ?Sized> Drop for Turn<'_, '_, '_, L> {
    fn drop(&mut self) {
        if !self.is_over {
            self.call.lock().is_lost = true;
            self.call.changed.notify_all();
        }
    }
}
