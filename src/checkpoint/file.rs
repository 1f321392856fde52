//! A regular file, mapped for reading.
#![allow(unsafe_code)]

use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::status::{Error, Result, Status};

/// A mapped file. Whoever makes it shorter while its bytes are read ends this process by SIGBUS, as for every mapped
/// file; [`check_unchanged`](Self::check_unchanged) narrows that to the time of the reading itself.
pub struct MappedFile {
    path: PathBuf,
    file: File,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
    stamp: Stamp,
}

/// What tells one state of a file from another.
#[derive(PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self { bytes: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

impl MappedFile {
    /// Maps the file at `path`, which may be a link to one.
    ///
    /// # Errors
    /// `BadCheckpoint` when there is no such file, it is no regular file, or it cannot be read. Nothing is waited for.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| refused(path, format_args!("cannot be read: {error}"));
        // Asked before it is opened: opening a device can do something, and opening a FIFO waits.
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(refused(path, "is not a regular file"));
        }
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(refused(path, "is not a regular file"));
        }
        let map = if metadata.len() == 0 {
            None
        } else {
            // SAFETY: the mapping is private and only read. That nobody writes to the file or makes it shorter while
            // it is read is the promise of `wc_expect`'s caller; `check_unchanged` looks before and after.
            Some(unsafe { Mmap::map(&file) }.map_err(failed)?)
        };
        Ok(Self { path: path.to_owned(), file, map, stamp: Stamp::of(&metadata) })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All of its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// Refuses a file that was written to or cut since it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        let metadata =
            self.file.metadata().map_err(|error| refused(&self.path, format_args!("cannot be read: {error}")))?;
        if Stamp::of(&metadata) != self.stamp {
            return Err(refused(&self.path, "was changed while it was read: try again when nobody writes to it"));
        }
        Ok(())
    }
}

/// The error about a file.
pub fn refused(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::new(Status::BadCheckpoint, format!("checkpoint file '{}' {what}", path.display()))
}
