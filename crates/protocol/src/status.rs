//! The answer to `status` on the control socket (`docs/control-protocol.md`).

use serde::{Deserialize, Serialize};

/// Everything about the group and its disks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatusAnswer {
    /// `true`
    pub ok: bool,
    /// The program's version, and what is compiled in that only tests want.
    pub version: String,
    /// The daemon's process number.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// The contract in force.
    pub contract: String,
    /// The promise and its loss bound, in one sentence.
    pub promise: String,
    /// What becomes of the guest's journals: `passthrough` or `retain`.
    pub journal: String,
    /// The newest completed request, up to which everything survives a power cut, and up to which it is home.
    pub sequence: SequenceStatus,
    /// Age of the oldest acknowledged flush that is not durable, in seconds.
    #[serde(deserialize_with = "crate::required")]
    pub oldest_not_durable_age_s: Option<f64>,
    /// The redo log.
    pub log: LogStatus,
    /// What opening took over from a log.
    #[serde(deserialize_with = "crate::required")]
    pub replayed: Option<ReplayStatus>,
    /// The first failure: the disks take no writes any more.
    #[serde(deserialize_with = "crate::required")]
    pub failure: Option<String>,
    /// New writes are held.
    pub paused: bool,
    /// What locks the process in.
    pub sandbox: SandboxReport,
    /// A `keep` process holds the sockets.
    pub kept: bool,
    /// The control disk.
    #[serde(deserialize_with = "crate::required")]
    pub control_disk: Option<ControlDiskStatus>,
    /// Each disk.
    pub disks: Vec<DiskStatus>,
}

/// The control disk, and how often its commands were answered since the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlDiskStatus {
    /// Where the guest connects.
    pub socket: String,
    /// A guest is connected.
    pub attached: bool,
    /// Connections since the start.
    pub connections: u64,
    /// Ordering points given.
    pub vorders: u64,
    /// Durability asked for, and reached.
    pub vflushes: u64,
    /// Points waited for, and durable.
    pub waits: u64,
    /// Points waited for, and not durable in time.
    pub not_yet: u64,
    /// Requests with which file systems handed commits over.
    pub mprotects: u64,
    /// Blocks that they handed over.
    pub handed_over_blocks: u64,
    /// Commits that file systems published in memory which they had lent.
    pub published: u64,
    /// Blocks of these.
    pub published_blocks: u64,
    /// What was asked or told of file systems besides.
    pub file_systems: u64,
    /// What was no command, or none that there is.
    pub refused: u64,
    /// What the disks' failure prevented.
    pub failed: u64,
}

/// The group's place in its history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequenceStatus {
    /// The newest completed request.
    pub acknowledged: u64,
    /// Up to here everything survives a power cut.
    pub durable: u64,
    /// Up to here everything is in the image files, synced.
    pub home: u64,
}

/// The redo log; all zero where the contract needs none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogStatus {
    /// Bytes in use.
    pub bytes: u64,
    /// Bound.
    pub bytes_max: u64,
    /// Bytes appended since the start.
    pub appended_bytes: u64,
    /// Syncs since the start.
    pub syncs: u64,
    /// Bytes written home since the start.
    pub home_written_bytes: u64,
    /// Times that writes waited for room.
    pub throttled: u64,
    /// Flushes that the window rule held back.
    pub held_flushes: u64,
    /// Somebody has deleted it.
    pub deleted: bool,
}

/// What opening took over from a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplayStatus {
    /// Complete records that were not home.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The prefix that was found.
    pub sequence: u64,
    /// An incomplete record at the end was discarded.
    pub torn_tail: bool,
}

/// One disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskStatus {
    /// The image.
    pub file: String,
    /// Where the guest connects.
    pub socket: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Somebody has deleted the image.
    pub deleted: bool,
    /// Somebody has shortened the image: it has fewer bytes than the disk now.
    pub shortened: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// What the guest sees.
    pub serial: String,
    /// A guest is connected.
    pub attached: bool,
    /// The guest sees a write cache.
    pub write_cache: bool,
    /// Connections since the start.
    pub connections: u64,
    /// Requests by kind.
    pub requests: Vec<OperationStatus>,
    /// What reached the image file.
    pub storage: StorageStatus,
    /// The memory of its retained journals; `None` where they are passed through.
    #[serde(deserialize_with = "crate::required")]
    pub arena: Option<ArenaStatus>,
    /// The file systems found on it; none where journals are passed through.
    pub file_systems: Vec<FileSystemStatus>,
    /// The first failure.
    #[serde(deserialize_with = "crate::required")]
    pub failure: Option<String>,
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationStatus {
    /// `read`, `write`, `flush`, `discard`, `write_zeroes`, `other`
    pub kind: String,
    /// Answered, failed ones included.
    pub requests: u64,
    /// Failed.
    pub errors: u64,
    /// Bytes of the successful ones.
    pub bytes: u64,
}

