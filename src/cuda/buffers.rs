//! The pinned host memory that a call copies device tensors to, in buffers of one size.
//!
//! A buffer belongs to one stream, so that two copies to it follow each other, and has an event that says when its copy has
//! come.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Session;
use super::device::{Device, STREAMS};
use super::driver::DeviceMemory;
use super::kept::{SLOT_BYTES, Slot};
use crate::parallel::lock;
use crate::status::{Error, Result, Status};

/// Pinned memory of a call that its options do not bound.
pub const DEFAULT_HOST_BYTES: u64 = 256 << 20;

/// The least that a call can do with.
pub const LEAST_HOST_BYTES: u64 = 1 << 20;

/// As few as a buffer may have before rather fewer threads hash.
const LEAST_SLOT_BYTES: usize = SLOT_BYTES / 2;

/// Buffers of each tensor that is being hashed.
const SLOTS_OF_A_LANE: usize = 2;

/// How a call's pinned memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Threads that may hash.
    pub threads: usize,
    /// Bytes of a buffer, a power of two as turns of the schedule are: so they end where buffers do.
    slot_bytes: usize,
    /// Buffers of each device.
    slots: usize,
}

impl Share {
    /// For `tensors` tensors of `devices` devices and `threads` threads that hash `lanes` of them each, in at most `most`
    /// bytes (0: the default).
    ///
    /// # Errors
    /// `BadOption` when that is less than `LEAST_HOST_BYTES`.
    pub fn new(most: u64, devices: usize, threads: usize, lanes: usize, tensors: usize) -> Result<Self> {
        let most = if most == 0 { DEFAULT_HOST_BYTES } else { most };
        if most < LEAST_HOST_BYTES {
            let what =
                format!("max_host_bytes is {most}; at least {LEAST_HOST_BYTES} are needed, and 0 is the default");
            return Err(Error::new(Status::BadOption, what));
        }
        let of_device = usize::try_from(most).unwrap_or(usize::MAX) / devices;
        let at_once = |threads: usize| threads.saturating_mul(lanes).min(tensors).max(1);
        let of_slot = |threads: usize| of_device / (at_once(threads) * SLOTS_OF_A_LANE);
        let mut threads = threads.min(at_once(threads));
        while threads > 1 && of_slot(threads) < LEAST_SLOT_BYTES {
            threads -= 1;
        }
        let slot_bytes = 1 << of_slot(threads).clamp(64, SLOT_BYTES).ilog2();
        Ok(Self { threads, slot_bytes, slots: of_device / slot_bytes })
    }

    /// How many buffers of each device may be kept for the next call: those of another size may not.
    fn kept_slots(self) -> usize {
        if self.slot_bytes == SLOT_BYTES { self.slots } else { 0 }
    }
}

/// The buffers of a device in a call.
pub struct Transfer {
    pub(super) device: &'static Device,
    share: Share,
    free: Mutex<Vec<Slot>>,
    /// How many buffers there are, free and leased.
    slots: AtomicUsize,
    /// Device memory where strided tensors are gathered, a piece for each stream; none when there are none.
    scratch: Option<DeviceMemory>,
    /// Whoever has a stream's lock may queue what writes and reads its piece of the scratch.
    pieces: [Mutex<()>; STREAMS],
    is_ended: bool,
}

impl Transfer {
    /// For the tensors of `session`.
    pub fn open(session: &Session<'_>, share: Share) -> Result<Self> {
        let device = session.device;
        // What is kept counts too, so a call that may pin less than those before it frees some.
        device.kept().keep_slots(Vec::new(), share.kept_slots());
        let is_strided = session.tensors().iter().any(|(_, tensor)| !tensor.view().layout().is_contiguous());
        let bytes = (share.slot_bytes * STREAMS) as u64;
        let take = || device.enter(|| device.kept().take_scratch(bytes, device.context()));
        let scratch = is_strided.then(take).transpose()?;
        let (free, slots, pieces) = (Mutex::default(), AtomicUsize::new(0), Default::default());
        Ok(Self { device, share, free, slots, scratch, pieces, is_ended: false })
    }

    /// Bytes of a buffer.
    pub fn slot_bytes(&self) -> usize {
        self.share.slot_bytes
    }

