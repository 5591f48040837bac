//! The shell that a task is, for its guest.

/// So many fsyncs fit in the file of their times.
const SYNCS_MAX: u32 = 1 << 17;

/// A task's shell.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Before the measurement.
    pub set_up: String,
    /// What is measured.
    pub work: String,
    /// Behind it.
    pub tear_down: String,
}

/// The shell that makes the file of fsyncs' times.
pub fn syncs_file() -> String {
    format!("truncate -s {} /run/syncs", 8 * (SYNCS_MAX + 1))
}
