//! Host memory: whether it is there, reading it in logical order, and filling it.

use std::ops::Range;

use procfs::process::{MMPermissions, MMapPath, Process};

use crate::layout::Row;
use crate::progress::Progress;
use crate::status::{Error, Result, Status};
use crate::view::TensorView;

/// The most bytes that are copied together when a strided tensor is read. Measured best around the size of a level 2
/// cache; the contract allows 1 MiB a thread.
pub const GATHER_BYTES: usize = 256 << 10;

/// Bytes that are hashed or written between two looks at progress and cancellation.
const STEP_BYTES: usize = 4 << 20;

/// A contiguous block of at least this many bytes is read where it lies instead of being gathered.
const DIRECT_BYTES: u64 = 4 << 10;

/// What a verb does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// checksum, compare.
    Read,
    /// reset.
    Write,
}

/// What is mapped in this process, and with which rights, at one moment.
pub struct MemoryMap {
    /// Sorted by address, not overlapping.
    mappings: Vec<Mapping>,
}

struct Mapping {
    addresses: Range<usize>,
    rights: MMPermissions,
    of_file: bool,
}

impl MemoryMap {
    /// Reads the mappings of this process from `/proc/self/maps` (proc(5)).
    pub fn of_this_process() -> Result<Self> {
        let maps = Process::myself().and_then(|process| process.maps()).map_err(|error| {
            Error::new(Status::System, format!("cannot read /proc/self/maps to check memory: {error}"))
        })?;
        let mapping = |map: procfs::process::MemoryMap| Mapping {
            addresses: map.address.0 as usize..map.address.1 as usize,
            rights: map.perms,
            of_file: matches!(map.pathname, MMapPath::Path(_)),
        };
        Ok(Self { mappings: maps.0.into_iter().map(mapping).collect() })
    }

    /// Checks that all of `addresses` is mapped with the right to `access`.
    pub fn check(&self, addresses: Range<usize>, access: Access) -> std::result::Result<(), (Status, String)> {
        let needed = match access {
            Access::Read => MMPermissions::READ,
            Access::Write => MMPermissions::READ | MMPermissions::WRITE,
        };
        let mut at = addresses.start;
        let first = self.mappings.partition_point(|mapping| mapping.addresses.end <= at);
        for mapping in &self.mappings[first..] {
            if at >= addresses.end || mapping.addresses.start > at {
                break;
            }
            if !mapping.rights.contains(needed) {
                let verb = if access == Access::Read { "read" } else { "written" };
                return Err((
                    Status::MemoryProtected,
                    format!("its memory at {at:#x} must not be {verb} by this process"),
                ));
            }
            let end = mapping.addresses.end.min(addresses.end);
            if mapping.of_file && !is_backed(end - 1) {
                return Err((
                    Status::UnmappedMemory,
                    format!("its memory at {:#x} lies behind the end of its file", end - 1),
                ));
            }
            at = end;
        }
        if at < addresses.end {
            return Err((Status::UnmappedMemory, format!("its memory is not mapped at {at:#x}")));
        }
        Ok(())
    }
}

/// Whether the byte at `address`, in a mapping of a file, can be read: it cannot when the file has become shorter.
/// Files end, so a mapping that is backed at its last byte is backed everywhere.
fn is_backed(address: usize) -> bool {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: 1 };
    // SAFETY: both vectors are one valid iovec; the kernel checks the remote address itself and writes at most one
    // byte, to `byte`, which outlives the call.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    // Only EFAULT says that the page is not there; a sandbox that forbids the call says nothing about it.
    read == 1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// Gives the logical bytes of `view` to `take`, in order and in pieces, and reports them to `progress`.
///
/// Contiguous memory is not copied. Elements with gaps between them are gathered in `buffer`, which keeps its memory
/// from call to call and never holds more than [`GATHER_BYTES`].
pub fn read(
    view: &TensorView<'_>,
    buffer: &mut Vec<u8>,
    progress: &Progress<'_>,
    mut take: impl FnMut(&[u8]),
) -> Result<()> {
    buffer.clear();
    buffer.reserve_exact(if is_direct(view) { 0 } else { GATHER_BYTES });
    for row in view.layout().rows() {
        if row.block >= DIRECT_BYTES {
            for index in 0..row.count {
                read_block(view, row.offset + index * row.stride, row.block, progress, &mut take)?;
            }
            continue;
        }
        let mut done = 0;
        while done < row.count {
            let room = (GATHER_BYTES - buffer.len()) as u64 / row.block;
            let count = room.min(row.count - done);
            gather(view, Row { offset: row.offset + done * row.stride, count, ..row }, buffer);
            done += count;
            if buffer.len() as u64 + row.block > GATHER_BYTES as u64 {
                progress.advance(buffer.len() as u64)?;
                take(buffer);
                buffer.clear();
            }
        }
    }
    progress.advance(buffer.len() as u64)?;
    take(buffer);
    Ok(())
}

