//! What the guest's requests mean, seen from below (vDrive § 4.2: journal commit, page write-back, journal truncation,
//! write failure), counted.

use serde::{Deserialize, Serialize};

/// Counters of one file system, since it was found.
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
