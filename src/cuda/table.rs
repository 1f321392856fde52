//! What the kernels are told of tensors: the structs of `tensor.cuh`, and how a call's work is cut for them.

use std::ops::Range;

use super::{CHUNK_BYTES, DeviceTensor};
use crate::layout::MAX_NDIM;

/// Plain numbers without gaps, which can be looked at as bytes.
pub trait Plain: Copy {
    /// Appends its bytes.
    fn append(self, bytes: &mut Vec<u8>);
}

/// Defines a struct of unsigned numbers as C lays it out, whose fields leave no gaps.
macro_rules! plain {
    ($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $field:ident: $kind:ty),* }) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$what])* pub $field: $kind),* }

        impl Plain for $name {
            fn append(self, bytes: &mut Vec<u8>) {
                $(bytes.extend_from_slice(&self.$field.to_le_bytes());)*
            }
        }

        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$kind>())*, "a field is followed by a gap");
    };
}

plain! {
    /// `Tensor` of `tensor.cuh`.
    Tensor {
        /// Address of the first element.
        start: u64,
        /// Logical bytes.
        bytes: u64,
        /// Bytes that lie side by side.
        block: u64,
        /// Index of its first `Dim`.
        dims: u32,
        /// How many it has.
        ndims: u32,
        /// What divides its start, block and strides: 1, 2, 4, 8 or 16.
        grain: u32,
        /// Index of the root of its chunk 0.
        root: u32
    }
}

plain! {
    /// `Dim` of `tensor.cuh`.
    Dim {
        /// Blocks, or dimensions inside, that it counts.
        count: u64,
        /// Bytes from one to the next.
        stride: u64
    }
}

plain! {
    /// `Chunk` of `tensor.cuh`.
    Chunk {
        /// Index of its `Tensor`.
        tensor: u32,
        /// Which of the tensor's.
        number: u32
    }
}

plain! {
    /// `Run` of `sha256_tree.cu`: roots whose common root is wanted.
    Run {
        /// Index of the first.
        first: u32,
        /// How many, 1 to [`NODES`].
        count: u32,
        /// Index of the result.
        out: u32
    }
}

plain! {
    /// `Words` of `elements.cu`: what a tensor is filled with.
    Words {
        /// Start of its random numbers.
        stream: u64,
        /// Bits of them that are kept.
        keep: u64,
        /// Bits that are set.
        set: u64
    }
}

/// Roots that `wc_hash_nodes` takes at once.
pub const NODES: u32 = 256;

/// `Layout` of `elements.cu`: a tensor with its dimensions, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Layout {
    /// Its `dims` is 0.
    pub tensor: Tensor,
    /// The first `tensor.ndims` are its.
    pub dims: [Dim; MAX_NDIM],
}

impl Layout {
    /// The layout of `tensor`.
    pub fn of(tensor: DeviceTensor<'_>) -> Self {
        let mut dims = [Dim::default(); MAX_NDIM];
        for (place, dim) in dims.iter_mut().zip(dims_of(tensor)) {
            *place = dim;
        }
        Self { tensor: describe(tensor, 0), dims }
    }
}

/// The description of `tensor`, whose dimensions begin at index `dims`.
pub fn describe(tensor: DeviceTensor<'_>, dims: u32) -> Tensor {
    let layout = tensor.view().layout();
    let (_, block) = layout.row_shape();
    let together = layout.dims().iter().fold(tensor.start() | block | 16, |all, (_, stride)| all | stride);
    Tensor {
        start: tensor.start(),
        bytes: layout.bytes(),
        block,
        dims,
        ndims: layout.dims().len() as u32,
        grain: 1 << together.trailing_zeros(),
        root: 0,
    }
}

/// The dimensions of `tensor`, outermost first.
pub fn dims_of(tensor: DeviceTensor<'_>) -> impl Iterator<Item = Dim> {
    tensor.view().layout().dims().iter().map(|(count, stride)| Dim { count: *count, stride: *stride })
}

/// How many chunks `tensor` has.
pub fn chunks_of(tensor: DeviceTensor<'_>) -> u64 {
    tensor.view().bytes().div_ceil(CHUNK_BYTES)
}

/// Some chunks of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The tensor's index.
    pub tensor: usize,
    /// The chunks' numbers.
    pub chunks: Range<u64>,
}

impl Part {
    /// How many chunks.
    pub fn count(&self) -> u64 {
        self.chunks.end - self.chunks.start
    }
}

/// All chunks of `tensors`, which have these numbers of them, in parts of at most `most` chunks: each but a tensor's last has
/// just so many.
pub fn parts(counts: impl IntoIterator<Item = u64>, most: u64) -> Vec<Part> {
    let of = |(tensor, count): (usize, u64)| {
        (0..count.div_ceil(most))
            .map(move |number| Part { tensor, chunks: number * most..count.min((number + 1) * most) })
    };
    counts.into_iter().enumerate().flat_map(of).collect()
}

/// Cuts `parts` into runs that cost at most `room` each, or have one part.
pub fn batches(parts: &[Part], room: u64, cost: impl Fn(&Part) -> u64) -> Vec<&[Part]> {
    let mut batches = Vec::new();
    let (mut start, mut left) = (0, room);
    for (index, part) in parts.iter().enumerate() {
        let cost = cost(part);
        if cost > left && index > start {
            batches.push(&parts[start..index]);
            (start, left) = (index, room);
        }
        left = left.saturating_sub(cost);
    }
    if start < parts.len() {
        batches.push(&parts[start..]);
    }
    batches
}

/// Tables that go to the device together.
#[derive(Default)]
pub struct Upload {
    /// Their bytes.
    pub bytes: Vec<u8>,
}

impl Upload {
    /// Appends a table and gives where it begins, aligned for every kernel.
    pub fn add<T: Plain>(&mut self, table: impl IntoIterator<Item = T>) -> u64 {
        let start = self.reserve(0);
        for row in table {
            row.append(&mut self.bytes);
        }
        start
    }

    /// Leaves `bytes` free that the device will write.
    pub fn reserve(&mut self, bytes: usize) -> u64 {
        let start = self.bytes.len().next_multiple_of(16);
        self.bytes.resize(start + bytes, 0);
        start as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_chunk_once_and_in_order() {
        for most in [1, 2, 4, 64] {
            let parts = parts([0, 1, 5, 64, 65], most);
            let covered: Vec<_> =
                parts.iter().flat_map(|part| part.chunks.clone().map(|chunk| (part.tensor, chunk))).collect();
            let expected: Vec<_> = [(1, 1), (2, 5), (3, 64), (4, 65)]
                .iter()
                .flat_map(|(tensor, count)| (0..*count).map(|chunk| (*tensor, chunk)))
                .collect();
            assert_eq!(covered, expected);
            assert!(parts.iter().all(|part| part.chunks.start % most == 0 && part.count() <= most));
        }
    }

    #[test]
    fn batches_hold_all_parts_and_no_more_than_there_is_room() {
        let parts = parts([3, 1, 9, 2, 2, 2], 4);
        for room in 1..30 {
            let batches = batches(&parts, room, Part::count);
            assert_eq!(batches.concat(), parts);
            for batch in batches {
                assert!(batch.len() == 1 || batch.iter().map(Part::count).sum::<u64>() <= room);
            }
        }
        assert!(batches(&[], 5, Part::count).is_empty());
    }
}
