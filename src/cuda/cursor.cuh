// Reads the logical bytes of a tensor of any layout in order, never a byte that is not of its elements.
#pragma once

#include "tensor.cuh"

// Addresses are numbers, so the compiler has to be told that they are of global memory and that nobody writes there.
template <typename T>
__device__ __forceinline__ T load(u64 address) {
    return __ldg((const T *)address);
}

// 16 bytes as two little-endian numbers.
struct Sixteen {
    u64 low, high;
};

// Where a thread reads. An index per dimension would be an array in local memory: only the innermost dimension is
// counted, and at the end of its row the place is computed anew from the number of the block.
struct Cursor {
    u64 at;        // address of the next byte
    u64 number;    // which block
    u32 in_block;  // bytes left in it
    u32 in_row;    // blocks left in its row, this one included
};

// A count of what is left, for a thread that does not read so far: fewer registers than the number itself.
__device__ __forceinline__ u32 capped(u64 count) {
    return count < 0xffffffff ? (u32)count : 0xffffffff;
}

// The block `number`, at its start.
__device__ __forceinline__ void find_block(Cursor &cursor, const Tensor &tensor, const Dim *dims) {
    u64 rest = cursor.number;
    cursor.at = tensor.start;
    cursor.in_block = capped(tensor.block);
    cursor.in_row = 0xffffffff;
#pragma unroll 1
    for (u32 dim = tensor.ndims; dim-- > 0;) {
        const Dim outer = dims[tensor.dims + dim];
        const u64 index = rest % outer.count;
        rest /= outer.count;
        cursor.at += index * outer.stride;
        if (dim + 1 == tensor.ndims) {
            cursor.in_row = capped(outer.count - index);
        }
    }
}

__device__ __forceinline__ Cursor cursor_at(u64 position, const Tensor &tensor, const Dim *dims) {
    Cursor cursor;
    cursor.number = position / tensor.block;
    find_block(cursor, tensor, dims);
    const u64 offset = position % tensor.block;
    cursor.at += offset;
    cursor.in_block = capped(tensor.block - offset);
    return cursor;
}

// Goes on by one grain. Behind the last element the cursor is nowhere, and is not read any more.
__device__ __forceinline__ void advance(Cursor &cursor, const Tensor &tensor, const Dim *dims, u64 inner_stride) {
    cursor.at += tensor.grain;
    cursor.in_block -= tensor.grain;
    if (cursor.in_block == 0) {
        cursor.number += 1;
        cursor.in_row -= 1;
        if (cursor.in_row == 0) {
            find_block(cursor, tensor, dims);
        } else {
            cursor.at += inner_stride - tensor.block;
            cursor.in_block = capped(tensor.block);
        }
    }
}
