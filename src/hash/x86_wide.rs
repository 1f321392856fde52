//! The rounds of messages side by side, written once for every width of vector.
//!
//! Word i of all messages is one vector, so a round is the same instructions as for one message, on vectors.
#![allow(unsafe_code)]

use core::array;

use super::backend::{BLOCK_BYTES, K, State, check};

/// Vectors of 32-bit words, one word of each of `LANES` messages.
///
/// # Safety
///
/// All functions: the processor has the instructions that the vector stands for.
pub(super) trait Vector<const LANES: usize>: Copy {
    /// One word for every message.
    unsafe fn splat(word: u32) -> Self;
    /// The sums modulo 2^32.
    unsafe fn add(self, other: Self) -> Self;
    /// FIPS 180-4's Ch of `self`, `f` and `g`.
    unsafe fn choose(self, f: Self, g: Self) -> Self;
    /// FIPS 180-4's Maj of `self`, `b` and `c`.
    unsafe fn majority(self, b: Self, c: Self) -> Self;
    unsafe fn big_sigma_0(self) -> Self;
    unsafe fn big_sigma_1(self) -> Self;
    unsafe fn small_sigma_0(self) -> Self;
    unsafe fn small_sigma_1(self) -> Self;

    /// Eight big-endian words from `offset` on of every message. Those 32 bytes must be readable.
    unsafe fn message_words(starts: &[*const u8; LANES], offset: usize) -> [Self; 8];
    /// The words of the states.
    unsafe fn load(states: &[State; LANES]) -> [Self; 8];
    /// Undoes [`load`](Vector::load).
    unsafe fn store(words: [Self; 8], states: &mut [State; LANES]);
}

/// Calls `compress` with `LANES` states and as many starts of blocks, and the bytes of each: those of the messages given,
/// of which some come twice when they are fewer, so that every lane has work that is safe.
pub(super) fn fill_lanes<const LANES: usize>(
    states: &mut [State],
    blocks: &[&[u8]],
    compress: impl FnOnce(&mut [State; LANES], &[*const u8; LANES], usize),
) {
    check(LANES, states, blocks);
    let starts: [_; LANES] = array::from_fn(|lane| blocks[lane % blocks.len()].as_ptr());
    let mut all: [_; LANES] = array::from_fn(|lane| states[lane % states.len()]);
    compress(&mut all, &starts, blocks[0].len());
    states.copy_from_slice(&all[..states.len()]);
}

/// Advances the states over their blocks. Fast only when inlined into a function that is compiled for what `V` needs.
///
/// # Safety
///
/// The processor has what `V` stands for, and `bytes` bytes, whole blocks, are readable from each start.
#[inline(always)]
pub(super) unsafe fn compress<V: Vector<LANES>, const LANES: usize>(
    states: &mut [State; LANES],
    starts: &[*const u8; LANES],
    bytes: usize,
) {
    // SAFETY: the caller's promise, for all calls in here; a block below `bytes` is readable, and its words are the
    // 32 bytes at 0 and at 32.
    unsafe {
        let mut s = V::load(states);
        let mut offset = 0;
        while offset < bytes {
            let before = s;
            let [low, high] = [V::message_words(starts, offset), V::message_words(starts, offset + 32)];
            // The last 16 words: word t is at t % 16.
            let mut w = [
                low[0], low[1], low[2], low[3], low[4], low[5], low[6], low[7], //
                high[0], high[1], high[2], high[3], high[4], high[5], high[6], high[7],
            ];
            // Word t of the schedule, in the place of word t - 16.
            macro_rules! word {
                ($t:expr) => {
                    if 16 <= $t && $t < 64 {
                        let sum = w[$t % 16].add(w[($t + 9) % 16]).add(w[($t + 1) % 16].small_sigma_0());
                        w[$t % 16] = sum.add(w[($t + 14) % 16].small_sigma_1());
                    }
                };
            }
            // Round t. Nothing moves: the variable that was h before the round is a after it.
            macro_rules! round {
                ($t:expr) => {{
                    word!($t + AHEAD);
                    const A: usize = (64 - $t) % 8;
                    let [b, c, d, e] = [(A + 1) % 8, (A + 2) % 8, (A + 3) % 8, (A + 4) % 8];
                    let [f, g, h] = [(A + 5) % 8, (A + 6) % 8, (A + 7) % 8];
                    let wk = w[$t % 16].add(V::splat(K[$t]));
                    let t1 = s[h].add(wk).add(s[e].choose(s[f], s[g])).add(s[e].big_sigma_1());
                    s[d] = s[d].add(t1);
                    s[h] = t1.add(s[A].majority(s[b], s[c])).add(s[A].big_sigma_0());
                }};
            }
            macro_rules! rounds {
                ($($t:expr)+) => { $(
                    round!(8 * $t);
                    round!(8 * $t + 1);
                    round!(8 * $t + 2);
                    round!(8 * $t + 3);
                    round!(8 * $t + 4);
                    round!(8 * $t + 5);
                    round!(8 * $t + 6);
                    round!(8 * $t + 7);
                )+ };
            }
            rounds!(0 1 2 3 4 5 6 7);
            for i in 0..8 {
                s[i] = s[i].add(before[i]);
            }
            offset += BLOCK_BYTES;
        }
        V::store(s, states);
    }
}

/// By how many rounds a word of the schedule is made before it is used. Measured: 2 is best, 0 costs 3 %.
const AHEAD: usize = 2;
