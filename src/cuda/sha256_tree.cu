// The tree of `sha256-tree` (RFC 9162, section 2.1.1) on the device: leaves of 8,192 logical bytes, one thread a leaf.
// A thread block hashes a chunk of 128 leaves and reduces it to one root. A digest is the eight numbers of a state.
//
// Full leaves are limited by the integer pipe: see sha256.cuh. tests/kernels/instructions.py counts each pipe's work.
#include "cursor.cuh"
#include "sha256.cuh"
#include "tensor.cuh"

#define LEAF_BYTES 8192
#define LEAVES 128  // of a chunk, and the threads of a block

// Thread blocks that a multiprocessor can hold: bounds a thread to 64 registers.
#define RESIDENT 8

// What wc_hash_nodes reduces to one digest.
struct Run {
    u32 first;  // index of its first digest
    u32 count;  // 1 to 256
    u32 out;    // index of its root
};

// SHA-256 of 0x01, left, right.
__device__ __forceinline__ State node(const State &left, const State &right, const Factors &by) {
    State state = initial_state();
    u32 words[16];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        words[i] = __funnelshift_r(left.h[i], i > 0 ? left.h[i - 1] : 0x01, 8);
        words[8 + i] = __funnelshift_r(right.h[i], i > 0 ? right.h[i - 1] : left.h[7], 8);
    }
    const u32 last = right.h[7];
#pragma unroll 1
    for (int block = 0; block < 2; block++) {
        compress(state, words, by);
#pragma unroll
        for (int i = 1; i < 15; i++) {
            words[i] = 0;
        }
        words[0] = last << 24 | 0x800000;
        words[15] = 65 * 8;
    }
    return state;
}

// Shared memory: one digest a thread.
typedef u32 Digests[8][LEAVES];

__device__ __forceinline__ void put(Digests &digests, u32 index, const State &digest) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        digests[i][index] = digest.h[i];
    }
}

__device__ __forceinline__ State get(const Digests &digests, u32 index) {
    State digest;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        digest.h[i] = digests[i][index];
    }
    return digest;
}

// The root of the first `count` digests, at least one, goes to root[0..8]. Each thread has put its own.
__device__ __forceinline__ void reduce(Digests &digests, u32 count, u32 *root, const Factors &by) {
    const u32 left = 2 * threadIdx.x, right = left + 1;
#pragma unroll 1
    for (; count > 1; count = (count + 1) / 2) {
        State state;
        __syncthreads();
        if (left < count) {
            state = get(digests, left);
            if (right < count) {  // without a right neighbour it moves up as it is
                state = node(state, get(digests, right), by);
            }
        }
        __syncthreads();
        if (left < count) {
            put(digests, threadIdx.x, state);
        }
    }
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            root[i] = digests[i][0];
        }
    }
}

__device__ __forceinline__ u32 *root_of(u32 *roots, const Tensor &tensor, const Chunk &chunk) {
    return &roots[8 * (u64)(tensor.root + chunk.number)];
}

// The chunks whose leaves are all full, of tensors whose bytes lie side by side, aligned to 16.
extern "C" __global__ void __launch_bounds__(LEAVES, RESIDENT)
wc_hash_full_leaves(const Tensor *tensors, const Chunk *chunks, u32 *roots, u32 one) {
    __shared__ Digests digests;
    const Chunk chunk = chunks[blockIdx.x];
    const Tensor &tensor = tensors[chunk.tensor];
    const Factors by = factors(one);
    u64 at = tensor.start + ((u64)chunk.number * LEAVES + threadIdx.x) * LEAF_BYTES;
    State state = initial_state();
    u32 words[16];
    u32 before = 0;  // its last byte is the next of the message: at the start 0x00, the prefix of leaves
#pragma unroll 1
    for (const u64 end = at + LEAF_BYTES; at != end; at += 64) {
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            const uint4 read = load<uint4>(at + 4 * i);
            words[i] = message_word(before, read.x);
            words[i + 1] = message_word(read.x, read.y);
            words[i + 2] = message_word(read.y, read.z);
            words[i + 3] = message_word(read.z, read.w);
            before = read.w;
        }
        compress_unrolled(state, words, by);
    }
