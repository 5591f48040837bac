//! Waking a lane that waits for something else than its own I/O.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{eventfd, EventfdFlags};

/// A descriptor that is readable from [`Bell::ring`] to [`Bell::drain`], for [`Lane::wait`](crate::Lane::wait). Who waits
/// drains, then looks at what the bell is rung for, and only then sleeps: so no ring is lost.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A bell that has not been rung.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// What to wait on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) {
        // The only possible failure is a counter at its maximum: then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable again.
    pub fn drain(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0, &mut count);
    }
}
