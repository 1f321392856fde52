// SHA-256's compression function for one thread, spread over the two pipes that a multiprocessor has for integers:
//   integer pipe   funnel shifts, logic, byte permutes
//   FMA pipe       multiplications: x * 1 + y is an addition, the high half of x * 2^(32 - n) is x >> n
// The factors come from an argument of the kernel: a compiler that knew them would turn the products back.
#pragma once

#include "tensor.cuh"

#define SHA256_CONSTANTS \
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, \
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, \
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, \
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, \
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, \
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, \
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, \
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2

// The same numbers for rolled loops; where a loop is unrolled they are immediate operands.
static __constant__ const u32 ROUND_CONSTANTS[64] = {SHA256_CONSTANTS};

struct State {
    u32 h[8];
};

// Factors whose values the compiler does not know.
struct Factors {
    u32 one, right_3, right_10;
};

__device__ __forceinline__ Factors factors(u32 one) {
    return {one, one << (32 - 3), one << (32 - 10)};
}

__device__ __forceinline__ State initial_state() {
    return {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

#ifdef __CUDACC__
// Inline PTX, or the compiler would take the common factor out of sums and add on the integer pipe.
__device__ __forceinline__ u32 multiply_add(u32 x, u32 factor, u32 y) {
    u32 sum;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(factor), "r"(y));
    return sum;
}

// The high half of mul.wide. mul.hi gives as many instructions; which of the two a device does faster was not measured.
__device__ __forceinline__ u32 high_product(u32 x, u32 factor) {
    u32 high;
    asm("{.reg .u64 product; .reg .u32 low; mul.wide.u32 product, %1, %2; mov.b64 {low, %0}, product;}"
        : "=r"(high) : "r"(x), "r"(factor));
    return high;
}
#else
static inline u32 multiply_add(u32 x, u32 factor, u32 y) { return x * factor + y; }
static inline u32 high_product(u32 x, u32 factor) { return (u32)((u64)x * factor >> 32); }
#endif

// The bytes of a message are one place further than those of its leaf, and the first of each four is the highest:
// the last byte of the word before, then three of this one.
__device__ __forceinline__ u32 message_word(u32 before, u32 word) {
    return __byte_perm(before, word, 0x3456);
}

__device__ __forceinline__ u32 rotate(u32 x, u32 by) {
    return __funnelshift_r(x, x, by);
}

// Replaces the word of round i - 16 by that of round i.
__device__ __forceinline__ void extend(u32 *words, int i, const Factors &by) {
    const u32 w1 = words[(i + 1) % 16], w14 = words[(i + 14) % 16];
    const u32 sigma_1 = rotate(w1, 7) ^ rotate(w1, 18) ^ high_product(w1, by.right_3);
    const u32 sigma_14 = rotate(w14, 17) ^ rotate(w14, 19) ^ high_product(w14, by.right_10);
    const u32 sum = multiply_add(words[i % 16], by.one, words[(i + 9) % 16]);
    words[i % 16] = multiply_add(sum, by.one, multiply_add(sigma_1, by.one, sigma_14));
}

// One of the 64 rounds. The roles of the eight words go round instead of the words.
__device__ __forceinline__ void sha256_round(State &state, int i, u32 word, u32 constant, u32 one) {
    u32 *s = state.h;
    const u32 a = s[(64 - i) % 8], b = s[(65 - i) % 8], c = s[(66 - i) % 8];
    const u32 e = s[(68 - i) % 8], f = s[(69 - i) % 8], g = s[(70 - i) % 8];
    u32 &d = s[(67 - i) % 8], &h = s[(71 - i) % 8];
    const u32 sigma_e = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const u32 sigma_a = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    u32 sum = multiply_add(multiply_add(word, one, constant), one, h);
    sum = multiply_add(sum, one, g ^ (e & (f ^ g)));
    sum = multiply_add(sum, one, sigma_e);
    d = multiply_add(sum, one, d);
    sum = multiply_add(sum, one, (a & b) | (c & (a | b)));
    h = multiply_add(sum, one, sigma_a);
}

__device__ __forceinline__ void add_to(State &state, const State &more, u32 one) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        state.h[i] = multiply_add(more.h[i], one, state.h[i]);
    }
}

// All 64 rounds in a row: fast, and 27 KB of instructions. Uses up the words.
__device__ __forceinline__ void compress_unrolled(State &state, u32 *words, const Factors &by) {
    constexpr u32 constants[64] = {SHA256_CONSTANTS};
    State work = state;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        if (i >= 16) {
            extend(words, i, by);
        }
        sha256_round(work, i, words[i % 16], constants[i], by.one);
    }
    add_to(state, work, by.one);
}

// Four times the same 16 rounds, for what is hashed rarely. Uses up the words.
__device__ __forceinline__ void rounds(State &work, u32 *words, const Factors &by) {
#pragma unroll 1
    for (int first = 0; first < 64; first += 16) {
        if (first > 0) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                extend(words, i, by);
            }
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            sha256_round(work, i, words[i], ROUND_CONSTANTS[first + i], by.one);
        }
    }
}

__device__ __forceinline__ void compress(State &state, u32 *words, const Factors &by) {
    State work = state;
    rounds(work, words, by);
    add_to(state, work, by.one);
}
