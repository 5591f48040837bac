//! What reached storage: exact on any machine.

use serde::{Deserialize, Serialize};

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Data written.
    Write,
    /// Data read.
    Read,
    /// Holes punched and ranges zeroed.
    Zero,
    /// fsync, fdatasync, and writes that are durable by themselves.
    Sync,
}

/// One file's counters, or the sum of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileCounters {
    /// Write requests.
    pub writes: u64,
    /// Bytes in them.
    pub write_bytes: u64,
    /// Read requests (those that no page cache above answered).
    pub reads: u64,
    /// Bytes in them.
    pub read_bytes: u64,
    /// Hole and zero requests.
    pub zeroes: u64,
    /// Bytes in them.
    pub zero_bytes: u64,
    /// Flushes of the device.
    pub syncs: u64,
}

impl FileCounters {
    /// Counts one request.
    pub fn count(&mut self, kind: Counted, bytes: u64) {
        match kind {
            Counted::Write => {
                self.writes += 1;
                self.write_bytes += bytes;
            }
            Counted::Read => {
                self.reads += 1;
                self.read_bytes += bytes;
            }
            Counted::Zero => {
                self.zeroes += 1;
                self.zero_bytes += bytes;
            }
            Counted::Sync => self.syncs += 1,
        }
    }

    /// Adds another file's.
    pub fn add(&mut self, other: &FileCounters) {
        self.writes += other.writes;
        self.write_bytes += other.write_bytes;
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.zeroes += other.zeroes;
        self.zero_bytes += other.zero_bytes;
        self.syncs += other.syncs;
    }
}
