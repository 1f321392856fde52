//! Whether the memory that a tensor claims is allocated on its device: a kernel that reads other memory would end the
//! engine's context.

use std::ops::Range;

use super::driver::{self, Memory};
use crate::status::{Error, Result, Status};
use crate::view::TensorView;

/// Refuses `view`, said to be on the device `ordinal`, when not all of its memory is allocated there. The device's context is current.
pub fn check(view: &TensorView<'_>, ordinal: i32) -> Result<()> {
    let addresses = view.addresses();
    if addresses.is_empty() {
        return Ok(());
    }
    let addresses = addresses.start as u64..addresses.end as u64;
    let refuse = |status, what: String| Err(Error::of_tensor(status, view.name(), what));
    let pointer = driver::pointer(addresses.start)?;
    match pointer.kind {
        Memory::Device => {}
        // Pinned memory that the device reads by the same address: weights that an engine has offloaded.
        Memory::Host if pointer.on_device == addresses.start && !pointer.allocation.is_empty() => {}
        Memory::Host => {
            let what = format!("it is said to be on CUDA device {ordinal}, but {:#x} is host memory", addresses.start);
            return refuse(Status::WrongDevice, what);
        }
        Memory::Unknown => return refuse(Status::UnallocatedDeviceMemory, unallocated(addresses.start)),
    }
    if pointer.kind == Memory::Device && pointer.ordinal >= 0 && pointer.ordinal != ordinal {
        let other = pointer.ordinal;
        let what = format!("it is said to be on CUDA device {ordinal}, but its memory is on device {other}");
        return refuse(Status::WrongDevice, what);
    }
    if !pointer.allocation.is_empty() && addresses.end > pointer.allocation.end {
        let beyond = addresses.end - pointer.allocation.end;
        let what =
            format!("it reaches {beyond} bytes beyond the memory that was allocated: its shape or strides are wrong");
        return refuse(Status::UnallocatedDeviceMemory, what);
    }
    // Of the host's and of managed memory the driver does not tell which pieces are mapped: all of them are.
    let is_whole = pointer.kind == Memory::Host || (pointer.is_managed && !pointer.allocation.is_empty());
    if !is_whole && let Some(address) = first_unmapped(addresses)? {
        return refuse(Status::UnallocatedDeviceMemory, unallocated(address));
    }
    Ok(())
}

/// The first address that is not mapped. Memory that grew in steps is mapped in as many pieces.
fn first_unmapped(addresses: Range<u64>) -> Result<Option<u64>> {
    let mut at = addresses.start;
    while at < addresses.end {
        match driver::mapped(at)? {
            Some(piece) => at = piece.end,
            None => return Ok(Some(at)),
        }
    }
    Ok(None)
}

fn unallocated(address: u64) -> String {
    format!(
        "its device memory at {address:#x} is not allocated: it was freed, or unmapped because the engine sleeps; wake the \
         engine up, or give the tensor as it is now"
    )
}
