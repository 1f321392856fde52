//! Digests of many tensors at once.

pub mod backend;
mod portable;

use sha2::{Digest as _, Sha256};

use crate::digest::{Algorithm, Digest};
use crate::host;
use crate::progress::Progress;
use crate::status::Result;
use crate::view::TensorView;

/// What a thread keeps from tensor to tensor: the memory that strided ones are gathered in.
#[derive(Default)]
pub struct Scratch {
    gathered: Vec<u8>,
}

/// The digest of the logical bytes of `view`.
pub fn digest(
    view: &TensorView<'_>,
    algorithm: Algorithm,
    scratch: &mut Scratch,
    progress: &Progress<'_>,
) -> Result<Digest> {
    #[cfg(feature = "test-hooks")]
    assert_ne!(view.name(), "test-hook: panic", "the test asked for a panic");
    match algorithm {
        Algorithm::Sha256 => {
            let mut hasher = Sha256::new();
            host::read(view, &mut scratch.gathered, progress, |bytes| hasher.update(bytes))?;
            Ok(Digest::new(hasher.finalize().into()))
        }
    }
}
