//! What is said of retained journals.

use afterimage_journal::retain::Classes;
use serde::{Deserialize, Serialize};

/// The memory of one disk's retained journals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArenaStatus {
    /// Bytes of journal content.
    pub used_bytes: u64,
    /// Bytes of memory that it takes, spare pages and tags included.
    pub resident_bytes: u64,
    /// Bound of the content, which all disks share.
    pub bytes_max: u64,
}

impl From<&afterimage_journal::DiskStatus> for ArenaStatus {
    fn from(status: &afterimage_journal::DiskStatus) -> Self {
        Self {
            used_bytes: status.arena_used_bytes,
            resident_bytes: status.arena_resident_bytes,
            bytes_max: status.arena_bytes_max,
        }
    }
}

/// One file system, or a place where one may come to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystemStatus {
    /// Its first sector.
    pub start_sector: u64,
    /// Its UUID, where it has one.
    pub uuid: Option<String>,
    /// `retain`; `waiting` for the next mount; `passthrough`.
    pub mode: String,
    /// Why its journal is not retained.
    pub why: Option<String>,
    /// Committed transactions held.
    pub transactions: u64,
    /// Versions retained: the newest committed content of a block each.
    pub versions: u64,
    /// Those of them that are not home.
    pub versions_pending: u64,
    /// Bytes of the versions.
    pub data_bytes: u64,
    /// Bytes of journal information: what says where a version is and where it belongs.
    pub information_bytes: u64,
    /// What its requests meant since it was found.
    #[serde(flatten)]
    pub classes: Classes,
}

impl From<&afterimage_journal::FileSystemStatus> for FileSystemStatus {
    fn from(status: &afterimage_journal::FileSystemStatus) -> Self {
        Self {
            start_sector: status.start_sector,
            uuid: status.uuid.clone(),
            mode: status.mode.to_owned(),
            why: status.why.clone(),
            transactions: status.transactions,
            versions: status.versions,
            versions_pending: status.versions_pending,
            data_bytes: status.data_bytes,
            information_bytes: status.information_bytes,
            classes: status.classes,
        }
    }
}

impl FileSystemStatus {
    /// What the file system's requests meant since it was found, and what became of it: name, meaning, count. All
    /// counts only grow.
    pub fn counts(&self) -> [(&'static str, &'static str, u64); 11] {
        let classes = &self.classes;
        [
            ("journal_commits", "Transactions that the guest committed", classes.journal_commits),
            (
                "journal_commit_blocks",
                "Blocks that the guest's transactions logged",
                classes.journal_commit_blocks,
            ),
            (
                "page_writebacks",
                "Guest writes home of blocks with a retained version",
                classes.page_writebacks,
            ),
            (
                "page_writebacks_matching",
                "Guest writes home of just the retained version",
                classes.page_writebacks_matching,
            ),
            (
                "journal_truncations",
                "Times that the guest truncated its journal",
                classes.journal_truncations,
            ),
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
        ]
    }
}

#[cfg(test)]
mod tests {
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
        let passed_on = FileSystemStatus::from(&status);
        let text = serde_json::to_value(&passed_on).unwrap();
        assert_eq!(text, serde_json::to_value(&status).unwrap());
        assert_eq!(serde_json::from_value::<FileSystemStatus>(text).unwrap(), passed_on);
    }
}
