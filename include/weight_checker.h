/* weight-checker: proves what model weights an inference engine really holds. Generated; do not edit. */

#ifndef WEIGHT_CHECKER_H
#define WEIGHT_CHECKER_H

#include <stddef.h>
#include <stdint.h>

/* The version of the library that this header belongs to. */
#define WC_VERSION "0.1.0"

/*
 Number of the ABI: it grows with every change that a caller built against an older header would not survive.
 */
#define WC_ABI_VERSION 1

/*
 Bytes that `wc_digest` writes for a tensor.
 */
#define WC_DIGEST_SIZE 32

/*
 `WcOptions::algorithm`: SHA-256 of a tensor's logical bytes.
 */
#define WC_ALGORITHM_SHA256 0

/*
 `WcOptions::algorithm`: the Merkle tree hash of RFC 9162 section 2.1.1 with SHA-256 over leaves of 8,192 logical bytes, so
 that one tensor is hashed by many lanes and cores at once. Written `sha256-tree:` and 64 hex digits.
 */
#define WC_ALGORITHM_SHA256_TREE 1

/*
 Fill of `wc_reset`: all bytes 0.
 */
#define WC_FILL_ZERO 0

/*
 Fill of `wc_reset`: valid values of the tensor's dtype, the same for the same seed and name.
 */
#define WC_FILL_RANDOM 1

/*
 Fill of `wc_reset`: all bytes 0xFF, which is NaN for floats (not for float8 types that end in fnuz).
 */
#define WC_FILL_POISON 2

/*
 What came of a call. The numbers are part of the ABI: they never change and a retired one is never reused.

 A mismatch of weights is a result, not a status: every status but 0 means that nothing could be said.
 */
enum WcStatus
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   Done; the outputs are written.
   */
  WC_STATUS_OK = 0,
  /*
   A pointer that must not be NULL is NULL.
   */
  WC_STATUS_NULL_POINTER = 1,
  /*
   A `struct_size` is not the size that this library was built with: the caller uses another header.
   */
  WC_STATUS_BAD_STRUCT_SIZE = 2,
  /*
   A tensor's name is not UTF-8.
   */
  WC_STATUS_BAD_NAME = 3,
  /*
   Two tensors of one call have the same name.
   */
  WC_STATUS_DUPLICATE_NAME = 4,
  /*
   A tensor has fewer than 0 or more than 32 dimensions.
   */
  WC_STATUS_BAD_NDIM = 5,
  /*
   A shape has a negative extent.
   */
  WC_STATUS_NEGATIVE_SHAPE = 6,
  /*
   A tensor's size does not fit into 63 bits of bytes.
   */
  WC_STATUS_SIZE_OVERFLOW = 7,
  /*
   A stride is negative.
   */
  WC_STATUS_NEGATIVE_STRIDE = 8,
  /*
   The strides or the byte offset lead out of the address space.
   */
  WC_STATUS_OUT_OF_ADDRESS_SPACE = 9,
  /*
   The dtype is not in DLPack's table, or has a width that it does not come in.
   */
  WC_STATUS_UNSUPPORTED_DTYPE = 10,
  /*
   The tensor is on a device that this library does not read.
   */
  WC_STATUS_UNSUPPORTED_DEVICE = 11,
  /*
   A tensor of 4- or 6-bit elements is not compact, or does not end on a whole byte.
   */
  WC_STATUS_UNSUPPORTED_LAYOUT = 12,
  /*
   A part of the tensor's memory is not mapped, or lies behind the end of its mapped file.
   */
  WC_STATUS_UNMAPPED_MEMORY = 13,
  /*
   A part of the tensor's memory is mapped without the right to read it (or, for reset, to write it).
   */
  WC_STATUS_MEMORY_PROTECTED = 14,
  /*
   An option has a value that does not exist (algorithm, fill).
   */
  WC_STATUS_BAD_OPTION = 15,
  /*
   The baseline is not a JSON object of strings, or holds a key twice.
   */
  WC_STATUS_BAD_BASELINE = 16,
  /*
   The baseline's digests are of another algorithm than the one asked for.
   */
  WC_STATUS_ALGORITHM_MISMATCH = 17,
  /*
   No tensor of the call has a key in the baseline, so the comparison says nothing.
   */
  WC_STATUS_NOTHING_COMPARED = 18,
  /*
   The progress callback asked to stop.
   */
  WC_STATUS_CANCELLED = 19,
  /*
   The caller's output array is too small.
   */
  WC_STATUS_BUFFER_TOO_SMALL = 20,
  /*
   The operating system refused something that the call needs.
   */
  WC_STATUS_SYSTEM = 21,
  /*
   A panic inside the library: a bug in it. The process is unharmed.
   */
  WC_STATUS_PANIC = 22,
  /*
   The plan is not a plan that this library reads, contradicts itself, or determines no parameter.
   */
  WC_STATUS_BAD_PLAN = 23,
  /*
   A file of the checkpoint is not there, cannot be read, or is not what it should be.
   */
  WC_STATUS_BAD_CHECKPOINT = 24,
  /*
   A tensor that the plan reads is not in the checkpoint, or not among the tensors given.
   */
  WC_STATUS_MISSING_SOURCE = 25,
  /*
   A tensor that the plan reads has another dtype or shape than when the plan was recorded.
   */
  WC_STATUS_SOURCE_MISMATCH = 26,
  /*
   A tensor is on a CUDA device, and libcuda cannot be loaded, is too old, or has no such device.
   */
  WC_STATUS_CUDA_UNAVAILABLE = 27,
  /*
   A part of the tensor's device memory is not allocated: freed, or unmapped as by an engine that sleeps.
   */
  WC_STATUS_UNALLOCATED_DEVICE_MEMORY = 28,
  /*
   The tensor's memory is on another device than the one stated, or is not device memory.
   */
  WC_STATUS_WRONG_DEVICE = 29,
  /*
   The stream is being captured into a CUDA graph.
   */
  WC_STATUS_STREAM_CAPTURING = 30,
  /*
   The device, or the host's pinned memory, has no room for the little that the call needs.
   */
  WC_STATUS_OUT_OF_DEVICE_MEMORY = 31,
  /*
   The CUDA driver reported an error of another kind.
   */
  WC_STATUS_CUDA = 32,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum WcStatus WcStatus;
