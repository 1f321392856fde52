//! Where a tensor lives in a parallel engine, and the key that says so.

use std::fmt;

/// One rank of an engine: its index in each parallel group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank {
    /// Data-parallel index.
    pub dp: u32,
    /// Pipeline-parallel index.
    pub pp: u32,
    /// Prefill-context-parallel index.
    pub pcp: u32,
    /// Tensor-parallel index.
    pub tp: u32,
}

impl Rank {
    /// What every key of this rank starts with: `dp{dp}:pp{pp}:pcp{pcp}:tp{tp}:`.
    pub fn prefix(self) -> String {
        format!("{self}:")
    }

    /// The key of the parameter `name` on this rank, as vLLM's own checker writes it.
    pub fn key(self, name: &str) -> String {
        format!("{self}:{name}")
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dp{}:pp{}:pcp{}:tp{}", self.dp, self.pp, self.pcp, self.tp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_every_group() {
        let rank = Rank { dp: 1, pp: 2, pcp: 3, tp: 4 };
        assert_eq!(rank.key("model.norm.weight"), "dp1:pp2:pcp3:tp4:model.norm.weight");
        assert!(rank.key("x").starts_with(&rank.prefix()));
        assert!(!Rank { tp: 11, ..rank }.key("x").starts_with(&Rank { tp: 1, ..rank }.prefix()));
    }
}
