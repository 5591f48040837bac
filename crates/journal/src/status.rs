//! What people are told about retained journals.

use serde::{Deserialize, Serialize};

/// One disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskStatus {
    /// What was found on it, by position.
    pub file_systems: Vec<FileSystemStatus>,
    /// Bytes of journal content in the arena.
    pub arena_used_bytes: u64,
    /// Memory that the arena takes.
    pub arena_resident_bytes: u64,
    /// The bound of the content, which all disks of the process share.
    pub arena_bytes_max: u64,
}

/// One file system, or place where one may come to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileSystemStatus {
    /// Its first sector.
    pub start_sector: u64,
    /// Its UUID.
    pub uuid: Option<String>,
    /// `retain`, `waiting` or `passthrough`.
    pub mode: &'static str,
    /// Why it is not retained.
    pub why: Option<String>,
    /// Committed transactions held.
    pub transactions: u64,
    /// Versions retained.
    pub versions: u64,
    /// Those that are not home.
    pub versions_pending: u64,
    /// Bytes of retained versions, a block each.
    pub data_bytes: u64,
    /// Bytes of journal information: control block, hash table, lists of transactions.
    pub information_bytes: u64,
    /// What the guest's requests meant.
    #[serde(flatten)]
    pub classes: Classes,
}

/// Counters of one file system, since it was found: what the guest's requests mean, seen from below (vDrive § 4.2: journal commit,
/// page write-back, journal truncation, write failure).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classes {
    /// Transactions committed.
    pub journal_commits: u64,
    /// Blocks that those transactions logged.
    pub journal_commit_blocks: u64,
    /// Bytes of journal writes that did not reach storage.
    pub journal_absorbed_bytes: u64,
    /// Home writes by the guest of blocks whose committed version is retained.
    pub page_writebacks: u64,
    /// Of these, those that carried exactly the committed version.
    pub page_writebacks_matching: u64,
    /// Bytes of home writes that were not forwarded, because the same bytes had gone home before.
    pub page_writeback_elided_bytes: u64,
    /// Times the guest moved its journal's tail.
    pub journal_truncations: u64,
    /// Writes of this file system that failed below.
    pub write_failures: u64,
    /// Blocks revoked.
    pub revokes: u64,
    /// Transactions released because everything in them was home or superseded.
    pub releases: u64,
    /// Checkpoints by the daemon itself: for memory, for a guest that is gone, for an orderly end.
    pub checkpoints: u64,
    /// Blocks that those wrote home.
    pub checkpoint_blocks: u64,
    /// Journal blocks that went to their own place on the disk, for want of memory.
    pub evicted_blocks: u64,
}