#else
typedef int32_t WcStatus;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Where a tensor's memory is: DLPack's `DLDevice`.

 Supported are host memory (`device_type` 1, kDLCPU, and 3, kDLCUDAHost) and the memory of CUDA devices (2, kDLCUDA). For the
 latter libcuda is loaded when the first such tensor comes; the device's primary context is used, as by PyTorch.
 */
typedef struct WcDevice {
  /*
   DLPack's `DLDeviceType`.
   */
  int32_t device_type;
  /*
   Ordinal of the device.
   */
  int32_t device_id;
} WcDevice;

/*
 The type of a tensor's elements: DLPack's `DLDataType`.
 */
typedef struct WcDataType {
  /*
   DLPack's `DLDataTypeCode`.
   */
  uint8_t code;
  /*
   Bits of one value.
   */
  uint8_t bits;
  /*
   Values in an element; 1 but for vector types, and 2 for torch's float4_e2m1fn_x2.
   */
  uint16_t lanes;
} WcDataType;

/*
 A named tensor: the fields of DLPack's `DLTensor` in its order, after a size and a name.

 Borrowed for the call: the library keeps no pointer. During the call nobody may write to the memory, unmap it or
 change the struct. The bytes hashed are the elements in row-major order, whatever the strides.
 */
typedef struct WcTensor {
  /*
   `sizeof(WcTensor)`; another value is refused, so that a caller with another header is.
   */
  size_t struct_size;
  /*
   The parameter's name, UTF-8, NUL-terminated; unique within a call.
   */
  const char *name;
  /*
   Start of the buffer. May be NULL when the tensor has no elements.
   */
  void *data;
  /*
   Where the buffer is.
   */
  struct WcDevice device;
  /*
   Number of dimensions, 0 to 32.
   */
  int32_t ndim;
  /*
   Type of the elements.
   */
  struct WcDataType dtype;
  /*
   `ndim` extents, none negative. May be NULL when `ndim` is 0.
   */
  const int64_t *shape;
  /*
   `ndim` strides in elements, none negative. NULL means compact row-major.
   */
  const int64_t *strides;
  /*
   Bytes from `data` to the first element.
   */
  uint64_t byte_offset;
} WcTensor;

/*
 One rank of a parallel engine; keys start with `dp{dp}:pp{pp}:pcp{pcp}:tp{tp}:`.
 */
