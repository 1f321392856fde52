//! reset on a device: every element overwritten by a kernel.

use std::ffi::c_void;
use std::ptr;

pub use super::table::Words;
use super::table::{self, Chunk, Part, Upload};
use super::{CHUNK_BYTES, DeviceTensor, SCRATCH_BYTES, Session};
use crate::layout::MAX_NDIM;
use crate::progress::Progress;
use crate::status::Result;

/// Threads of a block.
const THREADS: u32 = 256;

/// Chunks that are filled together: some milliseconds between two looks at progress. Their tables, of as many tensors at most,
/// take less device memory than a call may use.
const PART_CHUNKS: u64 = 16 << 10;

const _: () = {
    let rows =
        size_of::<table::Tensor>() + size_of::<Words>() + MAX_NDIM * size_of::<table::Dim>() + size_of::<Chunk>();
    assert!(PART_CHUNKS * rows as u64 <= SCRATCH_BYTES);
};

/// Overwrites each tensor of the session's device with its words: the logical byte at position `p` becomes byte `p % 8` of word
/// `p / 8`, which is the random one of `Words::stream`, with the bits of `keep` kept and those of `set` set.
///
/// Tensors of one call must not overlap: nothing is said of which comes first. Where elements of one tensor share memory, the
/// last of them stays, as on the host.
pub fn fill(session: &Session<'_>, tensors: &[(DeviceTensor<'_>, Words)], progress: &Progress<'_>) -> Result<()> {
    let is_ordered =
        |(tensor, words): &(DeviceTensor<'_>, Words)| words.keep != 0 && tensor.view().layout().may_overlap_itself();
    let (ordered, free): (Vec<_>, Vec<_>) = tensors.iter().copied().partition(is_ordered);
    session.device.enter(|| {
        for (tensors, order) in [(free, Order::Any), (ordered, Order::Rising)] {
            let parts = table::parts(tensors.iter().map(|(tensor, _)| table::chunks_of(*tensor)), PART_CHUNKS);
            for batch in table::batches(&parts, PART_CHUNKS, Part::count) {
                fill_batch(session, &tensors, batch, order)?;
                progress.advance(batch.iter().map(|part| bytes(part, &tensors)).sum())?;
            }
        }
        Ok(())
    })
}

/// In which order a tensor's bytes are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// By all threads at once.
    Any,
    /// By one thread, from the first to the last; slow, but which element stays is then known.
    Rising,
}

fn bytes(part: &Part, tensors: &[(DeviceTensor<'_>, Words)]) -> u64 {
    let end = tensors[part.tensor].0.view().bytes().min(part.chunks.end * CHUNK_BYTES);
    end - part.chunks.start * CHUNK_BYTES
}

fn fill_batch(
    session: &Session<'_>,
    tensors: &[(DeviceTensor<'_>, Words)],
    parts: &[Part],
    order: Order,
) -> Result<()> {
    let (mut rows, mut dims, mut words, mut chunks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (index, part) in parts.iter().enumerate() {
        let (tensor, fill) = tensors[part.tensor];
        rows.push(table::describe(tensor, dims.len() as u32));
        dims.extend(table::dims_of(tensor));
        words.push(fill);
        chunks.extend(part.chunks.clone().map(|number| Chunk { tensor: index as u32, number: number as u32 }));
    }
    let mut upload = Upload::default();
    let blocks = chunks.len() as u32;
    let tables = [upload.add(rows), upload.add(dims), upload.add(chunks), upload.add(words)];

    session.with_scratch(upload.bytes.len() as u64, |memory| {
        let (kernel, stream) = (session.device.elements()?.fill, &session.device.streams()[0]);
        // SAFETY: the tables outlive `with_scratch`, which waits for the streams.
        unsafe { memory.write(0, &upload.bytes, stream) }?;
        let [rows, dims, chunks, words] = tables.map(|offset| memory.address(offset..offset));
        let launch = |first: u64, blocks, threads| {
            let chunks = chunks + first * size_of::<Chunk>() as u64;
            let arguments = [&rows, &dims, &chunks, &words].map(|address| ptr::from_ref(address).cast::<c_void>());
            // SAFETY: the kernel's arguments, as in `elements.cu`: tables made above. The tensors are allocated, as `Call::open`
            // has checked, and the caller lets nobody else read or write them.
            unsafe { kernel.launch(blocks, threads, stream, &arguments) }
        };
        match order {
            Order::Any => launch(0, blocks, THREADS),
            Order::Rising => (0..u64::from(blocks)).try_for_each(|first| launch(first, 1, 1)),
        }
    })
}
