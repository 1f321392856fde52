//! Host memory: reading tensors in logical order, and filling them.

use std::ops::Range;

use crate::layout::{Row, Rows};
use crate::progress::Progress;
use crate::reader::{Bytes, Logical, Scattered};
use crate::status::Result;
use crate::view::HostTensor;

/// Bytes that are written between two looks at progress and cancellation.
const STEP_BYTES: usize = 4 << 20;

impl Logical for HostTensor<'_> {
    fn name(&self) -> &str {
        self.view().name()
    }

    fn length(&self) -> u64 {
        self.view().bytes()
    }

    fn read(&self, range: Range<u64>) -> Bytes<'_> {
        assert!(range.start <= range.end && range.end <= self.length(), "{range:?} is not in the tensor");
        if self.view().layout().is_contiguous() {
            return Bytes::Contiguous(block(*self, range.start, range.end - range.start));
        }
        Bytes::Scattered(Box::new(Gather::new(*self, range)))
    }
}

/// Bytes that lie side by side, `offset` from the first element.
fn block<'v>(tensor: HostTensor<'v>, offset: u64, bytes: u64) -> &'v [u8] {
    debug_assert!(offset + bytes <= tensor.view().layout().extent());
    if bytes == 0 {
        return &[];
    }
    // SAFETY: inside the view's extent, which `view::views` found mapped and readable; its caller keeps it so and lets
    // nobody write until the view is dropped, and the slice lives no longer.
    unsafe { std::slice::from_raw_parts(tensor.start().add(offset as usize), bytes as usize) }
}

/// Reads elements with gaps between them into a buffer, from any position on.
struct Gather<'v> {
    tensor: HostTensor<'v>,
    rows: Rows<'v>,
    row: Option<Row>,
    /// The next byte: block number in the row, and position in the block.
    index: u64,
    within: u64,
    left: u64,
    end: u64,
}

impl<'v> Gather<'v> {
    fn new(tensor: HostTensor<'v>, range: Range<u64>) -> Self {
        let layout = tensor.view().layout();
        let (count, block) = layout.row_shape();
        // Without elements there are no blocks, and no rows to find either.
        let block = block.max(1);
        let (number, within) = (range.start / block, range.start % block);
        let mut rows = layout.rows_from(number / count);
        let row = rows.next();
        Self { tensor, rows, row, index: number % count, within, left: range.end - range.start, end: range.end }
    }

    fn advance(&mut self, row: Row, blocks: u64, bytes: u64) {
        if blocks > 0 {
            self.index += blocks;
        } else {
            self.within += bytes;
            self.index += self.within / row.block;
            self.within %= row.block;
        }
        if self.index == row.count {
            self.index = 0;
            self.row = self.rows.next();
        }
    }
}

impl<'v> Scattered<'v> for Gather<'v> {
    fn left(&self) -> u64 {
        self.left
    }

    fn rewind(&mut self, bytes: u64) {
        if bytes > 0 {
            *self = Self::new(self.tensor, self.end - self.left - bytes..self.end);
        }
    }

    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        let wanted = out.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let mut done = 0;
        while done < wanted {
            let row = self.row.expect("bytes are left, so there is a row");
            let room = (wanted - done) as u64;
            let (blocks, bytes) = if self.within > 0 || room < row.block {
                (0, room.min(row.block - self.within))
            } else {
                let blocks = (room / row.block).min(row.count - self.index);
                (blocks, blocks * row.block)
            };
            let target = &mut out[done..done + bytes as usize];
            let offset = row.offset + self.index * row.stride + self.within;
            match blocks {
                0 => target.copy_from_slice(block(self.tensor, offset, bytes)),
                _ => gather(self.tensor, Row { offset, count: blocks, ..row }, target),
            }
            self.advance(row, blocks, bytes);
            done += bytes as usize;
        }
        self.left -= done as u64;
        Ok(done)
    }
}

/// Copies the blocks of `row` to `out`, which is exactly as long.
fn gather(tensor: HostTensor<'_>, row: Row, out: &mut [u8]) {
    match row.block {
        1 => gather_elements::<1>(tensor, row, out),
        2 => gather_elements::<2>(tensor, row, out),
        4 => gather_elements::<4>(tensor, row, out),
        8 => gather_elements::<8>(tensor, row, out),
        16 => gather_elements::<16>(tensor, row, out),
        _ => {
            for (index, target) in out.chunks_exact_mut(row.block as usize).enumerate() {
                target.copy_from_slice(block(tensor, row.offset + index as u64 * row.stride, row.block));
            }
        }
    }
}

/// `gather` for blocks of a size known to the compiler, which makes each a load and a store.
fn gather_elements<const SIZE: usize>(tensor: HostTensor<'_>, row: Row, out: &mut [u8]) {
    let (elements, _) = out.as_chunks_mut::<SIZE>();
    debug_assert_eq!(elements.len() as u64, row.count);
    for (index, element) in elements.iter_mut().enumerate() {
        let offset = (row.offset + index as u64 * row.stride) as usize;
        // SAFETY: inside the checked extent, readable and not written meanwhile, as in `block`; a byte array has no
        // alignment.
        *element = unsafe { tensor.start().add(offset).cast::<[u8; SIZE]>().read() };
    }
}

/// Writes every element of `tensor`: the logical byte at position `p` becomes byte `p % 8` of `word(p / 8)`.
///
/// Its view must come from [`view::views`](crate::view::views) with [`Access::Write`](crate::mapped::Access::Write), and no other thread may write
/// to memory that overlaps it meanwhile.
pub fn fill(tensor: HostTensor<'_>, progress: &Progress<'_>, word: impl Fn(u64) -> u64) -> Result<()> {
    let mut position = 0;
    let mut unreported = 0;
    for row in tensor.view().layout().rows() {
        for index in 0..row.count {
            let mut offset = row.offset + index * row.stride;
            let mut left = row.block;
            while left > 0 {
                let bytes = left.min(STEP_BYTES as u64);
                // SAFETY: inside the extent that `views` found mapped and writable; the caller gives overlapping views
                // to one thread, and nobody else may write or read until the view is dropped.
                let piece =
                    unsafe { std::slice::from_raw_parts_mut(tensor.start().add(offset as usize), bytes as usize) };
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
