//! The constants that are written after a piece, found by their position.

use std::ops::Range;

use super::region::{Region, TooFine, Work};

/// Constants in the order of their first elements, as the leaves of a binary tree: each node knows the furthest end of
/// those below it that are there.
pub(super) struct Constants<'a> {
    regions: Vec<&'a Region>,
    /// The leaf of each that is not there yet, in the order in which they are written.
    waiting: Vec<usize>,
    /// Node `n` has the children `2n` and `2n + 1`; the leaves are the second half.
    ends: Vec<u64>,
}

impl<'a> Constants<'a> {
    /// Those of a parameter, in the order in which they are written; none is there yet.
    pub fn new(written: &[&'a Region]) -> Self {
        let mut order: Vec<usize> = (0..written.len()).collect();
        order.sort_by_key(|index| written[*index].range().start);
        let mut waiting = vec![0; written.len()];
        order.iter().enumerate().for_each(|(leaf, index)| waiting[*index] = leaf);
        let regions = order.iter().map(|index| written[*index]).collect();
        Self { regions, waiting, ends: vec![0; 2 * written.len().next_power_of_two()] }
    }

    /// Adds the one that is written last of those that are not there yet.
    pub fn add_last(&mut self) {
        let Some(leaf) = self.waiting.pop() else { return };
        let end = self.regions[leaf].range().end;
        let mut node = self.ends.len() / 2 + leaf;
        while node > 0 {
            self.ends[node] = self.ends[node].max(end);
            node /= 2;
        }
    }

    /// Those there that start before the end of `range` and end behind its start.
    pub fn near(&self, range: &Range<u64>, work: &mut Work) -> Result<Vec<&'a Region>, TooFine> {
        let before_end = self.regions.partition_point(|region| region.range().start < range.end);
        let mut found = Vec::new();
        self.search(1, 0..self.ends.len() / 2, (range.start, before_end), &mut found, work)?;
        Ok(found)
    }

    /// Looks below `node`, which has the leaves `leaves`, for those below `before_end` that end behind `start`.
    fn search(
        &self,
        node: usize,
        leaves: Range<usize>,
        (start, before_end): (u64, usize),
        found: &mut Vec<&'a Region>,
        work: &mut Work,
    ) -> Result<(), TooFine> {
        work.spend(1)?;
        if leaves.start >= before_end || self.ends[node] <= start {
            return Ok(());
        }
        if leaves.len() == 1 {
            found.push(self.regions[leaves.start]);
            return Ok(());
        }
        let middle = leaves.start + leaves.len() / 2;
        self.search(2 * node, leaves.start..middle, (start, before_end), found, work)?;
        self.search(2 * node + 1, middle..leaves.end, (start, before_end), found, work)
    }
}