fn is_direct(view: &TensorView<'_>) -> bool {
    view.layout().rows().next().is_none_or(|row| row.block >= DIRECT_BYTES)
}

fn read_block(
    view: &TensorView<'_>,
    offset: u64,
    bytes: u64,
    progress: &Progress<'_>,
    take: &mut impl FnMut(&[u8]),
) -> Result<()> {
    // SAFETY: the block is inside the view's extent, which `view::views` found mapped and readable; its caller keeps it so
    // and lets nobody write until the view is dropped, which outlives this slice.
    let block = unsafe { std::slice::from_raw_parts(view.start().add(offset as usize), bytes as usize) };
    for piece in block.chunks(STEP_BYTES) {
        progress.advance(piece.len() as u64)?;
        take(piece);
    }
    Ok(())
}

/// Appends the blocks of `row` to `buffer`, which has room for them.
fn gather(view: &TensorView<'_>, row: Row, buffer: &mut Vec<u8>) {
    match row.block {
        1 => gather_elements::<1>(view, row, buffer),
        2 => gather_elements::<2>(view, row, buffer),
        4 => gather_elements::<4>(view, row, buffer),
        8 => gather_elements::<8>(view, row, buffer),
        16 => gather_elements::<16>(view, row, buffer),
        _ => {
            for index in 0..row.count {
                let offset = (row.offset + index * row.stride) as usize;
                // SAFETY: as in `read_block`: inside the checked extent, readable, not written meanwhile.
                let block = unsafe { std::slice::from_raw_parts(view.start().add(offset), row.block as usize) };
                buffer.extend_from_slice(block);
            }
        }
    }
}

/// `gather` for blocks of a size known to the compiler, which makes each a load and a store.
fn gather_elements<const SIZE: usize>(view: &TensorView<'_>, row: Row, buffer: &mut Vec<u8>) {
    let start = buffer.len();
    buffer.resize(start + row.count as usize * SIZE, 0);
    let (elements, _) = buffer[start..].as_chunks_mut::<SIZE>();
    for (index, element) in elements.iter_mut().enumerate() {
        let offset = (row.offset + index as u64 * row.stride) as usize;
        // SAFETY: as in `read_block`; a byte array has no alignment.
        *element = unsafe { view.start().add(offset).cast::<[u8; SIZE]>().read() };
    }
}

/// Writes every element of `view`: the logical byte at position `p` becomes byte `p % 8` of `word(p / 8)`.
///
/// The view must come from [`view::views`](crate::view::views) with [`Access::Write`], and no other thread may write
/// to memory that overlaps it meanwhile.
pub fn fill(view: &TensorView<'_>, progress: &Progress<'_>, word: impl Fn(u64) -> u64) -> Result<()> {
    let mut position = 0;
    let mut unreported = 0;
    for row in view.layout().rows() {
        for index in 0..row.count {
            let mut offset = row.offset + index * row.stride;
            let mut left = row.block;
            while left > 0 {
                let bytes = left.min(STEP_BYTES as u64);
                // SAFETY: inside the extent that `views` found mapped and writable; the caller gives overlapping views
                // to one thread, and nobody else may write or read until the view is dropped.
                let piece =
                    unsafe { std::slice::from_raw_parts_mut(view.start().add(offset as usize), bytes as usize) };
                fill_piece(piece, position, &word);
                position += bytes;
                offset += bytes;
                left -= bytes;
                unreported += bytes;
                if unreported >= STEP_BYTES as u64 {
                    progress.advance(std::mem::take(&mut unreported))?;
                }
            }
        }
    }
    progress.advance(unreported)
}

/// Fills `piece`, which begins at logical byte `position`.
fn fill_piece(piece: &mut [u8], position: u64, word: &impl Fn(u64) -> u64) {
    let misaligned = (position % 8) as usize;
    let head = piece.len().min((8 - misaligned) % 8);
    let (head, rest) = piece.split_at_mut(head);
    head.copy_from_slice(&word(position / 8).to_le_bytes()[misaligned..][..head.len()]);
    let mut index = (position + head.len() as u64) / 8;
    let (words, tail) = rest.as_chunks_mut::<8>();
    for bytes in words {
        *bytes = word(index).to_le_bytes();
        index += 1;
    }
    tail.copy_from_slice(&word(index).to_le_bytes()[..tail.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filling_does_not_depend_on_how_it_is_cut() {
        let word = |index: u64| index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x0123_4567_89ab_cdef;
        let whole: Vec<u8> = (0..10).flat_map(|index| word(index).to_le_bytes()).collect();
        for start in 0..24 {
            for end in start..60 {
                let mut piece = vec![0; end - start];
                fill_piece(&mut piece, start as u64, &word);
                assert_eq!(piece, whole[start..end], "{start}..{end}");
            }
        }
    }
}
