//! What is said of retained journals.

use afterimage_protocol::status::{ArenaStatus, Classes};

/// The memory of one disk's retained journals.
pub fn arena(status: &afterimage_journal::DiskStatus) -> ArenaStatus {
    ArenaStatus {
        used_bytes: status.arena_used_bytes,
        resident_bytes: status.arena_resident_bytes,
        bytes_max: status.arena_bytes_max,
    }
}

/// What the file system's requests meant since it was found, and what became of it: name, meaning, count. All
/// counts only grow.
pub fn counts(classes: &Classes) -> [(&'static str, &'static str, u64); 12] {
    [
        ("journal_commits", "Transactions that the guest committed", classes.journal_commits),
        (
            "journal_commit_blocks",
            "Blocks that the guest's transactions logged",
            classes.journal_commit_blocks,
        ),
        ("page_writebacks", "Guest writes home of blocks with a retained version", classes.page_writebacks),
        (
            "page_writebacks_matching",
            "Guest writes home of just the retained version",
            classes.page_writebacks_matching,
        ),
        ("journal_truncations", "Times that the guest truncated its journal", classes.journal_truncations),
        ("journal_write_failures", "Writes of the file system that failed", classes.write_failures),
        ("journal_revokes", "Blocks that the guest revoked", classes.revokes),
        ("retained_releases", "Retained transactions released", classes.releases),
        ("retained_checkpoints", "Times that the daemon wrote versions home", classes.checkpoints),
        ("retained_checkpoint_blocks", "Blocks that the daemon wrote home", classes.checkpoint_blocks),
        (
            "journal_evicted_blocks",
            "Journal blocks sent to their own place for want of memory",
            classes.evicted_blocks,
        ),
        (
            "journal_saved_blocks",
            "Journal blocks served from home that were saved, because that was written",
            classes.saved_blocks,
        ),
    ]
}
