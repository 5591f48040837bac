//! What people are told about retained journals.

pub use afterimage_protocol::status::{Classes, FileSystemStatus};
use serde::Serialize;

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
