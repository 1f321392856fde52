//! How a tensor's elements lie in memory, reduced to rows of equal blocks.

use crate::status::Status;

/// The most dimensions that a tensor may have.
pub const MAX_NDIM: usize = 32;

/// Why a shape and strides make no layout.
pub type Refusal = (Status, String);

/// Where the elements of a tensor lie, relative to its first one.
///
/// Neighbouring dimensions that continue each other are merged and extents of 1 dropped, so that two layouts are
/// equal when they visit the same bytes in the same order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Bytes that lie side by side, in every innermost block.
    block: u64,
    /// (count, stride in bytes) of the dimensions that do not continue each other, outermost first.
    dims: Vec<(u64, u64)>,
    bytes: u64,
    extent: u64,
}

/// `count` blocks of `block` bytes, `stride` bytes apart, the first at `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Bytes from the tensor's first element to the row's first block.
    pub offset: u64,
    /// How many blocks.
    pub count: u64,
    /// Bytes from one block to the next.
    pub stride: u64,
    /// Bytes in a block.
    pub block: u64,
}

impl Layout {
    /// The layout of elements of `element_bits` in `shape`, with `strides` in elements (`None`: compact row-major).
    ///
    /// Sizes are counted in bits and with checked arithmetic, here and nowhere else.
    pub fn new(shape: &[i64], strides: Option<&[i64]>, element_bits: u64) -> Result<Self, Refusal> {
        let extents = extents(shape)?;
        refuse_negative(strides.unwrap_or(&[]))?;
        let count = if extents.contains(&0) { Some(0) } else { product(&extents) };
        let bits = count.and_then(|count| count.checked_mul(element_bits));
        let bytes = bits.map(|bits| bits.div_ceil(8)).filter(|bytes| *bytes <= i64::MAX as u64);
        let (Some(bits), Some(bytes)) = (bits, bytes) else {
            return Err((Status::SizeOverflow, format!("the size of shape {shape:?} does not fit into 63 bits")));
        };
        if bytes == 0 {
            return Ok(Self { block: 0, dims: Vec::new(), bytes: 0, extent: 0 });
        }
        if !element_bits.is_multiple_of(8) {
            return packed(&extents, strides, bits);
        }
        let strides = byte_strides(&extents, strides, element_bits / 8).ok_or_else(|| leaves(shape))?;
        let reach = extents.iter().zip(&strides).try_fold(0u64, |reach, (extent, stride)| {
            (extent - 1).checked_mul(*stride).and_then(|step| reach.checked_add(step))
        });
        let extent = reach
            .and_then(|reach| reach.checked_add(element_bits / 8))
            .filter(|extent| *extent <= i64::MAX as u64)
            .ok_or_else(|| leaves(shape))?;
        let (block, dims) = merge(&extents, &strides, element_bits / 8);
        Ok(Self { block, dims, bytes, extent })
    }

    /// The logical size in bytes: all elements, without gaps, each as often as its indices name it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes from the first to behind the last byte that belongs to an element; 0 when there is none.
    pub fn extent(&self) -> u64 {
        self.extent
    }

    /// All blocks in row-major order.
    pub fn rows(&self) -> Rows<'_> {
        self.rows_from(0)
    }

    /// The rows from row number `first` on.
    pub fn rows_from(&self, first: u64) -> Rows<'_> {
        let outer = self.dims.len().saturating_sub(1);
        let mut index = vec![0; outer];
        let (mut left, mut offset) = (first, 0);
        for dim in (0..outer).rev() {
            let (count, stride) = self.dims[dim];
            index[dim] = left % count;
            offset += index[dim] * stride;
            left /= count;
        }
        Rows { layout: self, index, next: (self.bytes > 0 && left == 0).then_some(offset) }
    }

    /// Whether all elements lie side by side.
    pub fn is_contiguous(&self) -> bool {
        self.dims.is_empty()
    }

    /// Blocks in a row, and bytes in a block; 0 bytes when there are no elements.
    pub fn row_shape(&self) -> (u64, u64) {
        (self.dims.last().map_or(1, |(count, _)| *count), self.block)
    }
}

