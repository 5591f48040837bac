//! What a disk's guest asked for and how long it took.
//!
//! One [`QueueStats`] per virtqueue, written only by that queue's thread, so every update is a plain relaxed
//! load and store: no locked instruction and no shared cache line on the request path. A reader may see one
//! request counted and its bytes not yet; counters never go back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;

/// Upper bounds of the latency buckets in microseconds, each inclusive; one more bucket holds everything longer.
pub const LATENCY_BOUNDS_US: [u64; 24] = [
    1, 2, 5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000,
    100_000, 500_000, 1_000_000, 10_000_000,
];

/// The request kinds that are counted apart (virtio 1.2 § 5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// VIRTIO_BLK_T_IN.
    Read,
    /// VIRTIO_BLK_T_OUT.
    Write,
    /// VIRTIO_BLK_T_FLUSH.
    Flush,
    /// VIRTIO_BLK_T_DISCARD.
    Discard,
    /// VIRTIO_BLK_T_WRITE_ZEROES.
    WriteZeroes,
    /// VIRTIO_BLK_T_GET_ID, unknown types and chains that hold no request.
    Other,
}

impl RequestKind {
    /// All kinds, in the order of the enum.
    pub const ALL: [RequestKind; 6] =
        [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes, Self::Other];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write_zeroes",
            Self::Other => "other",
        }
    }
}

/// A counter that one thread writes and any thread reads.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[derive(Debug, Default)]
struct OperationStats {
    requests: Counter,
    errors: Counter,
    bytes: Counter,
    latency_sum_ns: Counter,
    latency: [Counter; LATENCY_BOUNDS_US.len() + 1],
}

/// The counters of one virtqueue.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct QueueStats {
    operations: [OperationStats; RequestKind::ALL.len()],
    kicks: Counter,
    interrupts: Counter,
    batches: Counter,
    resubmitted: Counter,
}

impl QueueStats {
    /// Counts one answered request. Only the queue's own thread may call this.
    pub(crate) fn answered(&self, kind: RequestKind, bytes: u64, latency: Duration, ok: bool) {
        let operation = &self.operations[kind as usize];
        operation.requests.add(1);
        if ok {
            operation.bytes.add(bytes);
        } else {
            operation.errors.add(1);
        }
        let us = latency.as_micros() as u64;
        operation.latency_sum_ns.add(latency.as_nanos() as u64);
        operation.latency[LATENCY_BOUNDS_US.partition_point(|bound| *bound < us)].add(1);
    }

    pub(crate) fn kicked(&self) {
        self.kicks.add(1);
    }

    pub(crate) fn interrupted(&self) {
        self.interrupts.add(1);
    }

    pub(crate) fn batched(&self) {
        self.batches.add(1);
    }

    pub(crate) fn resubmitted(&self, requests: u64) {
        self.resubmitted.add(requests);
    }

    /// A copy of the counters.
    pub fn snapshot(&self) -> QueueSnapshot {
        QueueSnapshot {
            operations: RequestKind::ALL
                .iter()
                .map(|kind| {
                    let operation = &self.operations[*kind as usize];
                    OperationSnapshot {
                        kind: *kind,
                        requests: operation.requests.get(),
                        errors: operation.errors.get(),
                        bytes: operation.bytes.get(),
                        latency_sum_ns: operation.latency_sum_ns.get(),
                        latency_counts: operation.latency.iter().map(Counter::get).collect(),
                    }
                })
                .collect(),
            kicks: self.kicks.get(),
            interrupts: self.interrupts.get(),
            batches: self.batches.get(),
            resubmitted: self.resubmitted.get(),
        }
    }
}

/// The counters of one disk's frontend.
#[derive(Debug)]
pub struct FrontendStats {
    queues: Vec<QueueStats>,
    attached: AtomicBool,
    connections: AtomicU64,
    flushed_writes: AtomicBool,
}

impl FrontendStats {
    /// Counters for a disk with `queues` virtqueues.
    pub fn new(queues: u16) -> Self {
        Self {
            queues: (0..queues).map(|_| QueueStats::default()).collect(),
            attached: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            flushed_writes: AtomicBool::new(false),
        }
    }

    /// The counters of one queue.
    pub fn queue(&self, index: u16) -> Option<&QueueStats> {
        self.queues.get(usize::from(index))
    }

    /// How many queues are counted.
    pub fn queues(&self) -> u16 {
        self.queues.len() as u16
    }

