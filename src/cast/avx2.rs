//! The same casts, compiled for processors with AVX2: their vectors hold twice as much, and pack what becomes narrower.
#![allow(unsafe_code)]

use super::element::Element;
use super::{Convert, convert};

/// [`convert`] compiled for AVX2, when the processor has it.
pub fn try_convert<S: Element, T: Element>() -> Option<Convert> {
    // SAFETY: the features were found in this process before the function is given away.
    is_x86_feature_detected!("avx2").then_some(|source, target| unsafe { convert_wide::<S, T>(source, target) })
}

#[target_feature(enable = "avx2")]
fn convert_wide<S: Element, T: Element>(source: &[u8], target: &mut [u8]) {
    convert::<S, T>(source, target);
}
