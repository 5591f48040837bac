//! A recording in virtual time: what `afterimage-virtual record` reads, and what it answers (docs/virtual-time.md).
//!
//! The order is one line; the end of what follows it is the request to end early.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What is recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// The file to write.
    pub out: PathBuf,
    /// What is said in it about it.
    pub about: Map<String, Value>,
    /// What the guest runs. It reports to /dev/ttyS0, and waits by reading /sys/block/vda/serial until that is `go` where all it has written
    /// is to be brought home.
    pub script: String,
    /// `--survives`
    pub contract: String,
    /// `--journal retain`
    pub retain: bool,
    /// `--control-disk`: it lies behind the end of the disk.
    pub control_disk: bool,
    /// Size of the disk in bytes.
    pub disk_bytes: u64,
    /// Size of the redo log in bytes.
    pub log_bytes: u64,
    /// The device below image and log.
    pub model: String,
    /// The host's file system between: `bare` or a model of one.
    pub host_fs: String,
    /// `mem=` in MiB.
    pub memory_mib: u32,
    /// The seed of everything random.
    pub seed: u64,
    /// How long the guest lives on after the mark `end`, in virtual time.
    pub settle_ns: u64,
    /// How long it may take in real time, in seconds.
    pub limit_s: u64,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// The command has ended well.
    Done,
    /// Somebody asked for the end.
    Interrupted,
    /// It took too long.
    OutOfTime,
    /// The guest has ended before the mark `end`, with that status of its script.
    Failed(i32),
    /// It has ended without one.
    Died,
}

/// What passed a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Passed {
    /// Writes.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Discards and zeroings.
    pub zeroes: u64,
    /// Flushes, or syncs of files.
    pub flushes: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// How it ended. Whatever that is, the file is whole.
    pub end: End,
    /// Submissions, completions, publications and marks.
    pub events: u64,
    /// Above the daemon's ordering layer.
    pub guest: Passed,
    /// Below it.
    pub storage: Passed,
    /// Lines that the guest reported.
    pub marks: u64,
    /// Commits that were published in memory which was lent.
    pub published: u64,
    /// The states that were named, in order.
    pub states: Vec<String>,
    /// Bytes before compression.
    pub raw_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// What the guest said on its console.
    pub output: String,
    /// And its kernel on its host's.
    pub last_words: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_exact;

    #[test]
    fn orders_and_answers_are_read_exactly() {
        let order = Order {
            out: "/x.afrec".into(),
            about: Map::new(),
            script: "true".to_owned(),
            contract: "power".to_owned(),
            retain: false,
            control_disk: false,
            disk_bytes: 1 << 20,
            log_bytes: 1 << 24,
            model: "ssd".to_owned(),
            host_fs: "bare".to_owned(),
            memory_mib: 128,
            seed: 3,
            settle_ns: 1,
            limit_s: 2,
        };
        // What is said in the recording is open, so this is no `assert_exact`.
        let mut json = serde_json::to_value(&order).unwrap();
        assert_eq!(Order::deserialize(&json).unwrap(), order);
        json["more"] = Value::Null;
        assert!(Order::deserialize(&json).is_err());
        let passed = Passed { writes: 1, write_bytes: 2, zeroes: 3, flushes: 4 };
        for end in [End::Done, End::Interrupted, End::OutOfTime, End::Failed(3), End::Died] {
            let answer = Recorded {
                end,
                events: 5,
                guest: passed,
                storage: passed,
                marks: 6,
                published: 9,
                states: vec!["new".to_owned()],
                raw_bytes: 7,
                file_bytes: 8,
                output: "said".to_owned(),
                last_words: String::new(),
            };
            assert_exact(&answer);
        }
    }
}
