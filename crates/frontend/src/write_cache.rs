//! The cache rule (VIRTIO 1.2 § 5.2.6.2): without a negotiated FLUSH, or with the cache off, every write completes as if flushed.
//!
//! A VMM shows its guest the byte that it read or was told on whichever connection that was; QEMU reads it on its first one alone. So
//! a connection on which nobody has read or written it, and whose in-flight region says nothing, may stand for a guest whose cache is off.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::FrontendStats;

/// The byte `writeback` of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// What a peer that reads it finds.
    pub on: bool,
    /// The peer goes by it: it has read or written it, or its region says so. Until then it may go by one that is off.
    pub known: bool,
}

/// Whether the guest has a write cache. Running queues look at [`WriteCache::flushed`].
pub(crate) struct WriteCache {
    choice: Choice,
    /// FLUSH was negotiated.
    can_flush: bool,
    flushed: Arc<AtomicBool>,
    stats: Arc<FrontendStats>,
}

impl WriteCache {
    /// Before a driver has chosen.
    pub fn new(on: bool, stats: Arc<FrontendStats>) -> Self {
        let choice = Choice { on, known: false };
        let cache = Self { choice, can_flush: false, flushed: Arc::default(), stats };
        cache.tell();
        cache
    }

    /// As before a driver had chosen.
    pub fn reset(&mut self, on: bool) {
        (self.choice, self.can_flush) = (Choice { on, known: false }, false);
        self.tell();
    }

    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// The choice together with what an in-flight region says of an earlier connection's: one that is off anywhere is off.
    pub fn with_noted(&self, noted: Option<bool>) -> Choice {
        let Choice { on, known } = self.choice;
        noted.map_or(self.choice, |noted| Choice { on: noted && (on || !known), known: true })
    }

    /// Changes it; returns what it was.
    pub fn set(&mut self, choice: Choice) -> Choice {
        let old = std::mem::replace(&mut self.choice, choice);
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
        let flushed = !(self.choice.on && self.choice.known && self.can_flush);
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
        let set = |on, known| {
            move |cache: &mut WriteCache| {
                cache.set(Choice { on, known });
            }
        };
        assert!(now(&mut |_| ()));
        assert!(now(&mut |cache| cache.set_can_flush(true)), "the peer may go by an older one");
        assert!(!now(&mut set(true, true)));
        assert!(now(&mut set(false, true)));
        assert!(!now(&mut set(true, true)));
        assert!(now(&mut |cache| cache.set_can_flush(false)));
        assert!(now(&mut |cache| cache.reset(true)));
    }

    #[test]
    fn what_a_region_says_is_older_than_what_this_connection_has_heard() {
        let choice = |on, known| Choice { on, known };
        let mut cache = WriteCache::new(true, Arc::new(FrontendStats::new(1)));
        for (now, noted, expected) in [
            (choice(true, false), None, choice(true, false)),
            (choice(true, false), Some(false), choice(false, true)),
            (choice(false, false), Some(true), choice(true, true)),
            (choice(true, true), None, choice(true, true)),
            (choice(true, true), Some(false), choice(false, true)),
            (choice(false, true), Some(true), choice(false, true)),
        ] {
            cache.set(now);
            assert_eq!(cache.with_noted(noted), expected, "{now:?} {noted:?}");
        }
    }
}
