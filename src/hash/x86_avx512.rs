//! Sixteen messages side by side: AVX-512 has registers for all of their words, rotations, and functions of three bits.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::backend::{Backend, State};
use super::x86_wide::{self, Vector};

const LANES: usize = 16;

/// The backend of processors with AVX-512.
pub struct Avx512(());

impl Avx512 {
    /// There when the processor has AVX-512 F, BW and VL.
    pub fn try_new() -> Option<Self> {
        let there = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        there.then_some(Self(()))
    }
}

impl Backend for Avx512 {
    fn name(&self) -> &'static str {
        "avx512"
    }

    fn lanes(&self) -> usize {
        LANES
    }

    fn compress(&self, states: &mut [State], blocks: &[&[u8]]) {
        x86_wide::fill_lanes(states, blocks, |states, starts, bytes| {
            // SAFETY: this value proves the features (`try_new`). Each start is that of a slice of `bytes` bytes, a multiple of
            // 64 (`fill_lanes` has checked that).
            unsafe { compress(states, starts, bytes) };
        });
    }
}

/// # Safety
///
/// The processor has the features; `bytes` bytes, whole blocks, are readable from each start.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn compress(states: &mut [State; LANES], starts: &[*const u8; LANES], bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { x86_wide::compress::<__m512i, LANES>(states, starts, bytes) }
}

macro_rules! xor3 {
    ($a:expr, $b:expr, $c:expr) => {
        _mm512_ternarylogic_epi32::<0x96>($a, $b, $c)
    };
}

impl Vector<LANES> for __m512i {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn splat(word: u32) -> Self {
        _mm512_set1_epi32(word as i32)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn add(self, other: Self) -> Self {
        _mm512_add_epi32(self, other)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn choose(self, f: Self, g: Self) -> Self {
        _mm512_ternarylogic_epi32::<0xca>(self, f, g)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn majority(self, b: Self, c: Self) -> Self {
        _mm512_ternarylogic_epi32::<0xe8>(self, b, c)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn big_sigma_0(self) -> Self {
        xor3!(_mm512_ror_epi32::<2>(self), _mm512_ror_epi32::<13>(self), _mm512_ror_epi32::<22>(self))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn big_sigma_1(self) -> Self {
        xor3!(_mm512_ror_epi32::<6>(self), _mm512_ror_epi32::<11>(self), _mm512_ror_epi32::<25>(self))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn small_sigma_0(self) -> Self {
        xor3!(_mm512_ror_epi32::<7>(self), _mm512_ror_epi32::<18>(self), _mm512_srli_epi32::<3>(self))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn small_sigma_1(self) -> Self {
        xor3!(_mm512_ror_epi32::<17>(self), _mm512_ror_epi32::<19>(self), _mm512_srli_epi32::<10>(self))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn message_words(starts: &[*const u8; LANES], offset: usize) -> [Self; 8] {
        let swap = _mm512_set4_epi32(0x0c0d_0e0f, 0x0809_0a0b, 0x0405_0607, 0x0001_0203);
        let mut rows = [swap; 8];
        for (i, row) in rows.iter_mut().enumerate() {
            let [low, high] = lanes_of_row(i);
            // SAFETY: the caller promises 32 bytes at `offset` of every start.
            let bytes = unsafe { two(starts[low].add(offset), starts[high].add(offset)) };
            *row = _mm512_shuffle_epi8(bytes, swap);
        }
        transpose(rows)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(states: &[State; LANES]) -> [Self; 8] {
        let mut rows = [_mm512_setzero_si512(); 8];
        for (i, row) in rows.iter_mut().enumerate() {
            let [low, high] = lanes_of_row(i);
            // SAFETY: a state has 32 bytes.
            *row = unsafe { two(states[low].as_ptr().cast(), states[high].as_ptr().cast()) };
        }
        transpose(rows)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn store(words: [Self; 8], states: &mut [State; LANES]) {
        let mut rows = [[0; LANES]; 8];
        for (row, word) in rows.iter_mut().zip(words) {
            // SAFETY: a row has the 64 bytes of a register.
            unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), word) };
        }
        for (lane, state) in states.iter_mut().enumerate() {
            *state = rows.map(|row| row[lane]);
        }
    }
}

/// The two lanes that share a row, such that [`transpose`] has whole quarters to move.
const fn lanes_of_row(row: usize) -> [usize; 2] {
    let low = row / 4 * 8 + row % 4;
    [low, low + 4]
}

/// The 32 bytes at each of two places.
///
/// # Safety
///
/// They are readable, and the processor has the features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn two(low: *const u8, high: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    let [low, high] = unsafe { [_mm256_loadu_si256(low.cast()), _mm256_loadu_si256(high.cast())] };
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// From rows of eight words of two lanes to one register for each word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn transpose(rows: [__m512i; 8]) -> [__m512i; 8] {
    let [a0, a1, a2, a3] = transpose_quarters([rows[0], rows[1], rows[2], rows[3]]);
    let [b0, b1, b2, b3] = transpose_quarters([rows[4], rows[5], rows[6], rows[7]]);
    [
        _mm512_shuffle_i32x4::<0x88>(a0, b0),
        _mm512_shuffle_i32x4::<0x88>(a1, b1),
        _mm512_shuffle_i32x4::<0x88>(a2, b2),
        _mm512_shuffle_i32x4::<0x88>(a3, b3),
        _mm512_shuffle_i32x4::<0xdd>(a0, b0),
        _mm512_shuffle_i32x4::<0xdd>(a1, b1),
        _mm512_shuffle_i32x4::<0xdd>(a2, b2),
        _mm512_shuffle_i32x4::<0xdd>(a3, b3),
    ]
}

/// Transposes the 4 x 4 words in each quarter of the registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn transpose_quarters([r0, r1, r2, r3]: [__m512i; 4]) -> [__m512i; 4] {
    let (low01, high01) = (_mm512_unpacklo_epi32(r0, r1), _mm512_unpackhi_epi32(r0, r1));
    let (low23, high23) = (_mm512_unpacklo_epi32(r2, r3), _mm512_unpackhi_epi32(r2, r3));
    [
        _mm512_unpacklo_epi64(low01, low23),
        _mm512_unpackhi_epi64(low01, low23),
        _mm512_unpacklo_epi64(high01, high23),
        _mm512_unpackhi_epi64(high01, high23),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::backend_tests::check_backend;

    #[test]
    fn avx512() {
        check_backend("avx512", Avx512::try_new());
    }
}
