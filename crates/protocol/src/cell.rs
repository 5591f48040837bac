//! One cell of a benchmark in virtual time: what `afterimage-virtual cell` reads, and what it answers (docs/virtual-time.md).
//!
//! Times are nanoseconds of virtual time since the guests' boot.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::status::FileSystemStatus;

/// What is run: so many guests, each with a disk and a daemon of its own, on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// How many.
    pub guests: u32,
    /// `mem=` of each, in MiB.
    pub memory_mib: u32,
    /// What each runs: a shell script. `$GUEST` is its number, `$SEED` the seed, /dev/vda its disk. It waits for the others by reading
    /// /sys/block/vda/serial until that is `go` (each time a meeting of all that still run).
    pub script: String,
    /// More for the guests' kernel's command line.
    pub append: Vec<String>,
    /// What the disks hold at first: a raw image, which is not changed; zeroes where there is none.
    #[serde(deserialize_with = "crate::required")]
    pub image: Option<PathBuf>,
    /// The size of each disk in bytes, where there is no image.
    pub image_bytes: u64,
    /// `--survives`
    pub contract: String,
    /// `--journal`
    pub journal: Journal,
    /// `--retain-max` in bytes, if not its default.
    #[serde(deserialize_with = "crate::required")]
    pub retain_bytes_max: Option<u64>,
    /// `--vflush-at-truncation`
    pub vflush_at_truncation: bool,
    /// Each guest has a control disk: what lies behind the end of its disk.
    pub control_disk: bool,
    /// Under `power`: whether the image is opened with O_DIRECT. (The other contracts use the page cache.)
    pub direct: bool,
    /// Under `power`: each write is synced before it is answered.
    pub write_through: bool,
    /// A model of the host's file system below images and logs: `bare` for none, `ordered`, `ordered-nobarrier`, `journal`.
    pub host_fs: String,
    /// Ranges of each disk, in bytes, that have blocks there from the beginning, besides what is no hole in the image.
    pub laid_out: Vec<[u64; 2]>,
    /// `--log-max` in bytes.
    pub log_bytes: u64,
    /// The device: a model of the lab's.
    pub model: String,
    /// The host writes all there is while more than this is dirty in its page cache, in bytes.
    pub dirty_background_bytes: u64,
    /// Above it writers wait, in bytes.
    pub dirty_bytes: u64,
    /// The seed of everything random inside.
    pub seed: u64,
    /// What a request costs its daemon; 0: processor free.
    pub request_ns: u64,
    /// At so many meetings, from the first on, what the host has cached goes to the device and is forgotten before anybody goes on.
    pub settle_meetings: u32,
    /// How often is looked at what daemons retain, from the first meeting to the second.
    #[serde(deserialize_with = "crate::required")]
    pub sample_ns: Option<u64>,
    /// All guests die at their work.
    #[serde(deserialize_with = "crate::required")]
    pub kill: Option<Kill>,
    /// A file for the trace of requests (crates/virtual-time/src/trace.rs).
    #[serde(deserialize_with = "crate::required")]
    pub trace: Option<PathBuf>,
    /// An existing folder for what each daemon asks of its files, as `serve --trace` writes it (docs/trace-format.md): `guest0.trace.zst` and so on. Not of
    /// guests that are killed.
    #[serde(deserialize_with = "crate::required")]
    pub storage_traces: Option<PathBuf>,
    /// A folder for what the disks hold at last: `disk0.img` and so on.
    #[serde(deserialize_with = "crate::required")]
    pub images: Option<PathBuf>,
    /// How long it may take in real time, in seconds.
    pub limit_s: u64,
}

/// What becomes of guests' journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Journal {
    /// They are written like everything else.
    Passthrough,
    /// They are kept in host memory.
    Retain,
    /// They are forgotten: for bounds.
    DropForBench,
}

/// All guests die.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kill {
    /// When.
    pub at: KillAt,
    /// Their daemons as well; others take over what these left, and end in order.
    pub daemons: bool,
    /// What the next guests run on the same disks, in a world of their own.
    pub then: String,
}

/// When guests die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KillAt {
    /// So many nanoseconds after their first meeting.
    Ns(u64),
    /// When they have written so many bytes, together, since then.
    WrittenBytes(u64),
}

/// Requests to storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    /// Reads.
    pub reads: u64,
    /// And their bytes.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// And their bytes.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Times that a disk's head was moved.
    pub seeks: u64,
}

