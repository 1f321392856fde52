//! Digests, the algorithms that make them, and how both are written.

use std::fmt;

use crate::status::{Error, Result, Status};

/// How a tensor's logical bytes become a digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256 (FIPS 180-4) of the logical bytes: what vLLM's own checker gives.
    #[default]
    Sha256,
    /// The Merkle tree hash of RFC 9162 section 2.1.1 with SHA-256 over leaves of 8,192 logical bytes.
    Sha256Tree,
}

impl Algorithm {
    /// The algorithm of the C ABI's number: 0 for `sha256`, 1 for `sha256-tree`.
    pub fn from_code(code: u32) -> Result<Self> {
        match code {
            0 => Ok(Self::Sha256),
            1 => Ok(Self::Sha256Tree),
            other => Err(Error::new(
                Status::BadOption,
                format!("option 'algorithm': {other} is no algorithm of this library; 0 is sha256, 1 is sha256-tree"),
            )),
        }
    }

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha256Tree => "sha256-tree",
        }
    }
}

/// The digest of one tensor, and the algorithm that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    algorithm: Algorithm,
    bytes: [u8; Self::BYTES],
}

impl Digest {
    /// How long a digest is, in bytes.
    pub(crate) const BYTES: usize = 32;

    /// A digest of these bytes.
    pub fn new(algorithm: Algorithm, bytes: [u8; Self::BYTES]) -> Self {
        Self { algorithm, bytes }
    }

    /// The digest as raw bytes.
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.bytes
    }
}

/// 64 lower-case hex digits; those of `sha256-tree` after the algorithm's name and a colon.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.algorithm == Algorithm::Sha256Tree {
            write!(f, "{}:", self.algorithm.name())?;
        }
        self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a string in a baseline is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestText<'a> {
    /// Written as a digest of this algorithm.
    Of(Algorithm),
    /// Written as `name:digits`, a digest of an algorithm called `name`, which this library does not have.
    OfOther(&'a str),
    /// No digest at all. It equals none, so whatever it stands for differs.
    None,
}

impl<'a> DigestText<'a> {
    /// Tells what `text` is, from its form alone.
    pub fn of(text: &'a str) -> Self {
        let is_hex = |text: &str| {
            text.len() == 2 * Digest::BYTES && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        match text.split_once(':') {
            Some((name, digits)) if name == Algorithm::Sha256Tree.name() && is_hex(digits) => {
                Self::Of(Algorithm::Sha256Tree)
            }
            Some((name, digits)) if !name.is_empty() && is_hex(digits) => Self::OfOther(name),
            None if is_hex(text) => Self::Of(Algorithm::Sha256),
            _ => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_tells_the_algorithm() {
        let hex = Digest::new(Algorithm::Sha256, [0xab; 32]).to_string();
        let tree = Digest::new(Algorithm::Sha256Tree, [0xab; 32]).to_string();
        assert_eq!(tree, format!("sha256-tree:{hex}"));
        assert_eq!(DigestText::of(&hex), DigestText::Of(Algorithm::Sha256));
        assert_eq!(DigestText::of(&tree), DigestText::Of(Algorithm::Sha256Tree));
        assert_eq!(DigestText::of(&format!("blake3:{hex}")), DigestText::OfOther("blake3"));
        for text in ["", "x", &hex[1..], &hex.to_uppercase(), ":", &format!(":{hex}"), "sha256-tree:12"] {
            assert_eq!(DigestText::of(text), DigestText::None, "{text}");
        }
    }

    #[test]
    fn there_are_two_algorithms() {
        assert_eq!(Algorithm::from_code(0).unwrap(), Algorithm::Sha256);
        assert_eq!(Algorithm::from_code(1).unwrap(), Algorithm::Sha256Tree);
        assert_eq!(Algorithm::from_code(2).unwrap_err().status(), Status::BadOption);
    }
}
