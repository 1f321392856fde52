//! Memory that elements are read from at any distance, and the loops that copy them.

use std::marker::PhantomData;

use crate::view::HostTensor;

/// Elements along one side of the squares in which a transposed source is copied.
const TILE: usize = 32;

/// Bytes to read elements from, borrowed for `'v`: a slice, or everything from the first to the last element of a tensor.
#[derive(Clone, Copy)]
pub struct Memory<'v> {
    start: *const u8,
    bytes: u64,
    lifetime: PhantomData<&'v [u8]>,
}

// SAFETY: it is only read through, and nobody writes meanwhile: a slice is borrowed, and for a tensor `view::views` has its
// caller promise it.
unsafe impl Send for Memory<'_> {}
// SAFETY: as above.
unsafe impl Sync for Memory<'_> {}

impl<'v> From<&'v [u8]> for Memory<'v> {
    fn from(bytes: &'v [u8]) -> Self {
        Self { start: bytes.as_ptr(), bytes: bytes.len() as u64, lifetime: PhantomData }
    }
}

impl<'v> From<HostTensor<'v>> for Memory<'v> {
    fn from(tensor: HostTensor<'v>) -> Self {
        Self { start: tensor.start(), bytes: tensor.view().layout().extent(), lifetime: PhantomData }
    }
}

/// `count` elements, `source` bytes apart where they are read and `target` bytes apart where they are written.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// How many; at least one.
    pub count: u64,
    /// Between two in the source.
    pub source: i64,
    /// Between two in the target.
    pub target: u64,
}

impl<'v> Memory<'v> {
    /// `bytes` that lie side by side from `offset` on; in a tensor they must all be of its elements.
    ///
    /// # Panics
    /// When they are not in this memory.
    pub fn slice(self, offset: u64, bytes: u64) -> &'v [u8] {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "{offset} + {bytes} of {}", self.bytes);
        if bytes == 0 {
            return &[];
        }
        // SAFETY: in this memory by the assertion, readable and not written to for `'v`, as where it was made.
        unsafe { std::slice::from_raw_parts(self.start.add(offset as usize), bytes as usize) }
    }

    /// Copies elements of `size` bytes (1, 2, 4, 8 or 16) from `offset` on to the start of `out`: for each of `outer` all
    /// of `inner`.
    ///
    /// # Panics
    /// When one of them is not in this memory or in `out`, or there is no such size.
    pub fn copy(self, offset: u64, outer: Run, inner: Run, size: u64, out: &mut [u8]) {
        self.check(offset, outer, inner, size, out.len() as u64);
        let is_row = inner.source == size as i64 && inner.target == size;
        if is_row {
            let bytes = inner.count * size;
            for index in 0..outer.count {
                let at = (index * outer.target) as usize;
                let from = self.slice(offset.wrapping_add_signed(index as i64 * outer.source), bytes);
                out[at..at + bytes as usize].copy_from_slice(from);
            }
            return;
        }
        match size {
            1 => self.copy_elements::<1>(offset, outer, inner, out),
            2 => self.copy_elements::<2>(offset, outer, inner, out),
            4 => self.copy_elements::<4>(offset, outer, inner, out),
            8 => self.copy_elements::<8>(offset, outer, inner, out),
            16 => self.copy_elements::<16>(offset, outer, inner, out),
            other => panic!("no element has {other} bytes"),
        }
    }

    /// Asserts that all elements of `copy` are inside.
    fn check(self, offset: u64, outer: Run, inner: Run, size: u64, room: u64) {
        let is_inside = || {
            let (mut low, mut high, mut end) = (i64::try_from(offset).ok()?, i64::try_from(offset).ok()?, 0u64);
            for run in [outer, inner] {
                let last = run.count.checked_sub(1)?;
                let step = i64::try_from(last).ok()?.checked_mul(run.source)?;
                (low, high) = (low.checked_add(step.min(0))?, high.checked_add(step.max(0))?);
                end = end.checked_add(last.checked_mul(run.target)?)?;
            }
            let is_read = low >= 0 && u64::try_from(high).ok()?.checked_add(size)? <= self.bytes;
            (is_read && end.checked_add(size)? <= room).then_some(())
        };
        assert!(is_inside().is_some(), "{outer:?} of {inner:?} at {offset} of {} bytes to {room}", self.bytes);
    }

    /// `copy` of elements of a size known to the compiler. `check` has found them inside.
    fn copy_elements<const SIZE: usize>(self, offset: u64, outer: Run, inner: Run, out: &mut [u8]) {
        // SAFETY: the first of the elements that `check` has found inside of this memory and of `out`; nobody else
        // reads or writes `out`, which is borrowed for writing.
        unsafe {
            let (from, to) = (self.start.add(offset as usize), out.as_mut_ptr());
            if outer.count > 1 && outer.source.unsigned_abs() < inner.source.unsigned_abs() {
                copy_transposed::<SIZE>(from, to, outer, inner);
            } else {
                for index in 0..outer.count {
                    let from = from.offset((index as i64 * outer.source) as isize);
                    copy_row::<SIZE>(from, to.add((index * outer.target) as usize), inner);
                }
            }
        }
    }
}

