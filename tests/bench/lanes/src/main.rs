//! One thread: every hash backend against the crate `sha2` one message at a time, and against `hash_many` of
//! commonware-cryptography. Ratios are medians of interleaved runs, so that a busy machine slows both sides.
//!
//! `cargo run --release` in this folder. The features of the processor come first: the numbers mean nothing without.

use std::ffi::CString;
use std::hint::black_box;
use std::ptr;
use std::time::Instant;

use commonware_cryptography::Hasher as _;
use commonware_parallel::Sequential;
use sha2::Digest as _;
use weight_checker::ffi::types::{
    WC_ALGORITHM_SHA256, WC_ALGORITHM_SHA256_TREE, WcDataType, WcDevice, WcOptions, WcTensor,
};
use weight_checker::ffi::wc_digest;
use weight_checker::hash::backend::{BLOCK_BYTES, Backend, INITIAL, State, available, choose};
use weight_checker::status::Status;

/// Runs of each side of a ratio.
const RUNS: usize = 9;
const LEAF: usize = 8192;

fn main() {
    print_processor();
    by_messages();
    large_messages();
    leaves(64, "64 leaves, which fit into the L2 cache");
    leaves(16_384, "16,384 leaves, which come from memory");
    whole_tree();
}

fn print_processor() {
    let info = std::fs::read_to_string("/proc/cpuinfo").expect("this bench is for Linux");
    let field = |name| info.lines().find(|line| line.starts_with(name)).and_then(|line| line.split(": ").nth(1));
    let flags: Vec<_> = field("flags").or(field("Features")).unwrap_or_default().split(' ').collect();
    let of_use = ["ssse3", "sse4_1", "sha_ni", "avx2", "avx512f", "avx512bw", "avx512vl", "sha2"];
    let has: Vec<_> = of_use.into_iter().filter(|flag| flags.contains(flag)).collect();
    println!("processor: {}", field("model name").unwrap_or("unknown"));
    println!("family {}, model {}", field("cpu family").unwrap_or("?"), field("model\t").unwrap_or("?"));
    println!("features: {}", has.join(" "));
    println!("chosen here: {}\n", choose().expect("WC_BACKEND names no backend of this processor").name());
}

/// Each backend with 1 to all of its lanes in use, on messages of 8 KiB in cache.
fn by_messages() {
    println!("GB/s (times sha2) by number of messages of 8 KiB, fastest of 400 runs:");
    let bytes = painted(16 * LEAF);
    let messages: Vec<_> = bytes.chunks(LEAF).collect();
    let sha2 = fastest(400, || one_at_a_time(&messages[..1])) / LEAF as f64;
    println!("  sha2      1: {:.2}", 1e-9 / sha2);
    for backend in available() {
        print!("  {:9}", backend.name());
        for count in 1..=backend.lanes() {
            let time = fastest(400, || side_by_side(backend, &messages[..count])) / (count * LEAF) as f64;
            print!(" {count}: {:.2} ({:.2})", 1e-9 / time, sha2 / time);
        }
        println!();
    }
    println!();
}

/// 64 messages of 8 MiB: what a checksum of equal tensors does.
fn large_messages() {
    let bytes = painted(64 << 23);
    let messages: Vec<_> = bytes.chunks(1 << 23).collect();
    println!("64 messages of 8 MiB, against sha2 on one of them at a time:");
    for backend in available() {
        let (ratio, speed) = compare(bytes.len(), || one_at_a_time(&messages), || side_by_side(backend, &messages));
        println!("  {:9} {ratio:.2} x   {speed:.2} GB/s", backend.name());
    }
    let theirs = || one_at_a_time(&messages);
    let (ratio, speed) = compare(bytes.len(), theirs, || digests(&messages, WC_ALGORITHM_SHA256));
    println!("  wc_digest {ratio:.2} x   {speed:.2} GB/s\n");
}

/// `sha256-tree` of one tensor of 1 GiB, leaves and nodes, against `hash_many` of the same leaves alone.
fn whole_tree() {
    let bytes = painted(1 << 30);
    let leaves: Vec<_> = bytes.chunks(LEAF).collect();
    println!("sha256-tree of 1 GiB by wc_digest on one thread, against hash_many of its leaves alone:");
    let hash_many = || commonware_cryptography::Sha256::hash_many(&leaves, &Sequential);
    let (ratio, speed) = compare(bytes.len(), hash_many, || digests(&[&bytes], WC_ALGORITHM_SHA256_TREE));
    println!("  wc_digest {ratio:.2} x   {speed:.2} GB/s");
}

