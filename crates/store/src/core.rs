//! What all lanes and media of one image share.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use afterimage_block::{BlockError, Geometry, Health};

use crate::counters::Counters;
use crate::direct::{Alignment, Backing};
use crate::transfer::Target;
use crate::zero::Methods;

pub(crate) struct Core {
    pub file: File,
    pub path: PathBuf,
    pub serial: String,
    pub geometry: Geometry,
    pub health: Health,
    pub counters: Counters,
    /// With O_DIRECT.
    pub alignment: Option<Alignment>,
    pub backing: Backing,
    pub methods: Methods,
    pub unsynced: Unsynced,
}

impl Core {
    /// The image as a target of synchronous I/O, counted in shard `shard`.
    pub fn target(&self, shard: usize) -> Target<'_> {
        Target { file: &self.file, alignment: self.alignment, shard: self.counters.shard(shard) }
    }

    /// Syncs unless there is nothing to sync, waiting for it.
    pub fn sync(&self, shard: usize) -> Result<(), BlockError> {
        self.health.check()?;
        if self.unsynced.is_clean() || self.geometry.read_only {
            return Ok(());
        }
        let covers = self.unsynced.covers();
        self.target(shard).sync().map_err(|e| self.sync_failed(e))?;
        self.unsynced.note_sync(covers);
        Ok(())
    }

    /// A read failed: that request's error and nobody else's.
    pub fn read_failed(&self, offset: u64, error: io::Error) -> BlockError {
        BlockError::io(format!("reading {} at byte {offset}", self.path.display()), error)
    }

    /// A write, discard or zeroing failed: the disk is read-only from here on. Memory that a guest took away is the
    /// guest's own fault and fails only that request.
    pub fn change_failed(&self, doing: &str, offset: u64, error: io::Error) -> BlockError {
        let context = format!("{doing} {} at byte {offset}", self.path.display());
        if error.raw_os_error() != Some(libc::EFAULT) {
            self.stop(&context, &error);
        }
        BlockError::io(context, error)
    }

    /// A sync failed: what was acknowledged since the last good one may be lost, so nothing is acknowledged any more.
    pub fn sync_failed(&self, error: io::Error) -> BlockError {
        let context = format!("syncing {}", self.path.display());
        self.stop(&context, &error);
        BlockError::io(context, error)
    }

    fn stop(&self, context: &str, error: &io::Error) {
        let advice = match error.raw_os_error() {
            Some(libc::ENOSPC) => ": its file system is full, free space there and start again",
            Some(libc::EDQUOT) => ": the disk quota is used up, raise it or free space and start again",
            Some(libc::EFBIG) => ": the file-size limit is reached, raise it (ulimit -f) and start again",
            _ => "",
        };
        let reason = format!("{context} failed: {error}{advice}");
        if self.health.fail(reason.as_str()) {
            tracing::error!(reason, "the disk is read-only now");
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Every lane and medium is gone, and each waited for its I/O.
        crate::lock::release(&self.file);
    }
}

/// Tells a flush whether anything was written since the last sync.
///
/// ```text
/// write completes ─► written += 1 ─► completion posted ─► flush sees it
/// sync:  covers := written ─► fdatasync ─► synced := max(synced, covers)
/// ```
///
/// A write that completes during a sync has a number above `covers`, so the next flush syncs again.
#[derive(Debug)]
pub(crate) struct Unsynced {
    written: AtomicU64,
    synced: AtomicU64,
}

impl Default for Unsynced {
    /// Whoever had the file before may have left something unsynced: the first flush always syncs.
    fn default() -> Self {
        Self { written: AtomicU64::new(1), synced: AtomicU64::new(0) }
    }
}

impl Unsynced {
    /// Something was written; to be called before its completion can be seen.
    pub fn note_write(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a flush submitted now has nothing to sync.
    pub fn is_clean(&self) -> bool {
        self.synced.load(Ordering::Acquire) >= self.written.load(Ordering::Acquire)
    }

    /// What a sync that starts now covers.
    pub fn covers(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// That sync returned well.
    pub fn note_sync(&self, covers: u64) {
        self.synced.fetch_max(covers, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_during_a_sync_is_left_for_the_next() {
        let unsynced = Unsynced::default();
        assert!(!unsynced.is_clean(), "the first flush syncs");
        let covers = unsynced.covers();
        unsynced.note_sync(covers);
        assert!(unsynced.is_clean());
        unsynced.note_write();
        let covers = unsynced.covers();
        unsynced.note_write();
        unsynced.note_sync(covers);
        assert!(!unsynced.is_clean());
    }
}
