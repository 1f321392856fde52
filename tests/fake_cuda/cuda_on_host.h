// Lets a C++ compiler build src/cuda/*.cu unchanged for the host, with -fsanitize=alignment; threads.cpp runs what
// comes out. Warps do not exist (no shuffles, no votes).
#pragma once

// Before the macros below: the C++ library uses __noinline__ as a name of its own.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __constant__
// One kernel runs at a time in the whole process, one block of it at a time.
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct dim3 {
    unsigned x, y, z;
};

// A GPU refuses to load or store one of these at an address that is not a multiple of its alignment; so does
// -fsanitize=alignment.
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

// Set by threads.cpp whenever another thread of the block goes on.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

// Returns when all threads of the block that have not ended are here.
void __syncthreads();
inline void __syncwarp(unsigned = ~0u) { __syncthreads(); }
inline void __threadfence() {}
inline void __threadfence_block() {}
[[noreturn]] inline void __trap() { std::abort(); }

// Byte i of the result is the byte of y:x that nibble i of selector names (bit 3, which repeats a sign, is not used).
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int byte = 0; byte < 4; byte++) {
        unsigned which = selector >> (4 * byte) & 7;
        result |= (unsigned)(both >> (8 * which) & 0xff) << (8 * byte);
    }
    return result;
}

inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)((((unsigned long long)high << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}

inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)((unsigned long long)x * y >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
    unsigned result = 0;
    for (int bit = 0; bit < 32; bit++) result |= (x >> bit & 1) << (31 - bit);
    return result;
}

// Loads and stores that tell a GPU what to keep in its caches.
template <class T> inline T __ldg(const T *from) { return *from; }
template <class T> inline T __ldcs(const T *from) { return *from; }
template <class T> inline T __ldcg(const T *from) { return *from; }
template <class T> inline void __stcs(T *to, T value) { *to = value; }
template <class T> inline void __stcg(T *to, T value) { *to = value; }
