//! What is hashed: anything whose logical bytes can be read in order, from any position on.

use std::ops::{Deref, Range};

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
    Scattered(Box<dyn Scattered<'v> + 'v>),
}

/// Bytes that are best read together where nothing speaks for more: they fit into a near cache for several tensors at once.
pub const TOGETHER: u64 = 64 << 10;

/// Logical bytes that are read through a buffer.
pub trait Scattered<'v>: Send {
    /// Bytes that have not been read yet.
    fn left(&self) -> u64;

    /// How many bytes are best read together, a power of two: more than that costs memory, fewer cost time.
    fn together(&self) -> u64 {
        TOGETHER
    }

    /// Says that the next `bytes` will be read soon, so that what is far away may set out.
    fn announce(&mut self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// Steps back over the last `bytes` read, to read them again.
    fn rewind(&mut self, bytes: u64);

    /// Fills `out` from its start and gives how many bytes that were: all of it, unless fewer are left.
    fn read(&mut self, out: &mut [u8]) -> Result<usize>;

    /// Replaces what is in `buffer` by the next bytes: some multiple of `unit`, of which at least one must be left, and
    /// about `most`.
    fn gather(&mut self, unit: usize, most: usize, buffer: &mut Buffer<'v>) -> Result<()> {
        let bytes = self.together().min(most as u64).max(unit as u64).min(self.left()) as usize;
        self.read(buffer.own(bytes / unit * unit)).map(|_| ())
    }
}

/// Bytes that were put together.
pub enum Buffer<'v> {
    /// In memory of its own.
    Own(Vec<u8>),
    /// In memory that is given back when this is dropped.
    Lent(Box<dyn Deref<Target = [u8]> + Send + 'v>),
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
            Self::Lent(bytes) => bytes,
        }
    }
}

impl Buffer<'_> {
    /// Memory of its own, of `bytes` bytes, to gather into.
    fn own(&mut self, bytes: usize) -> &mut [u8] {
        if let Self::Lent(_) = self {
            *self = Self::default();
        }
        match self {
            Self::Own(own) => {
                own.resize(bytes, 0);
                own
            }
            Self::Lent(_) => unreachable!("it was replaced above"),
        }
    }
}
