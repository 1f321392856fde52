//! Proves what model weights an inference engine really holds.
//!
//! The crate is a shared library with a C ABI (`libweight_checker.so`, header `include/weight_checker.h`).
//! Three verbs work on borrowed tensors: [`ops::checksum()`], [`ops::reset()`] and [`ops::compare()`].
//!
//! One direction of flow, and imports point down only:
//!
//! ```text
//! layer 3  ffi        the C ABI: panic boundary, pointer checks, one call, outputs
//! layer 2  ops        the verbs, in safe Rust
//! layer 1  checkpoint, cuda, hash, host, memory, parallel, plan, reader   files, devices, digests, threads, elements
//! layer 0  baseline, cast, digest, dtype, layout, mapped, named, progress, rank, report, status, view   plain data and its checks
//! ```
#![deny(unsafe_code, unsafe_op_in_unsafe_fn, missing_docs)]
#![deny(clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)]

#[cfg(not(target_endian = "little"))]
compile_error!("digests are of little-endian bytes; this target would have to swap them first");

pub mod baseline;
pub mod cast;
pub mod checkpoint;
pub mod cuda;
pub mod digest;
pub mod dtype;
#[allow(unsafe_code)]
pub mod ffi;
pub mod hash;
#[allow(unsafe_code)]
pub mod host;
pub mod layout;
#[allow(unsafe_code)]
pub mod mapped;
#[allow(unsafe_code)]
pub mod memory;
pub mod named;
pub mod ops;
pub mod parallel;
pub mod plan;
pub mod progress;
pub mod rank;
pub mod reader;
pub mod report;
pub mod status;
#[allow(unsafe_code)]
pub mod view;
