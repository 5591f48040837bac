//! What one cell leaves: one line of `serve-guests.cells.jsonl`.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use afterimage_results::of_version;
use serde::{Deserialize, Serialize};

use crate::catalog::{Device, Row, Workload};
use crate::error::{Context, Result};
use crate::scale::Scale;

/// Raised when a record of an older program would mean something else.
pub const RECORD_VERSION: u32 = 3;

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

impl CellKey {
    /// `workload/device/row`
    pub fn path(&self) -> String {
        format!("{}/{}/{}", self.workload.name(), self.device.name(), self.row.name())
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

/// A guest's own count of what it sent, from `/sys/block/vda/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestIo {
    /// Read requests.
    pub reads: u64,
    /// Bytes in them.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes in them.
    pub write_bytes: u64,
    /// Discard requests.
    pub discards: u64,
    /// Flushes.
    pub flushes: u64,
}

/// Where [`StorageIo`] was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CountedBy {
    /// The lab's file system, below everything.
    FileSystem,
    /// The daemon's own counters.
    Daemon,
    /// The loop device below the host's ext4.
    LoopDevice,
    /// The kernel's account of the daemon process: bytes only.
    Process,
}

/// What reached storage, from the begin of the measured part to the daemon's orderly end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageIo {
    /// By whom.
    pub counted_by: CountedBy,
    /// Read requests.
    pub reads: Option<u64>,
    /// Bytes read.
    pub read_bytes: Option<u64>,
    /// Write requests.
    pub writes: Option<u64>,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes (fsync, fdatasync, durable writes).
    pub flushes: Option<u64>,
}

impl StorageIo {
    /// What came after `earlier`.
    pub fn since(&self, earlier: &StorageIo) -> StorageIo {
        let less = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        StorageIo {
            counted_by: self.counted_by,
            reads: less(self.reads, earlier.reads),
            read_bytes: less(self.read_bytes, earlier.read_bytes),
            writes: less(self.writes, earlier.writes),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
            flushes: less(self.flushes, earlier.flushes),
        }
    }
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
    /// [`RECORD_VERSION`]
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

/// The finished cells of earlier and this run.
pub struct Store {
    path: PathBuf,
    records: Vec<Record>,
}

impl Store {
    /// Opens the file; `fresh` forgets what is in it. Lines of another scale or version stay, unread.
    ///
    /// # Errors
    /// The file can not be read or written.
    pub fn open(path: &Path, scale: &Scale, fresh: bool) -> Result<Store> {
        if fresh && path.exists() {
            fs::remove_file(path).context(|| format!("remove {}", path.display()))?;
        }
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).context(|| format!("read {}", path.display())),
        };
        // What follows the last end of a line was cut short by its writer's death: the cell is run again.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut records = Vec::new();
        for (at, line) in text[..whole].lines().enumerate() {
            let record = of_version::<Record>(line, RECORD_VERSION)
                .map_err(std::io::Error::from)
                .context(|| format!("{} line {} cannot be read: remove it", path.display(), at + 1))?;
            records.extend(record.filter(|record| record.scale == *scale));
        }
        if whole < text.len() {
            let file = OpenOptions::new().write(true).open(path);
            file.and_then(|file| file.set_len(whole as u64))
                .context(|| format!("write {}", path.display()))?;
        }
        // The newest of each cell counts.
        let mut seen = BTreeSet::new();
        records.reverse();
        records.retain(|record| seen.insert(record.key));
        records.reverse();
        Ok(Store { path: path.to_owned(), records })
    }

    /// Appends a finished cell.
    ///
    /// # Errors
    /// The file can not be written.
    pub fn add(&mut self, record: Record) -> Result<()> {
        let mut line = serde_json::to_string(&record)
            .map_err(std::io::Error::other)
            .context(|| "a record".to_owned())?;
        line.push('\n');
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.path)
            .context(|| format!("open {}", self.path.display()))?;
        file.write_all(line.as_bytes()).context(|| format!("write {}", self.path.display()))?;
        self.records.push(record);
        Ok(())
    }

    /// Whether a cell is finished.
    pub fn has(&self, key: &CellKey) -> bool {
        self.records.iter().any(|record| record.key == *key)
    }

    /// All finished cells of this scale.
    pub fn records(&self) -> &[Record] {
        &self.records
    }
}
