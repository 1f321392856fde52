// Elements of tensors of any layout: gathered into one piece for the host, and overwritten.
#include "tensor.cuh"

const u64 CHUNK_BYTES = 1 << 20;

// A tensor of any layout with its dims beside it (`tensor.dims` is 0), as a kernel's parameter.
struct Layout {
    Tensor tensor;
    Dim dims[32];
};

// What overwrites a tensor: word i is (random word i of the stream & keep) | set.
struct Words {
    u64 stream;
    u64 keep;  // 0: all words are `set`
    u64 set;
};

// value % count; value becomes value / count. Most fit 32 bits, and a GPU divides 64 bits much slower.
static __device__ __forceinline__ u64 take_index(u64 &value, u64 count) {
    u64 before = value;
    if (((value | count) >> 32) == 0) {
        value = (u32)value / (u32)count;
    } else {
        value /= count;
    }
    return before - value * count;
}

// Where a logical byte of the tensor is.
static __device__ __forceinline__ u64 address_of(const Tensor &tensor, const Dim *dims, u64 byte) {
    if (tensor.ndims == 0) return tensor.start + byte;
    u64 block = byte;
    u64 address = tensor.start + take_index(block, tensor.block);
#pragma unroll 1
    for (u32 dim = tensor.ndims - 1; dim > 0; dim--) address += take_index(block, dims[dim].count) * dims[dim].stride;
    return address + block * dims[0].stride;  // the outermost index is what is left
}

template <class Unit>
static __device__ __forceinline__ void gather_units(const Layout &layout, u64 from, u64 bytes, u8 *out) {
    Unit *units = (Unit *)out;
    u64 count = bytes / sizeof(Unit);
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 unit = (u64)blockIdx.x * blockDim.x + threadIdx.x; unit < count; unit += step)
        units[unit] = __ldg((const Unit *)address_of(layout.tensor, layout.dims, from + unit * sizeof(Unit)));
}

// Logical bytes [from, from + bytes) go to `out`, which is aligned to 16 bytes; `from` and `bytes` are multiples of
// the grain, `from` also of 16.
extern "C" __global__ void wc_gather(Layout layout, u64 from, u64 bytes, u8 *out) {
    switch (layout.tensor.grain) {
    case 16: return gather_units<uint4>(layout, from, bytes, out);
    case 8: return gather_units<u64>(layout, from, bytes, out);
    case 4: return gather_units<u32>(layout, from, bytes, out);
    case 2: return gather_units<unsigned short>(layout, from, bytes, out);
    default: return gather_units<u8>(layout, from, bytes, out);
    }
}

struct ConstantWords {
    u64 set;
    __device__ __forceinline__ u64 operator()(u64) const { return set; }
};

// SplitMix64 (Steele, Lea and Flood 2014): the same words as reset writes to host memory.
struct RandomWords {
    Words words;
    __device__ __forceinline__ u64 operator()(u64 index) const {
        u64 z = words.stream + (index + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return ((z ^ (z >> 31)) & words.keep) | words.set;
    }
};

// The unit at a logical byte: part of a little-endian word, or two words.
template <class Source>
static __device__ __forceinline__ void make_unit(Source word, u64 byte, uint4 &unit) {
    u64 low = word(byte / 8), high = word(byte / 8 + 1);
    unit = make_uint4((u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32));
}
template <class Source, class Unit>
static __device__ __forceinline__ void make_unit(Source word, u64 byte, Unit &unit) {
    unit = (Unit)(word(byte / 8) >> (8 * (byte % 8)));
}

// One chunk, by all threads of the block, neighbours beside each other.
template <class Unit, class Source>
static __device__ __forceinline__ void fill_units(const Tensor &tensor, const Dim *dims, u64 from, u64 to,
                                                  Source word) {
    for (u64 byte = from + threadIdx.x * sizeof(Unit); byte < to; byte += blockDim.x * sizeof(Unit)) {
        Unit unit;
        make_unit(word, byte, unit);
        __stcs((Unit *)address_of(tensor, dims, byte), unit);
    }
}

template <class Source>
static __device__ __forceinline__ void fill_chunk(const Tensor &tensor, const Dim *all_dims, u32 number, Source word) {
    const Dim *dims = all_dims + tensor.dims;
    u64 from = number * CHUNK_BYTES;
    u64 to = tensor.bytes - from < CHUNK_BYTES ? tensor.bytes : from + CHUNK_BYTES;
    switch (tensor.grain) {
    case 16: return fill_units<uint4>(tensor, dims, from, to, word);
    case 8: return fill_units<u64>(tensor, dims, from, to, word);
    case 4: return fill_units<u32>(tensor, dims, from, to, word);
    case 2: return fill_units<unsigned short>(tensor, dims, from, to, word);
    default: return fill_units<u8>(tensor, dims, from, to, word);
    }
}

// Overwrites chunks of 1 MiB of logical bytes, one a thread block of 256 threads. Nothing between strides is touched.
extern "C" __global__ void __launch_bounds__(256)
wc_fill(const Tensor *tensors, const Dim *dims, const Chunk *chunks, const Words *words) {
    Chunk chunk = chunks[blockIdx.x];
    Tensor tensor = tensors[chunk.tensor];
    Words own = words[chunk.tensor];
    if (own.keep == 0) {
        fill_chunk(tensor, dims, chunk.number, ConstantWords{own.set});
    } else {
        fill_chunk(tensor, dims, chunk.number, RandomWords{own});
    }
}
