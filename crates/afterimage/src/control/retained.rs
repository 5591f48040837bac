//! What is said of retained journals.

use afterimage_protocol::status::{ArenaStatus, FileSystemStatus};

/// The memory of one disk's retained journals.
pub fn arena(status: &afterimage_journal::DiskStatus) -> ArenaStatus {
    ArenaStatus {
        used_bytes: status.arena_used_bytes,
        resident_bytes: status.arena_resident_bytes,
        bytes_max: status.arena_bytes_max,
    }
}

/// One file system of a disk.
pub fn file_system(status: &afterimage_journal::FileSystemStatus) -> FileSystemStatus {
    let classes = &status.classes;
    FileSystemStatus {
        start_sector: status.start_sector,
        uuid: status.uuid.clone(),
        mode: status.mode.to_owned(),
        why: status.why.clone(),
        transactions: status.transactions,
        versions: status.versions,
        versions_pending: status.versions_pending,
        data_bytes: status.data_bytes,
        information_bytes: status.information_bytes,
        journal_commits: classes.journal_commits,
        journal_commit_blocks: classes.journal_commit_blocks,
        journal_absorbed_bytes: classes.journal_absorbed_bytes,
        page_writebacks: classes.page_writebacks,
        page_writebacks_matching: classes.page_writebacks_matching,
        page_writeback_elided_bytes: classes.page_writeback_elided_bytes,
        journal_truncations: classes.journal_truncations,
        write_failures: classes.write_failures,
        revokes: classes.revokes,
        releases: classes.releases,
        checkpoints: classes.checkpoints,
        checkpoint_blocks: classes.checkpoint_blocks,
        evicted_blocks: classes.evicted_blocks,
    }
}

/// What the file system's requests meant since it was found, and what became of it: name, meaning, count. All
/// counts only grow.
pub fn counts(status: &FileSystemStatus) -> [(&'static str, &'static str, u64); 11] {
    [
        ("journal_commits", "Transactions that the guest committed", status.journal_commits),
        (
            "journal_commit_blocks",
            "Blocks that the guest's transactions logged",
            status.journal_commit_blocks,
        ),
        ("page_writebacks", "Guest writes home of blocks with a retained version", status.page_writebacks),
        (
            "page_writebacks_matching",
            "Guest writes home of just the retained version",
            status.page_writebacks_matching,
        ),
        ("journal_truncations", "Times that the guest truncated its journal", status.journal_truncations),
        ("journal_write_failures", "Writes of the file system that failed", status.write_failures),
        ("journal_revokes", "Blocks that the guest revoked", status.revokes),
        ("retained_releases", "Retained transactions released", status.releases),
        ("retained_checkpoints", "Times that the daemon wrote versions home", status.checkpoints),
        ("retained_checkpoint_blocks", "Blocks that the daemon wrote home", status.checkpoint_blocks),
        (
            "journal_evicted_blocks",
            "Journal blocks sent to their own place for want of memory",
            status.evicted_blocks,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use afterimage_journal::Classes;

    use super::*;

    #[test]
    fn everything_that_the_journal_layer_says_is_passed_on() {
        let status = afterimage_journal::FileSystemStatus {
            start_sector: 2048,
            uuid: Some("u".to_owned()),
            mode: "retain",
            why: None,
            transactions: 1,
            versions: 2,
            versions_pending: 3,
            data_bytes: 4,
            information_bytes: 5,
            classes: Classes { revokes: 6, evicted_blocks: 7, ..Default::default() },
        };
        let passed_on = file_system(&status);
        let text = serde_json::to_value(&passed_on).unwrap();
        assert_eq!(text, serde_json::to_value(&status).unwrap());
        assert_eq!(serde_json::from_value::<FileSystemStatus>(text).unwrap(), passed_on);
    }
}
