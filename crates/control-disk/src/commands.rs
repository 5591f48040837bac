//! How often what was asked: `status` and metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use afterimage_format::control_disk::{
    is_of_a_file_system, Command, OPERATION_MPROTECT, OPERATION_VFLUSH, OPERATION_VORDER, STATUS_DONE,
    STATUS_FAILED, STATUS_NOT_YET,
};

/// How often commands were answered, since the start.
#[derive(Debug, Default)]
pub struct Commands {
    /// Ordering points given.
    pub vorders: AtomicU64,
    /// Durability that was asked for, and reached.
    pub vflushes: AtomicU64,
    /// Points that were waited for, and durable.
    pub waits: AtomicU64,
    /// Points that were waited for, and not durable in time.
    pub not_yet: AtomicU64,
    /// Blocks of commits that were handed over.
    pub handed_over_blocks: AtomicU64,
    /// Requests with such blocks.
    pub mprotects: AtomicU64,
    /// Commits that were published in memory which was lent, and taken.
    pub published: AtomicU64,
    /// Their blocks.
    pub published_blocks: AtomicU64,
    /// What was asked or told of file systems besides.
    pub file_systems: AtomicU64,
    /// What was no command, or none that there is.
    pub refused: AtomicU64,
    /// What the disks' failure prevented.
    pub failed: AtomicU64,
}

impl Commands {
    pub(crate) fn count(&self, command: &Command, status: u16) {
        let counter = match (status, command.operation.get()) {
            (STATUS_DONE, OPERATION_VORDER) => &self.vorders,
            (STATUS_DONE, OPERATION_VFLUSH) => &self.vflushes,
            (STATUS_DONE, OPERATION_MPROTECT) => {
                self.handed_over_blocks.fetch_add(command.blocks.get().into(), Ordering::Relaxed);
                &self.mprotects
            }
            (STATUS_DONE | STATUS_NOT_YET, operation) if is_of_a_file_system(operation) => &self.file_systems,
            (STATUS_DONE, _) => &self.waits,
            (STATUS_NOT_YET, _) => &self.not_yet,
            (STATUS_FAILED, _) => &self.failed,
            _ => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