typedef struct WcRank {
  /*
   Data-parallel index.
   */
  uint32_t dp;
  /*
   Pipeline-parallel index.
   */
  uint32_t pp;
  /*
   Prefill-context-parallel index.
   */
  uint32_t pcp;
  /*
   Tensor-parallel index.
   */
  uint32_t tp;
} WcRank;

/*
 Told how many bytes are done and how many there are in all; a result other than 0 cancels the call.

 Called at the start (0 bytes done), about every 16 MiB, and at the end; one call at a time, but from any thread that
 works for the call. Must not unwind or jump out. Trees and resets on CUDA devices tell about every 16 GiB, some ten milliseconds.
 */
typedef int32_t (*WcProgressCallback)(uint64_t bytes_done, uint64_t bytes_total, void *user_data);

/*
 How a call does its work. All zero but `struct_size` are the defaults, as is a NULL pointer to it.
 */
typedef struct WcOptions {
  /*
   `sizeof(WcOptions)`; another value is refused.
   */
  size_t struct_size;
  /*
   `WC_ALGORITHM_SHA256` or `WC_ALGORITHM_SHA256_TREE`.
   */
  uint32_t algorithm;
  /*
   The most threads, the calling one among them; 0: all cores that this process may use (affinity and cgroup).
   */
  uint32_t threads;
  /*
   May be NULL.
   */
  WcProgressCallback progress;
  /*
   Given to `progress` as it is.
   */
  void *progress_data;
  /*
   The `cudaStream_t` (or `CUstream`) that has the work in its queue which wrote the device tensors: the call waits for it
   on the device. NULL is the legacy default stream. Work in other streams is for the caller to wait for.
   */
  void *stream;
  /*
   The most pinned host memory that is used to hash device tensors by `WC_ALGORITHM_SHA256`, what earlier calls have left
   included, in bytes, at least 1 MiB; 0 for the default of 256 MiB. Smaller than some 128 MiB makes fast links wait.
   */
  uint64_t max_host_bytes;
} WcOptions;

/*
 Told a log record: `level` 1 error, 2 warning, 3 information, 4 debug, 5 trace; `target` the module it is from.

 The strings are valid during the call only. Called from any thread of the library, also by several at once. Must not
 unwind or jump out, nor call the library, which would log again.
 */
typedef void (*WcLogCallback)(int32_t level, const char *target, const char *message, void *user_data);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The number of the ABI that this library speaks. Compare it with `WC_ABI_VERSION` of your header before any other call.
 */
uint32_t wc_abi_version(void);

/*
 The library's version, such as "0.1.0". Static: do not free.
 */
const char *wc_version(void);

/*
 The name of the hash backend in use, such as "avx512+shani": what fills lanes, and what runs few messages fast. Static: do not
 free. NULL when the environment variable `WC_BACKEND` forces a backend that this processor lacks; `wc_last_error` says so.
 */
const char *wc_backend(void);

/*
 Hashes tensors and gives their digests under the keys of a rank.

 Parameters:
 - `tensors`, `count`: borrowed; may be NULL when `count` is 0.
 - `rank`: borrowed; whose keys.
 - `options`: borrowed; NULL for the defaults.
 - `out_json`: receives a NUL-terminated JSON object `{key: digest}` in the order of the tensors, a baseline for
   `wc_compare`; the caller owns it and frees it with `wc_string_free`.

 Returns `WC_STATUS_OK`, or why nothing could be said: any of the statuses 1 to 15 for a bad input, `CANCELLED`, `SYSTEM`,
 `PANIC`; with tensors on CUDA devices also 27 to 32, and `CUDA` stands for every error of the driver that has no status of its own.
 `wc_last_error` has the message.

 Threads: blocks until done; uses up to `options.threads` threads that end with the call. No memory that grows with
 the tensors is used; a tensor with gaps between its elements is gathered through 256 KiB a thread.

 CUDA devices: tensors may be on several, and others in host memory. The devices wait for what `options.stream` has in its
 queue; all work of the call is done when it returns, in streams of its own. The calling thread's current context is as it was. By
 `WC_ALGORITHM_SHA256_TREE` tensors are hashed where they are, with at most 16 MiB of device memory; by `WC_ALGORITHM_SHA256`
 they are copied to the host, piece by piece, through `options.max_host_bytes` of pinned memory, with at most 2 MiB on the
 device. Of both as much as was used is kept for the next call on the device, as are streams, events and kernels, which the
 first call compiles (the driver caches them); a call with a smaller `options.max_host_bytes` frees pinned memory. After
 `cudaDeviceReset` the process can hash no more on that device; after a fork the child cannot (`CUDA_UNAVAILABLE`), as CUDA cannot.

 # Safety
 The pointers are NULL or valid as said above, for the whole call; nobody writes to the tensors' memory or unmaps it.
 `options.stream` is a stream that has not been destroyed. A tensor on a CUDA device is in memory of its primary context.
 */
