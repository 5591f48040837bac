//! Requests, counted inside a guest and where they reach storage.

use std::fs::{self, File};
use std::path::Path;

use afterimage_lab::daemon::Daemon;
use afterimage_lab::powerfs::Counters;
use afterimage_protocol::cell::Requests;
use rustix::fs::{fadvise, Advice};
use serde::{Deserialize, Serialize};

use crate::error::{BenchError, Context, Result};

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

/// What reached storage. What whoever counted cannot tell is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageIo {
    /// By whom, where that differs from cell to cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_by: Option<CountedBy>,
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
    /// Times that a modelled disk's head was moved; counted in virtual time only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seeks: Option<u64>,
}

impl Default for StorageIo {
    /// Nothing, counted by somebody who can tell all.
    fn default() -> Self {
        let zero = Some(0);
        Self {
            counted_by: None,
            reads: zero,
            read_bytes: zero,
            writes: zero,
            write_bytes: 0,
            flushes: zero,
            seeks: None,
        }
    }
}

impl StorageIo {
    /// Below everything, on a model.
    pub fn of_model(counters: &Counters) -> Self {
        let total = &counters.total;
        Self {
            counted_by: Some(CountedBy::FileSystem),
            reads: Some(total.reads),
            read_bytes: Some(total.read_bytes),
            writes: Some(total.writes),
            write_bytes: total.write_bytes,
            flushes: Some(total.syncs + counters.directory_syncs),
            seeks: None,
        }
    }

    /// In virtual time.
    pub fn of_requests(requests: &Requests) -> Self {
        Self {
            counted_by: None,
            reads: Some(requests.reads),
            read_bytes: Some(requests.read_bytes),
            writes: Some(requests.writes),
            write_bytes: requests.write_bytes,
            flushes: Some(requests.flushes),
            seeks: Some(requests.seeks),
        }
    }

    /// What one of our daemons counts: image and log, before any page cache.
    ///
    /// # Errors
    /// It does not answer.
    pub fn of_daemon(daemon: &Daemon) -> Result<Self> {
        let (disk, log) = (daemon.disk()?.storage, daemon.status()?.log);
        Ok(Self {
            counted_by: Some(CountedBy::Daemon),
            reads: Some(disk.reads),
            read_bytes: Some(disk.read_bytes),
            writes: Some(disk.writes),
            write_bytes: disk.write_bytes + log.appended_bytes,
            flushes: Some(disk.syncs + log.syncs),
            seeks: None,
        })
    }

    /// Without a word about who counted, where that is the same in all cells.
    #[must_use]
    pub fn unsigned(self) -> Self {
        Self { counted_by: None, ..self }
    }

    fn with(&self, other: &Self, form: fn(u64, u64) -> u64) -> Self {
        let both = |a: Option<u64>, b: Option<u64>| Some(form(a?, b?));
        Self {
            counted_by: self.counted_by,
            reads: both(self.reads, other.reads),
            read_bytes: both(self.read_bytes, other.read_bytes),
            writes: both(self.writes, other.writes),
            write_bytes: form(self.write_bytes, other.write_bytes),
            flushes: both(self.flushes, other.flushes),
            seeks: both(self.seeks, other.seeks),
        }
    }

    /// What came after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    /// Together with another's.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        self.with(other, |a, b| a + b)
    }

    /// Bytes in both directions, as far as they were counted.
    pub fn traffic_bytes(&self) -> u64 {
        self.read_bytes.unwrap_or(0) + self.write_bytes
    }
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
    /// Discard requests; not in all older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discards: Option<u64>,
    /// Flushes.
    pub flushes: u64,
}

impl GuestIo {
    /// Reads `/sys/block/DISK/stat` (Documentation/block/stat.rst): sectors of 512 bytes.
    ///
    /// # Errors
    /// It is something else.
    pub fn of_stat(stat: &str) -> Result<Self> {
        let words: std::result::Result<Vec<u64>, _> = stat.split_whitespace().map(str::parse).collect();
        let words = words.map_err(|error| BenchError::Workload(format!("{error} in '{stat}'")))?;
        if words.len() < 17 {
            let sentence = "the guest's kernel counts no flushes: it needs Linux 5.5 or newer";
            return Err(BenchError::Workload(sentence.to_owned()));
        }
        Ok(Self {
            reads: words[0],
            read_bytes: words[2] * 512,
            writes: words[4],
            write_bytes: words[6] * 512,
            discards: Some(words[11]),
            flushes: words[15],
        })
    }

    /// What came after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(earlier.reads),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            writes: self.writes.saturating_sub(earlier.writes),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
            discards: self.discards.zip(earlier.discards).map(|(now, then)| now.saturating_sub(then)),
            flushes: self.flushes.saturating_sub(earlier.flushes),
        }
    }
}

/// Writes a file back; `cold` also takes it out of the page cache, so that whoever reads next reads from the device.
///
/// # Errors
/// The device fails.
pub fn settle(path: &Path, cold: bool) -> Result<()> {
    let file = File::open(path).context(|| format!("open {}", path.display()))?;
    file.sync_all().context(|| format!("sync {}", path.display()))?;
    if cold {
        fadvise(&file, 0, None, Advice::DontNeed)
            .context(|| format!("drop the pages of {}", path.display()))?;
    }
    Ok(())
}

/// The machine's load average over a minute; 0 where nobody says it.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_counted_stays_unknown() {
        let whole = StorageIo { reads: Some(5), write_bytes: 7, ..StorageIo::default() };
        let part = StorageIo { reads: None, write_bytes: 3, ..whole };
        assert_eq!((whole.since(&part).reads, whole.and(&part).write_bytes), (None, 10));
        assert_eq!((whole.and(&whole).reads, whole.since(&whole).write_bytes), (Some(10), 0));
    }

    #[test]
    fn results_of_either_benchmark_are_read() {
        let vma = r#"{"reads":1,"read_bytes":2,"writes":3,"write_bytes":4,"flushes":5}"#;
        let read: StorageIo = serde_json::from_str(vma).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), vma);
        let guests = r#"{"counted_by":"process","reads":null,"read_bytes":2,"writes":null,"write_bytes":4,"flushes":null}"#;
        let read: StorageIo = serde_json::from_str(guests).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), guests);
        assert!(serde_json::from_str::<StorageIo>(&vma.replace("write_bytes", "bytes")).is_err());
        let old = r#"{"reads":1,"read_bytes":2,"writes":3,"write_bytes":4,"flushes":5}"#;
        assert_eq!(serde_json::from_str::<GuestIo>(old).unwrap().discards, None);
    }

    #[test]
    fn a_guests_count_is_read_whole_or_not_at_all() {
        let io = GuestIo::of_stat("1 0 8 0 2 0 16 0 0 0 0 3 0 0 0 4 9").unwrap();
        assert_eq!((io.read_bytes, io.write_bytes, io.discards, io.flushes), (4096, 8192, Some(3), 4));
        assert!(GuestIo::of_stat("1 0 8").is_err() && GuestIo::of_stat("1 x").is_err());
    }
}
