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

use crate::cuda::Producer;
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
    /// The stream that has what writes device tensors in its queue; the devices wait for it.
    pub stream: Producer,
    /// Pinned host memory that may be used at once to hash device tensors by `sha256`, in bytes; 0 for the default.
    pub max_host_bytes: u64,
}
