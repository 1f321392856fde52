//! What is hashed: anything whose logical bytes can be read in order, from any position on.

use std::ops::{Deref, Range};

use crate::cuda::transfer;
use crate::host::Gather;
use crate::plan::apply;
use crate::status::Result;

/// Something that has logical bytes.
pub trait Logical: Sync {
    /// What it is called.
    fn name(&self) -> &str;

    /// How many bytes it has.
    fn length(&self) -> u64;

    /// The bytes of `range`, which must lie in it.
    fn read(&self, range: Range<u64>) -> Bytes<'_>;

    /// Whether its bytes take a while to come: then it pays to hash many of them before another is taken up.
    fn is_far(&self) -> bool {
        false
    }
}

/// Logical bytes, in order.
pub enum Bytes<'v> {
    /// They lie side by side in memory.
    Contiguous(&'v [u8]),
    /// They must be put together.
    Scattered(Scattered<'v>),
}

/// Logical bytes that are read through a buffer.
pub enum Scattered<'v> {
    /// A tensor with gaps between its elements.
    Strided(Gather<'v>),
    /// A parameter as its plan says.
    Planned(apply::Reader<'v>),
    /// A tensor in the memory of a CUDA device.
    Device(transfer::Reader<'v>),
}

/// Bytes that were put together.
pub enum Buffer<'v> {
    /// Gathered here.
    Own(Vec<u8>),
    /// Copied here by a device.
    Pinned(transfer::Filled<'v>),
}

impl Default for Buffer<'_> {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Pinned(bytes) => bytes,
        }
    }
}

impl Buffer<'_> {
    /// Memory of `bytes` bytes to gather into.
    fn own(&mut self, bytes: usize) -> &mut [u8] {
        if let Self::Pinned(_) = self {
            *self = Self::default();
        }
        match self {
            Self::Own(own) => {
                own.resize(bytes, 0);
                own
            }
            Self::Pinned(_) => unreachable!("it was replaced above"),
        }
    }
}

/// Bytes that are best read together: they fit into a near cache for several tensors at once.
const TOGETHER: u64 = 64 << 10;

/// The most: what is read together is kept until it is hashed.
const MOST_TOGETHER: u64 = 1 << 20;

impl<'v> Scattered<'v> {
    /// How many bytes are best read together, a power of two: more than that costs memory, fewer cost time.
    pub fn together(&self) -> u64 {
        match self {
            Self::Strided(_) => TOGETHER,
            Self::Planned(reader) => reader.together().clamp(TOGETHER, MOST_TOGETHER).next_power_of_two(),
            Self::Device(reader) => reader.together(),
        }
    }

    /// Bytes that have not been read yet.
    pub fn left(&self) -> u64 {
        match self {
            Self::Strided(gather) => gather.left(),
            Self::Planned(reader) => reader.left(),
            Self::Device(reader) => reader.left(),
        }
    }

    /// Says that the next `bytes` will be read soon, so that what is far away may set out.
    pub fn announce(&mut self, bytes: u64) -> Result<()> {
        match self {
            Self::Strided(_) | Self::Planned(_) => Ok(()),
            Self::Device(reader) => reader.announce(bytes),
        }
    }

    /// Steps back over the last `bytes` read, to read them again.
    pub fn rewind(&mut self, bytes: u64) {
        match self {
            Self::Strided(gather) => gather.rewind(bytes),
            Self::Planned(reader) => reader.rewind(bytes),
            Self::Device(reader) => reader.rewind(bytes),
        }
    }

    /// Replaces what is in `buffer` by the next bytes: some multiple of `unit`, of which at least one must be left, and
    /// about `most`.
    pub fn gather(&mut self, unit: usize, most: usize, buffer: &mut Buffer<'v>) -> Result<()> {
        if let Self::Device(reader) = self {
            return reader.gather(unit, buffer);
        }
        let bytes = self.together().min(most as u64).max(unit as u64).min(self.left()) as usize;
        self.read(buffer.own(bytes / unit * unit)).map(|_| ())
    }

    /// Fills `out` from its start and gives how many bytes that were: all of it, unless fewer are left.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        match self {
            Self::Strided(gather) => Ok(gather.read(out)),
            Self::Planned(reader) => Ok(reader.read(out)),
            Self::Device(reader) => reader.read(out),
        }
    }
}
