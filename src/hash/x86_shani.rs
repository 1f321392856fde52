//! One to four messages through the processor's SHA instructions.
//!
//! A message waits for the latency of `sha256rnds2` most of the time: 32 of them follow each other in a block. So the
//! rounds of several messages are interleaved. Four of them fill the processor when their schedules stay in registers,
//! which takes the 32 registers of AVX-512VL; the 16 of other processors are enough for three.
#![allow(unsafe_code)]

use core::arch::x86_64::*;
use core::array;

use super::backend::{BLOCK_BYTES, Backend, K, State, check};

const LANES: usize = 4;

/// The backend of processors with the SHA extensions.
pub struct ShaNi(());

impl ShaNi {
    /// There when the processor has SHA-NI and SSE 4.1.
    pub fn try_new() -> Option<Self> {
        let there = is_x86_feature_detected!("sha") && is_x86_feature_detected!("sse4.1");
        there.then_some(Self(()))
    }

    /// [`Backend::compress`], for a processor with AVX-512VL or without.
    fn interleave(&self, states: &mut [State], blocks: &[&[u8]], vl: Option<Avx512Vl>) {
        match (states.len(), vl) {
            (1, _) => self.side_by_side::<1>(states, blocks, vl),
            (2, _) => self.side_by_side::<2>(states, blocks, vl),
            (3, _) => self.side_by_side::<3>(states, blocks, vl),
            (_, Some(_)) => self.side_by_side::<4>(states, blocks, vl),
            (_, None) => {
                self.side_by_side::<2>(&mut states[..2], &blocks[..2], vl);
                self.side_by_side::<2>(&mut states[2..], &blocks[2..], vl);
            }
        }
    }

    fn side_by_side<const N: usize>(&self, states: &mut [State], blocks: &[&[u8]], vl: Option<Avx512Vl>) {
        check(N, states, blocks);
        let states = states.try_into().expect("the caller counted the states");
        let starts = array::from_fn(|i| blocks[i].as_ptr());
        let bytes = blocks[0].len();
        match vl {
            // SAFETY: `self` proves SHA-NI and SSE 4.1, the other value AVX-512VL (`try_new` of both). Each start is
            // that of a slice as long as the first one, a multiple of 64 (`check`).
            Some(_) => unsafe { with_32_registers::<N>(states, &starts, bytes) },
            // SAFETY: as above, without AVX-512VL.
            None => unsafe { with_16_registers::<N>(states, &starts, bytes) },
        }
    }
}

/// The proof that the processor has AVX-512VL, and so 32 registers.
#[derive(Clone, Copy)]
struct Avx512Vl(());

impl Avx512Vl {
    fn try_new() -> Option<Self> {
        let there = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
        there.then_some(Self(()))
    }
}

impl Backend for ShaNi {
    fn name(&self) -> &'static str {
        "shani"
    }

    fn lanes(&self) -> usize {
        LANES
    }

    fn compress(&self, states: &mut [State], blocks: &[&[u8]]) {
        check(LANES, states, blocks);
        self.interleave(states, blocks, Avx512Vl::try_new());
    }
}

/// # Safety
///
/// The processor has SHA-NI and AVX-512VL; `bytes` bytes, whole blocks, are readable from each start.
#[target_feature(enable = "sha,sse4.1,avx512f,avx512vl")]
unsafe fn with_32_registers<const N: usize>(states: &mut [State; N], starts: &[*const u8; N], bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { advance(states, starts, bytes) }
}

/// # Safety
///
/// The processor has SHA-NI and SSE 4.1; `bytes` bytes, whole blocks, are readable from each start.
#[target_feature(enable = "sha,sse4.1")]
unsafe fn with_16_registers<const N: usize>(states: &mut [State; N], starts: &[*const u8; N], bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { advance(states, starts, bytes) }
}

