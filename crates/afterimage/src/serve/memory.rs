//! What bounds the daemon's memory, whatever its guests do.
//!
//! ```text
//! BASE + disks × (DISK + queues × queue) + the log's index + retained journals
//! ```
//!
//! Every part is a bound that the code of its layer keeps and names; here they are added up, and nowhere else. Not counted:
//! the guest's own memory, which is shared with it, and the page cache, which is the system's.
#![allow(unsafe_code)]

use afterimage_order::{redo, Contract};

use super::settings::Settings;

/// The program itself, its threads of no queue, clients of its sockets.
const BASE_BYTES: u64 = 48 << 20;
/// A disk, without its queues: its session, and what `keep` and the metrics need.
const DISK_BYTES: u64 = 2 << 20;
/// A disk under `power-window` besides: a discard of all of it is an entry of the index for each of its regions.
const REGIONS_BYTES: u64 = redo::REGIONS_MAX as u64 * 128;
/// A queue's thread: the stack that it uses, and the rings that it shares with the kernel.
const THREAD_BYTES: u64 = 1 << 20;
/// The text trace: requests on their way, and the compressor.
const TRACE_BYTES: u64 = (afterimage_trace::capture::QUEUED_BYTES_MAX as u64) + (8 << 20);

/// The control disk: its session and queue, the thread that flushes, and commands that wait.
const CONTROL_DISK_BYTES: u64 =
    DISK_BYTES + 2 * THREAD_BYTES + afterimage_frontend::QUEUE_BYTES_MAX as u64 + (1 << 20);

/// What the bound depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Disks served.
    pub disks: u64,
    /// Queues of each.
    pub queues: u64,
    /// `--log-max`, under `power-window`.
    pub log_bytes_max: Option<u64>,
    /// `--retain-max`, with `--journal retain`.
    pub retain_bytes_max: Option<u64>,
    /// Whether there is a `--trace`.
    pub trace: bool,
    /// Whether there is a `--control-disk`.
    pub control_disk: bool,
    /// Whether `--recover-ijournal` is asked for.
    pub recover_ijournal: bool,
}

impl Shape {
    /// Of a daemon with these settings.
    pub fn of(settings: &Settings) -> Self {
        let retained = settings.journal.retain.then_some(settings.journal.retain_bytes_max);
        let window = matches!(settings.contract, Contract::PowerWindow { .. });
        Self {
            disks: settings.disks.len() as u64,
            queues: settings.queues.into(),
            log_bytes_max: window.then_some(settings.log_bytes_max),
            retain_bytes_max: retained,
            trace: settings.trace.is_some(),
            control_disk: settings.control_disk.is_some(),
            recover_ijournal: settings.recover_ijournal,
        }
    }

    /// The most memory of one queue, in bytes.
    pub fn queue_bytes_max(&self) -> u64 {
        THREAD_BYTES + afterimage_frontend::QUEUE_BYTES_MAX as u64 + self.lane_bytes_max()
    }

    /// The most memory of its lane.
    fn lane_bytes_max(&self) -> u64 {
        let mut bytes = afterimage_store::LANE_BYTES_MAX;
        if self.log_bytes_max.is_some() {
            bytes += redo::LANE_BYTES_MAX;
        }
        if self.retain_bytes_max.is_some() {
            bytes += afterimage_journal::LANE_BYTES_MAX;
        }
        bytes as u64
    }

    /// The most memory of the daemon, in bytes.
    pub fn bytes_max(&self) -> u64 {
        let regions = self.log_bytes_max.map_or(0, |_| REGIONS_BYTES);
        let index = self.log_bytes_max.map_or(0, redo::index_bytes_max);
        // Content, and what is known of each block of it.
        let retained = self.retain_bytes_max.map_or(0, |bytes| bytes + bytes / 8);
        let journals = self.retain_bytes_max.map_or(0, |_| afterimage_journal::DISK_BYTES_MAX as u64);
        let trace = if self.trace { TRACE_BYTES } else { 0 };
        // What is handed over goes through a lane of its disk's.
        let handed_over = self.retain_bytes_max.map_or(0, |_| self.disks * self.lane_bytes_max());
        BASE_BYTES
            + self.disks * (DISK_BYTES + regions + journals + self.queues * self.queue_bytes_max())
            + index
            + retained
            + trace
            + if self.control_disk { CONTROL_DISK_BYTES + handed_over } else { 0 }
            + if self.recover_ijournal { afterimage_ijournal::REPLAY_BYTES_MAX as u64 } else { 0 }
    }
}

/// Makes the C library's allocator keep what the bounds above are about. Before the first thread starts.
///
/// With a heap for each thread, memory that one queue's thread took and another one gave back would be kept for the first
/// one only: each could hold a whole index. And a freed piece of megabytes would raise the size from which pieces are given
/// back at once, up to 32 MiB. The data path allocates little, so one heap costs it nothing that could be measured.
pub fn bound_the_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in
        [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 256 << 10), (libc::M_TRIM_THRESHOLD, 1 << 20)]
    {
        // SAFETY: it takes no pointer; no other thread is there yet.
        if unsafe { libc::mallopt(parameter, value) } == 0 {
            tracing::debug!(parameter, "the allocator does not take a parameter");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What operations.md says, row by row.
    #[test]
    fn the_documentation_gives_these_figures() {
        let document = include_str!("../../../../docs/operations.md");
        let none = Shape {
            disks: 0,
            queues: 0,
            log_bytes_max: None,
            retain_bytes_max: None,
            trace: false,
            control_disk: false,
            recover_ijournal: false,
        };
        let log = Shape { log_bytes_max: Some(256 << 20), ..none };
        let retain = Shape { retain_bytes_max: Some(256 << 20), ..none };
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let more = |shape: Shape| shape.bytes_max() - none.bytes_max();
        let disk = |shape: Shape| Shape { disks: 1, ..shape }.bytes_max() - shape.bytes_max();
        let queue = mib(none.queue_bytes_max());
        let both = Shape { log_bytes_max: log.log_bytes_max, ..retain };
        let handed_over = disk(Shape { control_disk: true, ..both }) - disk(both);
        for (part, bytes) in [
            ("the program".to_owned(), mib(none.bytes_max())),
            ("each disk".to_owned(), mib(disk(none))),
            ("each disk under `power-window`, besides".to_owned(), mib(disk(log) - disk(none))),
            ("each disk with `--journal retain`, besides".to_owned(), mib(disk(retain) - disk(none))),
            ("each queue of each disk".to_owned(), queue),
            ("each queue under `power-window`, besides".to_owned(), mib(log.queue_bytes_max()) - queue),
            ("each queue with `--journal retain`, besides".to_owned(), mib(retain.queue_bytes_max()) - queue),
            ("the log's index, of `--log-max` 256M".to_owned(), mib(more(log))),
            ("retained journals, of `--retain-max` 256M".to_owned(), mib(more(retain))),
            ("`--trace`".to_owned(), mib(more(Shape { trace: true, ..none }))),
            ("`--control-disk`".to_owned(), mib(more(Shape { control_disk: true, ..none }))),
            ("`--control-disk`, for each disk with `--journal retain`, besides".to_owned(), mib(handed_over)),
            (
                "`--recover-ijournal`, the journals' replay".to_owned(),
                mib(more(Shape { recover_ijournal: true, ..none })),
            ),
        ] {
            let row = format!("| {part} | {bytes} MiB |");
            assert!(document.contains(&row), "docs/operations.md lacks: {row}");
        }
        assert!(more(log) <= 256 << 20, "no more than the log itself");
    }
}
