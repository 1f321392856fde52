//! Tensors in the memory of fake CUDA devices, and what must be true after every call.
#![allow(dead_code, reason = "every test file uses a part of it")]

use weight_checker::ffi::types::{WC_ALGORITHM_SHA256_TREE, WcDevice, WcOptions};

use super::common::{Tensor, UINT8, options};
use super::fake_cuda::{DeviceMemory, Fake};

/// All of `memory` as bytes, on a device.
pub fn bytes(name: &str, device: i32, memory: &DeviceMemory<'_>) -> Tensor {
    on(device, Tensor::new(name, address(memory.address), UINT8, &[memory.bytes as i64]))
}

/// Memory that holds `content`; it may be empty.
pub fn put<'f>(fake: &'f Fake, device: i32, content: &[u8]) -> DeviceMemory<'f> {
    let mut memory = fake.alloc(device, content.len().max(1));
    if !content.is_empty() {
        memory.write(0, content);
    }
    memory.bytes = content.len();
    memory
}

/// `tensor`, but on a device: its data is an address there.
pub fn on(device: i32, mut tensor: Tensor) -> Tensor {
    tensor.raw.device = WcDevice { device_type: 2, device_id: device };
    tensor
}

pub fn address(address: u64) -> *const u8 {
    std::ptr::without_provenance(address as usize)
}

pub fn algorithm(code: u32) -> WcOptions {
    WcOptions { algorithm: code, ..options(2) }
}

pub const ALGORITHMS: [u32; 2] = [0, WC_ALGORITHM_SHA256_TREE];

/// Bytes with a prime period in which no two leaves and no two chunks are alike.
pub fn painted(length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| (index % 251) as u8 ^ (index / 8192 % 241) as u8 ^ (index / (1 << 20) % 239) as u8)
        .collect()
}

/// A call has left nothing behind but what the library keeps of each device, nothing was misused, and the thread is as it was.
pub fn assert_clean(fake: &Fake) {
    // After a call that failed our streams may still wait for the caller's, which holds nothing up.
    (0..2).for_each(|device| fake.run(device));
    let counts = fake.counts();
    assert_eq!(counts.queued, 0);
    assert!(counts.device_allocations <= 2 && counts.device_bytes <= 2 * MOST_SCRATCH, "{counts:?}");
    assert!(counts.pinned_bytes <= 2 * MOST_PINNED, "{counts:?}");
    assert_eq!(fake.misuses(), [""; 0]);
    assert_eq!((fake.context_depth(), fake.capture_mode()), (0, 0));
}

/// Of a device, kept or not.
const MOST_SCRATCH: u64 = 16 << 20;
const MOST_PINNED: u64 = 256 << 20;