/// What reached the image file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageStatus {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Holes punched.
    pub discards: u64,
    /// Ranges zeroed.
    pub zeroes: u64,
}

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

/// One file system, or a place where one may come to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSystemStatus {
    /// Its first sector.
    pub start_sector: u64,
    /// Its UUID, where it has one.
    #[serde(deserialize_with = "crate::required")]
    pub uuid: Option<String>,
    /// `retain`; `waiting` for the next mount; `passthrough`.
    pub mode: String,
    /// Why its journal is not retained.
    #[serde(deserialize_with = "crate::required")]
    pub why: Option<String>,
    /// Committed transactions held.
    pub transactions: u64,
    /// Versions retained: the newest committed content of a block each.
    pub versions: u64,
    /// Those of them that are not home.
    pub versions_pending: u64,
    /// Bytes of the versions.
    pub data_bytes: u64,
    /// Journal blocks that are not held, because their home holds the same bytes.
    pub served_from_home: u64,
    /// Bytes of journal information: what says where a version is and where it belongs.
    pub information_bytes: u64,
    /// What the guest's requests meant.
    #[serde(flatten)]
    pub classes: Classes,
}

/// Counters of one file system, since it was found: what the guest's requests mean, seen from below (vDrive § 4.2: journal commit,
/// page write-back, journal truncation, write failure).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classes {
    /// Transactions that the guest committed.
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
    /// Journal blocks that were served from home and were saved, because that was written.
    pub saved_blocks: u64,
}

/// What locks the daemon in, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxReport {
    /// File access: `full`, `partial`, `off`, or why not.
    pub landlock: String,
    /// System calls: `on`, `off`, or why not.
    pub seccomp: String,
}

impl SandboxReport {
    /// Nothing in force because the user said so.
    pub fn off() -> Self {
        Self { landlock: "off".to_owned(), seccomp: "off".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_exact;

    #[test]
    fn a_status_is_read_exactly() {
        assert_exact(&StatusAnswer {
            ok: true,
            version: "1".to_owned(),
            pid: 1,
            uptime_s: 1.5,
            contract: "power".to_owned(),
            promise: "all".to_owned(),
            journal: "retain".to_owned(),
            sequence: SequenceStatus { acknowledged: 3, durable: 2, home: 1 },
            oldest_not_durable_age_s: None,
            log: LogStatus {
                bytes: 1,
                bytes_max: 2,
                appended_bytes: 3,
                syncs: 4,
                home_written_bytes: 5,
                throttled: 6,
                held_flushes: 7,
                deleted: false,
            },
            replayed: Some(ReplayStatus { records: 1, bytes: 2, sequence: 3, torn_tail: true }),
            failure: None,
            paused: false,
            sandbox: SandboxReport::off(),
            kept: false,
            control_disk: Some(ControlDiskStatus {
                socket: "s".to_owned(),
                attached: true,
                connections: 1,
                vorders: 2,
                vflushes: 3,
                waits: 4,
                not_yet: 5,
                mprotects: 6,
                handed_over_blocks: 7,
                published: 11,
                published_blocks: 12,
                file_systems: 8,
                refused: 9,
                failed: 10,
            }),
            disks: vec![DiskStatus {
                file: "f".to_owned(),
                socket: "s".to_owned(),
                bytes: 1,
                deleted: false,
                shortened: false,
                read_only: false,
                serial: "n".to_owned(),
                attached: true,
                write_cache: true,
                connections: 1,
                requests: vec![OperationStatus { kind: "read".to_owned(), requests: 1, errors: 2, bytes: 3 }],
                storage: StorageStatus::default(),
                arena: Some(ArenaStatus::default()),
                file_systems: vec![FileSystemStatus::default()],
                failure: Some("no".to_owned()),
            }],
        });
    }
}
