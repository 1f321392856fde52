//! Host memory: reading tensors in logical order, and filling them.

use crate::layout::Row;
use crate::progress::Progress;
use crate::status::Result;
use crate::view::TensorView;

/// The most bytes that are copied together when a strided tensor is read. Measured best around the size of a level 2
/// cache; the contract allows 1 MiB a thread.
pub const GATHER_BYTES: usize = 256 << 10;

/// Bytes that are hashed or written between two looks at progress and cancellation.
const STEP_BYTES: usize = 4 << 20;

/// A contiguous block of at least this many bytes is read where it lies instead of being gathered.
const DIRECT_BYTES: u64 = 4 << 10;

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
/// The view must come from [`view::views`](crate::view::views) with [`Access::Write`](crate::mapped::Access::Write), and no other thread may write
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
