//! What the queues of a disk share: the file systems behind their lock, and who writes a set meanwhile.

use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use afterimage_block::BlockError;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::JournalError;
use crate::ext4::{FileSystems, Ranges};
use crate::versions::Track;

/// What all lanes of a disk share.
pub(super) struct Shared {
    pub(super) systems: Mutex<FileSystems>,
    /// No set is due or under way any more.
    pub(super) idle: Condvar,
    /// A write that was handed down has completed, or is posted.
    pub(super) landed: Condvar,
    /// [`FileSystems::version`] as last seen, so that lanes need not take a lock to learn that nothing changed.
    pub(super) version: AtomicU64,
    pub(super) ranges: Mutex<Arc<Ranges>>,
    /// Writes are held back.
    pub(super) paused: AtomicBool,
    /// The guest may be gone, and nobody has looked after what it left.
    pub(super) left: AtomicBool,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, FileSystems> {
        self.systems.lock()
    }

    /// The lock, while no set is due or under way.
    pub(super) fn lock_idle(&self) -> MutexGuard<'_, FileSystems> {
        let mut systems = self.lock();
        self.idle.wait_while(&mut systems, |systems| systems.is_on_its_way());
        systems
    }

    /// Writes the set that is due, and those that become due then, without the lock: a set may have to wait, and nobody else has to wait
    /// for it but as [`crate::ext4`] says. Whoever made it due calls this before giving up the lock.
    ///
    /// # Errors
    /// A set could not be written, or what came after it failed.
    pub(super) fn write_sets(&self, systems: &mut MutexGuard<'_, FileSystems>) -> Result<(), JournalError> {
        let mut result = Ok(());
        while let Some(set) = systems.take_set() {
            self.publish(systems);
            // A panic ends the thread of one queue, as anywhere; the others must not wait for its set for ever.
            let written = MutexGuard::unlocked(systems, || catch_unwind(AssertUnwindSafe(|| set.write())));
            let (written, panic) = match written {
                Ok(written) => (written, None),
                Err(panic) => {
                    let reason = "the thread that wrote a transaction home panicked".into();
                    (Err(BlockError::Failed { reason }.into()), Some(panic))
                }
            };
            result = result.and(systems.set_ended(set, written));
            self.publish(systems);
            if !systems.is_on_its_way() {
                self.idle.notify_all();
            }
            if let Some(panic) = panic {
                resume_unwind(panic);
            }
        }
        result
    }

    /// Tells the other lanes what changed. Before the request that changed it completes.
    pub(super) fn publish(&self, systems: &FileSystems) {
        if self.version.load(Ordering::Relaxed) != systems.version() {
            *self.ranges.lock() = Arc::new(systems.ranges());
            self.version.store(systems.version(), Ordering::Release);
        }
    }

    /// See [`FileSystems::posted`].
    pub(super) fn posted(&self, tracks: impl IntoIterator<Item = Track>) {
        self.lock().posted(tracks);
        self.landed.notify_all();
    }

    pub(super) fn ranges(&self) -> Arc<Ranges> {
        Arc::clone(&self.ranges.lock())
    }
}