/// Copies elements one by one.
///
/// # Safety
/// All elements are inside of memory that is valid for reading and for writing, and the two do not overlap.
unsafe fn copy_row<const SIZE: usize>(from: *const u8, to: *mut u8, row: Run) {
    for index in 0..row.count {
        // SAFETY: by the caller; byte arrays have no alignment.
        unsafe {
            let element = from.offset((index as i64 * row.source) as isize).cast::<[u8; SIZE]>().read();
            to.add((index * row.target) as usize).cast::<[u8; SIZE]>().write(element);
        }
    }
}

/// Copies elements of which those of different rows lie closer together than those of one: in squares that are turned in
/// a buffer, so that a line of the cache is touched once on either side, however unlucky the strides.
///
/// # Safety
/// As `copy_row`, for each element of `inner` for each of `outer`.
unsafe fn copy_transposed<const SIZE: usize>(from: *const u8, to: *mut u8, outer: Run, inner: Run) {
    let mut square = [[[0u8; SIZE]; TILE]; TILE];
    // Down first: the pages that a square's columns are on serve the ones below it too.
    for left in (0..inner.count).step_by(TILE) {
        let width = inner.count.min(left + TILE as u64) - left;
        for top in (0..outer.count).step_by(TILE) {
            let height = outer.count.min(top + TILE as u64) - top;
            let first = top as i64 * outer.source + left as i64 * inner.source;
            // SAFETY: elements from `top` and `left` on, at most `height` and `width` of them: a part of the caller's.
            unsafe {
                for (column, index) in square.iter_mut().zip(0..width) {
                    let at = from.offset((first + index as i64 * inner.source) as isize);
                    let column = column.as_mut_ptr().cast();
                    copy_row::<SIZE>(at, column, Run { count: height, target: SIZE as u64, ..outer });
                }
                for index in 0..height {
                    let at = to.add(((top + index) * outer.target + left * inner.target) as usize);
                    let row = square.as_ptr().cast::<u8>().add(index as usize * SIZE);
                    copy_row::<SIZE>(row, at, Run { count: width, source: (TILE * SIZE) as i64, ..inner });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Element by element, by the definition of strides.
    fn by_definition(from: &[u8], offset: i64, outer: Run, inner: Run, size: usize, out: &mut [u8]) {
        for i in 0..outer.count {
            for j in 0..inner.count {
                let source = (offset + i as i64 * outer.source + j as i64 * inner.source) as usize;
                let target = (i * outer.target + j * inner.target) as usize;
                out[target..target + size].copy_from_slice(&from[source..source + size]);
            }
        }
    }

    /// What `copy` writes, and what it should, for counts, steps in the source, and gaps in the target.
    fn copied(counts: (u64, u64), steps: (i64, i64), gaps: (u64, u64), size: u64) -> (Vec<u8>, Vec<u8>) {
        let inner = Run { count: counts.1, source: steps.1, target: size + gaps.0 };
        let outer = Run { count: counts.0, source: steps.0, target: inner.count * (size + gaps.0) + gaps.1 };
        let lowest: i64 = [outer, inner].iter().map(|run| (run.count - 1) as i64 * run.source.min(0)).sum();
        let highest: i64 = [outer, inner].iter().map(|run| (run.count - 1) as i64 * run.source.max(0)).sum();
        let from: Vec<u8> = (0..highest - lowest + size as i64).map(|index| (index % 251) as u8).collect();
        let mut expected = vec![0xa5; (outer.count * outer.target) as usize];
        let mut found = expected.clone();
        by_definition(&from, -lowest, outer, inner, size as usize, &mut expected);
        Memory::from(&from[..]).copy(-lowest as u64, outer, inner, size, &mut found);
        (found, expected)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_element_is_copied_to_its_place(
            counts in (1u64..80, 1u64..80),
            steps in (-90i64..90, -90i64..90),
            gaps in (0u64..3, 0u64..3),
            size in prop::sample::select(vec![1u64, 2, 4, 8, 16]),
        ) {
            let (found, expected) = copied(counts, steps, gaps, size);
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn rows_that_are_read_again_are_copied_too() {
        let (found, expected) = copied((2, 2), (0, 5), (0, 0), 1);
        assert_eq!(found, expected);
    }

    #[test]
    fn nothing_outside_is_read_or_written() {
        let (from, one) = ([0u8; 16], Run { count: 1, source: 0, target: 0 });
        let copy = |offset, row: Run, room: usize| {
            let mut out = vec![0; room];
            std::panic::catch_unwind(move || Memory::from(&from[..]).copy(offset, one, row, 4, &mut out)).is_ok()
        };
        let row = |count, source, target| Run { count, source, target };
        assert!(copy(0, row(4, 4, 4), 16) && copy(12, row(4, -4, 4), 16) && copy(12, row(100, 0, 4), 400));
        assert!(!copy(1, row(4, 4, 4), 16) && !copy(8, row(4, -4, 4), 16) && !copy(0, row(4, 4, 4), 15));
        assert!(!copy(0, row(4, 4, u64::MAX / 2), 16) && !copy(0, row(4, i64::MAX / 2, 4), 16));
        assert!(!copy(u64::MAX, row(1, 0, 0), 16) && !copy(0, row(0, 4, 4), 16));
    }
}
