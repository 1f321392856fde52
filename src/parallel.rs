//! Jobs of unequal size over the cores that this process may use.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::status::Result;

/// Less work than this is not worth starting a thread for, in bytes.
const BYTES_WORTH_A_THREAD: u64 = 256 << 10;

/// Locks `mutex`, whatever became of the thread that had it: its panic is passed on to the caller anyway.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cores that this process may use: CPU affinity and the cgroup's quota respected.
pub fn allowed_cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `job(scratch, index)` once for every index of `sizes` (in bytes), largest first, on at most `threads` threads
/// (0: all allowed cores), the calling one among them. Each thread has a scratch of its own. The first error keeps
/// further jobs from starting.
pub fn for_each<S: Default>(
    sizes: &[u64],
    threads: usize,
    job: impl Fn(&mut S, usize) -> Result<()> + Sync,
) -> Result<()> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(sizes[*index]));
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    on_threads(useful_threads(sizes, threads), || {
        let mut scratch = S::default();
        while let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = job(&mut scratch, *index) {
                next.store(order.len(), Ordering::Relaxed);
                lock(&failure).get_or_insert(error);
            }
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Runs `work` on `threads` threads at once, the calling one among them, or on fewer when the system refuses more.
///
/// Threads live for this call only, so a process that forks between calls is safe. A panic is passed on to the caller
/// after all threads have ended.
pub fn on_threads(threads: usize, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        let mut started = Vec::new();
        for number in 1..threads {
            let name = format!("weight-checker-{number}");
            match thread::Builder::new().name(name).spawn_scoped(scope, &work) {
                Ok(thread) => started.push(thread),
                Err(error) => {
                    // The work is shared, so those that did start finish it.
                    log::warn!("cannot start thread {number} of the check, going on with fewer: {error}");
                    break;
                }
            }
        }
        work();
        // Joined by hand: a scope would replace the panic's own message by one of its own.
        let panics: Vec<_> = started.into_iter().filter_map(|thread| thread.join().err()).collect();
        if let Some(panic) = panics.into_iter().next() {
            resume_unwind(panic);
        }
    });
}

/// Runs all `jobs` at the same time, each on a thread of its own but the first, which the calling thread runs; or some one
/// after the other when the system refuses threads. Gives their results in order.
pub fn together<T: Send>(jobs: Vec<impl FnOnce() -> T + Send>) -> Vec<T> {
    let waiting: Vec<Mutex<Option<_>>> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let found: Vec<Mutex<Option<T>>> = waiting.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let take = || {
        let index = next.fetch_add(1, Ordering::Relaxed);
        Some((waiting.get(index)?, &found[index]))
    };
    on_threads(waiting.len(), || {
        while let Some((job, place)) = take() {
            let job = lock(job).take().expect("each index is taken once");
            *lock(place) = Some(job());
        }
    });
    let result = |place: Mutex<Option<T>>| place.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.into_iter().map(|place| result(place).expect("every job has run")).collect()
}

/// How many threads are worth starting for jobs of `sizes` when `threads` are asked for (0: all allowed cores).
pub fn useful_threads(sizes: &[u64], threads: usize) -> usize {
    let asked = if threads == 0 { allowed_cores() } else { threads };
    let total = sizes.iter().fold(0u64, |total, size| total.saturating_add(*size));
    let worth = usize::try_from(total / BYTES_WORTH_A_THREAD).unwrap_or(usize::MAX);
    asked.min(sizes.len()).min(worth).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Error, Status};

    #[test]
    fn every_job_runs_once_and_the_largest_first() {
        let sizes: Vec<u64> = (0..100).map(|index| (index * 37 % 101) << 20).collect();
        for threads in [1, 2, 7, 200] {
            let ran = Mutex::new(Vec::new());
            for_each(&sizes, threads, |_: &mut (), index| {
                ran.lock().unwrap().push(index);
                Ok(())
            })
            .unwrap();
            let mut ran = ran.into_inner().unwrap();
            assert_eq!(sizes[ran[0]], *sizes.iter().max().unwrap());
            ran.sort_unstable();
            assert_eq!(ran, (0..100).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_error_stops_the_rest() {
        let ran = AtomicUsize::new(0);
        let error = for_each(&[1 << 30; 50], 1, |_: &mut (), _| {
            ran.fetch_add(1, Ordering::Relaxed);
            Err(Error::new(Status::Cancelled, "stop"))
        });
        assert_eq!(error.unwrap_err().status(), Status::Cancelled);
        assert_eq!(ran.into_inner(), 1);
    }

    #[test]
    fn jobs_run_together_and_answer_in_order() {
        let barrier = std::sync::Barrier::new(3);
        let job = |index: usize| {
            let barrier = &barrier;
            move || {
                barrier.wait();
                index
            }
        };
        assert_eq!(together((0..3).map(job).collect()), [0, 1, 2]);
        assert!(together(Vec::<fn() -> u8>::new()).is_empty());
    }

    #[test]
    fn threads_are_not_started_for_nothing() {
        assert_eq!(useful_threads(&[100; 50], 8), 1);
        assert_eq!(useful_threads(&[1 << 30], 8), 1);
        assert_eq!(useful_threads(&[1 << 30; 3], 8), 3);
        assert_eq!(useful_threads(&[1 << 30; 50], 8), 8);
        assert_eq!(useful_threads(&[], 8), 1);
        assert_eq!(useful_threads(&[u64::MAX; 9], 4), 4);
    }
}
