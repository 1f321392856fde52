//! Digests, the algorithms that make them, and how both are written.

use std::fmt;

use crate::status::{Error, Result, Status};

/// How a tensor's logical bytes become a digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256 (FIPS 180-4) of the logical bytes: what vLLM's own checker gives.
    #[default]
    Sha256,
}

impl Algorithm {
    /// The algorithm of the C ABI's number, 0 for `sha256`.
    pub fn from_code(code: u32) -> Result<Self> {
        match code {
            0 => Ok(Self::Sha256),
            other => Err(Error::new(
                Status::BadOption,
                format!("option 'algorithm': {other} is no algorithm of this library; 0 is sha256"),
            )),
        }
    }

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
        }
    }
}

/// The digest of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest([u8; Self::BYTES]);

impl Digest {
    /// How long a digest is, in bytes.
    pub(crate) const BYTES: usize = 32;

    /// A digest of these bytes.
    pub fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The digest as raw bytes.
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

/// 64 lower-case hex digits.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
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
        let hex = Digest::new([0xab; 32]).to_string();
        assert_eq!(DigestText::of(&hex), DigestText::Of(Algorithm::Sha256));
        assert_eq!(DigestText::of(&format!("sha256-tree:{hex}")), DigestText::OfOther("sha256-tree"));
        for text in ["", "x", &hex[1..], &hex.to_uppercase(), ":", &format!(":{hex}"), "sha256-tree:12"] {
            assert_eq!(DigestText::of(text), DigestText::None, "{text}");
        }
    }

    #[test]
    fn there_is_one_algorithm() {
        assert_eq!(Algorithm::from_code(0).unwrap(), Algorithm::Sha256);
        assert_eq!(Algorithm::from_code(1).unwrap_err().status(), Status::BadOption);
    }
}
