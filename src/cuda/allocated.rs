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
        Memory::Host => {
            let what = format!("it is said to be on CUDA device {ordinal}, but {:#x} is host memory", addresses.start);
            return refuse(Status::WrongDevice, what);
        }
        Memory::Unknown => return refuse(Status::UnallocatedDeviceMemory, unallocated(addresses.start)),
    }
    if let Some(address) = first_unmapped(addresses.clone())? {
        return refuse(Status::UnallocatedDeviceMemory, unallocated(address));
    }
    if pointer.ordinal != ordinal {
        let what =
            format!("it is said to be on CUDA device {ordinal}, but its memory is on device {}", pointer.ordinal);
        return refuse(Status::WrongDevice, what);
    }
    if !pointer.allocation.is_empty() && addresses.end > pointer.allocation.end {
        let beyond = addresses.end - pointer.allocation.end;
        let what = format!(
            "it reaches {beyond} bytes beyond the device memory that was allocated: its shape or strides are wrong"
        );
        return refuse(Status::UnallocatedDeviceMemory, what);
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
