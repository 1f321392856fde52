//! Memory that this library allocates: a device's, and the host's that is pinned.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;

use cudarc::driver::sys;

use super::context::{Context, Owned};
use super::streams::Stream;
use super::{call, succeeded};
use crate::status::Result;

/// Memory of a device that this library has allocated.
pub struct DeviceMemory {
    owned: Owned,
    bytes: u64,
}

impl DeviceMemory {
    /// `bytes` of the current context `context`, aligned to 256 bytes, with whatever is in them.
    pub fn new(context: Context, bytes: u64) -> Result<Self> {
        let mut address = 0;
        // SAFETY: writes one address.
        unsafe { call!(cuMemAlloc_v2(&raw mut address, bytes as usize)) }?;
        // SAFETY: allocated above, given back once.
        let release = |address: *mut c_void| unsafe { call!(cuMemFree_v2(address.addr() as u64)) };
        let handle = ptr::without_provenance_mut(address as usize);
        Ok(Self { owned: Owned { context, handle, release }, bytes })
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address, on the device, of `range` of it.
    ///
    /// # Panics
    /// When the range is not in it.
    pub fn address(&self, range: Range<u64>) -> u64 {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        self.owned.handle.addr() as u64 + range.start
    }

    /// Copies `bytes` to `offset`, when `stream` has come to it.
    ///
    /// # Safety
    /// They stay where they are, and as they are, until the stream has passed the copy: the driver may read them as late.
    pub unsafe fn write(&self, offset: u64, bytes: &[u8], stream: &Stream) -> Result<()> {
        let to = self.address(offset..offset + bytes.len() as u64);
        // SAFETY: as many bytes as there are on both sides; by the caller they stay.
        unsafe { call!(cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), stream.raw())) }
    }

    /// Copies what is at `offset` to `bytes` and waits for it.
    pub fn read(&self, offset: u64, bytes: &mut [u8], stream: &Stream) -> Result<()> {
        let from = self.address(offset..offset + bytes.len() as u64);
        // SAFETY: as many bytes as there are on both sides; the copy has ended when this returns, or nothing can be said of
        // what is in `bytes`, which are plain.
        unsafe { call!(cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, bytes.len(), stream.raw())) }?;
        stream.synchronize()
    }

    /// Gives it back; nothing may be in a queue that uses it.
    pub fn close(self) -> Result<()> {
        self.owned.close()
    }
}

/// Host memory that devices can write to while the host goes on.
pub struct PinnedMemory {
    owned: Owned,
    bytes: usize,
}

impl PinnedMemory {
    /// `bytes` in the current context `context`, for all devices.
    pub fn new(context: Context, bytes: usize) -> Result<Self> {
        let mut address = ptr::null_mut();
        // SAFETY: writes one address.
        unsafe { call!(cuMemHostAlloc(&raw mut address, bytes, sys::CU_MEMHOSTALLOC_PORTABLE)) }?;
        // SAFETY: allocated above, given back once.
        let release = |address: *mut c_void| unsafe { call!(cuMemFreeHost(address)) };
        Ok(Self { owned: Owned { context, handle: address, release }, bytes })
    }

    /// Copies `bytes` of a device, from `address` on, to its start, when `stream` has come to it.
    ///
    /// # Safety
    /// The bytes at `address` are allocated and stay so, and nobody reads or writes those here or gives this memory back,
    /// until the stream has passed the copy.
    pub unsafe fn copy_from(&self, address: u64, bytes: usize, stream: &Stream) -> Result<()> {
        assert!(bytes <= self.bytes, "{bytes} of {}", self.bytes);
        // SAFETY: inside of this memory by the assertion; the caller vouches for the rest.
        unsafe { call!(cuMemcpyDtoHAsync_v2(self.owned.handle, address, bytes, stream.raw())) }
    }

    /// Its first `bytes`.
    ///
    /// # Safety
    /// No copy to them is in a queue for as long as the slice lives.
    pub unsafe fn slice(&self, bytes: usize) -> &[u8] {
        assert!(bytes <= self.bytes, "{bytes} of {}", self.bytes);
        // SAFETY: inside of this memory, which comes from the system and so has values; the caller vouches that nobody writes.
        unsafe { std::slice::from_raw_parts(self.owned.handle.cast::<u8>(), bytes) }
    }
}
