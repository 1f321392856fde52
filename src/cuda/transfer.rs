//! `sha256` of device tensors: their bytes come to the host through pinned buffers, piece by piece, while those that have come
//! are hashed.
//!
//! Each tensor that is being hashed has two buffers: one that is read, and one that is on its way. A buffer belongs to one
//! stream, so that two copies to it follow each other, and has an event that says when its copy has come.

use std::ffi::c_void;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, PoisonError};

use super::device::{Device, STREAMS};
use super::driver::{DeviceMemory, Event, PinnedMemory, Stream};
use super::table::Layout;
use super::{DeviceTensor, Session};
use crate::reader::{Buffer, Bytes, Logical, Scattered};
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

/// What buffers hold multiples of, but for the end of a tensor: blocks of SHA-256.
const UNIT: usize = 64;

/// Threads of a block of the kernel that gathers, and the most blocks.
const GATHER_THREADS: u32 = 256;
const GATHER_BLOCKS: u32 = 256;

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
    device: &'static Device,
    slot_bytes: usize,
    pinned: Mutex<Pinned>,
    /// A piece of device memory for each stream, where strided tensors are gathered; none when there are none.
    scratch: Option<DeviceMemory>,
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
struct Slot {
    memory: Arc<PinnedMemory>,
    offset: usize,
    stream: usize,
    copied: Event,
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
    fn lease(&self) -> Result<Lease<'_>> {
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
struct Lease<'t> {
    transfer: &'t Transfer,
    slot: Option<Slot>,
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut pinned = self.transfer.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        pinned.free.extend(self.slot.take());
    }
}

impl Lease<'_> {
    fn slot(&self) -> &Slot {
        self.slot.as_ref().expect("it is there until the lease is dropped")
    }
}

/// A tensor whose bytes come through the buffers of a transfer.
pub struct Source<'t> {
    transfer: &'t Transfer,
    tensor: DeviceTensor<'t>,
}

impl<'t> Source<'t> {
    /// `tensor`, which must be of the device of `transfer`.
    pub fn new(transfer: &'t Transfer, tensor: DeviceTensor<'t>) -> Self {
        debug_assert_eq!(tensor.view().device(), crate::view::Device::Cuda(transfer.device.ordinal()));
        Self { transfer, tensor }
    }

    /// Sets the bytes of `range` out.
    fn send(&self, range: Range<u64>) -> Result<Coming<'_>> {
        let lease = self.transfer.lease()?;
        let (slot, device) = (lease.slot(), self.transfer.device);
        let stream = &device.streams()[slot.stream];
        let bytes = (range.end - range.start) as usize;
        device.enter(|| {
            let from = if self.tensor.view().layout().is_contiguous() {
                self.tensor.start() + range.start
            } else {
                self.gather(range.clone(), slot.stream, stream)?
            };
            // SAFETY: the source is in the tensor, which is allocated as `Call::open` has checked, or in the scratch. This memory is
            // leased, and read when the event has passed; before it is given back `Transfer` waits for its streams.
            unsafe { slot.memory.copy_from(slot.offset, from, bytes, stream) }?;
            slot.copied.record(stream)
        })?;
        Ok(Coming { lease, range })
    }

    /// Puts the bytes of `range` together in the stream's piece of the scratch, and gives its address.
    fn gather(&self, range: Range<u64>, index: usize, stream: &Stream) -> Result<u64> {
        let piece = self.transfer.slot_bytes as u64;
        let scratch = self.transfer.scratch.as_ref().expect("it is there when a tensor is strided");
        let out = scratch.address(index as u64 * piece..(index as u64 + 1) * piece);
        let (layout, from, bytes) = (Layout::of(self.tensor), range.start, range.end - range.start);
        let blocks = (bytes / u64::from(layout.tensor.grain)).div_ceil(u64::from(GATHER_THREADS));
        let blocks = blocks.clamp(1, u64::from(GATHER_BLOCKS)) as u32;
        let arguments: [*const c_void; 4] =
            [(&raw const layout).cast(), (&raw const from).cast(), (&raw const bytes).cast(), (&raw const out).cast()];
        // SAFETY: the kernel's arguments, as in `elements.cu`. The tensor is allocated, as `Call::open` has checked, and at
        // most `piece` bytes are written, after what was there before has been copied: it is the same stream.
        unsafe { self.transfer.device.elements()?.gather.launch(blocks, GATHER_THREADS, stream, &arguments) }?;
        Ok(out)
    }
}

