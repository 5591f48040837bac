//! Memory that blocks whoever touches it, as guest memory may whose VMM made it of a file that answers nobody, or that is
//! migrated page by page.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// Flags and requests of `userfaultfd(2)` (linux/userfaultfd.h).
const USER_MODE_ONLY: libc::c_int = 1;
const API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const MODE_MISSING: u64 = 1;

/// A private mapping of which every page is missing until [`StuckMemory::release`]; then it is zeroes.
#[derive(Debug)]
pub struct StuckMemory {
    faults: OwnedFd,
    base: *mut libc::c_void,
    len: usize,
}

// SAFETY: the pointer is an address of a mapping that this value owns; it is handed out as such and never followed here.
unsafe impl Send for StuckMemory {}
// SAFETY: as above.
unsafe impl Sync for StuckMemory {}

impl StuckMemory {
    /// So much of it, in bytes: a multiple of the page size.
    ///
    /// # Errors
    /// Why there can be none here, for [`crate::skip`].
    pub fn new(len: usize) -> Result<Self, String> {
        let failed = |what: &str| format!("no userfaultfd here: {what}: {}", io::Error::last_os_error());
        // SAFETY: a system call without pointers; faults of the kernel's own copies are not asked for, which needs no right.
        let fd = unsafe {
            libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY)
        };
        if fd < 0 {
            return Err(failed("opening it"));
        }
        // SAFETY: a new descriptor that nobody else knows.
        let faults = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(failed("mapping memory"));
        }
        let memory = Self { faults, base, len };
        memory.ioctl(UFFDIO_API, [API, 0, 0, 0]).map_err(|_| failed("UFFDIO_API"))?;
        let range = [base as u64, len as u64, MODE_MISSING, 0];
        memory.ioctl(UFFDIO_REGISTER, range).map_err(|_| failed("UFFDIO_REGISTER"))?;
        Ok(memory)
    }

    fn ioctl(&self, request: libc::c_ulong, mut argument: [u64; 4]) -> io::Result<()> {
        // SAFETY: each of the three structures is at most as long as the array, and made of words.
        match unsafe { libc::ioctl(self.faults.as_raw_fd(), request, argument.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The memory, for raw access.
    pub fn segment(&self) -> libc::iovec {
        libc::iovec { iov_base: self.base, iov_len: self.len }
    }

    /// Waits until somebody touches it, who is stuck from then on. Whether that happened in time.
    pub fn wait_until_touched(&self, patience: Duration) -> bool {
        let time = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        let fd = self.faults.as_fd();
        matches!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)), Ok(1))
    }

    /// Lets everybody go on.
    ///
    /// # Panics
    /// It was released before.
    pub fn release(&self) {
        self.ioctl(UFFDIO_ZEROPAGE, [self.base as u64, self.len as u64, 0, 0]).expect("missing pages");
    }
}

impl Drop for StuckMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever got an address of it was told how long it lives.
        unsafe { libc::munmap(self.base, self.len) };
    }
}
