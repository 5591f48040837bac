//! What one cell leaves: a file in `serve-guests.cells/SCALE`.

use serde::{Deserialize, Serialize};

use crate::catalog::{Device, Row, Workload};
use crate::scale::Scale;
use afterimage_bench_kit::io::{GuestIo, StorageIo};
use afterimage_bench_kit::{CellIdentity, Turn};

/// Which cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellKey {
    /// Inside the guest.
    pub workload: Workload,
    /// Below the daemon.
    pub device: Device,
    /// The daemon.
    pub row: Row,
    /// Counted from 1.
    pub round: u32,
}

impl CellIdentity for CellKey {
    /// `workload/device/row`
    fn path(&self) -> String {
        format!("{}/{}/{}", self.workload.name(), self.device.name(), self.row.name())
    }

    fn turn(&self) -> Turn {
        Turn::Round(self.round)
    }
}

/// Latencies, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencySummary {
    /// How many.
    pub count: u64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Longest.
    pub max_us: f64,
}

/// What our own daemon says about its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogIo {
    /// Bytes appended.
    pub appended_bytes: u64,
    /// Syncs of the log.
    pub syncs: u64,
    /// Bytes written home before the end of the measured part.
    pub home_written_bytes: u64,
    /// Times that a write waited for room.
    pub throttled: u64,
    /// Flushes that the window rule held back.
    pub held_flushes: u64,
    /// Bytes in use when the measured part ended.
    pub used_bytes: u64,
}

/// One finished cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`afterimage_bench_kit::Record::VERSION`]
    pub version: u32,
    /// The sizes it was run with.
    pub scale: Scale,
    /// Which one.
    pub key: CellKey,
    /// Operations done.
    pub operations: u64,
    /// In how long, in seconds of the guest's clock.
    pub elapsed_s: f64,
    /// Operations in a second.
    pub ops_per_s: f64,
    /// Each fsync inside the guest, where the workload can tell.
    pub fsync: Option<LatencySummary>,
    /// 99th percentile of a transaction, in milliseconds (OLTP).
    pub transaction_p99_ms: Option<f64>,
    /// The measured part.
    pub guest: GuestIo,
    /// The measured part and the unmount: the same span as `storage`.
    pub guest_whole: GuestIo,
    /// What reached storage.
    pub storage: StorageIo,
    /// The daemon's log, at the end of the measured part.
    pub log: Option<LogIo>,
    /// Processor time of the daemon in the measured part, in seconds.
    pub daemon_cpu_s: f64,
    /// How long the daemon's orderly end took, in seconds.
    pub close_s: f64,
    /// The whole cell, in seconds of the host's clock.
    pub wall_s: f64,
    /// The machine's load average (1 min) when the cell began.
    pub load: f64,
}

impl afterimage_bench_kit::Record for Record {
    type Key = CellKey;
    const VERSION: u32 = 3;

    fn key(&self) -> &CellKey {
        &self.key
    }
}

/// The finished cells of earlier runs and this one.
pub type Store = afterimage_bench_kit::Store<Record>;
