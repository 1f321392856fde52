//! What a call gives back to its device for the next one, since making and freeing it is slow, and freeing it would wait for
//! the work of an engine that serves: some device memory, pinned buffers, events.

use std::sync::Mutex;

use super::driver::{Context, DeviceMemory, Event, PinnedMemory};
use crate::parallel::lock;
use crate::status::Result;

/// Device memory is made in powers of two from this on, so that what is kept serves other calls too.
const LEAST_SCRATCH_BYTES: u64 = 1 << 20;

/// Bytes of a pinned buffer that may be kept: copies of fewer leave a fast link waiting between them.
pub const SLOT_BYTES: usize = 512 << 10;

/// What is kept of a device.
#[derive(Default)]
pub struct Kept {
    scratch: Mutex<Option<DeviceMemory>>,
    slots: Mutex<Vec<Slot>>,
    events: Mutex<Vec<Event>>,
}

/// A pinned buffer, with the stream that copies to it and the event of its last copy.
pub struct Slot {
    /// Its memory.
    pub memory: PinnedMemory,
    /// Which of the device's streams copies to it.
    pub stream: usize,
    /// When the last copy to it has come.
    pub copied: Event,
}

impl Slot {
    /// A new one of `bytes` bytes. `context` is current.
    pub fn new(bytes: usize, stream: usize, context: Context) -> Result<Self> {
        Ok(Self { memory: PinnedMemory::new(context, bytes)?, stream, copied: Event::new(context)? })
    }
}

impl Kept {
    /// Device memory of `bytes` bytes at least: what is kept, or new. `context` is current.
    pub fn take_scratch(&self, bytes: u64, context: Context) -> Result<DeviceMemory> {
        let kept = lock(&self.scratch).take();
        match kept {
            Some(memory) if memory.bytes() >= bytes => Ok(memory),
            too_small => {
                too_small.map_or(Ok(()), DeviceMemory::close)?;
                DeviceMemory::new(context, bytes.next_power_of_two().max(LEAST_SCRATCH_BYTES))
            }
        }
    }

    /// Keeps `memory`, which nothing in a queue uses; of two calls at once, that of the one that ends last.
    pub fn keep_scratch(&self, memory: DeviceMemory) -> Result<()> {
        let before = lock(&self.scratch).replace(memory);
        before.map_or(Ok(()), DeviceMemory::close)
    }

    /// A buffer of [`SLOT_BYTES`] that was kept.
    pub fn take_slot(&self) -> Option<Slot> {
        lock(&self.slots).pop()
    }

    /// Keeps `slots` of [`SLOT_BYTES`] that nothing in a queue uses, but no more than `most` with those that are kept already.
    pub fn keep_slots(&self, slots: Vec<Slot>, most: usize) {
        let mut kept = lock(&self.slots);
        kept.extend(slots);
        let end = kept.len().min(most);
        let surplus = kept.split_off(end);
        // Freeing is slow, and other calls need the list.
        drop(kept);
        drop(surplus);
    }

    /// An event: one that is kept, or new. `context` is current.
    pub fn take_event(&self, context: Context) -> Result<Event> {
        lock(&self.events).pop().map_or_else(|| Event::new(context), Ok)
    }

    /// Keeps an event. Streams may still wait for it: they wait for what it stood for then.
    pub fn keep_event(&self, event: Event) {
        lock(&self.events).push(event);
    }
}
