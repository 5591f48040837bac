//! One cell, and what it leaves.

use std::path::Path;

use afterimage_bench_kit::io::GuestIo;
use afterimage_bench_kit::virtual_time::{plain_cell, with_prologue, Virtual, REQUEST_NS, SYSCALL_NS};
use afterimage_bench_kit::{BenchError, CellIdentity, Result};
use afterimage_lab::process::Workdir;
use afterimage_protocol::cell::{Cell, Journal, Requests};
use serde::{Deserialize, Serialize};

use crate::flash::{wear, Wear};
use crate::plan::{Arm, Key, Log, Scale};
use crate::script::{script, Control, Tools};

/// The guest's memory.
pub const MEMORY_MIB: u32 = 512;
/// How long a cell may take.
pub const LIMIT_S: u64 = 1800;

/// What vext4 has counted (docs/guest-kernel.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vext4 {
    /// Transactions of its journal.
    pub commits: u64,
    /// Of them, those that were one write and one flush.
    pub single: u64,
    /// Written to the journal.
    pub journal_bytes: u64,
    /// Written elsewhere.
    pub home_bytes: u64,
    /// Blocks that never went home: a later transaction had them.
    pub cancelled_overwritten: u64,
    /// And those that were freed first.
    pub cancelled_freed: u64,
}

impl Vext4 {
    /// Of lines `NAME NUMBER`.
    fn of(lines: &[&str]) -> Option<Self> {
        let number = |name: &str| {
            let mut found = lines.iter().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            found.next()?.trim().parse::<u64>().ok()
        };
        Some(Self {
            commits: number("transactions")?,
            single: number("single")?,
            journal_bytes: number("journal_bytes")?,
            home_bytes: number("home_bytes")?,
            cancelled_overwritten: number("cancelled_overwritten")?,
            cancelled_freed: number("cancelled_freed")?,
        })
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            commits: self.commits - earlier.commits,
            single: self.single - earlier.single,
            journal_bytes: self.journal_bytes - earlier.journal_bytes,
            home_bytes: self.home_bytes - earlier.home_bytes,
            cancelled_overwritten: self.cancelled_overwritten - earlier.cancelled_overwritten,
            cancelled_freed: self.cancelled_freed - earlier.cancelled_freed,
        }
    }
}

/// A part of a round: all inserts, say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// What.
    pub name: String,
    /// How many transactions, or synced writes.
    pub transactions: u64,
    /// In how long, in seconds of the cell's time.
    pub elapsed_s: f64,
    /// What the guest asked of its disk meanwhile: the device was asked the same.
    pub guest: GuestIo,
    /// On vext4.
    pub vext4: Option<Vext4>,
}

impl Phase {
    /// Milliseconds a transaction.
    pub fn response_ms(&self) -> f64 {
        1e3 * self.elapsed_s / self.transactions as f64
    }

    /// A number of the phase for each of its transactions.
    pub fn each(&self, number: u64) -> f64 {
        number as f64 / self.transactions as f64
    }
}

/// A finished cell. In virtual time all but `real_s` is the same whenever it is run again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`afterimage_bench_kit::Record::VERSION`]
    pub version: u32,
    /// Which one.
    pub key: Key,
    /// Records in the table, or writes to the file.
    pub records: u32,
    /// What a request was charged; nothing is in real time.
    pub request_ns: u64,
    /// And a guest's system call.
    pub syscall_ns: u64,
    /// In their order.
    pub phases: Vec<Phase>,
    /// What reached the device from the first mark's moment until after the unmount; not counted in real time.
    pub device_whole: Requests,
    /// What the round costs simulated drives; databases on `ssd` only, and not in results that are older than this.
    #[serde(default)]
    pub flash: Vec<Wear>,
    /// Sum of the trace of all requests, in virtual time.
    pub trace: String,
    /// How long it took in real time.
    pub real_s: f64,
}

impl Record {
    /// What is said of it while others run.
    pub fn words(&self) -> String {
        let of = |phase: &Phase| format!("{} {:.2} ms", phase.name, phase.response_ms());
        self.phases.iter().map(of).collect::<Vec<_>>().join(", ")
    }
}

impl afterimage_bench_kit::Record for Record {
    type Key = Key;
    const VERSION: u32 = 1;

    fn key(&self) -> &Key {
        &self.key
    }
}

