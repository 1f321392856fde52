//! `sha256-tree`: the Merkle tree hash of RFC 9162 section 2.1.1 over leaves of 8,192 bytes.
//!
//! The tree's shape is that of pairing neighbours level by level, where a node without a neighbour moves up as it is: that splits
//! every subtree at the largest power of two below its size, as the RFC does. So a run of 2^k leaves that starts at a
//! multiple of 2^k is a subtree, and threads hash such runs independently.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::Engine;
use super::backend::{BLOCK_BYTES, INITIAL, State};
use super::lanes;
use super::message::{EDGE_BYTES, MOST_GATHERED_BYTES, Message, digest_of, pad};
use crate::digest::{Algorithm, Digest};
use crate::parallel;
use crate::progress::Progress;
use crate::reader::{Bytes, Logical};
use crate::status::Result;

/// Logical bytes in a leaf.
pub const LEAF_BYTES: u64 = 8192;

/// Leaves that are hashed together, a power of two: 8 MiB. Their digests are the memory that a thread needs.
const RUN_LEAVES: u64 = 1024;

const RUN_BYTES: u64 = RUN_LEAVES * LEAF_BYTES;

/// First byte of a leaf's and of a node's message (RFC 9162 section 2.1.1).
const LEAF_PREFIX: u8 = 0;
const NODE_PREFIX: u8 = 1;

/// The bytes of a leaf that fill the first block together with the prefix.
const HEAD_BYTES: usize = BLOCK_BYTES - 1;

/// A run of leaves of one tensor: a subtree.
struct Run {
    tensor: usize,
    /// Its number among the runs of the tensor.
    number: u64,
    bytes: Range<u64>,
}

/// The root of the tree of each of `tensors`.
pub fn digests<L: Logical + ?Sized>(
    tensors: &[&L],
    engine: &Engine,
    threads: usize,
    progress: &Progress<'_>,
) -> Result<Vec<Digest>> {
    let folds: Vec<Mutex<Fold>> = tensors.iter().map(|_| Mutex::default()).collect();
    let batches = batches(tensors);
    let size = |batch: &Vec<Run>| batch.iter().map(|run| run.bytes.end - run.bytes.start).sum();
    let sizes: Vec<u64> = batches.iter().map(size).collect();
    let threads = parallel::useful_threads(&sizes, threads);
    let most_gathered = MOST_GATHERED_BYTES / threads;
    parallel::for_each(&sizes, threads, |scratch: &mut Scratch, index| {
        let batch = &batches[index];
        let roots = roots(tensors, batch, engine, most_gathered, scratch)?;
        for (run, root) in batch.iter().zip(roots) {
            let mut fold = parallel::lock(&folds[run.tensor]);
            fold.add(run.number, root, engine);
        }
        progress.advance(sizes[index])
    })?;
    let root = |fold: Mutex<Fold>| fold.into_inner().unwrap_or_else(PoisonError::into_inner).root(engine);
    Ok(folds.into_iter().map(|fold| digest_of(&root(fold), Algorithm::Sha256Tree)).collect())
}

/// The digest of the tree whose subtrees have these roots; see [`super::join`].
pub fn join(roots: &[State], engine: &Engine) -> Digest {
    let mut fold = Fold::default();
    for (number, root) in roots.iter().enumerate() {
        fold.add(number as u64, *root, engine);
    }
    digest_of(&fold.root(engine), Algorithm::Sha256Tree)
}

/// All runs of all tensors, in batches of about one full run, so that small tensors share the lanes.
fn batches<L: Logical + ?Sized>(tensors: &[&L]) -> Vec<Vec<Run>> {
    let mut batches: Vec<Vec<Run>> = Vec::new();
    let mut room = 0;
    for (index, tensor) in tensors.iter().enumerate() {
        for number in 0..tensor.length().div_ceil(RUN_BYTES) {
            let start = number * RUN_BYTES;
            let bytes = start..(start + RUN_BYTES).min(tensor.length());
            let size = bytes.end - bytes.start;
            if size > room {
                batches.push(Vec::new());
                room = RUN_BYTES;
            }
            room -= size;
            batches.last_mut().expect("one was pushed when there was no room").push(Run {
                tensor: index,
                number,
                bytes,
            });
        }
    }
    batches
}

