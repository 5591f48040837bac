//! What the redo log was given: one step is a record, or all records of a set.

use afterimage_trace::{Recording, TargetId};

use crate::prefix::{records, Logged};

/// Records that a crash leaves together.
pub(super) struct LogStep {
    pub records: Vec<Logged>,
    /// Number of the last of them.
    pub sequence: u64,
    /// The event of the log's write with which it is complete.
    pub event: usize,
}

/// All steps, in the order of their numbers.
pub(super) fn log_steps(recording: &Recording, log: TargetId) -> Vec<LogStep> {
    let mut steps: Vec<LogStep> = Vec::new();
    let mut open: Vec<Logged> = Vec::new();
    for record in records(recording, log) {
        let (more, sequence, event) = (record.more, record.sequence, record.event);
        open.push(record);
        if !more {
            steps.push(LogStep { records: std::mem::take(&mut open), sequence, event });
        }
    }
    steps
}
