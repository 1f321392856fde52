//! `sha256`: one chain a tensor, many tensors side by side over all threads.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use super::Engine;
use super::lanes;
use super::message::Message;
use super::schedule::Pool;
use crate::digest::Digest;
use crate::host;
use crate::parallel;
use crate::progress::Progress;
use crate::status::{Error, Result};
use crate::view::TensorView;

/// The most bytes of a message that are hashed before the schedule is looked at again: some milliseconds.
const MOST_BYTES_A_TURN: u64 = 1 << 20;

/// The fewest, so that looking costs nothing.
const FEWEST_BYTES_A_TURN: u64 = 64 << 10;

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
struct Call<'c, 'v> {
    views: &'c [&'v TensorView<'v>],
    engine: &'c Engine,
    progress: &'c Progress<'c>,
    bytes_a_turn: usize,
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

/// The SHA-256 of each of `views`.
pub fn digests(
    views: &[&TensorView<'_>],
    engine: &Engine,
    threads: usize,
    progress: &Progress<'_>,
) -> Result<Vec<Digest>> {
    let sizes: Vec<u64> = views.iter().map(|view| view.bytes()).collect();
    let threads = parallel::useful_threads(&sizes, threads);
    let total = sizes.iter().fold(0u64, |total, size| total.saturating_add(*size));
    let turn = total / (threads * engine.choice.wide.lanes()) as u64 / TURNS;
    let jobs = sizes.iter().enumerate().map(|(index, size)| (*size, Job::Fresh(index)));
    let call = Call {
        views,
        engine,
        progress,
        bytes_a_turn: turn.clamp(FEWEST_BYTES_A_TURN, MOST_BYTES_A_TURN) as usize,
        found: views.iter().map(|_| OnceLock::new()).collect(),
        state: Mutex::new(CallState { pool: Pool::new(jobs, threads, engine.speeds), failure: None, is_lost: false }),
        changed: Condvar::new(),
    };
    parallel::on_threads(threads, || while call.turn() {});
    if let Some(error) = call.lock().failure.take() {
        return Err(error);
    }
    Ok(call.found.iter().map(|digest| *digest.get().expect("every message is done when the pool is")).collect())
}

impl<'c, 'v> Call<'c, 'v> {
    fn lock(&self) -> MutexGuard<'_, CallState<'v>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes some messages, hashes a part of each and gives the rest back. False when there is nothing left to do.
    fn turn(&self) -> bool {
        let Some(taken) = self.wait_for_work() else { return false };
        let mut turn = Turn { call: self, taken: 0, is_over: false };
        let refills = self.engine.speeds.prefers_lanes(taken.len());
        let width = if refills { self.engine.choice.wide.lanes() } else { taken.len() };
        let mut active: Vec<Message<'v>> = taken.into_iter().map(|(left, job)| turn.begin(left, job)).collect();
        lanes::run(
            &mut active,
            width,
            self.bytes_a_turn,
            || if refills { self.lock().pool.take_one().map(|(left, job)| turn.begin(left, job)) } else { None },
            |message| {
                let digest = message.digest();
                self.found[message.id].get_or_init(|| digest);
            },
            |states, blocks| self.engine.compress(states, blocks),
        );
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
struct Turn<'t, 'c, 'v> {
    call: &'t Call<'c, 'v>,
    /// Bytes left in all messages taken, as they were then.
    taken: u64,
    is_over: bool,
}

impl<'v> Turn<'_, '_, 'v> {
    fn begin(&mut self, left: u64, job: Job<'v>) -> Message<'v> {
        self.taken += left;
        match job {
            Job::Begun(mut message) => {
                message.resume();
                *message
            }
            Job::Fresh(index) => {
                let view = self.call.views[index];
                #[cfg(feature = "test-hooks")]
                assert_ne!(view.name(), "test-hook: panic", "the test asked for a panic");
                Message::new(index, &[], host::bytes(view, 0..view.bytes()))
            }
        }
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

impl Drop for Turn<'_, '_, '_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.call.lock().is_lost = true;
            self.call.changed.notify_all();
        }
    }
}
