//! What programs in a guest report to the host: JSON lines, told apart by a member that names the speaker (`agent`, `pool`; scripts
//! of the lab and the benchmarks have their own).

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A line that is not what it should be.
#[derive(Debug, thiserror::Error)]
#[error("a report cannot be read ({source}): {line}")]
pub struct ReportError {
    /// The line.
    pub line: String,
    /// What is wrong with it.
    pub source: serde_json::Error,
}

/// Reads a line as a `T`, if it has the member that names `T`'s speaker; `None` where somebody else speaks.
///
/// # Errors
/// It is no JSON object, or the speaker's, and not exactly a `T`.
pub fn read<T: DeserializeOwned>(line: &str, speaker: &str) -> Result<Option<T>, ReportError> {
    let failed = |source| ReportError { line: line.to_owned(), source };
    let members: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).map_err(failed)?;
    if !members.contains_key(speaker) {
        return Ok(None);
    }
    T::deserialize(serde_json::Value::Object(members)).map(Some).map_err(failed)
}

/// The agent's reports (`guest/agent`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "agent", rename_all = "kebab-case")]
pub enum Agent {
    /// `ack-write` begins.
    AckWrite(AckWrite),
    /// A record's fsync has returned.
    Ack(Ack),
    /// `ack-write` has come to its end.
    AckDone(AckDone),
    /// It could not go on.
    Failed(Failed),
    /// `verify`: one file.
    VerifyFile(VerifyFile),
    /// `verify`: all of them.
    Verify(Verify),
    /// `fsync-bench`
    FsyncBench(FsyncBench),
    /// `sync-times`
    SyncTimes(SyncTimes),
    /// `workload`
    Workload(Workload),
    /// `micro`
    Micro(Micro),
    /// `timed`
    Timed(Timed),
    /// `integrity`
    Integrity(Integrity),
    /// `churn`
    Churn(Churn),
    /// `churn-verify`
    ChurnVerify(ChurnVerify),
    /// `stamp-verify`
    StampVerify(StampVerify),
}

/// Reads a line of the report channel, if the agent speaks.
///
/// # Errors
/// As [`read`].
pub fn agent(line: &str) -> Result<Option<Agent>, ReportError> {
    read(line, "agent")
}

/// `ack-write` begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AckWrite {
    /// Threads, each with a file, or files, of its own.
    pub threads: u64,
    /// Bytes of a record.
    pub size: u64,
    /// Records of a ring; 0: files that only grow.
    pub slots: u64,
    /// When, on the guest's clock.
    pub ns: u64,
}

/// One acknowledged record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ack {
    /// Its number.
    pub n: u64,
    /// The thread, and so the file, that wrote it.
    pub thread: u32,
    /// Its place in the file, or among the thread's files.
    pub slot: u64,
    /// Every record up to this one had been acknowledged before this one was written.
    pub floor: u64,
    /// When fsync returned, on the guest's clock.
    pub ns: u64,
    /// How long fsync took.
    pub fsync_ns: u64,
}

/// `ack-write` has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AckDone {
    /// All records up to this one.
    pub acknowledged: u64,
    /// In how long.
    pub elapsed_ns: u64,
    /// Each fsync.
    pub fsync: Latencies,
}

/// What could not go on, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failed {
    /// The command.
    pub what: String,
    /// Why.
    pub error: String,
}

/// Latencies, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latencies {
    /// How many.
    pub count: u64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Longest.
    pub max_us: f64,
    /// Mean.
    pub mean_us: f64,
}

/// One file of records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyFile {
    /// Whose.
    pub thread: u32,
    /// Bytes of a record.
    pub size: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Places that hold nothing.
    pub empty: u64,
    /// Intact records as runs in which slot and number count up by one: first slot, first number, how many.
    pub present: Vec<(u64, u64, u64)>,
    /// Slots that hold something that is neither whole nor empty.
    pub torn: Vec<u64>,
}

impl VerifyFile {
    /// Slot and number of each intact record.
    pub fn records(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.present.iter().flat_map(|(slot, number, count)| (0..*count).map(move |i| (slot + i, number + i)))
    }
}