/// What a thread keeps from batch to batch.
#[derive(Default)]
struct Scratch {
    /// Edges of the leaves or nodes in the lanes: [`EDGE_BYTES`] each.
    edges: Vec<u8>,
    /// Leaves that did not lie side by side.
    gathered: Vec<u8>,
}

/// The root of each run of `batch`; at most `most_gathered` bytes are gathered at once.
fn roots<L: Logical + ?Sized>(
    tensors: &[&L],
    batch: &[Run],
    engine: &Engine,
    most_gathered: usize,
    scratch: &mut Scratch,
) -> Result<Vec<State>> {
    let mut levels: Vec<Vec<State>> = batch
        .iter()
        .map(|run| vec![INITIAL; (run.bytes.end - run.bytes.start).div_ceil(LEAF_BYTES) as usize])
        .collect();
    let mut others = Vec::new();
    for (index, run) in batch.iter().enumerate() {
        let full = ((run.bytes.end - run.bytes.start) / LEAF_BYTES) as usize;
        match tensors[run.tensor].read(run.bytes.clone()) {
            Bytes::Contiguous(bytes) => {
                let (leaves, _) = bytes.as_chunks();
                full_leaves(leaves, &mut levels[index][..full], engine, scratch);
            }
            Bytes::Scattered(mut bytes) => {
                let together = bytes.together().min(most_gathered as u64) / LEAF_BYTES;
                let mut gathered = std::mem::take(&mut scratch.gathered);
                for states in levels[index][..full].chunks_mut(together.max(1) as usize) {
                    gathered.resize(states.len() * LEAF_BYTES as usize, 0);
                    bytes.read(&mut gathered)?;
                    full_leaves(gathered.as_chunks().0, states, engine, scratch);
                }
                scratch.gathered = gathered;
            }
        }
        others.extend((full as u64..levels[index].len() as u64).map(|leaf| (index, leaf)));
    }
    other_leaves(tensors, batch, &others, &mut levels, engine)?;
    while levels.iter().any(|level| level.len() > 1) {
        pair_up(&mut levels, engine, scratch);
    }
    Ok(levels.into_iter().map(|level| level[0]).collect())
}

/// Leaves of full size that lie side by side: their blocks are hashed where they are, all lanes in step.
fn full_leaves(leaves: &[[u8; LEAF_BYTES as usize]], digests: &mut [State], engine: &Engine, scratch: &mut Scratch) {
    const BODY_END: usize = HEAD_BYTES + (LEAF_BYTES as usize - HEAD_BYTES) / BLOCK_BYTES * BLOCK_BYTES;
    let lanes = engine.choice.wide.lanes();
    for (leaves, states) in leaves.chunks(lanes).zip(digests.chunks_mut(lanes)) {
        compress_edges(states, engine, scratch, |index, edge| {
            edge[0] = LEAF_PREFIX;
            edge[1..BLOCK_BYTES].copy_from_slice(&leaves[index][..HEAD_BYTES]);
            BLOCK_BYTES
        });
        let bodies: Vec<&[u8]> = leaves.iter().map(|leaf| &leaf[HEAD_BYTES..BODY_END]).collect();
        engine.compress(states, &bodies);
        compress_edges(states, engine, scratch, |index, edge| {
            let tail = &leaves[index][BODY_END..];
            edge[..tail.len()].copy_from_slice(tail);
            pad(edge, tail.len(), 1 + LEAF_BYTES)
        });
    }
}

/// Leaves that are shorter: (position in `batch`, number in the run).
fn other_leaves<L: Logical + ?Sized>(
    tensors: &[&L],
    batch: &[Run],
    leaves: &[(usize, u64)],
    levels: &mut [Vec<State>],
    engine: &Engine,
) -> Result<()> {
    let mut waiting = leaves.iter().enumerate().map(|(id, (index, leaf))| {
        let Run { tensor, bytes, .. } = &batch[*index];
        let start = bytes.start + leaf * LEAF_BYTES;
        let bytes = start..(start + LEAF_BYTES).min(bytes.end);
        Message::new(id, &[LEAF_PREFIX], tensors[*tensor].read(bytes), LEAF_BYTES as usize)
    });
    let mut active = Vec::new();
    lanes::run(
        &mut active,
        engine.choice.wide.lanes(),
        usize::MAX,
        || waiting.next().transpose(),
        |message: Message<'_>| {
            let (index, leaf) = leaves[message.id];
            levels[index][leaf as usize] = message.state;
        },
        |states, blocks| engine.compress(states, blocks),
    )
}

