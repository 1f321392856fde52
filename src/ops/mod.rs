//! The verbs, one file each.

pub mod audit;
pub mod checksum;
pub mod compare;
pub mod expect;
pub mod reset;

pub use audit::audit;
pub use checksum::{checksum, digests};
pub use compare::compare;
pub use expect::{Sources, expect};
pub use reset::{Fill, reset};

use crate::digest::Algorithm;
use crate::progress::Callback;

/// How a verb does its work.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// How digests are made. Reset makes none and ignores it.
    pub algorithm: Algorithm,
    /// The most threads, the calling one among them; 0 for all cores that this process may use.
    pub threads: usize,
    /// Told how many bytes are done; may cancel.
    pub progress: Option<&'a Callback<'a>>,
}