#pragma unroll
    for (int i = 1; i < 15; i++) {
        words[i] = 0;
    }
    words[0] = message_word(before, 0x80);
    words[15] = (LEAF_BYTES + 1) * 8;
    compress(state, words, by);
    put(digests, threadIdx.x, state);
    reduce(digests, LEAVES, root_of(roots, tensor, chunk), by);
}

// Reads a leaf and the byte that follows it in its message, 0x80.
struct Leaf {
    Cursor cursor;
    u64 inner_stride;
    u32 left;  // bytes
    u32 next;  // what follows when none is left: 0x80, and then zeros
};

// The next grain of a leaf, as a little-endian number.
__device__ __forceinline__ Sixteen next_grain(Leaf &leaf, const Tensor &tensor, const Dim *dims) {
    Sixteen grain = {leaf.next, 0};
    if (leaf.left == 0) {
        leaf.next = 0;
        return grain;
    }
    const u64 at = leaf.cursor.at;
    switch (tensor.grain) {
    case 16: {
        const uint4 read = load<uint4>(at);
        grain = {(u64)read.y << 32 | read.x, (u64)read.w << 32 | read.z};
        break;
    }
    case 8: grain.low = load<u64>(at); break;
    case 4: grain.low = load<u32>(at); break;
    case 2: grain.low = load<unsigned short>(at); break;
    default: grain.low = load<u8>(at); break;
    }
    leaf.left -= tensor.grain;
    advance(leaf.cursor, tensor, dims, leaf.inner_stride);
    return grain;
}

// Sixteen bytes in grains that are `step` bytes apart.
template <typename Grain>
__device__ __forceinline__ Sixteen sixteen_at(u64 at, u64 step) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        words[i] = 0;
#pragma unroll
        for (int j = 0; j < 4 / (int)sizeof(Grain); j++) {
            words[i] |= (u32)load<Grain>(at) << (8 * sizeof(Grain) * j);
            at += step;
        }
    }
    return {(u64)words[1] << 32 | words[0], (u64)words[3] << 32 | words[2]};
}

// Sixteen bytes of small grains that all are in one block, or in blocks of one grain in one row: nothing ends between
// them. False when it does, and nothing is read.
__device__ __forceinline__ bool sixteen_in_line(Sixteen &all, Leaf &leaf, const Tensor &tensor) {
    Cursor &cursor = leaf.cursor;
    const u32 grain = tensor.grain, count = 16 / grain;
    if (leaf.left < 16 || grain > 4) {
        return false;
    }
    u64 step = grain;
    if (cursor.in_block > 16) {
        cursor.in_block -= 16;
    } else if (tensor.block == grain && cursor.in_row > count) {
        step = leaf.inner_stride;
        cursor.in_row -= count;
        cursor.number += count;
    } else {
        return false;
    }
    switch (grain) {
    case 4: all = sixteen_at<u32>(cursor.at, step); break;
    case 2: all = sixteen_at<unsigned short>(cursor.at, step); break;
    default: all = sixteen_at<u8>(cursor.at, step); break;
    }
    cursor.at += count * step;
    leaf.left -= 16;
    return true;
}

// Grains follow each other from low to high; each new one pushes those before it down.
__device__ __forceinline__ Sixteen next_sixteen(Leaf &leaf, const Tensor &tensor, const Dim *dims) {
    Sixteen all = {0, 0};
    if (sixteen_in_line(all, leaf, tensor)) {
        return all;
    }
#pragma unroll 1
    for (u32 filled = 0; filled < 16; filled += tensor.grain) {
        const Sixteen grain = next_grain(leaf, tensor, dims);
        if (tensor.grain >= 8) {
            all = tensor.grain == 16 ? grain : Sixteen{all.high, grain.low};
        } else {
            const u32 bits = 8 * tensor.grain;
            all.low = all.low >> bits | all.high << (64 - bits);
            all.high = all.high >> bits | grain.low << (64 - bits);
        }
    }
    return all;
}