/// Requests up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// Those that reached the device, below the host's page cache.
    pub device: Requests,
    /// Those that daemons asked of their files (nobody counts their seeks).
    pub daemons: Requests,
}

/// What a daemon retains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retained {
    /// The file systems found on its disk.
    pub file_systems: Vec<FileSystemStatus>,
    /// Bytes of journal content.
    pub arena_used_bytes: u64,
}

/// All guests have waited for each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meeting {
    /// When the last one came.
    pub met_ns: u64,
    /// When they went on.
    pub at_ns: u64,
    /// Until then.
    pub counted: Counted,
    /// By guest; `None` where journals are passed through.
    pub retained: Vec<Option<Retained>>,
}

/// What is retained at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// When.
    pub at_ns: u64,
    /// By guest.
    pub retained: Vec<Option<Retained>>,
}

/// The daemons' orderly end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// When the last guest had ended; of guests that were killed, when all that was cached was on the device.
    pub from_ns: u64,
    /// When the daemons had ended.
    pub daemons_ns: u64,
    /// When everything was on the device.
    pub settled_ns: u64,
    /// Until its begin.
    pub before: Counted,
    /// Until everything was on the device.
    pub counted: Counted,
    /// At its begin, by guest.
    pub retained: Vec<Option<Retained>>,
}

/// What came of one guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// Its script's exit status; `None` where it did not get that far.
    #[serde(deserialize_with = "crate::required")]
    pub exit: Option<i32>,
    /// All that it said, its script's reports among it.
    pub output: String,
    /// When it ended.
    pub ended_ns: u64,
    /// What it asked of its disk.
    pub asked: Requests,
    /// Sum of what its disk holds at last.
    pub image: String,
}

/// What came of a cell. The same cell gives the same, but for `real_s`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// By number.
    pub guests: Vec<Guest>,
    /// When all waited for each other: the first is the beginning of the work.
    pub meetings: Vec<Meeting>,
    /// Between the first two of them.
    pub samples: Vec<Sample>,
    /// The daemons' end.
    pub end: End,
    /// Guests were killed; not where they had ended before.
    pub killed: bool,
    /// After a kill: what came of the next guests.
    #[serde(deserialize_with = "crate::required")]
    pub then: Option<Box<Outcome>>,
    /// Sum of the trace of all requests.
    pub trace: String,
    /// How long it took in real time.
    pub real_s: f64,
}

impl Requests {
    /// What came after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            writes: self.writes - earlier.writes,
            write_bytes: self.write_bytes - earlier.write_bytes,
            flushes: self.flushes - earlier.flushes,
            seeks: self.seeks - earlier.seeks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_exact;

    #[test]
    fn a_cell_and_its_outcome_are_read_exactly() {
        assert_exact(&Cell {
            guests: 2,
            memory_mib: 128,
            script: "true".to_owned(),
            append: vec!["a=b".to_owned()],
            image: Some(PathBuf::from("/image")),
            image_bytes: 0,
            contract: "power".to_owned(),
            journal: Journal::DropForBench,
            retain_bytes_max: None,
            vflush_at_truncation: false,
            control_disk: true,
            direct: true,
            write_through: false,
            host_fs: "bare".to_owned(),
            laid_out: vec![[1, 2]],
            log_bytes: 1,
            model: "ssd".to_owned(),
            dirty_background_bytes: 2,
            dirty_bytes: 3,
            seed: 4,
            request_ns: 5,
            settle_meetings: 1,
            sample_ns: Some(6),
            kill: Some(Kill { at: KillAt::WrittenBytes(7), daemons: true, then: "false".to_owned() }),
            trace: None,
            storage_traces: None,
            images: None,
            limit_s: 8,
        });
        let retained = vec![None, Some(Retained::default())];
        let counted = Counted::default();
        assert_exact(&Outcome {
            guests: vec![Guest {
                exit: Some(0),
                output: "said".to_owned(),
                ended_ns: 1,
                asked: Requests::default(),
                image: "0".to_owned(),
            }],
            meetings: vec![Meeting { met_ns: 1, at_ns: 2, counted, retained: retained.clone() }],
            samples: vec![Sample { at_ns: 1, retained: retained.clone() }],
            end: End { from_ns: 1, daemons_ns: 2, settled_ns: 3, before: counted, counted, retained },
            killed: false,
            then: None,
            trace: "0".to_owned(),
            real_s: 0.5,
        });
    }
}