/// Runs a cell.
///
/// # Errors
/// It comes to no end, or the guest does not say what it has to.
pub fn measure(key: &Key, scale: Scale, image: &Path, tools: &Tools, machine: &Virtual) -> Result<Record> {
    let hands_over = key.arm == Arm::Vma;
    let traces = (key.model == "ssd" && key.log != Log::File)
        .then(|| Workdir::new_in(Path::new("/dev/shm"), "joj-trace"))
        .transpose()?;
    // The disk's own flushes and writes are what is compared: each request goes to the device as it is, but for those of who hands over.
    let cell = Cell {
        memory_mib: MEMORY_MIB,
        script: with_prologue(&script(key, scale, tools, Control::Behind))?,
        image: Some(image.to_owned()),
        contract: if hands_over { "guest-crash" } else { "power" }.to_owned(),
        journal: if hands_over { Journal::Retain } else { Journal::Passthrough },
        control_disk: hands_over,
        model: key.model.clone(),
        seed: key.seed,
        append: vec![format!("syscall_ns={SYSCALL_NS}")],
        request_ns: REQUEST_NS,
        limit_s: LIMIT_S,
        storage_traces: traces.as_ref().map(|folder| folder.path().to_owned()),
        ..plain_cell("")?
    };
    let outcome = machine.run(&cell)?;
    let strange = |what: &str| said_not(key, what);
    let guest = outcome.guests.first().ok_or_else(|| strange("anything"))?;
    let begin = outcome.meetings.first().ok_or_else(|| strange("a meeting"))?;
    let mut record = Record {
        request_ns: REQUEST_NS,
        syscall_ns: SYSCALL_NS,
        device_whole: outcome.end.counted.device.since(&begin.counted.device),
        trace: outcome.trace.clone(),
        ..record(key, scale, &guest.output, outcome.real_s)?
    };
    if let Some(traces) = traces {
        record.flash = wear(&traces.join("guest0.trace.zst"), std::fs::metadata(image)?.len())?;
    }
    Ok(record)
}

/// A mark.
#[derive(Debug, Default)]
struct Mark<'a> {
    phase: &'a str,
    ended_ns: u64,
    began_ns: u64,
    stat: &'a str,
    vext4: Vec<&'a str>,
}

fn marks(output: &str) -> Option<Vec<Mark<'_>>> {
    let mut marks: Vec<Mark<'_>> = Vec::new();
    for line in output.lines().filter_map(|line| line.trim_end().strip_prefix("joj: ")) {
        let (word, rest) = line.split_once(' ')?;
        if word == "ended" {
            let (phase, ns) = rest.split_once(' ')?;
            marks.push(Mark { phase, ended_ns: ns.parse().ok()?, ..Mark::default() });
            continue;
        }
        let mark = marks.last_mut()?;
        match word {
            "began" => mark.began_ns = rest.split_once(' ')?.1.parse().ok()?,
            "stat" => mark.stat = rest,
            "vext4" => mark.vext4.push(rest),
            _ => return None,
        }
    }
    Some(marks)
}

fn said_not(key: &Key, what: &str) -> BenchError {
    BenchError::Workload(format!("{}: the guest did not report {what}", key.path()))
}

/// What the guest has said of a cell, and nothing of its device.
///
/// # Errors
/// It did not say what it has to.
pub fn record(key: &Key, scale: Scale, output: &str, real_s: f64) -> Result<Record> {
    let strange = |what: &str| said_not(key, what);
    let marks = marks(output).ok_or_else(|| strange("marks that can be read"))?;
    let names: Vec<&str> = marks.iter().skip(1).map(|mark| mark.phase).collect();
    if names != key.log.phases() {
        return Err(strange(&format!("its phases, but {names:?}")));
    }
    let records = scale.records(key.log, key.operations);
    let mut phases = Vec::new();
    for pair in marks.windows(2) {
        let [before, after] = pair else { continue };
        // What is handed over is not written: there is no journal whose bytes could be told from others.
        let counted = |mark: &Mark<'_>| Vext4::of(&mark.vext4).filter(|_| key.arm != Arm::Vma);
        let vext4 = counted(after).zip(counted(before));
        phases.push(Phase {
            name: after.phase.to_owned(),
            transactions: u64::from(records / key.operations),
            elapsed_s: after.ended_ns.saturating_sub(before.began_ns) as f64 / 1e9,
            guest: GuestIo::of_stat(after.stat)?.since(&GuestIo::of_stat(before.stat)?),
            vext4: vext4.map(|(after, before)| after.since(&before)),
        });
    }
    Ok(Record {
        version: <Record as afterimage_bench_kit::Record>::VERSION,
        key: key.clone(),
        records,
        request_ns: 0,
        syscall_ns: 0,
        phases,
        device_whole: Requests::default(),
        flash: Vec::new(),
        trace: String::new(),
        real_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read() {
        let text = "boot\njoj: ended start 5\njoj: stat 1 2\r\njoj: vext4 transactions 3\n\
                    joj: began start 6\nother\njoj: ended insert 8\njoj: began insert 9\n";
        let marks = marks(text).unwrap();
        assert_eq!(marks.len(), 2);
        assert_eq!((marks[0].phase, marks[0].ended_ns, marks[0].began_ns), ("start", 5, 6));
        assert_eq!((marks[0].stat, marks[0].vext4.len()), ("1 2", 1));
        assert_eq!((marks[1].phase, marks[1].ended_ns), ("insert", 8));
        assert!(super::marks("joj: stat 1\n").is_none());
    }

    #[test]
    fn counts_of_the_kernel_are_taken_by_name() {
        let lines = [
            "single 4",
            "transactions 5",
            "journal_bytes 6",
            "journal_bytes_per_transaction 1",
            "home_bytes 7",
            "cancelled_freed 8",
            "cancelled_overwritten 9",
        ];
        assert_eq!(Vext4::of(&lines[1..]), None);
        let found = Vext4::of(&lines).unwrap();
        assert_eq!((found.single, found.commits, found.journal_bytes, found.cancelled_freed), (4, 5, 6, 8));
        assert_eq!(found.since(&found), Vext4::default());
    }
}