    /// Lets `queue` queue what writes the stream's piece of the scratch, whose address it gets, and what reads it: nothing of
    /// another thread comes between the two.
    pub fn with_piece<T>(&self, stream: usize, queue: impl FnOnce(u64) -> Result<T>) -> Result<T> {
        let scratch = self.scratch.as_ref().expect("it is there when a tensor is strided");
        let piece = (self.share.slot_bytes * stream) as u64;
        let _alone = lock(&self.pieces[stream]);
        queue(scratch.address(piece..piece + self.share.slot_bytes as u64))
    }

    /// A buffer that nobody uses: a free one, one that was kept, or new.
    pub fn lease(&self) -> Result<Lease<'_>> {
        let free = lock(&self.free).pop();
        if let Some(slot) = free {
            return Ok(Lease { transfer: self, slot: Some(slot) });
        }
        let number = self.slots.fetch_add(1, Ordering::Relaxed);
        debug_assert!(number < self.share.slots, "a lane has more than {SLOTS_OF_A_LANE} buffers");
        let kept = if self.share.kept_slots() > 0 { self.device.kept().take_slot() } else { None };
        let make = || Slot::new(self.share.slot_bytes, number % STREAMS, self.device.context());
        let slot = kept.map_or_else(|| self.device.enter(make), Ok)?;
        Ok(Lease { transfer: self, slot: Some(slot) })
    }

    /// Ends it; what another call can use is kept.
    ///
    /// # Errors
    /// What the driver says now, which may be of copies before: then nothing can be said of what has come.
    pub fn close(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.device.settle()?;
        self.is_ended = true;
        let kept = self.device.kept();
        let free = std::mem::take(&mut *lock(&self.free));
        let most = self.share.kept_slots();
        kept.keep_slots(if most > 0 { free } else { Vec::new() }, most);
        self.scratch.take().map_or(Ok(()), |scratch| kept.keep_scratch(scratch))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.is_ended
            && let Err(error) = self.end()
        {
            let device = self.device.ordinal();
            log::warn!("copies from CUDA device {device} did not end: their memory is not given back: {error}");
            // The device may still write there.
            std::mem::forget(std::mem::take(&mut *lock(&self.free)));
            std::mem::forget(self.scratch.take());
        }
    }
}

/// A buffer that is used; dropped, it is free again. A copy to it may be on its way even then: the next one follows it.
pub struct Lease<'t> {
    /// Whose it is.
    pub transfer: &'t Transfer,
    slot: Option<Slot>,
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        lock(&self.transfer.free).extend(self.slot.take());
    }
}

impl Lease<'_> {
    /// The buffer.
    pub fn slot(&self) -> &Slot {
        self.slot.as_ref().expect("it is there until the lease is dropped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_fits_into_what_may_be_pinned() {
        for most in [LEAST_HOST_BYTES, 5 << 20, DEFAULT_HOST_BYTES, u64::MAX] {
            for (devices, threads, lanes) in [(1, 1, 1), (1, 16, 16), (1, 200, 16), (8, 64, 16), (3, 7, 4)] {
                for tensors in [1, 5, 300, 100_000] {
                    let share = Share::new(most, devices, threads, lanes, tensors).unwrap();
                    let Share { threads: allowed, slot_bytes, slots } = share;
                    assert!((1..=threads).contains(&allowed) && slot_bytes.is_power_of_two());
                    assert!(slot_bytes <= SLOT_BYTES, "{share:?}");
                    assert!(slots >= SLOTS_OF_A_LANE * (lanes * allowed).min(tensors), "{share:?}");
                    let used = slot_bytes as u128 * slots as u128 * devices as u128;
                    assert!(used <= u128::from(most), "{used} of {most} for {threads} threads");
                }
            }
        }
        // What a fast link needs is not divided among more threads than it can feed.
        let share = |threads, tensors| Share::new(0, 1, threads, 16, tensors).unwrap();
        assert_eq!(share(16, 300), Share { threads: 16, slot_bytes: SLOT_BYTES, slots: 512 });
        assert_eq!((share(192, 10_000).threads, share(192, 10_000).slot_bytes), (32, SLOT_BYTES / 2));
        assert_eq!((share(192, 1).threads, share(192, 1).slot_bytes), (1, SLOT_BYTES));
        assert_eq!(Share::new(LEAST_HOST_BYTES - 1, 1, 1, 1, 1).unwrap_err().status(), Status::BadOption);
    }
}
