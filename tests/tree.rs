//! `sha256-tree` against RFC 9162 section 2.1.1, written down here as the RFC says it: recursively, one hash at a time.

mod common;

use common::{BFLOAT16, PREFIX, RANK, Tensor, compare, digests_with, hex, json_of, options, raw, sha256};
use sha2::{Digest as _, Sha256};
use weight_checker::ffi::types::{WC_ALGORITHM_SHA256_TREE, WcOptions};
use weight_checker::ffi::wc_checksum;
use weight_checker::status::Status;

const LEAF: usize = 8192;

fn merkle_tree_hash(leaves: &[&[u8]]) -> [u8; 32] {
    match leaves {
        [] => sha256(&[]),
        [leaf] => Sha256::new().chain_update([0]).chain_update(leaf).finalize().into(),
        _ => {
            let split = leaves.len().next_power_of_two() / 2;
            let (left, right) = (merkle_tree_hash(&leaves[..split]), merkle_tree_hash(&leaves[split..]));
            Sha256::new().chain_update([1]).chain_update(left).chain_update(right).finalize().into()
        }
    }
}

fn expected(bytes: &[u8]) -> [u8; 32] {
    merkle_tree_hash(&bytes.chunks(LEAF).collect::<Vec<_>>())
}

fn tree(threads: u32) -> WcOptions {
    WcOptions { algorithm: WC_ALGORITHM_SHA256_TREE, ..options(threads) }
}

fn painted(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8 ^ (index / 8192 % 241) as u8).collect()
}

#[test]
fn the_rfc_by_hand_for_three_leaves() {
    let memory = painted(3 * LEAF);
    let hash = |parts: &[&[u8]]| sha256(&parts.concat());
    let leaves: Vec<_> = memory.chunks(LEAF).map(|leaf| hash(&[&[0], leaf])).collect();
    let left = hash(&[&[1], &leaves[0], &leaves[1]]);
    let root = hash(&[&[1], &left, &leaves[2]]);
    assert_eq!(digests_with(&[Tensor::bytes("t", &memory)], &tree(0)).unwrap(), [root]);
}

#[test]
fn lengths_around_leaves_runs_and_powers_of_two() {
    let run = 1024 * LEAF;
    let mut lengths: Vec<usize> = (0..=300).collect();
    for base in [
        LEAF,
        2 * LEAF,
        3 * LEAF,
        7 * LEAF,
        8 * LEAF,
        15 * LEAF,
        16 * LEAF,
        17 * LEAF,
        33 * LEAF,
        run,
        2 * run,
        3 * run,
    ] {
        lengths.extend([base - 1, base, base + 1, base + 63, base + 64, base + LEAF - 1]);
    }
    let memory = painted(lengths.iter().max().unwrap() + 64);
    let starts = |index: usize| index % 64;
    let tensors: Vec<Tensor> = lengths
        .iter()
        .enumerate()
        .map(|(index, length)| Tensor::bytes(&index.to_string(), &memory[starts(index)..starts(index) + length]))
        .collect();
    for threads in [1, 2, 5] {
        let found = digests_with(&tensors, &tree(threads)).unwrap();
        for (index, length) in lengths.iter().enumerate() {
            let bytes = &memory[starts(index)..starts(index) + length];
            assert_eq!(found[index], expected(bytes), "{length} bytes on {threads} threads");
        }
    }
}

#[test]
fn strided_tensors() {
    let memory = painted(12 << 20);
    // A transposed matrix and a narrowed one, of some runs, not ending on a leaf.
    for (shape, strides) in [([2001i64, 2500], [1i64, 2100]), ([2003, 1999], [2100, 1])] {
        let mut logical = Vec::new();
        for row in 0..shape[0] {
            for column in 0..shape[1] {
                let at = 2 * (row * strides[0] + column * strides[1]) as usize;
                logical.extend_from_slice(&memory[at..at + 2]);
            }
        }
        let tensor = Tensor::new("t", memory.as_ptr(), BFLOAT16, &shape).strided(&strides);
        assert_eq!(digests_with(&[tensor], &tree(0)).unwrap(), [expected(&logical)], "{shape:?} {strides:?}");
    }
}

#[test]
fn digests_say_that_they_are_of_a_tree() {
    let memory = painted(100_000);
    let tensors = [Tensor::bytes("t", &memory)];
    let raw = raw(&tensors);
    // SAFETY: all valid.
    let json = json_of(|out| unsafe { wc_checksum(raw.as_ptr(), 1, &RANK, &tree(0), out) }).unwrap();
    let digest = format!("sha256-tree:{}", hex(&expected(&memory)));
    assert_eq!(json, serde_json::json!({ format!("{PREFIX}t"): digest }));
    assert_eq!(
        compare(&tensors, &json.to_string()).unwrap_err(),
        Status::AlgorithmMismatch,
        "a tree's baseline for sha256"
    );
}

/// Run numbers and lengths beyond 32 bits. Needs 5 GB of memory: `cargo test --release -- --ignored`.
#[test]
#[ignore = "takes 5 GB of memory; run before a release"]
fn more_than_four_gigabytes() {
    let memory = painted((4 << 30) + 3);
    assert_eq!(digests_with(&[Tensor::bytes("t", &memory)], &tree(0)).unwrap(), [expected(&memory)]);
}
