//! `sha256-tree` on a device: a thread for each leaf, a block of threads for each chunk, and then roots of roots. Only the
//! roots of the tensors come back.

use std::ffi::c_void;
use std::ptr;

use super::device::Hashing;
use super::driver::{DeviceMemory, Function, Stream};
use super::table::{self, Chunk, NODES, Part, Run, Upload};
use super::{CHUNK_BYTES, DeviceTensor, SCRATCH_BYTES, Session};
use crate::hash::backend::State;
use crate::progress::Progress;
use crate::status::Result;

/// Threads of a block: one for each leaf of a chunk.
const THREADS: u32 = 128;

/// Bytes of a root.
const ROOT_BYTES: u64 = size_of::<State>() as u64;

/// The kernels' argument `one`, which they do not know to be 1: so that additions are compiled as multiplications, which run beside
/// the other instructions.
const ONE: u32 = 1;

/// How the work is cut.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Chunks of a tensor that become one root on the device, a power of two.
    pub part_chunks: u64,
    /// Chunks between two looks at progress: some ten milliseconds.
    pub launch_chunks: u64,
    /// Device memory, for tables and roots.
    pub scratch_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { part_chunks: 1 << 17, launch_chunks: 16 << 10, scratch_bytes: SCRATCH_BYTES }
    }
}

/// The roots of the parts of each of the session's tensors, in order: a part's tree is one of the subtrees of its tensor's, all
/// of the same size but the last. A tensor without bytes has none.
pub fn roots(session: &Session<'_>, limits: Limits, progress: &Progress<'_>) -> Result<Vec<Vec<State>>> {
    let tensors: Vec<DeviceTensor<'_>> = session.tensors().iter().map(|(_, tensor)| *tensor).collect();
    let parts = table::parts(tensors.iter().map(|tensor| table::chunks_of(*tensor)), limits.part_chunks);
    let batches = table::batches(&parts, limits.scratch_bytes, |part| cost(part, &tensors));
    let mut roots = vec![Vec::new(); tensors.len()];
    session.device.enter(|| {
        for batch in batches {
            let found = Batch::new(&tensors, batch).run(session, limits, progress)?;
            for (part, root) in batch.iter().zip(found) {
                roots[part.tensor].push(root);
            }
        }
        Ok(roots)
    })
}

