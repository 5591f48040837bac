//! The cache rule (VIRTIO 1.2 § 5.2.6.2): without a negotiated FLUSH, or with the cache off, every write completes as if flushed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::FrontendStats;

/// Whether the guest has a write cache. Running queues look at [`WriteCache::flushed`].
pub(crate) struct WriteCache {
    on: bool,
    /// FLUSH was negotiated.
    can_flush: bool,
    flushed: Arc<AtomicBool>,
    stats: Arc<FrontendStats>,
}

impl WriteCache {
    /// Before a driver has chosen.
    pub fn new(on: bool, stats: Arc<FrontendStats>) -> Self {
        let cache = Self { on, can_flush: false, flushed: Arc::default(), stats };
        cache.tell();
        cache
    }

    /// As before a driver had chosen.
    pub fn reset(&mut self, on: bool) {
        (self.on, self.can_flush) = (on, false);
        self.tell();
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Switches it; returns what it was.
    pub fn set(&mut self, on: bool) -> bool {
        let old = std::mem::replace(&mut self.on, on);
        self.tell();
        old
    }

    /// Whether the driver can flush.
    pub fn set_can_flush(&mut self, can_flush: bool) {
        self.can_flush = can_flush;
        self.tell();
    }

    /// Whether a write completes as if flushed, now and later.
    pub fn flushed(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flushed)
    }

    fn tell(&self) {
        let flushed = !self.on || !self.can_flush;
        self.flushed.store(flushed, Ordering::Release);
        self.stats.set_flushed_writes(flushed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_driver_that_can_flush_has_a_cache() {
        let mut cache = WriteCache::new(true, Arc::new(FrontendStats::new(1)));
        let flushed = cache.flushed();
        let mut now = |change: &mut dyn FnMut(&mut WriteCache)| {
            change(&mut cache);
            flushed.load(Ordering::Relaxed)
        };
        assert!(now(&mut |_| ()));
        assert!(!now(&mut |cache| cache.set_can_flush(true)));
        assert!(now(&mut |cache| assert!(cache.set(false))));
        assert!(!now(&mut |cache| assert!(!cache.set(true))));
        assert!(now(&mut |cache| cache.set_can_flush(false)));
        assert!(now(&mut |cache| cache.reset(true)));
    }
}