    pub(crate) fn set_attached(&self, attached: bool) {
        self.attached.store(attached, Relaxed);
        if attached {
            self.connections.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn set_flushed_writes(&self, flushed: bool) {
        self.flushed_writes.store(flushed, Relaxed);
    }

    /// A copy of all counters.
    pub fn snapshot(&self) -> FrontendSnapshot {
        FrontendSnapshot {
            attached: self.attached.load(Relaxed),
            connections: self.connections.load(Relaxed),
            write_cache: !self.flushed_writes.load(Relaxed),
            queues: self.queues.iter().map(QueueStats::snapshot).collect(),
        }
    }
}

/// One operation's counters at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperationSnapshot {
    /// Which operation.
    pub kind: RequestKind,
    /// Requests answered, failed ones included.
    pub requests: u64,
    /// Requests answered with anything but VIRTIO_BLK_S_OK.
    pub errors: u64,
    /// Bytes read, written, discarded or zeroed by successful requests.
    pub bytes: u64,
    /// Sum of the time from fetching a request to answering it, in nanoseconds.
    pub latency_sum_ns: u64,
    /// Requests per bucket of [`LATENCY_BOUNDS_US`], not cumulative, with the overflow bucket last.
    pub latency_counts: Vec<u64>,
}

impl OperationSnapshot {
    fn add(&mut self, other: &Self) {
        // They go round as each queue's do: bytes that a guest discards over and over have no end.
        let add = |sum: &mut u64, n: u64| *sum = sum.wrapping_add(n);
        add(&mut self.requests, other.requests);
        add(&mut self.errors, other.errors);
        add(&mut self.bytes, other.bytes);
        add(&mut self.latency_sum_ns, other.latency_sum_ns);
        for (sum, n) in self.latency_counts.iter_mut().zip(&other.latency_counts) {
            add(sum, *n);
        }
    }
}

/// One queue's counters at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueSnapshot {
    /// In the order of [`RequestKind::ALL`].
    pub operations: Vec<OperationSnapshot>,
    /// Times the queue's thread was woken by a notification of the driver.
    pub kicks: u64,
    /// Notifications sent to the driver.
    pub interrupts: u64,
    /// Publications of the used index.
    pub batches: u64,
    /// Requests submitted again after a reconnect or a takeover.
    pub resubmitted: u64,
}

/// All counters of one disk at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrontendSnapshot {
    /// Whether a guest is connected.
    pub attached: bool,
    /// Connections accepted since the start, takeovers included.
    pub connections: u64,
    /// Whether the guest sees a write cache; without one every write completes as if flushed.
    pub write_cache: bool,
    /// Per queue.
    pub queues: Vec<QueueSnapshot>,
}

impl FrontendSnapshot {
    /// One operation summed over all queues.
    pub fn total(&self, kind: RequestKind) -> OperationSnapshot {
        let mut sum = OperationSnapshot {
            kind,
            requests: 0,
            errors: 0,
            bytes: 0,
            latency_sum_ns: 0,
            latency_counts: vec![0; LATENCY_BOUNDS_US.len() + 1],
        };
        for queue in &self.queues {
            sum.add(&queue.operations[kind as usize]);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_falls_into_the_bucket_whose_bound_includes_it() {
        let stats = FrontendStats::new(2);
        let q = stats.queue(1).unwrap();
        q.answered(RequestKind::Read, 4096, Duration::from_micros(5), true);
        q.answered(RequestKind::Read, 4096, Duration::from_micros(6), false);
        q.answered(RequestKind::Read, 512, Duration::from_secs(100), true);
        let total = stats.snapshot().total(RequestKind::Read);
        assert_eq!((total.requests, total.errors, total.bytes), (3, 1, 4608));
        assert_eq!(total.latency_counts[2], 1, "5 µs");
        assert_eq!(total.latency_counts[3], 1, "6 µs");
        assert_eq!(*total.latency_counts.last().unwrap(), 1);
        assert_eq!(stats.snapshot().total(RequestKind::Write).requests, 0);
    }

    #[test]
    fn sums_over_queues_go_round() {
        let stats = FrontendStats::new(2);
        for queue in 0..2 {
            let half = u64::MAX / 2 + 1;
            stats.queue(queue).unwrap().answered(
                RequestKind::Discard,
                half,
                Duration::from_nanos(half),
                true,
            );
        }
        let total = stats.snapshot().total(RequestKind::Discard);
        assert_eq!((total.requests, total.bytes, total.latency_sum_ns), (2, 0, 0));
    }
}