/// Replaces each level by the one above it: neighbours become a node, and one without a neighbour moves up.
fn pair_up(levels: &mut [Vec<State>], engine: &Engine, scratch: &mut Scratch) {
    let pairs = levels.iter().flat_map(|level| level.as_chunks::<2>().0);
    let pairs: Vec<[State; 2]> = pairs.copied().collect();
    let mut nodes = vec![INITIAL; pairs.len()];
    let lanes = engine.choice.wide.lanes();
    for (pairs, states) in pairs.chunks(lanes).zip(nodes.chunks_mut(lanes)) {
        hash_nodes(pairs, states, engine, scratch);
    }
    let mut nodes = nodes.into_iter();
    for level in levels {
        let (pairs, lone) = level.as_chunks::<2>();
        *level = nodes.by_ref().take(pairs.len()).chain(lone.first().copied()).collect();
    }
}

/// Nodes over pairs of children, at most one for each lane.
fn hash_nodes(pairs: &[[State; 2]], states: &mut [State], engine: &Engine, scratch: &mut Scratch) {
    compress_edges(states, engine, scratch, |index, edge| {
        edge[0] = NODE_PREFIX;
        let children = pairs[index].iter().flatten();
        for (bytes, word) in edge[1..].as_chunks_mut::<4>().0.iter_mut().zip(children) {
            *bytes = word.to_be_bytes();
        }
        let length = 1 + 2 * Digest::BYTES;
        pad(edge, length, length as u64)
    });
}

/// Advances each state over the blocks that `fill` writes for it; `fill` gives how many bytes they are, the same for all.
fn compress_edges(
    states: &mut [State],
    engine: &Engine,
    scratch: &mut Scratch,
    fill: impl Fn(usize, &mut [u8; EDGE_BYTES]) -> usize,
) {
    scratch.edges.resize(states.len() * EDGE_BYTES, 0);
    let (edges, _) = scratch.edges.as_chunks_mut::<EDGE_BYTES>();
    let lengths: Vec<usize> = edges.iter_mut().enumerate().map(|(index, edge)| fill(index, edge)).collect();
    let blocks: Vec<&[u8]> = edges.iter().zip(lengths).map(|(edge, length)| &edge[..length]).collect();
    engine.compress(states, &blocks);
}

/// The roots of a tensor's runs on their way to one root. They come in any order and are kept only until their
/// neighbours have come: a few that are early, and one subtree for each power of two.
#[derive(Default)]
struct Fold {
    /// The number of the run that is folded next.
    next: u64,
    early: BTreeMap<u64, State>,
    /// (height above a run, root), left to right, the heights falling.
    subtrees: Vec<(u32, State)>,
}

impl Fold {
    fn add(&mut self, number: u64, root: State, engine: &Engine) {
        self.early.insert(number, root);
        while let Some(mut root) = self.early.remove(&self.next) {
            let mut height = 0;
            while self.subtrees.last().is_some_and(|(other, _)| *other == height) {
                let (_, left) = self.subtrees.pop().expect("it has a last one");
                root = node(left, root, engine);
                height += 1;
            }
            self.subtrees.push((height, root));
            self.next += 1;
        }
    }

    /// The root of all: the smaller subtrees on the right first. Without leaves, the hash of no bytes.
    fn root(self, engine: &Engine) -> State {
        debug_assert!(self.early.is_empty());
        let joined =
            self.subtrees.into_iter().map(|(_, root)| root).rev().reduce(|right, left| node(left, right, engine));
        joined.unwrap_or_else(|| {
            let mut edge = [0; EDGE_BYTES];
            let length = pad(&mut edge, 0, 0);
            let mut state = [INITIAL];
            engine.compress(&mut state, &[&edge[..length]]);
            state[0]
        })
    }
}

fn node(left: State, right: State, engine: &Engine) -> State {
    let mut state = [INITIAL];
    hash_nodes(&[[left, right]], &mut state, engine, &mut Scratch::default());
    state[0]
}
