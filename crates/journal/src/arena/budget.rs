//! `--retain-max`: one bound for the arenas of all disks of a process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// A bound on bytes held, shared by the arenas that were given a clone of it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bytes_max: AtomicU64,
    used_bytes: AtomicU64,
}

impl Budget {
    /// A budget of so many bytes, all of them free.
    pub fn new(bytes_max: u64) -> Self {
        Self(Arc::new(Shared { bytes_max: AtomicU64::new(bytes_max), used_bytes: AtomicU64::new(0) }))
    }

    /// The bound.
    pub fn bytes_max(&self) -> u64 {
        self.0.bytes_max.load(Ordering::Relaxed)
    }

    /// Changes the bound. Below what is held nothing is lost: stores fail until enough was freed.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.0.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Bytes of content that the arenas hold.
    pub fn used_bytes(&self) -> u64 {
        self.0.used_bytes.load(Ordering::Relaxed)
    }

    /// Takes bytes if they are there.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let bytes_max = self.bytes_max();
        self.0
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= bytes_max)
            })
            .is_ok()
    }

    /// Takes bytes that are held already, whatever the bound.
    pub(super) fn take_held(&self, bytes: u64) {
        self.0.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives bytes back.
    pub(super) fn give(&self, bytes: u64) {
        self.0.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