impl Logical for Source<'_> {
    fn name(&self) -> &str {
        self.tensor.view().name()
    }

    fn length(&self) -> u64 {
        self.tensor.view().bytes()
    }

    fn read(&self, range: Range<u64>) -> Bytes<'_> {
        assert!(range.start <= range.end && range.end <= self.length(), "{range:?} is not in the tensor");
        let Range { start, end } = range;
        Bytes::Scattered(Scattered::Device(Reader {
            source: self,
            position: start,
            end,
            announced: start,
            coming: None,
        }))
    }

    fn is_far(&self) -> bool {
        true
    }
}

/// Bytes on their way to a buffer.
struct Coming<'t> {
    lease: Lease<'t>,
    range: Range<u64>,
}

impl<'t> Coming<'t> {
    /// Waits until they have come.
    fn arrive(self) -> Result<Filled<'t>> {
        self.lease.transfer.device.enter(|| self.lease.slot().copied.synchronize())?;
        Ok(Filled { lease: self.lease, bytes: (self.range.end - self.range.start) as usize })
    }
}

/// A buffer with bytes of a tensor in it.
pub struct Filled<'t> {
    lease: Lease<'t>,
    bytes: usize,
}

impl Deref for Filled<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let slot = self.lease.slot();
        // SAFETY: its copy has come (`arrive`), and nobody else queues another while it is leased.
        unsafe { slot.memory.slice(slot.offset..slot.offset + self.bytes) }
    }
}

/// Reads the bytes of a tensor in order.
pub struct Reader<'t> {
    source: &'t Source<'t>,
    position: u64,
    end: u64,
    /// Up to where bytes may be sent before they are asked for.
    announced: u64,
    coming: Option<Coming<'t>>,
}

impl<'t> Reader<'t> {
    /// How many bytes are best read together.
    pub fn together(&self) -> u64 {
        self.source.transfer.slot_bytes as u64
    }

    /// Bytes that have not been read yet.
    pub fn left(&self) -> u64 {
        self.end - self.position
    }

    /// Says that the next `bytes` will be read: the first of them set out now, the others one buffer ahead.
    pub fn announce(&mut self, bytes: u64) -> Result<()> {
        self.announced = self.position.saturating_add(bytes).min(self.end);
        self.send_next()
    }

    /// Steps back over the last `bytes` read, to read them again.
    pub fn rewind(&mut self, bytes: u64) {
        self.coming = None;
        self.position -= bytes;
        self.announced = self.position;
    }

    /// Replaces what is in `buffer` by the next bytes, a multiple of `unit`, of which one must be left.
    pub fn gather(&mut self, unit: usize, buffer: &mut Buffer<'t>) -> Result<()> {
        debug_assert!(unit == UNIT && self.left() >= UNIT as u64);
        // The old buffer is free before another is leased: a lane has two.
        *buffer = Buffer::default();
        let coming = match self.coming.take() {
            Some(coming) => coming,
            None => self.source.send(self.next())?,
        };
        self.position = coming.range.end;
        self.send_next()?;
        *buffer = Buffer::Pinned(coming.arrive()?);
        Ok(())
    }

    /// Fills `out` from its start and gives how many bytes that were: all of it, unless fewer are left.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        self.coming = None;
        let wanted = self.left().min(out.len().min(self.source.transfer.slot_bytes) as u64);
        if wanted > 0 {
            let come = self.source.send(self.position..self.position + wanted)?.arrive()?;
            out[..come.len()].copy_from_slice(&come);
            self.position += wanted;
        }
        Ok(wanted as usize)
    }

    /// Sends the bytes out that are gathered next, when they are announced.
    fn send_next(&mut self) -> Result<()> {
        let next = self.next();
        if self.coming.is_none() && self.position < self.announced && !next.is_empty() {
            self.coming = Some(self.source.send(next)?);
        }
        Ok(())
    }

    /// The units that fill a buffer next.
    fn next(&self) -> Range<u64> {
        let units = self.left().min(self.together()) / UNIT as u64;
        self.position..self.position + units * UNIT as u64
    }
}