/// Advances all states over their blocks. Inlined into functions that differ in nothing but the registers they have.
///
/// # Safety
///
/// The processor has SHA-NI and SSE 4.1; `bytes` bytes, whole blocks, are readable from each start.
#[inline(always)]
unsafe fn advance<const N: usize>(states: &mut [State; N], starts: &[*const u8; N], bytes: usize) {
    // SAFETY: the caller promises the instructions of all intrinsics here and in the macros. A block at `offset` below
    // `bytes` is readable, and its quads are the 16 bytes at 0, 16, 32 and 48.
    unsafe {
        let swap = _mm_set_epi32(0x0c0d_0e0f, 0x0809_0a0b, 0x0405_0607, 0x0001_0203);
        let (mut abef, mut cdgh) = ([swap; N], [swap; N]);
        for i in 0..N {
            (abef[i], cdgh[i]) = load(&states[i]);
        }
        let mut offset = 0;
        while offset < bytes {
            let (abef_before, cdgh_before) = (abef, cdgh);
            // Words 4t..4t+4 of message i, for the last four quads t.
            let mut w = [[swap; N]; 4];
            // Makes the words of quad t of message i.
            macro_rules! words {
                ($t:expr, $i:expr) => {
                    if $t < 4 {
                        let quad = _mm_loadu_si128(starts[$i].add(offset + 16 * $t).cast());
                        w[$t % 4][$i] = _mm_shuffle_epi8(quad, swap);
                    } else if $t < 16 {
                        let (oldest, next) = (w[$t % 4][$i], w[($t + 1) % 4][$i]);
                        let (last_but_one, last) = (w[($t + 2) % 4][$i], w[($t + 3) % 4][$i]);
                        let seven_ago = _mm_alignr_epi8::<4>(last, last_but_one);
                        let sum = _mm_add_epi32(_mm_sha256msg1_epu32(oldest, next), seven_ago);
                        w[$t % 4][$i] = _mm_sha256msg2_epu32(sum, last);
                    }
                };
            }
            // Four rounds of every message, and the words of the next four: this order measured best.
            macro_rules! quad {
                ($t:expr) => {{
                    let k = _mm_loadu_si128(K.as_ptr().add(4 * $t).cast());
                    let mut wk = [swap; N];
                    for i in 0..N {
                        wk[i] = _mm_add_epi32(w[$t % 4][i], k);
                        cdgh[i] = _mm_sha256rnds2_epu32(cdgh[i], abef[i], wk[i]);
                    }
                    for i in 0..N {
                        abef[i] = _mm_sha256rnds2_epu32(abef[i], cdgh[i], _mm_shuffle_epi32::<0x0e>(wk[i]));
                        words!($t + 1, i);
                    }
                }};
            }
            for i in 0..N {
                words!(0, i);
            }
            quad!(0);
            quad!(1);
            quad!(2);
            quad!(3);
            quad!(4);
            quad!(5);
            quad!(6);
            quad!(7);
            quad!(8);
            quad!(9);
            quad!(10);
            quad!(11);
            quad!(12);
            quad!(13);
            quad!(14);
            quad!(15);
            for i in 0..N {
                abef[i] = _mm_add_epi32(abef[i], abef_before[i]);
                cdgh[i] = _mm_add_epi32(cdgh[i], cdgh_before[i]);
            }
            offset += BLOCK_BYTES;
        }
        for i in 0..N {
            store(&mut states[i], abef[i], cdgh[i]);
        }
    }
}

/// The state in the order of the SHA instructions: words f, e, b, a and h, g, d, c, from the lowest lane up.
///
/// # Safety
///
/// The processor has SSE 4.1.
#[inline(always)]
unsafe fn load(state: &State) -> (__m128i, __m128i) {
    let words: *const __m128i = state.as_ptr().cast();
    // SAFETY: the caller's promise; a state has 32 bytes.
    unsafe {
        let (dcba, hgfe) = (_mm_loadu_si128(words), _mm_loadu_si128(words.add(1)));
        let (cdab, efgh) = (_mm_shuffle_epi32::<0xb1>(dcba), _mm_shuffle_epi32::<0x1b>(hgfe));
        (_mm_alignr_epi8::<8>(cdab, efgh), _mm_blend_epi16::<0xf0>(efgh, cdab))
    }
}

/// Undoes [`load`].
///
/// # Safety
///
/// The processor has SSE 4.1.
#[inline(always)]
unsafe fn store(state: &mut State, abef: __m128i, cdgh: __m128i) {
    let words: *mut __m128i = state.as_mut_ptr().cast();
    // SAFETY: the caller's promise; a state has 32 bytes.
    unsafe {
        let (feba, dchg) = (_mm_shuffle_epi32::<0x1b>(abef), _mm_shuffle_epi32::<0xb1>(cdgh));
        _mm_storeu_si128(words, _mm_blend_epi16::<0xf0>(feba, dchg));
        _mm_storeu_si128(words.add(1), _mm_alignr_epi8::<8>(dchg, feba));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::backend_tests::check_backend;

    #[test]
    fn shani() {
        check_backend("shani", ShaNi::try_new());
    }

    /// What a processor without AVX-512 runs.
    struct With16Registers(ShaNi);

    impl Backend for With16Registers {
        fn name(&self) -> &'static str {
            "shani with 16 registers"
        }

        fn lanes(&self) -> usize {
            LANES
        }

        fn compress(&self, states: &mut [State], blocks: &[&[u8]]) {
            check(LANES, states, blocks);
            self.0.interleave(states, blocks, None);
        }
    }

    #[test]
    fn shani_without_avx512() {
        check_backend("shani", ShaNi::try_new().map(With16Registers));
    }
}
