//! What people are told about retained journals.

use serde::Serialize;

use crate::retain::Classes;

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
