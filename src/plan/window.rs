//! The part of a piece that falls into a range of its parameter's elements, as few boxes.

use std::ops::Range;

use super::Dim;

/// A dimension, and how far those after it reach.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// How many; at least 1.
    pub extent: u64,
    /// From one to the next in the source.
    pub source: i64,
    /// From one to the next in the parameter, in elements; at least `span`.
    pub target: u64,
    /// From the first to behind the last element of the dimensions after this one, in the parameter.
    span: u64,
}

/// A part of a piece: `extent` times what `steps[1..]` are, by the strides of `steps[0]`. Without steps, one element.
#[derive(Clone, Copy, Debug)]
pub struct Part<'s> {
    /// Replaces the extent of the first step.
    pub extent: u64,
    /// The dimensions.
    pub steps: &'s [Step],
    /// Of the first element, in the units of the steps.
    pub source: i64,
    /// The first element, in the parameter.
    pub target: u64,
}

impl Part<'_> {
    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        match self.steps {
            [] => 1,
            [_, inner @ ..] => self.extent * inner.iter().map(|step| step.extent).product::<u64>(),
        }
    }
}

/// The steps of `dims`, which must have elements.
pub fn steps(dims: impl DoubleEndedIterator<Item = Dim>) -> Vec<Step> {
    let mut span = 1;
    let mut steps: Vec<Step> = Vec::new();
    for Dim { extent, source, target } in dims.rev() {
        steps.push(Step { extent, source, target, span });
        span += (extent - 1) * target;
    }
    steps.reverse();
    steps
}

/// Calls `found` for parts that together are what `steps` from `source` and `target` on have in `window`.
///
/// Each dimension is cut into a first one that is only partly inside, those wholly inside, and a last one: at most two
/// parts for each dimension.
pub fn clip<'s>(steps: &'s [Step], source: i64, target: u64, window: &Range<u64>, found: &mut impl FnMut(Part<'s>)) {
    let [step, inner @ ..] = steps else {
        if window.contains(&target) {
            found(Part { extent: 1, steps, source, target });
        }
        return;
    };
    if target >= window.end {
        return;
    }
    let start = |index: u64| target + index * step.target;
    let behind = target + step.span;
    // The first whose last element is not before the window, and the one behind the last that starts before its end.
    let first = if behind > window.start { 0 } else { (window.start - behind) / step.target + 1 };
    let end = ((window.end - target - 1) / step.target + 1).min(step.extent);
    if first >= end {
        return;
    }
    let mut partly = |index: u64| {
        clip(inner, source + index as i64 * step.source, start(index), window, found);
    };
    let whole_first = first + u64::from(start(first) < window.start);
    let whole_end = end - u64::from(start(end - 1) + step.span > window.end);
    if whole_first > first {
        partly(first);
    }
    if whole_end < end && end > whole_first {
        partly(end - 1);
    }
    if whole_first < whole_end {
        let source = source + whole_first as i64 * step.source;
        found(Part { extent: whole_end - whole_first, steps, source, target: start(whole_first) });
    }
}
