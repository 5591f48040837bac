//! `--retain-max`: one bound for the arenas of all disks of a process.
//!
//! Two things are counted. *Content* is what journals need. *Memory* is what slots hold, of content and free ones that
//! are kept for the next: it is bounded by the same number, so an arena that needs memory while another keeps free slots
//! takes it from there. Only to replace a block, where all memory is content, is one page more taken, a disk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::map::PAGE;
use super::pool::Pool;

/// A bound on bytes held, shared by the arenas that were given a clone of it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bytes_max: AtomicU64,
    used_bytes: AtomicU64,
    memory_bytes: AtomicU64,
    pools: Mutex<Vec<Weak<Pool>>>,
}

impl Budget {
    /// A budget of so many bytes, all of them free.
    pub fn new(bytes_max: u64) -> Self {
        Self(Arc::new(Shared {
            bytes_max: AtomicU64::new(bytes_max),
            used_bytes: AtomicU64::new(0),
            memory_bytes: AtomicU64::new(0),
            pools: Mutex::default(),
        }))
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

    /// Bytes of memory that slots hold, with content or without.
    pub fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes.load(Ordering::Relaxed)
    }

    /// Takes bytes for content if they are there.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let bytes_max = self.bytes_max();
        self.0
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= bytes_max)
            })
            .is_ok()
    }

    /// Gives bytes of content back.
    pub(super) fn give(&self, bytes: u64) {
        self.0.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// An arena joins, with content and memory that it holds already, whatever the bound.
    pub(super) fn join(&self, pool: &Arc<Pool>, used_bytes: u64, slots: u32) {
        self.0.used_bytes.fetch_add(used_bytes, Ordering::Relaxed);
        self.take_memory_anyway(slots);
        let mut pools = self.0.pools.lock();
        pools.retain(|other| other.strong_count() > 0);
        pools.push(Arc::downgrade(pool));
    }

    /// An arena leaves.
    pub(super) fn part(&self, pool: &Arc<Pool>, used_bytes: u64, slots: u32) {
        self.give(used_bytes);
        self.give_memory(slots);
        let mut pools = self.0.pools.lock();
        pools.retain(|other| other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(pool)));
    }

    /// Takes memory for at most `slots_max` slots, which other arenas give back where that is needed. Says for how many;
    /// none where all memory is content.
    pub(super) fn take_memory(&self, slots_max: u32) -> u32 {
        loop {
            let bytes_max = self.bytes_max();
            let mut granted = 0;
            let taken =
                self.0.memory_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |memory_bytes| {
                    let left = bytes_max.saturating_sub(memory_bytes) / PAGE;
                    granted = left.min(slots_max.into());
                    (granted > 0).then(|| memory_bytes + granted * PAGE)
                });
            if taken.is_ok() {
                // At most `slots_max`.
                return granted as u32;
            }
            if !self.reclaim(slots_max) {
                return 0;
            }
        }
    }

    /// Takes memory, whatever the bound.
    pub(super) fn take_memory_anyway(&self, slots: u32) {
        self.0.memory_bytes.fetch_add(u64::from(slots) * PAGE, Ordering::Relaxed);
    }

    /// Gives memory back.
    pub(super) fn give_memory(&self, slots: u32) {
        self.0.memory_bytes.fetch_sub(u64::from(slots) * PAGE, Ordering::Relaxed);
    }

    /// Takes memory of free slots from the arena that has most of them. Whether there was any.
    fn reclaim(&self, slots_max: u32) -> bool {
        let pools: Vec<Arc<Pool>> = {
            let pools = self.0.pools.lock();
            pools.iter().filter_map(Weak::upgrade).collect()
        };
        let Some(pool) = pools.iter().max_by_key(|pool| pool.space().hot_slots()) else { return false };
        let slots = pool.yield_slots(slots_max);
        self.give_memory(slots);
        slots > 0
    }
}