WcStatus wc_checksum(const struct WcTensor *tensors,
                     size_t count,
                     const struct WcRank *rank,
                     const struct WcOptions *options,
                     char **out_json);

/*
 Hashes tensors and writes their raw digests into the caller's memory.

 Parameters:
 - `tensors`, `count`, `options`: as for `wc_checksum`.
 - `out_digests`: receives `WC_DIGEST_SIZE` (32) bytes for each tensor, in order. May be NULL when `count` is 0.
 - `out_size`: the bytes at `out_digests`, at least 32 * `count`.

 Returns as `wc_checksum`, and `BUFFER_TOO_SMALL`. On any status but `OK` nothing is written.

 # Safety
 As `wc_checksum`; `out_digests` is valid for writing `out_size` bytes and lies in none of the tensors.
 */
WcStatus wc_digest(const struct WcTensor *tensors,
                   size_t count,
                   const struct WcOptions *options,
                   uint8_t *out_digests,
                   size_t out_size);

/*
 Overwrites every element of the tensors, and nothing between strides.

 Parameters:
 - `tensors`, `count`, `options`: as for `wc_checksum`; the algorithm is not used. Tensors that are exactly the same
   memory are written once; others that overlap are written in the order given.
 - `fill`: `WC_FILL_ZERO`, `WC_FILL_RANDOM` (valid values of the dtype: finite floats, bools 0 or 1; the same bytes for the same
   seed and name on every run), or `WC_FILL_POISON` (bytes 0xFF: NaN for floats, but for
   the two float8 types whose name ends in fnuz).
 - `seed`: any number; used by `WC_FILL_RANDOM` only.
 - `out_json`: receives `{"tensors", "written", "shared", "bytes"}`, where tensors = written + shared; owned by the caller,
   freed with `wc_string_free`.

 Returns as `wc_checksum`. After `CANCELLED`, and after `OUT_OF_DEVICE_MEMORY` and `CUDA`, some tensors may be overwritten and others not;
 after any other status but `OK` and `PANIC` none is.

 CUDA devices: as `wc_checksum`; tensors there are overwritten where they are, with the same bytes as in host memory.

 # Safety
 As `wc_checksum`; nobody reads the tensors' memory during the call either.
 */
WcStatus wc_reset(const struct WcTensor *tensors,
                  size_t count,
                  uint32_t fill,
                  uint64_t seed,
                  const struct WcOptions *options,
                  char **out_json);

/*
 Hashes tensors and compares their digests with a baseline.

 Parameters:
 - `tensors`, `count`, `rank`, `options`: as for `wc_checksum`.
 - `baseline_json`: borrowed, NUL-terminated JSON object `{key: digest}`. Keys of other ranks are ignored.
 - `out_json`: receives `{"match", "mismatches", "differing", "missing", "unexpected", "tensors", "compared", "equal", "bytes"}`:
   `missing` keys are in the baseline and not on this rank, `unexpected` ones the reverse, `mismatches` all three, each list
   sorted; tensors = compared + unexpected, compared = equal + differing. Owned by the caller, freed with `wc_string_free`.

 Returns as `wc_checksum`; a mismatch is a result and `WC_STATUS_OK`. Also `BAD_BASELINE`, `ALGORITHM_MISMATCH` (digests of
 another algorithm are never compared), and `NOTHING_COMPARED` when no tensor has a key in the baseline.

 # Safety
 As `wc_checksum`.
 */
WcStatus wc_compare(const struct WcTensor *tensors,
                    size_t count,
                    const struct WcRank *rank,
                    const char *baseline_json,
                    const struct WcOptions *options,
                    char **out_json);