/// The digests of tensors of bytes through the C function, on one thread.
fn digests(tensors: &[&[u8]], algorithm: u32) -> Vec<[u8; 32]> {
    let names: Vec<_> = (0..tensors.len()).map(|index| CString::new(index.to_string()).expect("digits")).collect();
    let lengths: Vec<_> = tensors.iter().map(|bytes| bytes.len() as i64).collect();
    let describe = |(index, bytes): (usize, &&[u8])| WcTensor {
        struct_size: size_of::<WcTensor>(),
        name: names[index].as_ptr(),
        data: bytes.as_ptr().cast_mut().cast(),
        device: WcDevice { device_type: 1, device_id: 0 },
        ndim: 1,
        dtype: WcDataType { code: 1, bits: 8, lanes: 1 },
        shape: &lengths[index],
        strides: ptr::null(),
        byte_offset: 0,
    };
    let described: Vec<_> = tensors.iter().enumerate().map(describe).collect();
    let struct_size = size_of::<WcOptions>();
    let options = WcOptions { struct_size, algorithm, threads: 1, progress: None, progress_data: ptr::null_mut(), stream: ptr::null_mut(), max_host_bytes: 0 };
    let mut out = vec![[0; 32]; tensors.len()];
    let size = 32 * out.len();
    // SAFETY: the descriptions point to names, lengths and bytes that live through the call; `out` has room.
    let status = unsafe { wc_digest(described.as_ptr(), described.len(), &options, out.as_mut_ptr().cast(), size) };
    assert_eq!(status, Status::Ok);
    out
}

/// Whole digests of messages of 8 KiB: what a Merkle tree does with its leaves.
fn leaves(count: usize, what: &str) {
    let bytes = painted(count * LEAF);
    let messages: Vec<_> = bytes.chunks(LEAF).collect();
    let theirs = commonware_cryptography::Sha256::hash_many(&messages, &Sequential);
    println!("Digests of {what}, against hash_many of commonware-cryptography:");
    for backend in available() {
        let ours = side_by_side(backend, &messages);
        assert!(ours.iter().zip(&theirs).all(|(ours, theirs)| to_bytes(ours) == **theirs), "the digests differ");
        let hash_many = || commonware_cryptography::Sha256::hash_many(&messages, &Sequential);
        let (ratio, speed) = compare(bytes.len(), hash_many, || side_by_side(backend, &messages));
        println!("  {:9} {ratio:.2} x   {speed:.2} GB/s", backend.name());
    }
    println!();
}

fn one_at_a_time(messages: &[&[u8]]) -> Vec<[u8; 32]> {
    messages.iter().map(|message| sha2::Sha256::digest(message).into()).collect()
}

/// The digests, as states, of messages of one length, which is a multiple of 64.
fn side_by_side(backend: &dyn Backend, messages: &[&[u8]]) -> Vec<State> {
    let mut padding = [0; BLOCK_BYTES];
    padding[0] = 0x80;
    padding[BLOCK_BYTES - 8..].copy_from_slice(&(messages[0].len() as u64 * 8).to_be_bytes());
    let mut states = vec![INITIAL; messages.len()];
    let width = backend.lanes();
    for (states, messages) in states.chunks_mut(width).zip(messages.chunks(width)) {
        backend.compress(states, messages);
        backend.compress(states, &vec![&padding[..]; messages.len()]);
    }
    states
}

/// Our speed over theirs, the median of interleaved runs, and our median speed in GB/s.
fn compare<A, B>(bytes: usize, theirs: impl Fn() -> A, ours: impl Fn() -> B) -> (f64, f64) {
    // No single run is shorter than some milliseconds.
    let repeats = (1_usize << 25).div_ceil(bytes);
    let runs = (0..RUNS).map(|_| (time(repeats, &theirs), time(repeats, &ours)));
    let (ratios, speeds) = runs.map(|(theirs, ours)| (theirs / ours, (bytes * repeats) as f64 / ours / 1e9)).unzip();
    (median(ratios), median(speeds))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn fastest<T>(runs: usize, work: impl Fn() -> T) -> f64 {
    (0..runs).map(|_| time(1, &work)).fold(f64::MAX, f64::min)
}

/// Seconds.
fn time<T>(repeats: usize, work: &impl Fn() -> T) -> f64 {
    let start = Instant::now();
    for _ in 0..repeats {
        black_box(work());
    }
    start.elapsed().as_secs_f64()
}

fn to_bytes(state: &State) -> Vec<u8> {
    state.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn painted(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}