/// Device memory that a part needs at most, for its row in each table and its roots.
fn cost(part: &Part, tensors: &[DeviceTensor<'_>]) -> u64 {
    let dims = tensors[part.tensor].view().layout().dims().len();
    let rows = size_of::<table::Tensor>() + dims * size_of::<table::Dim>() + 4 * size_of::<Run>();
    let of_chunk = size_of::<Chunk>() as u64 + 2 * ROOT_BYTES + size_of::<Run>() as u64;
    rows as u64 + part.count() * of_chunk
}

/// Parts that are hashed together.
struct Batch {
    upload: Upload,
    tensors: u64,
    dims: u64,
    /// Chunks whose leaves are all full and lie in aligned blocks, and all others: where the table is, and how many.
    full: (u64, u64),
    others: (u64, u64),
    /// Runs of roots, level by level: where the table is, and how many.
    levels: Vec<(u64, u64)>,
    /// Where the roots of chunks are, and those of every second level, which replace them; and those of the levels between.
    roots: [u64; 2],
    parts: usize,
    /// Of the parts.
    bytes: u64,
    /// Of everything here.
    scratch_bytes: u64,
}

impl Batch {
    fn new(tensors: &[DeviceTensor<'_>], parts: &[Part]) -> Self {
        let (mut rows, mut dims) = (Vec::with_capacity(parts.len()), Vec::new());
        let (mut full, mut others) = (Vec::new(), Vec::new());
        let (mut chunks, mut bytes) = (0, 0);
        for (index, part) in parts.iter().enumerate() {
            let tensor = tensors[part.tensor];
            let root = (chunks as u32).wrapping_sub(part.chunks.start as u32);
            let row = table::Tensor { root, ..table::describe(tensor, dims.len() as u32) };
            let is_aligned = row.ndims == 0 && row.start.is_multiple_of(16);
            let first_other = if is_aligned { row.bytes / CHUNK_BYTES } else { 0 };
            for number in part.chunks.clone() {
                let chunk = Chunk { tensor: index as u32, number: number as u32 };
                if number < first_other { full.push(chunk) } else { others.push(chunk) }
            }
            dims.extend(table::dims_of(tensor));
            rows.push(row);
            chunks += part.count();
            bytes += row.bytes.min(part.chunks.end * CHUNK_BYTES) - part.chunks.start * CHUNK_BYTES;
        }
        let mut upload = Upload::default();
        let tables = [upload.add(rows), upload.add(dims)];
        let full = (upload.add(full.iter().copied()), full.len() as u64);
        let others = (upload.add(others.iter().copied()), others.len() as u64);
        let levels = levels(parts.iter().map(|part| part.count() as u32).collect());
        let add = |level: Vec<Run>| {
            let count = level.len() as u64;
            (upload.add(level), count)
        };
        let levels: Vec<_> = levels.into_iter().map(add).collect();
        let first = upload.reserve(0);
        let second = first + chunks * ROOT_BYTES;
        let scratch_bytes = second + levels.first().map_or(0, |(_, count)| count * ROOT_BYTES);
        let ([tensors, dims], roots, parts) = (tables, [first, second], parts.len());
        Self { upload, tensors, dims, full, others, levels, roots, parts, bytes, scratch_bytes }
    }

    /// The root of each part.
    fn run(self, session: &Session<'_>, limits: Limits, progress: &Progress<'_>) -> Result<Vec<State>> {
        session.with_scratch(self.scratch_bytes, |memory| self.queue(session, memory, limits, progress))
    }

    fn queue(
        &self,
        session: &Session<'_>,
        memory: &DeviceMemory,
        limits: Limits,
        progress: &Progress<'_>,
    ) -> Result<Vec<State>> {
        let (device, [stream, beside, ..]) = (session.device, session.device.streams());
        let kernels = device.hashing()?;
        // SAFETY: the tables are this value's, which outlives `with_scratch`, and that waits for the streams.
        unsafe { memory.write(0, &self.upload.bytes, stream) }?;
        // The few chunks of the other kind take as long as many do, so they run beside the full ones.
        device.follow(beside, stream)?;
        let unreported = self.queue_chunks(kernels, memory, [stream, beside], limits, progress)?;
        device.follow(stream, beside)?;
        let address = |offset: u64| memory.address(offset..offset);
        for (index, (table, count)) in self.levels.iter().enumerate() {
            let (from, to) = (address(self.roots[index % 2]), address(self.roots[(index + 1) % 2]));
            // SAFETY: as in `queue_chunks`; every run is of roots that the level before has written.
            unsafe { launch(kernels.nodes, *count, stream, &[&address(*table), &from, &to]) }?;
        }
        let mut bytes = vec![0; self.parts * ROOT_BYTES as usize];
        memory.read(self.roots[self.levels.len() % 2], &mut bytes, stream)?;
        progress.advance(unreported)?;
        Ok(bytes.as_chunks().0.iter().map(state).collect())
    }

    /// Queues the full chunks in `stream` and the others in `beside`, and gives how many bytes progress was not told of.
    fn queue_chunks(
        &self,
        kernels: &Hashing,
        memory: &DeviceMemory,
        [stream, beside]: [&Stream; 2],
        limits: Limits,
        progress: &Progress<'_>,
    ) -> Result<u64> {
        let address = |offset: u64| memory.address(offset..offset);
        let (tensors, dims, roots) = (address(self.tensors), address(self.dims), address(self.roots[0]));
        let mut unreported = self.bytes;
        for (table, stream, is_full) in [(self.others, beside, false), (self.full, stream, true)] {
            for (index, (chunks, blocks)) in launches(table, limits).enumerate() {
                if index > 0 {
                    stream.synchronize()?;
                    let done = unreported.min(limits.launch_chunks * CHUNK_BYTES);
                    unreported -= done;
                    progress.advance(done)?;
                }
                let chunks = address(chunks);
                // SAFETY: the kernels' arguments, as in `sha256_tree.cu`: tables that `new` has made, and roots that there is
                // room for. The tensors are allocated: `Call::open` has checked it, and the caller keeps them so.
                unsafe {
                    match is_full {
                        true => launch(kernels.full_leaves, blocks, stream, &[&tensors, &chunks, &roots]),
                        false => launch(kernels.leaves, blocks, stream, &[&tensors, &dims, &chunks, &roots]),
                    }
                }?;
            }
        }
        Ok(unreported)
    }
}

/// Where in the scratch the chunks of each launch are, and how many, for a table and its count.
fn launches((table, count): (u64, u64), limits: Limits) -> impl Iterator<Item = (u64, u64)> {
    let launch = move |first| (table + first * size_of::<Chunk>() as u64, limits.launch_chunks.min(count - first));
    (0..count).step_by(limits.launch_chunks as usize).map(launch)
}

/// Runs of roots, level by level, until each of the parts, which have `counts` roots one after the other, has one.
fn levels(mut counts: Vec<u32>) -> Vec<Vec<Run>> {
    let mut levels = Vec::new();
    while counts.iter().any(|count| *count > 1) {
        let (mut level, mut first) = (Vec::new(), 0);
        for count in &mut counts {
            for start in (0..*count).step_by(NODES as usize) {
                level.push(Run { first: first + start, count: NODES.min(*count - start), out: level.len() as u32 });
            }
            first += *count;
            *count = count.div_ceil(NODES);
        }
        levels.push(level);
    }
    levels
}

/// Queues one of the kernels that hash; `addresses` come before their last argument.
///
/// # Safety
/// As [`Function::launch`].
unsafe fn launch(kernel: Function, blocks: u64, stream: &Stream, addresses: &[&u64]) -> Result<()> {
    let one = ptr::from_ref(&ONE).cast::<c_void>();
    let arguments: Vec<_> = addresses.iter().map(|address| ptr::from_ref(*address).cast()).chain([one]).collect();
    // SAFETY: by the caller.
    unsafe { kernel.launch(blocks as u32, THREADS, stream, &arguments) }
}

fn state(bytes: &[u8; ROOT_BYTES as usize]) -> State {
    let (words, _) = bytes.as_chunks();
    std::array::from_fn(|index| u32::from_le_bytes(words[index]))
}