/// All files of records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verify {
    /// How many there are.
    pub files: u64,
    /// Intact records in them.
    pub intact: u64,
    /// Torn ones.
    pub torn: u64,
    /// Records that are missing though one that was written after their acknowledgement is there.
    pub order_violations: u64,
    /// The first of these: what is missing, and what was written after it.
    pub shown: Vec<(u64, u64)>,
}

/// One fsync after each write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FsyncBench {
    /// As `--name` said.
    pub name: String,
    /// Bytes of a write.
    pub size: u64,
    /// All of it.
    pub elapsed_ns: u64,
    /// Each fsync.
    pub fsync: Latencies,
}

/// Each fsync of one file, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncTimes {
    /// How long it took.
    pub ns: Vec<u64>,
    /// What the disk wrote from its begin to its end, of whomever.
    pub disk_bytes: Vec<u64>,
}

/// One of filebench's personalities.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Which.
    pub name: String,
    /// Threads.
    pub threads: u64,
    /// Operations as filebench counts them.
    pub operations: u64,
    /// Whole passes.
    pub passes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// In how long.
    pub elapsed_ns: u64,
    /// Each fsync.
    pub fsync: Latencies,
}

/// One of filebench's micro-benchmarks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Micro {
    /// Which.
    pub name: String,
    /// How many.
    pub operations: u64,
    /// In how long.
    pub elapsed_ns: u64,
}

/// A command that was timed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timed {
    /// What it was called.
    pub name: String,
    /// How long it took.
    pub elapsed_ns: u64,
    /// Its exit status was 0.
    pub success: bool,
}

/// Where the integrity experiment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Integrity {
    /// Updates begin.
    Updating {},
    /// What is left of them.
    Verified {
        /// Records in the file.
        records: u64,
        /// Records of which there is an update.
        updated: u64,
        /// Records that mix versions.
        mixed: u64,
        /// Blocks that are no record's at all.
        foreign_blocks: u64,
        /// Blocks that are not as any moment of the updates had left them, where their seed is known.
        #[serde(deserialize_with = "crate::required")]
        out_of_order_blocks: Option<u64>,
    },
}

/// Where the churn stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Churn {
    /// Blocks change hands.
    Busy {},
    /// Its time is over.
    Done {
        /// What it did.
        steps: u64,
        /// How often the file system was full.
        full: u64,
    },
}

/// Whether a file holds another's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChurnVerify {
    /// Files read.
    pub files: u64,
    /// Blocks in them.
    pub blocks: u64,
    /// Blocks that are somebody else's.
    pub wrong: u64,
}

/// Whether the blocks are those that were stamped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StampVerify {
    /// Blocks read.
    pub blocks: u64,
    /// Of these, others than were written.
    pub wrong: u64,
    /// The first of them.
    pub first: Vec<String>,
}

/// From here on a crash must leave the application in this state, or a later one (`explore mark`, `agent editor`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// The state; `begin` and `end` are the recorder's.
    pub mark: String,
}

/// What a guest of the explorer's pool reports (`agent pool`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "pool", rename_all = "kebab-case")]
pub enum Pool {
    /// It waits for states.
    Ready(PoolReady),
    /// A state is mounted, and its check begins.
    Checking(PoolReady),
    /// What it found in one.
    Done(PoolDone),
}

/// It waits for states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolReady {}

/// What was found in a state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolDone {
    /// The state, as the host called it.
    pub id: String,
    /// errno of mount(2), 0 for success; likewise the next two.
    pub mount: i32,
    /// Of umount(2).
    pub umount: i32,
    /// Of BLKFLSBUF.
    pub forget: i32,
    /// Exit status of the check, 0 where it is content.
    pub exit: i32,
    /// The application's state, where the check names one.
    #[serde(deserialize_with = "crate::required")]
    pub state: Option<String>,
    /// The end of what the check printed, or why it is not content.
    pub output: String,
    /// The agent's records, where they were asked for.
    #[serde(deserialize_with = "crate::required")]
    pub records: Option<PoolRecords>,
    /// The kernel's messages.
    pub kmsg: Vec<String>,
}

