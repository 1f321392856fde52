//! What is hashed: anything whose logical bytes can be read in order, from any position on.

use std::ops::Range;

use crate::host::Gather;
use crate::plan::apply;

/// Something that has logical bytes.
pub trait Logical: Sync {
    /// What it is called.
    fn name(&self) -> &str;

    /// How many bytes it has.
    fn length(&self) -> u64;

    /// The bytes of `range`, which must lie in it.
    fn read(&self, range: Range<u64>) -> Bytes<'_>;
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
}

/// Bytes that are best read together: they fit into a near cache for several tensors at once.
const TOGETHER: u64 = 64 << 10;

/// The most: what is read together is kept until it is hashed.
const MOST_TOGETHER: u64 = 1 << 20;

impl Scattered<'_> {
    /// How many bytes are best read together, a power of two: more than that costs memory, fewer cost time.
    pub fn together(&self) -> u64 {
        match self {
            Self::Strided(_) => TOGETHER,
            Self::Planned(reader) => reader.together().clamp(TOGETHER, MOST_TOGETHER).next_power_of_two(),
        }
    }

    /// Bytes that have not been read yet.
    pub fn left(&self) -> u64 {
        match self {
            Self::Strided(gather) => gather.left(),
            Self::Planned(reader) => reader.left(),
        }
    }

    /// Steps back over the last `bytes` read, to read them again.
    pub fn rewind(&mut self, bytes: u64) {
        match self {
            Self::Strided(gather) => gather.rewind(bytes),
            Self::Planned(reader) => reader.rewind(bytes),
        }
    }

    /// Fills `out` from its start and gives how many bytes that were: all of it, unless fewer are left.
    pub fn read(&mut self, out: &mut [u8]) -> usize {
        match self {
            Self::Strided(gather) => gather.read(out),
            Self::Planned(reader) => reader.read(out),
        }
    }
}
