//! One message at a time, through the `sha2` crate's block function.
//!
//! That function finds out by itself what the processor has (SHA-NI, ARMv8 cryptography), and needs nothing.

use sha2::block_api::compress256;

use super::backend::{Backend, State, check};

/// The backend that runs on every processor.
pub struct Portable(());

impl Portable {
    /// Always there.
    pub fn try_new() -> Option<Self> {
        Some(Self(()))
    }
}

impl Backend for Portable {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn lanes(&self) -> usize {
        1
    }

    fn compress(&self, states: &mut [State], blocks: &[&[u8]]) {
        check(self.lanes(), states, blocks);
        compress256(&mut states[0], blocks[0].as_chunks().0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::backend_tests::{check_backend, check_with_sha2};

    #[test]
    fn portable() {
        check_with_sha2(&Portable::try_new().expect("always there"));
        check_backend("portable", Portable::try_new());
    }
}