/// The agent's records in a state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolRecords {
    /// Runs of numbers: first, last.
    pub present: Vec<(u64, u64)>,
    /// Thread and slot.
    pub torn: Vec<(u32, u64)>,
    /// A record that is missing, and one that was written after it had been acknowledged.
    pub violations: Vec<(u64, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_exact;

    #[test]
    fn every_report_is_read_exactly() {
        let latencies = Latencies { count: 1, p50_us: 2.0, p99_us: 3.0, max_us: 4.0, mean_us: 5.5 };
        let name = || "n".to_owned();
        for report in [
            Agent::AckWrite(AckWrite { threads: 1, size: 4096, slots: 0, ns: 7 }),
            Agent::Ack(Ack { n: 1, thread: 2, slot: 3, floor: 0, ns: u64::MAX, fsync_ns: 5 }),
            Agent::AckDone(AckDone { acknowledged: 1, elapsed_ns: 2, fsync: latencies }),
            Agent::Failed(Failed { what: name(), error: "\"quoted\"".to_owned() }),
            Agent::VerifyFile(VerifyFile {
                thread: 1,
                size: 2,
                bytes: 3,
                empty: 4,
                present: vec![(0, 1, 2), (4, 9, 1)],
                torn: vec![7],
            }),
            Agent::Verify(Verify { files: 1, intact: 2, torn: 3, order_violations: 4, shown: vec![(5, 6)] }),
            Agent::FsyncBench(FsyncBench { name: name(), size: 1, elapsed_ns: 2, fsync: latencies }),
            Agent::Workload(Workload {
                name: name(),
                threads: 1,
                operations: 2,
                passes: 3,
                reads: 4,
                writes: 5,
                read_bytes: 6,
                write_bytes: 7,
                elapsed_ns: 8,
                fsync: latencies,
            }),
            Agent::SyncTimes(SyncTimes { ns: vec![1, 2], disk_bytes: vec![3, 4] }),
            Agent::Micro(Micro { name: name(), operations: 1, elapsed_ns: 2 }),
            Agent::Timed(Timed { name: name(), elapsed_ns: 2, success: true }),
            Agent::Integrity(Integrity::Updating {}),
            Agent::Integrity(Integrity::Verified {
                records: 1,
                updated: 2,
                mixed: 3,
                foreign_blocks: 4,
                out_of_order_blocks: Some(5),
            }),
            Agent::Churn(Churn::Busy {}),
            Agent::Churn(Churn::Done { steps: 1, full: 2 }),
            Agent::ChurnVerify(ChurnVerify { files: 1, blocks: 2, wrong: 3 }),
            Agent::StampVerify(StampVerify { blocks: 1, wrong: 2, first: vec![name()] }),
        ] {
            assert_exact(&report);
            let line = serde_json::to_string(&report).unwrap();
            assert_eq!(agent(&line).unwrap(), Some(report));
        }
        for report in [
            Pool::Ready(PoolReady {}),
            Pool::Done(PoolDone::default()),
            Pool::Done(PoolDone { records: Some(PoolRecords::default()), ..PoolDone::default() }),
        ] {
            assert_exact(&report);
        }
    }

    #[test]
    fn a_renamed_member_is_no_zero() {
        let line = r#"{"agent":"verify","files":1,"intact":2,"torn":0,"order_violations":3,"shown":[]}"#;
        assert!(matches!(agent(line), Ok(Some(Agent::Verify(Verify { order_violations: 3, .. })))));
        let renamed = line.replace("order_violations", "out_of_order");
        assert!(agent(&renamed).unwrap_err().to_string().contains("out_of_order"));
        assert!(agent(&line.replace(r#""shown":[]"#, r#""shown":[],"lost":9"#)).is_err());
    }

    #[test]
    fn others_are_left_to_others_and_half_a_line_is_not() {
        assert_eq!(agent(r#"{"demo":"mounted","needed_replay":true}"#).unwrap(), None);
        for half in [r#"{"agent":"ack","n":1,"thr"#, "", "ack", "[1]", r#"{"agent":"somebody"}"#] {
            assert!(agent(half).is_err(), "{half}");
        }
    }

    #[test]
    fn runs_are_records() {
        let file = VerifyFile {
            thread: 0,
            size: 1,
            bytes: 0,
            empty: 0,
            present: vec![(0, 5, 2), (9, 1, 1)],
            torn: vec![],
        };
        assert_eq!(file.records().collect::<Vec<_>>(), [(0, 5), (1, 6), (9, 1)]);
    }
}
