//! Exact counts of what reaches the storage.

use std::sync::atomic::{AtomicU64, Ordering};

/// Lanes beyond this many share a shard.
const SHARDS: usize = 16;

/// What was asked of a file since it was opened, by every lane and medium. One count is one completed request to the
/// kernel's file layer (a short write that was continued counts once for each part).
///
/// Sharded: the queues of a disk count without touching each other's cache lines.
#[derive(Debug, Default)]
pub struct Counters {
    shards: [Shard; SHARDS],
    next: AtomicU64,
}

/// The counts of one lane.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Shard {
    writes: AtomicU64,
    write_bytes: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    syncs: AtomicU64,
    discards: AtomicU64,
    zeroes: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountersSnapshot {
    /// Writes, including those of zeroes written out as data.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Calls of fdatasync (or their ring equivalent). A flush that found nothing unsynced makes none.
    pub syncs: u64,
    /// Holes punched.
    pub discards: u64,
    /// Ranges zeroed in place.
    pub zeroes: u64,
}

impl Counters {
    /// The index of a shard for a new lane.
    pub(crate) fn assign(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) as usize % SHARDS
    }

    pub(crate) fn shard(&self, index: usize) -> &Shard {
        &self.shards[index % SHARDS]
    }

    /// The sums over all lanes and media.
    pub fn snapshot(&self) -> CountersSnapshot {
        let mut sum = CountersSnapshot::default();
        for shard in &self.shards {
            sum.writes += shard.writes.load(Ordering::Relaxed);
            sum.write_bytes += shard.write_bytes.load(Ordering::Relaxed);
            sum.reads += shard.reads.load(Ordering::Relaxed);
            sum.read_bytes += shard.read_bytes.load(Ordering::Relaxed);
            sum.syncs += shard.syncs.load(Ordering::Relaxed);
            sum.discards += shard.discards.load(Ordering::Relaxed);
            sum.zeroes += shard.zeroes.load(Ordering::Relaxed);
        }
        sum
    }
}

impl Shard {
    pub(crate) fn wrote(&self, bytes: u64) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.write_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn synced(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn discarded(&self) {
        self.discards.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn zeroed(&self) {
        self.zeroes.fetch_add(1, Ordering::Relaxed);
    }
}
