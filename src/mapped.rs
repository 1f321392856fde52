//! What memory of this process is mapped, and with which rights.

use std::ops::Range;
use std::path::Path;

use procfs::process::{MMPermissions, MMapPath, Process};

use crate::status::{Error, Result, Status};

/// What a verb does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// checksum, compare.
    Read,
    /// reset.
    Write,
}

/// What is mapped in this process, and with which rights, at one moment.
pub struct MemoryMap {
    /// Sorted by address, not overlapping.
    mappings: Vec<Mapping>,
}

struct Mapping {
    addresses: Range<usize>,
    rights: MMPermissions,
    of_file: bool,
}

impl MemoryMap {
    /// Reads the mappings of this process from `/proc/self/maps` (proc(5)).
    pub fn of_this_process() -> Result<Self> {
        let maps = Process::myself().and_then(|process| process.maps()).map_err(|error| {
            Error::new(Status::System, format!("cannot read /proc/self/maps to check memory: {error}"))
        })?;
        let mapping = |map: procfs::process::MemoryMap| Mapping {
            addresses: map.address.0 as usize..map.address.1 as usize,
            rights: map.perms,
            of_file: matches!(map.pathname, MMapPath::Path(path) if is_of_files(&path)),
        };
        Ok(Self { mappings: maps.0.into_iter().map(mapping).collect() })
    }

    /// Checks that all of `addresses` is mapped with the right to `access`.
    pub fn check(&self, addresses: Range<usize>, access: Access) -> std::result::Result<(), (Status, String)> {
        let needed = match access {
            Access::Read => MMPermissions::READ,
            Access::Write => MMPermissions::READ | MMPermissions::WRITE,
        };
        let mut at = addresses.start;
        let first = self.mappings.partition_point(|mapping| mapping.addresses.end <= at);
        for mapping in &self.mappings[first..] {
            if at >= addresses.end || mapping.addresses.start > at {
                break;
            }
            if !mapping.rights.contains(needed) {
                let verb = if access == Access::Read { "read" } else { "written" };
                return Err((
                    Status::MemoryProtected,
                    format!("its memory at {at:#x} must not be {verb} by this process"),
                ));
            }
            let end = mapping.addresses.end.min(addresses.end);
            if mapping.of_file && !is_backed(end - 1) {
                return Err((
                    Status::UnmappedMemory,
                    format!("its memory at {:#x} lies behind the end of its file", end - 1),
                ));
            }
            at = end;
        }
        if at < addresses.end {
            return Err((Status::UnmappedMemory, format!("its memory is not mapped at {at:#x}")));
        }
        Ok(())
    }
}

/// Whether what is mapped under `path` can become shorter. Devices cannot, and memory that one has pinned cannot be read by
/// the call below although the process can.
fn is_of_files(path: &Path) -> bool {
    !path.starts_with("/dev") || path.starts_with("/dev/shm")
}

/// Whether the byte at `address`, in a mapping of a file, can be read: it cannot when the file has become shorter.
/// Files end, so a mapping that is backed at its last byte is backed everywhere.
fn is_backed(address: usize) -> bool {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: 1 };
    // SAFETY: both vectors are one valid iovec; the kernel checks the remote address itself and writes at most one
    // byte, to `byte`, which outlives the call.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    // Only EFAULT says that the page is not there; a sandbox that forbids the call says nothing about it.
    read == 1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}