fn extents(shape: &[i64]) -> Result<Vec<u64>, Refusal> {
    shape
        .iter()
        .map(|extent| u64::try_from(*extent))
        .collect::<Result<_, _>>()
        .map_err(|_| (Status::NegativeShape, format!("shape {shape:?} has a negative extent")))
}

fn refuse_negative(strides: &[i64]) -> Result<(), Refusal> {
    if strides.iter().any(|stride| *stride < 0) {
        let what = format!("strides {strides:?} have a negative one; give a copy in row-major order");
        return Err((Status::NegativeStride, what));
    }
    Ok(())
}

fn leaves(shape: &[i64]) -> Refusal {
    (Status::OutOfAddressSpace, format!("the strides of shape {shape:?} lead out of the address space"))
}

fn product(extents: &[u64]) -> Option<u64> {
    extents.iter().try_fold(1u64, |all, extent| all.checked_mul(*extent))
}

/// The layout of elements that share bytes: only as a whole, and only when the whole ends on a byte.
fn packed(extents: &[u64], strides: Option<&[i64]>, bits: u64) -> Result<Layout, Refusal> {
    let compact = compact_strides(extents);
    let is_compact = strides.is_none_or(|strides| {
        extents
            .iter()
            .zip(strides)
            .zip(&compact)
            .all(|((extent, stride), compact)| *extent == 1 || *stride as u64 == *compact)
    });
    if !is_compact || !bits.is_multiple_of(8) {
        let what = "elements of less than a byte must lie compactly in row-major order and end on a whole byte";
        return Err((Status::UnsupportedLayout, what.to_owned()));
    }
    Ok(Layout { block: bits / 8, dims: Vec::new(), bytes: bits / 8, extent: bits / 8 })
}

/// Row-major strides in elements. The caller has checked that the product of `extents` fits.
fn compact_strides(extents: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; extents.len()];
    for dim in (1..extents.len()).rev() {
        strides[dim - 1] = strides[dim] * extents[dim];
    }
    strides
}

/// Strides in bytes, `None` when one overflows. Those of extents of 1 lead nowhere and become 0.
fn byte_strides(extents: &[u64], strides: Option<&[i64]>, element: u64) -> Option<Vec<u64>> {
    let compact = compact_strides(extents);
    (0..extents.len())
        .map(|dim| match (extents[dim], strides) {
            (1, _) => Some(0),
            (_, Some(strides)) => (strides[dim] as u64).checked_mul(element),
            (_, None) => compact[dim].checked_mul(element),
        })
        .collect()
}

/// Merges dimensions that continue each other: the innermost bytes side by side, and the rest outermost first.
fn merge(extents: &[u64], strides: &[u64], element: u64) -> (u64, Vec<(u64, u64)>) {
    let mut block = element;
    let mut dims: Vec<(u64, u64)> = Vec::new();
    for (extent, stride) in
        extents.iter().copied().zip(strides.iter().copied()).rev().filter(|(extent, _)| *extent != 1)
    {
        match dims.last_mut() {
            None if stride == block => block *= extent,
            Some((count, step)) if step.checked_mul(*count) == Some(stride) => *count *= extent,
            _ => dims.push((extent, stride)),
        }
    }
    dims.reverse();
    (block, dims)
}

/// Iterator over the rows of a layout; see [`Layout::rows`].
pub struct Rows<'a> {
    layout: &'a Layout,
    index: Vec<u64>,
    next: Option<u64>,
}

impl Iterator for Rows<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let offset = self.next?;
        let block = self.layout.block;
        let (count, stride) = self.layout.dims.last().copied().unwrap_or((1, block));
        self.next = self.advance(offset);
        Some(Row { offset, count, stride, block })
    }
}

