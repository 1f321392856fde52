//! The structs of the C ABI.

use std::ffi::{c_char, c_void};

/// Number of the ABI: it grows with every change that a caller built against an older header would not survive.
pub const WC_ABI_VERSION: u32 = 1;

/// Bytes that `wc_digest` writes for a tensor.
pub const WC_DIGEST_SIZE: usize = 32;

/// `WcOptions::algorithm`: SHA-256 of a tensor's logical bytes.
pub const WC_ALGORITHM_SHA256: u32 = 0;

/// `WcOptions::algorithm`: the Merkle tree hash of RFC 9162 section 2.1.1 with SHA-256 over leaves of 8,192 logical bytes, so
/// that one tensor is hashed by many lanes and cores at once. Written `sha256-tree:` and 64 hex digits.
pub const WC_ALGORITHM_SHA256_TREE: u32 = 1;

/// Fill of `wc_reset`: all bytes 0.
pub const WC_FILL_ZERO: u32 = 0;
/// Fill of `wc_reset`: valid values of the tensor's dtype, the same for the same seed and name.
pub const WC_FILL_RANDOM: u32 = 1;
/// Fill of `wc_reset`: all bytes 0xFF, which is NaN for floats (not for float8 types that end in fnuz).
pub const WC_FILL_POISON: u32 = 2;

/// Where a tensor's memory is: DLPack's `DLDevice`.
///
/// Supported are host memory (`device_type` 1, kDLCPU, and 3, kDLCUDAHost) and the memory of CUDA devices (2, kDLCUDA). For the
/// latter libcuda is loaded when the first such tensor comes; the device's primary context is used, as by PyTorch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WcDevice {
    /// DLPack's `DLDeviceType`.
    pub device_type: i32,
    /// Ordinal of the device.
    pub device_id: i32,
}

/// The type of a tensor's elements: DLPack's `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WcDataType {
    /// DLPack's `DLDataTypeCode`.
    pub code: u8,
    /// Bits of one value.
    pub bits: u8,
    /// Values in an element; 1 but for vector types, and 2 for torch's float4_e2m1fn_x2.
    pub lanes: u16,
}

/// A named tensor: the fields of DLPack's `DLTensor` in its order, after a size and a name.
///
/// Borrowed for the call: the library keeps no pointer. During the call nobody may write to the memory, unmap it or
/// change the struct. The bytes hashed are the elements in row-major order, whatever the strides.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WcTensor {
    /// `sizeof(WcTensor)`; another value is refused, so that a caller with another header is.
    pub struct_size: usize,
    /// The parameter's name, UTF-8, NUL-terminated; unique within a call.
    pub name: *const c_char,
    /// Start of the buffer. May be NULL when the tensor has no elements.
    pub data: *mut c_void,
    /// Where the buffer is.
    pub device: WcDevice,
    /// Number of dimensions, 0 to 32.
    pub ndim: i32,
    /// Type of the elements.
    pub dtype: WcDataType,
    /// `ndim` extents, none negative. May be NULL when `ndim` is 0.
    pub shape: *const i64,
    /// `ndim` strides in elements, none negative. NULL means compact row-major.
    pub strides: *const i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// One rank of a parallel engine; keys start with `dp{dp}:pp{pp}:pcp{pcp}:tp{tp}:`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WcRank {
    /// Data-parallel index.
    pub dp: u32,
    /// Pipeline-parallel index.
    pub pp: u32,
    /// Prefill-context-parallel index.
    pub pcp: u32,
    /// Tensor-parallel index.
    pub tp: u32,
}

/// Told how many bytes are done and how many there are in all; a result other than 0 cancels the call.
///
/// Called at the start (0 bytes done), about every 16 MiB, and at the end; one call at a time, but from any thread that
/// works for the call. Must not unwind or jump out. Trees and resets on CUDA devices tell about every 16 GiB, some ten milliseconds.
pub type WcProgressCallback =
    Option<unsafe extern "C" fn(bytes_done: u64, bytes_total: u64, user_data: *mut c_void) -> i32>;

/// Told a log record: `level` 1 error, 2 warning, 3 information, 4 debug, 5 trace; `target` the module it is from.
///
/// The strings are valid during the call only. Called from any thread of the library, also by several at once. Must not
/// unwind or jump out, nor call the library, which would log again.
pub type WcLogCallback =
    Option<unsafe extern "C" fn(level: i32, target: *const c_char, message: *const c_char, user_data: *mut c_void)>;

/// How a call does its work. All zero but `struct_size` are the defaults, as is a NULL pointer to it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WcOptions {
    /// `sizeof(WcOptions)`; another value is refused.
    pub struct_size: usize,
    /// `WC_ALGORITHM_SHA256` or `WC_ALGORITHM_SHA256_TREE`.
    pub algorithm: u32,
    /// The most threads, the calling one among them; 0: all cores that this process may use (affinity and cgroup).
    pub threads: u32,
    /// May be NULL.
    pub progress: WcProgressCallback,
    /// Given to `progress` as it is.
    pub progress_data: *mut c_void,
    /// The `cudaStream_t` (or `CUstream`) that has the work in its queue which wrote the device tensors: the call waits for it
    /// on the device. NULL is the legacy default stream. Work in other streams is for the caller to wait for.
    pub stream: *mut c_void,
    /// The most pinned host memory that is used to hash device tensors by `WC_ALGORITHM_SHA256`, what earlier calls have left
    /// included, in bytes, at least 1 MiB; 0 for the default of 256 MiB. Smaller than some 128 MiB makes fast links wait.
    pub max_host_bytes: u64,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<usize>() == 8, "the layouts below are those of 64-bit targets");
    assert!(size_of::<WcTensor>() == 64 && size_of::<WcRank>() == 16 && size_of::<WcOptions>() == 48);
    // DLTensor: data 0, device 8, ndim 16, dtype 20, shape 24, strides 32, byte_offset 40; 48 bytes.
    assert!(offset_of!(WcTensor, data) == 16 && offset_of!(WcTensor, device) == 16 + 8);
    assert!(offset_of!(WcTensor, ndim) == 16 + 16 && offset_of!(WcTensor, dtype) == 16 + 20);
    assert!(offset_of!(WcTensor, shape) == 16 + 24 && offset_of!(WcTensor, strides) == 16 + 32);
    assert!(offset_of!(WcTensor, byte_offset) == 16 + 40);
};
