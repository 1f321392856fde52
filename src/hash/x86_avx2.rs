//! Eight messages side by side with AVX2, for processors that have no SHA instructions.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::backend::{Backend, State};
use super::x86_wide::{self, Vector};

const LANES: usize = 8;

/// The backend of processors with AVX2.
pub struct Avx2(());

impl Avx2 {
    /// There when the processor has AVX2.
    pub fn try_new() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

impl Backend for Avx2 {
    fn name(&self) -> &'static str {
        "avx2"
    }

    fn lanes(&self) -> usize {
        LANES
    }

    fn compress(&self, states: &mut [State], blocks: &[&[u8]]) {
        x86_wide::fill_lanes(states, blocks, |states, starts, bytes| {
            // SAFETY: this value proves AVX2 (`try_new`). Each start is that of a slice of `bytes` bytes, a multiple of
            // 64 (`fill_lanes` has checked that).
            unsafe { compress(states, starts, bytes) };
        });
    }
}

/// # Safety
///
/// The processor has AVX2; `bytes` bytes, whole blocks, are readable from each start.
#[target_feature(enable = "avx2")]
unsafe fn compress(states: &mut [State; LANES], starts: &[*const u8; LANES], bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { x86_wide::compress::<__m256i, LANES>(states, starts, bytes) }
}

/// The exclusive or of rotations to the right; `>>` is a shift.
macro_rules! xor {
    ($x:expr, $a:literal $b:literal $c:literal) => {
        _mm256_xor_si256(xor!($x, $a $b), xor!($x, $c))
    };
    ($x:expr, $a:literal $b:literal >> $c:literal) => {
        _mm256_xor_si256(xor!($x, $a $b), _mm256_srli_epi32::<$c>($x))
    };
    ($x:expr, $a:literal $b:literal) => {
        _mm256_xor_si256(xor!($x, $a), xor!($x, $b))
    };
    ($x:expr, $a:literal) => {
        _mm256_xor_si256(_mm256_srli_epi32::<$a>($x), _mm256_slli_epi32::<{ 32 - $a }>($x))
    };
}

impl Vector<LANES> for __m256i {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn splat(word: u32) -> Self {
        _mm256_set1_epi32(word as i32)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn add(self, other: Self) -> Self {
        _mm256_add_epi32(self, other)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn choose(self, f: Self, g: Self) -> Self {
        _mm256_xor_si256(g, _mm256_and_si256(self, _mm256_xor_si256(f, g)))
    }

    /// Written so that the compiler keeps a ^ b for the next round, where it is b ^ c.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn majority(self, b: Self, c: Self) -> Self {
        _mm256_xor_si256(b, _mm256_and_si256(_mm256_xor_si256(self, b), _mm256_xor_si256(b, c)))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn big_sigma_0(self) -> Self {
        xor!(self, 2 13 22)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn big_sigma_1(self) -> Self {
        xor!(self, 6 11 25)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn small_sigma_0(self) -> Self {
        xor!(self, 7 18 >> 3)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn small_sigma_1(self) -> Self {
        xor!(self, 17 19 >> 10)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn message_words(starts: &[*const u8; LANES], offset: usize) -> [Self; 8] {
        let swap = _mm_set_epi32(0x0c0d_0e0f, 0x0809_0a0b, 0x0405_0607, 0x0001_0203);
        let swap = _mm256_broadcastsi128_si256(swap);
        let mut rows = [swap; LANES];
        for (row, start) in rows.iter_mut().zip(starts) {
            // SAFETY: the caller promises 32 bytes at `offset` of every start.
            let bytes = unsafe { _mm256_loadu_si256(start.add(offset).cast()) };
            *row = _mm256_shuffle_epi8(bytes, swap);
        }
        transpose(rows)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(states: &[State; LANES]) -> [Self; 8] {
        let mut rows = [_mm256_setzero_si256(); LANES];
        for (row, state) in rows.iter_mut().zip(states) {
            // SAFETY: a state has 32 bytes.
            *row = unsafe { _mm256_loadu_si256(state.as_ptr().cast()) };
        }
        transpose(rows)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn store(words: [Self; 8], states: &mut [State; LANES]) {
        for (row, state) in transpose(words).into_iter().zip(states) {
            // SAFETY: a state has 32 bytes.
            unsafe { _mm256_storeu_si256(state.as_mut_ptr().cast(), row) };
        }
    }
}

/// Transposes 8 x 8 words.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
    let [a0, a1, a2, a3] = transpose_halves([rows[0], rows[1], rows[2], rows[3]]);
    let [b0, b1, b2, b3] = transpose_halves([rows[4], rows[5], rows[6], rows[7]]);
    [
        _mm256_permute2x128_si256::<0x20>(a0, b0),
        _mm256_permute2x128_si256::<0x20>(a1, b1),
        _mm256_permute2x128_si256::<0x20>(a2, b2),
        _mm256_permute2x128_si256::<0x20>(a3, b3),
        _mm256_permute2x128_si256::<0x31>(a0, b0),
        _mm256_permute2x128_si256::<0x31>(a1, b1),
        _mm256_permute2x128_si256::<0x31>(a2, b2),
        _mm256_permute2x128_si256::<0x31>(a3, b3),
    ]
}

/// Transposes the 4 x 4 words in each half of the registers.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_halves([r0, r1, r2, r3]: [__m256i; 4]) -> [__m256i; 4] {
    let (low01, high01) = (_mm256_unpacklo_epi32(r0, r1), _mm256_unpackhi_epi32(r0, r1));
    let (low23, high23) = (_mm256_unpacklo_epi32(r2, r3), _mm256_unpackhi_epi32(r2, r3));
    [
        _mm256_unpacklo_epi64(low01, low23),
        _mm256_unpackhi_epi64(low01, low23),
        _mm256_unpacklo_epi64(high01, high23),
        _mm256_unpackhi_epi64(high01, high23),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::backend_tests::check_backend;

    #[test]
    fn avx2() {
        check_backend("avx2", Avx2::try_new());
    }
}
