//! From one guest stream to the storage streams of every contract: the guest's requests of a recording, driven again
//! through the real ordering layer.
//!
//! ```text
//!   guest events of a recording ─► driver (one thread, virtual clock, seeded schedule)
//!                                    │ submit, dispatch, reap
//!                                    ▼
//!                       order::redo lanes and Redo ─► tape media: log, images
//!                                    │                     │ every write, zeroing and sync
//!                                    ▼                     ▼
//!                 Recording: layer guest and layer storage, in the order in which things became true
//! ```
//!
//! Whatever caused something in the source still comes first: a request that was submitted after another one had completed
//! is submitted after that one has completed here, too, and a mark stands behind the completions that preceded it. A flush
//! that the window rule holds back therefore delays all that followed it, as it would have delayed the guest.
//!
//! What a schedule varies: when syncs begin and how long they take (some longer than the window), checkpoints at odd
//! moments, deaths of the process (the next one takes over what is in the page cache), and which writes share a batch.
//! What it does not: a checkpoint runs in one piece, with no request in between; requests are appended in the order of
//! their submission, on all disks together.

mod device;
mod direct;
mod driver;
mod retained;
mod setting;
mod synthetic;
mod tape;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use afterimage_order::redo::Config;
use afterimage_trace::{EventKind, Recording};

use crate::{ExploreError, Result};
pub use direct::direct;
pub(crate) use direct::ids_end;
pub use driver::{replay, replay_noted};
pub use retained::{OpenRetained, Retain};
pub use synthetic::{synthetic, Synthetic};

/// A request that is not answered after so many turns of everything that could help it never will be.
const TURNS_MAX: usize = 256;
/// Where a recording says what is done with the guests' journals, and that they are retained.
pub(crate) const JOURNAL: &str = "journal";
pub(crate) const RETAIN: &str = "retain";
/// Where a recording says that its guest had a control disk.
pub(crate) const CONTROL_DISK: &str = "control_disk";

/// Where a recording says how its requests were driven through the redo log: its times are not those of a daemon.
pub(crate) const LAYERS: &str = "layers";

/// Changes the configuration with which each process of a replay opens the log.
pub type Configure = Arc<dyn Fn(Config) -> Config + Send + Sync>;

/// How a guest stream is driven through the redo log.
#[derive(Clone)]
pub struct LayersOptions {
    /// The window of the contract.
    pub window: Duration,
    /// Size of the log's record area in bytes, rounded down to whole pages; at least 8 pages.
    pub log_area_bytes: u64,
    /// Seed of everything that is drawn. The same seed gives the same recording.
    pub seed: u64,
    /// What happens beside the guest's requests.
    pub schedule: Schedule,
    /// For proofs that mistakes are found: changes the configuration of the core under test.
    pub configure: Option<Configure>,
    /// Journals are retained (`--journal retain`); `None`: passed through.
    pub retain: Option<Retain>,
}

impl Default for LayersOptions {
    fn default() -> Self {
        Self {
            window: Duration::from_millis(50),
            log_area_bytes: 4 << 20,
            seed: 1,
            schedule: Schedule::default(),
            configure: None,
            retain: None,
        }
    }
}

impl std::fmt::Debug for LayersOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayersOptions")
            .field("window", &self.window)
            .field("log_area_bytes", &self.log_area_bytes)
            .field("seed", &self.seed)
            .field("schedule", &self.schedule)
            .field("retain", &self.retain)
            .finish_non_exhaustive()
    }
}

/// Chances, each out of 1000 and drawn at every guest event, and durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// A sync begins before it is due.
    pub early_sync: u32,
    /// A checkpoint of a drawn size runs, however full the log is.
    pub checkpoint: u32,
    /// The process dies, and another one takes over.
    pub death: u32,
    /// Drawn at a sync instead: it takes up to four windows.
    pub stall: u32,
    /// A submitted write waits for the next dispatch, so that several share a batch.
    pub batch: u32,
    /// The longest that a sync takes that does not stall.
    pub sync_max: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            early_sync: 10,
            checkpoint: 5,
            death: 1,
            stall: 30,
            batch: 300,
            sync_max: Duration::from_millis(8),
        }
    }
}

impl Schedule {
    /// Nothing but what the daemon itself does when it is due.
    pub fn calm() -> Self {
        Self { early_sync: 0, checkpoint: 0, death: 0, stall: 0, batch: 0, ..Self::default() }
    }
}

/// From that event on, what the core declared to be durable has to survive every crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// Number of events of the recording before the declaration.
    pub event: usize,
    /// So many requests (counted as in [`crate::prefix::Prefixes`]) survive.
    pub k: usize,
}

/// A replay, with what only its driver can know.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Both layers.
    pub recording: Recording,
    /// What was declared durable when, ascending.
    pub floors: Vec<Floor>,
    /// What the schedule went through.
    pub tally: Tally,
}

/// What happened in a replay: one in which nothing interesting happens proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Syncs of the log.
    pub syncs: u64,
    /// Checkpoints that brought something home.
    pub checkpoints: u64,
    /// Deaths of the process.
    pub deaths: u64,
    /// Flushes that the window rule held back.
    pub held_flushes: u64,
    /// Times that a full log held writes back.
    pub throttled: u64,
}

/// Whether a recording was made with retained journals.
pub(crate) fn retains(recording: &Recording) -> bool {
    recording.about_text(JOURNAL) == Some(RETAIN)
}

/// Whether the guest of a recording could hand over its commits: then those of its requests that complete as if flushed are some.
pub(crate) fn hands_over(recording: &Recording) -> bool {
    recording.about.get(CONTROL_DISK).and_then(serde_json::Value::as_bool) == Some(true)
}

/// The names of all requests that were refused.
pub(crate) fn refused_ids(recording: &Recording) -> HashSet<u64> {
    let refused = recording.events.iter().filter_map(|event| match event.kind {
        EventKind::Complete { id, ok: false, .. } => Some(id),
        _ => None,
    });
    refused.collect()
}

/// The guest layer's disks by index, checked to be 0, 1, 2, …
pub(crate) fn guest_disks(recording: &Recording) -> Result<Vec<afterimage_trace::TargetId>> {
    use afterimage_trace::{Layer, Role};
    let mut disks: Vec<_> = recording
        .of_layer(Layer::Guest)
        .filter_map(|(id, target)| match target.role {
            Role::Disk(index) => Some((index, id)),
            Role::Log => None,
        })
        .collect();
    disks.sort_unstable();
    let complete = disks.iter().zip(0..).all(|((index, _), expected)| *index == expected);
    if disks.is_empty() || !complete {
        return Err(ExploreError::Corrupt(
            "the recording's guest layer does not have disks 0, 1, 2, … of one group".to_owned(),
        ));
    }
    Ok(disks.into_iter().map(|(_, id)| id).collect())
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> ExploreError {
    ExploreError::Corrupt(format!("replaying the guest's requests: {what}: {error}"))
}
