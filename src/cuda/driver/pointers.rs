//! What the driver knows of an address.

use std::ops::Range;
use std::ptr;

use cudarc::driver::sys;

use super::functions::cuMemGetAddressRange_v2;
use super::{call, succeeded};
use crate::status::Result;

/// What the driver knows of an address.
#[derive(Clone, Debug)]
pub struct Pointer {
    /// Whether it is memory of a device, of the host, or unknown.
    pub kind: Memory,
    /// The device's ordinal; negative when nothing is mapped there.
    pub ordinal: i32,
    /// Its address on devices, if it has one.
    pub on_device: u64,
    /// Whether the driver moves it between host and devices.
    pub is_managed: bool,
    /// The addresses of the allocation that it is in, or of the reservation: some of one may not be mapped. Empty when it is
    /// not known.
    pub allocation: Range<u64>,
}

/// Kinds of memory, as the driver tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Not allocated by CUDA, or not any more.
    Unknown,
    /// The host's.
    Host,
    /// A device's.
    Device,
}

/// Looks an address up.
pub fn pointer(address: u64) -> Result<Pointer> {
    use sys::CUpointer_attribute as Attribute;
    let mut attributes = [
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
    ];
    // Each attribute is a value of at most 8 bytes, and the rest of its place stays 0.
    let mut values = [0u64; 6];
    let mut places = values.each_mut().map(|value| ptr::from_mut(value).cast());
    // SAFETY: as many attributes as places, each of 8 bytes; the address is only looked up.
    unsafe {
        let count = attributes.len() as u32;
        call!(cuPointerGetAttributes(count, attributes.as_mut_ptr(), places.as_mut_ptr(), address))
    }?;
    let [kind, ordinal, start, bytes, on_device, is_managed] = values;
    let kind = match kind as u32 {
        kind if kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 => Memory::Device,
        kind if kind == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32 => Memory::Host,
        _ => Memory::Unknown,
    };
    let (ordinal, allocation) = (ordinal as u32 as i32, start..start.saturating_add(bytes));
    Ok(Pointer { kind, ordinal, on_device, is_managed: is_managed != 0, allocation })
}

/// The addresses that are mapped together with this one; `None` when it is not mapped.
pub fn mapped(address: u64) -> Result<Option<Range<u64>>> {
    const NOT_MAPPED: [u32; 2] =
        [sys::CUresult::CUDA_ERROR_NOT_FOUND as u32, sys::CUresult::CUDA_ERROR_INVALID_VALUE as u32];
    let (mut start, mut bytes) = (0, 0);
    // SAFETY: writes two values; the address is only looked up.
    let code = unsafe { cuMemGetAddressRange_v2(&raw mut start, &raw mut bytes, address) }?;
    if NOT_MAPPED.contains(&code) {
        return Ok(None);
    }
    succeeded("cuMemGetAddressRange_v2", code)?;
    let range = start..start.saturating_add(bytes as u64);
    Ok(range.contains(&address).then_some(range))
}