/*
 Says what every rank must hold after loading, without the engine: executes a plan on a checkpoint and hashes the results.

 Parameters:
 - `plan_json`: borrowed, NUL-terminated plan document of one or many ranks.
 - `checkpoint`: borrowed, NUL-terminated path of a folder of safetensors files or of one such file; or NULL, and then
 - `sources`, `count`: the checkpoint's tensors in host memory, borrowed, under the names that the plan gives them. More than the
   plan names are fine. They must be NULL and 0 with a checkpoint.
 - `options`: as for `wc_checksum`; bytes are the logical bytes of the parameters hashed.
 - `out_json`: receives `{key: digest}`, a baseline for `wc_compare`, in the order of the plan: every parameter of every
   rank whose bytes the plan determines. One that arithmetic made or that has elements which nothing writes is left out.
   So is one that this library cannot put together, and a warning in the log (`wc_set_log_callback`) gives their number,
   the first one and why: it is cut too finely to be looked at, or has a piece in a dtype without casts. Casts are known
   between float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8 to int64, uint8 to uint64 and bool; in
   every other dtype values are copied, or are the constant 0, and pass through no other dtype.
   Owned by the caller, freed with `wc_string_free`.

 Returns as `wc_checksum`. Also `BAD_PLAN` (also when the plan determines no parameter at all), `BAD_CHECKPOINT`,
 `MISSING_SOURCE` and `SOURCE_MISMATCH`: a tensor that is read is not there, or of another dtype or shape than the plan
 says; and `BAD_OPTION` with both a checkpoint and sources.

 Threads: as `wc_checksum`. Files are mapped; other memory stays under 256 MiB whatever their size.

 # Safety
 As `wc_checksum`. Nobody writes to the files or makes them shorter during the call: a file that becomes shorter while it is
 read ends the process (SIGBUS). One that was changed is refused when that is seen before or after.
 */
WcStatus wc_expect(const char *plan_json,
                   const char *checkpoint,
                   const struct WcTensor *sources,
                   size_t count,
                   const struct WcOptions *options,
                   char **out_json);

/*
 Says what a plan leaves out or places wrongly, without any tensor.

 Parameters:
 - `plan_json`: borrowed, NUL-terminated plan document; of all ranks, for one rank alone places its slices only.
 - `out_json`: receives `{"complete", "ranks", "parameters", "pieces", "sources", "placed", "unplaced", "partly_placed", "unwritten",
   "overlapping", "past_the_end", "unaudited", "replicas"}`; owned by the caller, freed with `wc_string_free`. Counted in
   elements, and `first` is the coordinates of the first one:
   - `unplaced`: `{"source", "explained"}`, checkpoint tensors of which no rank takes an element; sources = placed + unplaced.
     What later constants overwrite in a parameter is not taken.
   - `partly_placed`: `{"source", "elements", "of", "first"}`, of which some elements are missing.
   - `unwritten`: `{"key", "elements", "of", "first"}`, parameters with elements that no piece writes.
   - `overlapping`: `{"key", "elements", "first", "sources"}`, with elements that get two different ones of the checkpoint.
   - `past_the_end`: `{"key", "source", "first_beyond", "of"}`, pieces that leave a source, or with null the parameter.
   - `unaudited`: `{"key", "source"}`, one of them null: tensors cut so finely that they would take minutes.
   - `replicas`: `{"ranks", "parameters"}`, sets of ranks with the number of parameters that they hold alike.

   `complete` is true when all lists are empty but `replicas` and what is explained in `unplaced`.

 Returns `WC_STATUS_OK` whatever is found; `NULL_POINTER`, `BAD_PLAN` (also for a plan without any parameter), `PANIC`.

 Threads: uses the calling one. Takes at most some seconds beyond reading the text, and 256 MiB beyond what that takes.

 # Safety
 The pointers are NULL or valid as said above, for the whole call.
 */
WcStatus wc_audit(const char *plan_json,
                  char **out_json);

/*
 Frees a string that this library gave to the caller. NULL is fine; the same string twice is not.

 # Safety
 `string` is NULL, or was given by this library and not freed yet.
 */
void wc_string_free(char *string);

/*
 The message of this thread's last call, empty after a success: what is wrong, with which tensor, and what to do.

 Owned by the library; valid until this thread's next call of a function that returns a status. Never NULL.
 */
const char *wc_last_error(void);

/*
 Sends the library's log records to `callback`, with `user_data`; NULL ends that.

 When it returns, the callback before is not running any more; so it must not be called from inside a callback.
 Records of one process go to one receiver.

 Returns `WC_STATUS_OK`, or `SYSTEM` when the process has another logger installed in this library's copy of the `log` crate.
 */
WcStatus wc_set_log_callback(WcLogCallback callback,
                             void *user_data);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WEIGHT_CHECKER_H */
