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
        if shape.iter().any(|extent| *extent < 0) {
            return Err((Status::NegativeShape, format!("shape {shape:?} has a negative extent")));
        }
        if let Some(strides) = strides
            && strides.iter().any(|stride| *stride < 0)
        {
            let what = format!("strides {strides:?} have a negative one; give a copy in row-major order");
            return Err((Status::NegativeStride, what));
        }
        let bits = bits(shape, element_bits);
        let bytes = bits.map(|bits| bits.div_ceil(8)).filter(|bytes| *bytes <= i64::MAX as u64);
        let (Some(bits), Some(bytes)) = (bits, bytes) else {
            return Err((Status::SizeOverflow, format!("the size of shape {shape:?} does not fit into 63 bits")));
        };
        if bytes == 0 {
            return Ok(Self { block: 0, dims: Vec::new(), bytes: 0, extent: 0 });
        }
        if !element_bits.is_multiple_of(8) {
            return packed(shape, strides, bits);
        }
        let leaves =
            || (Status::OutOfAddressSpace, format!("the strides of shape {shape:?} lead out of the address space"));
        Self::placed(shape, strides, element_bits / 8, bytes).ok_or_else(leaves)
    }

    /// The layout of at least one element of `element` bytes, innermost dimension first; `None` when the strides lead
    /// further than memory reaches.
    fn placed(shape: &[i64], strides: Option<&[i64]>, element: u64, bytes: u64) -> Option<Self> {
        let mut layout = Self { block: element, dims: Vec::new(), bytes, extent: element };
        // What the stride of the next dimension is when elements lie compactly.
        let mut compact = element;
        for (dim, extent) in shape.iter().enumerate().rev() {
            let extent = *extent as u64;
            let stride = match strides {
                Some(strides) if extent > 1 => (strides[dim] as u64).checked_mul(element)?,
                _ => compact,
            };
            compact *= extent;
            if extent == 1 {
                continue;
            }
            let reach = (extent - 1).checked_mul(stride)?;
            layout.extent = layout.extent.checked_add(reach).filter(|extent| *extent <= i64::MAX as u64)?;
            match layout.dims.last_mut() {
                None if stride == layout.block => layout.block *= extent,
                Some((count, step)) if step.checked_mul(*count) == Some(stride) => *count *= extent,
                _ => layout.dims.push((extent, stride)),
            }
        }
        layout.dims.reverse();
        Some(layout)
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

    /// Whether elements may share bytes with others; never false when some do.
    pub fn may_overlap_itself(&self) -> bool {
        let mut dims = self.dims.clone();
        dims.sort_unstable_by_key(|(_, stride)| *stride);
        let mut reach = self.block;
        dims.into_iter().any(|(count, stride)| {
            let overlaps = stride < reach;
            reach += (count - 1) * stride;
            overlaps
        })
    }

    /// (count, stride in bytes) of the dimensions that do not continue each other, outermost first; blocks are inside of
    /// them.
    pub fn dims(&self) -> &[(u64, u64)] {
        &self.dims
    }

    /// Where logical byte `position`, which must be in the tensor, lies from the first element.
    pub fn locate(&self, position: u64) -> u64 {
        let (mut left, mut offset) = (position / self.block, position % self.block);
        for (count, stride) in self.dims.iter().rev() {
            offset += left % count * stride;
            left /= count;
        }
        offset
    }

    /// Blocks in a row, and bytes in a block; 0 bytes when there are no elements.
    pub fn row_shape(&self) -> (u64, u64) {
        (self.dims.last().map_or(1, |(count, _)| *count), self.block)
    }
}

/// The size of all elements in bits, if it fits.
fn bits(shape: &[i64], element_bits: u64) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(element_bits, |bits, extent| bits.checked_mul(*extent as u64))
}

/// The layout of elements that share bytes: only as a whole, and only when the whole ends on a byte.
fn packed(shape: &[i64], strides: Option<&[i64]>, bits: u64) -> Result<Layout, Refusal> {
    let mut compact = 1;
    let mut is_compact = |dim: usize| {
        let stride = strides.map_or(compact, |strides| strides[dim]);
        let is_compact = shape[dim] == 1 || stride == compact;
        compact *= shape[dim];
        is_compact
    };
    if !(0..shape.len()).rev().all(&mut is_compact) || !bits.is_multiple_of(8) {
        let what = "elements of less than a byte must lie compactly in row-major order and end on a whole byte";
        return Err((Status::UnsupportedLayout, what.to_owned()));
    }
    Ok(Layout { block: bits / 8, dims: Vec::new(), bytes: bits / 8, extent: bits / 8 })
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
            for (position, offset) in bytes.iter().enumerate() {
                prop_assert_eq!(layout.locate(position as u64), *offset);
            }
            let distinct: std::collections::HashSet<_> = bytes.iter().collect();
            prop_assert!(layout.may_overlap_itself() || distinct.len() == bytes.len());
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
    fn plain_layouts_do_not_overlap_themselves() {
        let overlaps =
            |shape: &[i64], strides: &[i64]| Layout::new(shape, Some(strides), 16).unwrap().may_overlap_itself();
        assert!(!overlaps(&[3, 4], &[4, 1]) && !overlaps(&[3, 4], &[1, 3]) && !overlaps(&[3, 4, 5], &[100, 1, 7]));
        assert!(overlaps(&[3, 4], &[0, 1]) && overlaps(&[3, 4], &[1, 1]) && overlaps(&[3, 4], &[2, 1]));
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
