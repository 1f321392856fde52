//! Memory whose pages can be taken away.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;

pub const PAGE: usize = 4096;

/// Whole pages of anonymous memory, or of a file, unmapped when dropped.
pub struct Pages {
    start: *mut u8,
    len: usize,
}

impl Pages {
    pub fn new(pages: usize) -> Self {
        Self::map(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    pub fn of_file(file: &File, pages: usize) -> Self {
        Self::map(pages, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(pages: usize, flags: i32, file: i32) -> Self {
        let len = pages * PAGE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, file, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self { start: start.cast(), len }
    }

    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len);
        self.start.wrapping_add(offset)
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        // SAFETY: inside the mapping, which the test has not protected yet.
        unsafe { self.at(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Takes rights away from page `page`: `libc::PROT_NONE` or `libc::PROT_READ`.
    pub fn protect(&self, page: usize, rights: i32) {
        // SAFETY: a page of our own mapping, to which no reference exists.
        assert_eq!(unsafe { libc::mprotect(self.at(page * PAGE).cast(), PAGE, rights) }, 0);
    }

    pub fn unmap(&self, page: usize) {
        // SAFETY: as in `protect`. Unmapping it again in `drop` is allowed.
        assert_eq!(unsafe { libc::munmap(self.at(page * PAGE).cast(), PAGE) }, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping, not used any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
