// What the host tells the kernels of a tensor; `table.rs` has the same structs.
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// A tensor in device memory. Logical bytes are its elements in row-major order, without gaps.
struct Tensor {
    u64 start;   // address of the first element
    u64 bytes;   // logical bytes, at least 1
    u64 block;   // bytes that lie side by side; all of them when there are no dims
    u32 dims;    // index of its first Dim
    u32 ndims;   // number of its Dims, 0 to 32, outermost first; the blocks are inside of them
    u32 grain;   // 1, 2, 4, 8 or 16: divides start, block and all strides, so that so many bytes are one aligned access
    u32 root;    // index of its first root, for the kernels that write roots (modulo 2^32)
};

// One dimension of the blocks of a tensor.
struct Dim {
    u64 count;
    u64 stride;  // bytes
};

// Part of a tensor: what one thread block works on.
struct Chunk {
    u32 tensor;  // index of its Tensor
    u32 number;  // which of the tensor's chunks
};
