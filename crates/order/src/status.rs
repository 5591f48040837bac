//! What a group tells about itself.

use std::sync::Arc;
use std::time::Duration;

use afterimage_block::SequenceNumber;

use crate::Contract;

/// A snapshot for `ctl status` and the metrics.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// The contract in force.
    pub contract: Contract,
    /// The newest request that has completed.
    pub acknowledged: SequenceNumber,
    /// Everything up to here survives a power cut. Under `guest-crash`: as of the last sync.
    pub durable: SequenceNumber,
    /// Everything up to here is in the image files and synced.
    pub home: SequenceNumber,
    /// Age of the oldest acknowledged flush that is not durable yet.
    pub oldest_not_durable_age: Option<Duration>,
    /// The oldest age that any flush reached before it became durable (a stalled device lengthens it; the number of
    /// acknowledgements a cut can lose stays one window's).
    pub oldest_not_durable_age_max: Duration,
    /// Flushes that were held back by the window rule so far.
    pub held_flushes: u64,
    /// The redo log, where somebody has deleted it.
    pub log_deleted: Option<std::path::PathBuf>,
    /// Times that a lane had to wait for log space so far.
    pub throttled: u64,
    /// Bytes of the log in use.
    pub log_bytes: u64,
    /// Size of the log's record area.
    pub log_max_bytes: u64,
    /// Bytes appended to the log so far.
    pub log_appended_bytes: u64,
    /// Syncs of the log so far.
    pub log_syncs: u64,
    /// Bytes written home so far.
    pub home_written_bytes: u64,
    /// The first failure.
    pub failure: Option<Arc<str>>,
    /// New writes are held back.
    pub paused: bool,
    /// What opening found in the log, if there was one.
    pub replayed: Option<Replayed>,
}

/// What opening took over from a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Replayed {
    /// Complete records that were not home yet.
    pub records: u64,
    /// Bytes of the log that they fill.
    pub bytes: u64,
    /// The prefix that was found.
    pub sequence: u64,
    /// Whether an incomplete record at the end was discarded.
    pub torn_tail: bool,
}

/// What [`Group::subscribe`](crate::Group::subscribe) delivers.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Everything up to `sequence` survives a power cut from now on.
    Durable {
        /// The newest durable request.
        sequence: u64,
    },
    /// Everything up to `sequence` is in the image files, synced.
    Home {
        /// The newest request that is home.
        sequence: u64,
    },
    /// The group stopped taking writes.
    Failed {
        /// The first failure.
        reason: String,
    },
    /// New writes are held back; the images hold exactly the requests up to `sequence`.
    Paused {
        /// The newest request.
        sequence: u64,
    },
    /// Writes go on.
    Resumed,
    /// Closed in order: the images are plain raw files.
    Closed {
        /// The newest request.
        sequence: u64,
    },
}

/// How an orderly end went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Everything is home and synced; the images are plain raw files.
    Clean,
    /// Everything is durable, but some of it only in the redo log, which stays beside the image.
    LogKept {
        /// Bytes of the log that are still needed.
        log_bytes: u64,
    },
}
