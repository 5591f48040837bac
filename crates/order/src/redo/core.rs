//! The state machine: what its locks guard, how it fails, what it tells.
//!
//! Locks, in the order in which they may be taken: `set_batch` → `checkpointing` → `append` → `records` → `progress`. Readers take
//! none of them, only a shard of the index. `append` is held across the write of the log, so that the log never has a
//! hole before a completed record; `progress` never across I/O.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afterimage_block::{advice, BlockError, Health, Medium, SequenceNumber};
use afterimage_format::log::LogHeader;

use super::area::Area;
use super::batch::Batch;
use super::checkpoint::Pace;
use super::index::Index;
use super::mutation::Mutation;
use super::scan::Placed;
use super::window::Acknowledgements;
use crate::clock::Clock;
use crate::events::Events;
use crate::signal::Signals;
use crate::{Event, Replayed};

/// What a core is opened with.
pub struct Config {
    /// The window of the window rule.
    pub window: Duration,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The log file.
    pub log: Arc<dyn Medium>,
    /// The images, by disk index.
    pub homes: Vec<Arc<dyn Medium>>,
    /// A random number that no earlier process has used for this log.
    pub incarnation: u64,
    /// A mistake to make; only with the feature `mutations`.
    #[cfg(feature = "mutations")]
    pub mutation: Option<Mutation>,
}

impl Config {
    /// What is the same with and without the feature `mutations`.
    pub fn new(
        window: Duration,
        clock: Arc<dyn Clock>,
        log: Arc<dyn Medium>,
        homes: Vec<Arc<dyn Medium>>,
        incarnation: u64,
    ) -> Self {
        Self {
            window,
            clock,
            log,
            homes,
            incarnation,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}

/// The redo log of one group. See the [module](super).
pub struct Core {
    pub(super) area: Area,
    pub(super) homes: Vec<Arc<dyn Medium>>,
    pub(super) index: Vec<Index>,
    pub(super) window: Duration,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) group_tag: u64,
    pub(super) checkpointing: Mutex<Checkpointing>,
    pub(super) append: Mutex<Append>,
    /// Where sets are staged, one at a time.
    pub(super) set_batch: Mutex<Batch>,
    /// The header on storage says that there may be sets.
    pub(super) sets_announced: AtomicBool,
    /// The records from the tail on, oldest first.
    pub(super) records: Mutex<VecDeque<Placed>>,
    pub(super) progress: Mutex<Progress>,
    /// The syncer sleeps here.
    pub(super) sync_wake: Condvar,
    /// The checkpointer sleeps here.
    pub(super) checkpoint_wake: Condvar,
    /// Those who wait for a durable, home or failed state sleep here.
    pub(super) progressed: Condvar,
    /// The newest request in the log. Written under `append`.
    pub(super) acknowledged: AtomicU64,
    /// Copy of `progress.durable`, for those who only look.
    pub(super) durable: AtomicU64,
    /// Copy of `progress.tail`.
    pub(super) tail: AtomicU64,
    /// Copy of `append.head`.
    pub(super) head: AtomicU64,
    pub(super) counters: Counters,
    pub(super) health: Health,
    pub(super) signals: Signals,
    pub(super) events: Events,
    pub(super) replayed: Option<Replayed>,
    #[cfg(feature = "mutations")]
    pub(super) mutation: Option<Mutation>,
}

/// Where the next record goes.
pub(super) struct Append {
    pub(super) head: u64,
    pub(super) sequence: u64,
    pub(super) incarnation: u64,
    /// Appends wait.
    pub(super) paused: bool,
    /// Appends fail: the group is closed.
    pub(super) closed: bool,
    /// A set waits for room: nothing else is appended before it.
    pub(super) set_waits: bool,
}

/// How far things have got.
pub(super) struct Progress {
    /// Sequence number and end position of what is durable in the log.
    pub(super) durable: u64,
    pub(super) durable_position: u64,
    /// Where the log begins, and the last sequence number before it.
    pub(super) tail: u64,
    pub(super) home: u64,
    pub(super) acknowledgements: Acknowledgements,
    pub(super) sync_wanted: bool,
    pub(super) checkpoint_wanted: bool,
    /// How long a sync takes, smoothed.
    pub(super) sync_time: Duration,
    pub(super) stop: bool,
    /// Counts what may let an append go on: room made, the end of a pause, the group's end.
    pub(super) changes: u64,
}

/// What only a checkpoint touches.
pub(super) struct Checkpointing {
    /// The newest header on storage.
    pub(super) header: LogHeader,
    pub(super) pace: Pace,
}

/// For the metrics.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) appended_bytes: AtomicU64,
    pub(super) log_syncs: AtomicU64,
    pub(super) home_written_bytes: AtomicU64,
    pub(super) held_flushes: AtomicU64,
    pub(super) throttled: AtomicU64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// Whether a mistake is to be made here; never in a program.
    #[cfg(feature = "mutations")]
    pub(super) fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Whether a mistake is to be made here; never in a program.
    #[cfg(not(feature = "mutations"))]
    #[inline(always)]
    pub(super) fn mutated(&self, _mutation: Mutation) -> bool {
        false
    }

    /// The newest request that is in the log: everything up to it may have completed.
    pub fn acknowledged(&self) -> SequenceNumber {
        SequenceNumber(self.acknowledged.load(Ordering::SeqCst))
    }

    /// Everything up to this survives a power cut.
    pub fn durable(&self) -> SequenceNumber {
        SequenceNumber(self.durable.load(Ordering::SeqCst))
    }

    /// Everything up to this is in the images, synced.
    pub fn home(&self) -> SequenceNumber {
        SequenceNumber(lock(&self.progress).home)
    }

    /// Bytes of the record area in use.
    pub fn log_bytes(&self) -> u64 {
        self.head.load(Ordering::SeqCst).saturating_sub(self.tail.load(Ordering::SeqCst))
    }

    /// Size of the record area in bytes.
    pub fn area_bytes(&self) -> u64 {
        self.area.bytes
    }

    /// What opening found.
    pub fn replayed(&self) -> Option<Replayed> {
        self.replayed
    }

    /// How often a flush was held back by the window rule, and a lane by a full log.
    pub fn waits(&self) -> (u64, u64) {
        let counters = &self.counters;
        (counters.held_flushes.load(Ordering::Relaxed), counters.throttled.load(Ordering::Relaxed))
    }

    /// The state after the first failure; shared by all disks of the group.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The group stops taking writes: nothing after this may be acknowledged, and the log stays for recovery.
    pub(super) fn fail(&self, reason: String, error: std::io::Error) -> BlockError {
        let full = format!("{reason}: {error}{}", advice(&error));
        if self.health.fail(full.as_str()) {
            tracing::error!(reason = %full, "the group stopped taking writes");
            self.events.publish(&Event::Failed { reason: full });
        }
        // Taken, so that nobody who has just looked at the health goes to sleep now.
        drop(lock(&self.progress));
        self.progressed.notify_all();
        self.sync_wake.notify_all();
        self.checkpoint_wake.notify_all();
        self.signals.wake_parked();
        BlockError::io(reason, error)
    }
}