// Puts the leaf's digest. The state is kept in shared memory between blocks: reading any layout needs the registers.
__device__ __forceinline__ void hash_leaf(Leaf &leaf, const Tensor &tensor, const Dim *dims, Digests &digests,
                                          const Factors &by) {
    volatile Digests &kept = digests;  // volatile, or the compiler would move it to registers
    put(digests, threadIdx.x, initial_state());
    const u32 bytes = leaf.left + 1;  // of the message: the prefix, the leaf
    u32 before = 0;
    u32 words[16] = {};
#pragma unroll 1
    for (u32 block = (bytes + 9 + 63) / 64; block-- > 0;) {
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            const Sixteen read = next_sixteen(leaf, tensor, dims);
#pragma unroll
            for (int word = 0; word < 12; word++) {
                words[word] = words[word + 4];
            }
            words[12] = message_word(before, (u32)read.low);
            words[13] = message_word((u32)read.low, (u32)(read.low >> 32));
            words[14] = message_word((u32)(read.low >> 32), (u32)read.high);
            words[15] = message_word((u32)read.high, (u32)(read.high >> 32));
            before = (u32)(read.high >> 32);
        }
        if (block == 0) {
            words[15] = bytes * 8;
        }
        State work;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            work.h[i] = kept[i][threadIdx.x];
        }
        rounds(work, words, by);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            kept[i][threadIdx.x] = multiply_add(work.h[i], by.one, kept[i][threadIdx.x]);
        }
    }
}

// Chunks of any layout and any length.
extern "C" __global__ void __launch_bounds__(LEAVES, RESIDENT)
wc_hash_leaves(const Tensor *tensors, const Dim *dims, const Chunk *chunks, u32 *roots, u32 one) {
    __shared__ Digests digests;
    const Chunk chunk = chunks[blockIdx.x];
    const Tensor &tensor = tensors[chunk.tensor];
    const Factors by = factors(one);
    const u64 first = (u64)chunk.number * LEAVES * LEAF_BYTES, position = first + threadIdx.x * LEAF_BYTES;
    if (position < tensor.bytes) {
        const u64 left = tensor.bytes - position;
        Leaf leaf = {cursor_at(position, tensor, dims), 0, left < LEAF_BYTES ? (u32)left : LEAF_BYTES, 0x80};
        if (tensor.ndims > 0) {
            leaf.inner_stride = dims[tensor.dims + tensor.ndims - 1].stride;
        }
        hash_leaf(leaf, tensor, dims, digests, by);
    }
    const u64 leaves = (tensor.bytes - first + LEAF_BYTES - 1) / LEAF_BYTES;
    reduce(digests, leaves < LEAVES ? (u32)leaves : LEAVES, root_of(roots, tensor, chunk), by);
}

__device__ __forceinline__ State digest_at(const u32 *digests, u64 index) {
    State digest;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        digest.h[i] = digests[8 * index + i];
    }
    return digest;
}

// One thread block a run.
extern "C" __global__ void __launch_bounds__(LEAVES, RESIDENT)
wc_hash_nodes(const Run *runs, const u32 *in, u32 *out, u32 one) {
    __shared__ Digests digests;
    const Run run = runs[blockIdx.x];
    const Factors by = factors(one);
    const u32 left = 2 * threadIdx.x, right = left + 1;
    if (left < run.count) {
        State state = digest_at(in, (u64)run.first + left);
        if (right < run.count) {
            state = node(state, digest_at(in, (u64)run.first + right), by);
        }
        put(digests, threadIdx.x, state);
    }
    reduce(digests, (run.count + 1) / 2, &out[8 * (u64)run.out], by);
}
