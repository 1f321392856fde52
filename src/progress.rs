//! How far a call has come, and whether its caller wants it to stop.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::status::{Error, Result, Status};

/// Bytes between two calls of the callback.
const REPORT_BYTES: u64 = 16 << 20;

/// Told (bytes done, bytes in all); `Break` cancels the call.
pub type Callback<'a> = dyn Fn(u64, u64) -> ControlFlow<()> + Sync + 'a;

/// Shared by the threads of one call.
pub struct Progress<'a> {
    total: u64,
    done: AtomicU64,
    cancelled: AtomicBool,
    callback: Option<&'a Callback<'a>>,
    /// Bytes done when the callback was last told. Held during a call of it, so that there is one at a time.
    reported: Mutex<u64>,
}

impl<'a> Progress<'a> {
    /// Starts a call over `total` bytes by telling the callback (0, `total`).
    pub fn start(total: u64, callback: Option<&'a Callback<'a>>) -> Result<Self> {
        let progress = Self {
            total,
            done: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            callback,
            reported: Mutex::new(0),
        };
        progress.report(0)?;
        Ok(progress)
    }

    /// Counts `bytes` as done. An error when the call was cancelled, by this report or on another thread.
    pub fn advance(&self, bytes: u64) -> Result<()> {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if self.callback.is_some()
            && let Ok(mut reported) = self.reported.try_lock()
            && done < self.total
            && done >= *reported + REPORT_BYTES
        {
            *reported = done;
            self.report(done)?;
        }
        if self.cancelled.load(Ordering::Relaxed) { Err(cancelled()) } else { Ok(()) }
    }

    /// Ends a call that is complete by telling the callback (`total`, `total`).
    pub fn finish(&self) -> Result<()> {
        self.report(self.total)
    }

    fn report(&self, done: u64) -> Result<()> {
        match self.callback.map(|callback| callback(done, self.total)) {
            Some(ControlFlow::Break(())) => {
                self.cancelled.store(true, Ordering::Relaxed);
                Err(cancelled())
            }
            _ => Ok(()),
        }
    }
}

fn cancelled() -> Error {
    Error::new(Status::Cancelled, "the progress callback asked to stop")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_hears_of_the_start_steps_and_the_end() {
        let heard = Mutex::new(Vec::new());
        let callback = |done: u64, total: u64| {
            heard.lock().unwrap().push((done, total));
            ControlFlow::Continue(())
        };
        let total = 3 * REPORT_BYTES;
        let progress = Progress::start(total, Some(&callback)).unwrap();
        for _ in 0..6 {
            progress.advance(REPORT_BYTES / 2).unwrap();
        }
        progress.finish().unwrap();
        let expected = [0, REPORT_BYTES, 2 * REPORT_BYTES, total].map(|done| (done, total));
        assert_eq!(*heard.lock().unwrap(), expected);
    }

    #[test]
    fn every_thread_sees_a_cancellation() {
        let callback = |done: u64, _: u64| if done > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let progress = Progress::start(4 * REPORT_BYTES, Some(&callback)).unwrap();
        assert_eq!(progress.advance(REPORT_BYTES).unwrap_err().status(), Status::Cancelled);
        assert_eq!(progress.advance(1).unwrap_err().status(), Status::Cancelled);
    }
}
