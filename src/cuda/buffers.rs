//! The pinned host memory that a call copies device tensors to, in buffers of one size.
//!
//! A buffer belongs to one stream, so that two copies to it follow each other, and has an event that says when its copy has
//! come.

use std::sync::{Arc, Mutex, PoisonError};

use super::Session;
use super::device::{Device, STREAMS};
use super::driver::{DeviceMemory, Event, PinnedMemory};
use crate::status::{Error, Result, Status};

/// Pinned memory of a call that its options do not bound.
pub const DEFAULT_HOST_BYTES: u64 = 256 << 20;

/// The least that a call can do with.
pub const LEAST_HOST_BYTES: u64 = 1 << 20;

/// Bytes of a buffer: more of them cost memory and take long to be pinned, with fewer the link waits between copies.
const SLOT_BYTES: usize = 256 << 10;

/// As few as a buffer may have before rather fewer threads hash.
const LEAST_SLOT_BYTES: usize = 32 << 10;

/// Buffers of each tensor that is being hashed.
const SLOTS_OF_A_LANE: usize = 2;

/// Buffers that are pinned together.
const FEWEST_SLOTS_A_BLOCK: usize = 4;
const MOST_SLOTS_A_BLOCK: usize = 64;

/// How a call's pinned memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Threads that may hash.
    pub threads: usize,
    slot_bytes: usize,
}

impl Share {
    /// For `threads` threads that hash `lanes` tensors each, of `devices` devices, in at most `most` bytes (0: the default).
    ///
    /// # Errors
    /// `BadOption` when that is less than [`LEAST_HOST_BYTES`].
    pub fn new(most: u64, devices: usize, threads: usize, lanes: usize) -> Result<Self> {
        let most = if most == 0 { DEFAULT_HOST_BYTES } else { most };
        if most < LEAST_HOST_BYTES {
            let what =
                format!("max_host_bytes is {most}; at least {LEAST_HOST_BYTES} are needed, and 0 is the default");
            return Err(Error::new(Status::BadOption, what));
        }
        let of_device = usize::try_from(most).unwrap_or(usize::MAX) / devices;
        let of_lane = |threads: usize| of_device / (threads * lanes * SLOTS_OF_A_LANE);
        let threads = threads.min(of_lane(1) / LEAST_SLOT_BYTES).max(1);
        // A power of two, as turns of the schedule are: so they end where buffers do.
        let slot_bytes = 1 << of_lane(threads).clamp(64, SLOT_BYTES).ilog2();
        Ok(Self { threads, slot_bytes })
    }
}

/// The buffers of a device in a call.
pub struct Transfer {
    pub(super) device: &'static Device,
    /// Bytes of a buffer.
    pub(super) slot_bytes: usize,
    pinned: Mutex<Pinned>,
    /// A piece of device memory for each stream, where strided tensors are gathered; none when there are none.
    pub(super) scratch: Option<DeviceMemory>,
    is_settled: bool,
}

/// Pinned memory and the buffers in it that nobody uses.
#[derive(Default)]
struct Pinned {
    blocks: Vec<Arc<PinnedMemory>>,
    free: Vec<Slot>,
    slots: usize,
}

/// A buffer, with its stream and the event of its last copy.
pub struct Slot {
    /// The memory that it is a part of.
    pub memory: Arc<PinnedMemory>,
    /// Where it begins.
    pub offset: usize,
    /// Which of the device's streams copies to it.
    pub stream: usize,
    /// When the last copy to it has come.
    pub copied: Event,
}

impl Transfer {
    /// For the tensors of `session`.
    pub fn open(session: &Session<'_>, share: Share) -> Result<Self> {
        let device = session.device;
        let is_strided = session.tensors().iter().any(|(_, tensor)| !tensor.view().layout().is_contiguous());
        let bytes = (share.slot_bytes * STREAMS) as u64;
        let scratch = is_strided.then(|| device.enter(|| DeviceMemory::new(device.context(), bytes))).transpose()?;
        let slot_bytes = share.slot_bytes;
        Ok(Self { device, slot_bytes, pinned: Mutex::default(), scratch, is_settled: false })
    }

    /// Gives everything back.
    ///
    /// # Errors
    /// What the driver says now, which may be of copies before: then nothing can be said of what has come.
    pub fn close(mut self) -> Result<()> {
        let settled = self.device.settle();
        self.is_settled = true;
        let Pinned { blocks, free, .. } = std::mem::take(self.lock());
        let mut outcomes = vec![settled];
        outcomes.extend(free.into_iter().map(|slot| slot.copied.close()));
        outcomes.extend(blocks.into_iter().filter_map(Arc::into_inner).map(PinnedMemory::close));
        outcomes.extend(self.scratch.take().map(DeviceMemory::close));
        outcomes.into_iter().collect()
    }

    fn lock(&mut self) -> &mut Pinned {
        self.pinned.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer that nobody uses.
    pub fn lease(&self) -> Result<Lease<'_>> {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        if pinned.free.is_empty() {
            // As many again as there are, so that a small call pins little.
            let count = pinned.slots.clamp(FEWEST_SLOTS_A_BLOCK, MOST_SLOTS_A_BLOCK);
            self.device.enter(|| pinned.grow(count, self.slot_bytes, self.device))?;
        }
        let slot = pinned.free.pop();
        Ok(Lease { transfer: self, slot: Some(slot.expect("there are some now")) })
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.is_settled
            && let Err(error) = self.device.settle()
        {
            log::warn!("copies from CUDA device {} did not end well: {error}", self.device.ordinal());
        }
    }
}

impl Pinned {
    /// `count` buffers more. The device's context is current.
    fn grow(&mut self, count: usize, slot_bytes: usize, device: &Device) -> Result<()> {
        let memory = Arc::new(PinnedMemory::new(device.context(), count * slot_bytes)?);
        self.blocks.push(Arc::clone(&memory));
        for index in 0..count {
            let copied = Event::new(device.context())?;
            let stream = self.slots % STREAMS;
            self.free.push(Slot { memory: Arc::clone(&memory), offset: index * slot_bytes, stream, copied });
            self.slots += 1;
        }
        Ok(())
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
        let mut pinned = self.transfer.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        pinned.free.extend(self.slot.take());
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
                let Share { threads: allowed, slot_bytes } = Share::new(most, devices, threads, lanes).unwrap();
                assert!((1..=threads).contains(&allowed) && slot_bytes.is_power_of_two() && slot_bytes <= SLOT_BYTES);
                let used = slot_bytes * SLOTS_OF_A_LANE * lanes * allowed * devices;
                assert!(used as u64 <= most, "{used} of {most} for {threads} threads");
            }
        }
        assert_eq!(Share::new(0, 1, 16, 16).unwrap(), Share { threads: 16, slot_bytes: SLOT_BYTES });
        assert_eq!(Share::new(LEAST_HOST_BYTES - 1, 1, 1, 1).unwrap_err().status(), Status::BadOption);
    }
}