impl Rows<'_> {
    /// The offset of the row after the one at `offset`: an odometer over all dimensions but the last.
    fn advance(&mut self, mut offset: u64) -> Option<u64> {
        for dim in (0..self.index.len()).rev() {
            let (count, stride) = self.layout.dims[dim];
            self.index[dim] += 1;
            offset += stride;
            if self.index[dim] < count {
                return Some(offset);
            }
            self.index[dim] = 0;
            offset -= stride * count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The byte offset of every element in row-major order, by the definition of strides.
    fn by_definition(shape: &[i64], strides: &[i64], element: u64) -> Vec<u64> {
        let mut offsets = vec![0u64];
        for (extent, stride) in shape.iter().zip(strides) {
            let step = |index: i64| index as u64 * *stride as u64 * element;
            offsets = offsets.iter().flat_map(|base| (0..*extent).map(move |index| base + step(index))).collect();
        }
        offsets.iter().flat_map(|start| *start..start + element).collect()
    }

    fn visited(layout: &Layout) -> Vec<u64> {
        layout
            .rows()
            .flat_map(|row| (0..row.count).map(move |index| row.offset + index * row.stride))
            .flat_map(|start| start..start + layout.block)
            .collect()
    }

    proptest! {
        #[test]
        fn rows_visit_every_byte_in_order(
            dims in prop::collection::vec((0i64..5, 0i64..40), 0..5),
            element in prop::sample::select(vec![1u64, 2, 4, 8, 16]),
        ) {
            let (shape, strides): (Vec<i64>, Vec<i64>) = dims.into_iter().unzip();
            let layout = Layout::new(&shape, Some(&strides), element * 8).unwrap();
            let bytes = by_definition(&shape, &strides, element);
            prop_assert_eq!(layout.bytes(), bytes.len() as u64);
            prop_assert_eq!(layout.extent(), bytes.iter().max().map_or(0, |last| last + 1));
            let rows: Vec<Row> = layout.rows().collect();
            for first in 0..=rows.len() {
                prop_assert!(layout.rows_from(first as u64).eq(rows[first..].iter().copied()));
            }
            prop_assert_eq!(visited(&layout), bytes);
        }
    }

    #[test]
    fn a_compact_tensor_is_one_block() {
        for strides in [None, Some([20i64, 5, 1].as_slice())] {
            let layout = Layout::new(&[3, 4, 5], strides, 16).unwrap();
            assert_eq!(layout.rows().collect::<Vec<_>>(), [Row { offset: 0, count: 1, stride: 120, block: 120 }]);
        }
    }

    #[test]
    fn sizes_do_not_wrap() {
        let refused = |shape: &[i64], strides: Option<&[i64]>| Layout::new(shape, strides, 16).unwrap_err().0;
        assert_eq!(refused(&[1 << 62], None), Status::SizeOverflow);
        assert_eq!(refused(&[1 << 40, 1 << 40], None), Status::SizeOverflow);
        assert_eq!(refused(&[i64::MAX, i64::MAX, 3], Some(&[0, 0, 0])), Status::SizeOverflow);
        assert_eq!(refused(&[2], Some(&[i64::MAX])), Status::OutOfAddressSpace);
        assert_eq!(refused(&[3], Some(&[i64::MAX / 2])), Status::OutOfAddressSpace);
        assert_eq!(refused(&[-1], None), Status::NegativeShape);
        assert_eq!(refused(&[2], Some(&[-1])), Status::NegativeStride);
        assert_eq!(Layout::new(&[0, i64::MAX, i64::MAX], None, 16).unwrap().bytes(), 0);
    }

    #[test]
    fn elements_that_share_bytes_must_be_compact() {
        assert_eq!(Layout::new(&[4, 3], None, 4).unwrap().bytes(), 6);
        assert_eq!(Layout::new(&[4, 3], Some(&[3, 1]), 4).unwrap().bytes(), 6);
        assert_eq!(Layout::new(&[4], None, 6).unwrap().bytes(), 3);
        assert_eq!(Layout::new(&[3], None, 4).unwrap_err().0, Status::UnsupportedLayout);
        assert_eq!(Layout::new(&[4, 3], Some(&[1, 4]), 4).unwrap_err().0, Status::UnsupportedLayout);
    }
}
