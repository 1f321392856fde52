//! `sha256` of device tensors: their bytes come to the host through pinned buffers, piece by piece, while those that have come
//! are hashed. Each tensor that is being hashed has two: one that is read, and one that is filled.

use std::ffi::c_void;
use std::ops::{Deref, Range};

use super::DeviceTensor;
use super::buffers::Lease;
pub use super::buffers::{Share, Transfer};
use super::driver::Stream;
use super::table::Layout;
use crate::hash::backend::BLOCK_BYTES;
use crate::reader::{Buffer, Bytes, Logical, Scattered};
use crate::status::Result;

/// Threads of a block of the kernel that gathers, and the most blocks.
const GATHER_THREADS: u32 = 256;
const GATHER_BLOCKS: u32 = 256;

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
        let copy = |from| {
            // SAFETY: the source is in the tensor, which is allocated as `Call::open` has checked, or in the scratch. This memory is
            // leased, and read when the event has passed; before it is given back `Transfer` waits for its streams.
            unsafe { slot.memory.copy_from(from, bytes, stream) }?;
            slot.copied.record(stream)
        };
        device.enter(|| {
            if self.tensor.view().layout().is_contiguous() {
                return copy(self.tensor.start() + range.start);
            }
            self.transfer.with_piece(slot.stream, |piece| {
                self.gather(range.clone(), piece, stream)?;
                copy(piece)
            })
        })?;
        Ok(Coming { lease, range })
    }

    /// Puts the bytes of `range` together at `out`, a piece of the scratch.
    fn gather(&self, range: Range<u64>, out: u64, stream: &Stream) -> Result<()> {
        let (layout, from, bytes) = (Layout::of(self.tensor), range.start, range.end - range.start);
        let blocks = (bytes / u64::from(layout.tensor.grain)).div_ceil(u64::from(GATHER_THREADS));
        let blocks = blocks.clamp(1, u64::from(GATHER_BLOCKS)) as u32;
        let arguments: [*const c_void; 4] =
            [(&raw const layout).cast(), (&raw const from).cast(), (&raw const bytes).cast(), (&raw const out).cast()];
        // SAFETY: the kernel's arguments, as in `elements.cu`. The tensor is allocated, as `Call::open` has checked, and at
        // most a buffer's bytes are written, after what was there before has been copied: it is the same stream.
        unsafe { self.transfer.device.elements()?.gather.launch(blocks, GATHER_THREADS, stream, &arguments) }
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
        Bytes::Scattered(Box::new(Reader { source: self, position: start, end, announced: start, coming: None }))
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
struct Filled<'t> {
    lease: Lease<'t>,
    bytes: usize,
}

impl Deref for Filled<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let slot = self.lease.slot();
        // SAFETY: its copy has come (`arrive`), and nobody else queues another while it is leased.
        unsafe { slot.memory.slice(self.bytes) }
    }
}

/// Reads the bytes of a tensor in order.
struct Reader<'t> {
    source: &'t Source<'t>,
    position: u64,
    end: u64,
    /// Up to where bytes may be sent before they are asked for.
    announced: u64,
    coming: Option<Coming<'t>>,
}

impl<'t> Scattered<'t> for Reader<'t> {
    fn left(&self) -> u64 {
        self.end - self.position
    }

    fn together(&self) -> u64 {
        self.source.transfer.slot_bytes() as u64
    }

    /// The first of the bytes set out now, the others one buffer ahead.
    fn announce(&mut self, bytes: u64) -> Result<()> {
        self.announced = self.position.saturating_add(bytes).min(self.end);
        self.send_next()
    }

    fn rewind(&mut self, bytes: u64) {
        self.coming = None;
        self.position -= bytes;
        self.announced = self.position;
    }

    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        self.coming = None;
        let wanted = self.left().min(out.len().min(self.source.transfer.slot_bytes()) as u64);
        if wanted > 0 {
            let come = self.source.send(self.position..self.position + wanted)?.arrive()?;
            out[..come.len()].copy_from_slice(&come);
            self.position += wanted;
        }
        Ok(wanted as usize)
    }

    fn gather(&mut self, unit: usize, _most: usize, buffer: &mut Buffer<'t>) -> Result<()> {
        debug_assert!(unit == BLOCK_BYTES && self.left() >= BLOCK_BYTES as u64);
        // The old buffer is free before another is leased: a lane has two.
        *buffer = Buffer::default();
        let coming = match self.coming.take() {
            Some(coming) => coming,
            None => self.source.send(self.next())?,
        };
        self.position = coming.range.end;
        self.send_next()?;
        *buffer = Buffer::Lent(Box::new(coming.arrive()?));
        Ok(())
    }
}

impl Reader<'_> {
    /// Sends the bytes out that are gathered next, when they are announced.
    fn send_next(&mut self) -> Result<()> {
        let next = self.next();
        if self.coming.is_none() && self.position < self.announced && !next.is_empty() {
            self.coming = Some(self.source.send(next)?);
        }
        Ok(())
    }

    /// The blocks that fill a buffer next.
    fn next(&self) -> Range<u64> {
        let blocks = self.left().min(self.together()) / BLOCK_BYTES as u64;
        self.position..self.position + blocks * BLOCK_BYTES as u64
    }
}
