//! One cell, and what it leaves.

use std::path::{Path, PathBuf};
use std::process::Command;

use afterimage_bench_kit::io::GuestIo;
use afterimage_bench_kit::virtual_time::{
    plain_cell, reports, with_prologue, Virtual, REQUEST_NS, SYSCALL_NS,
};
use afterimage_bench_kit::{BenchError, CellIdentity, Context, Result, Turn};
use afterimage_lab::locate;
use afterimage_protocol::cell::{Cell, Counted, Outcome, Requests};
use afterimage_protocol::report::Agent;
use serde::{Deserialize, Serialize};

use super::arm::Arm;
use super::work::Work;
use crate::outcome::{agent_latency, fio, number_after};
use crate::record::LatencySummary;
use crate::scale::Scale;
use crate::script::virtual_script;

/// The host's memory is the paper's: 10 and 20 % of 24 GB may be dirty.
const DIRTY_BACKGROUND_BYTES: u64 = 2400 << 20;
const DIRTY_BYTES: u64 = 4800 << 20;
const LIMIT_S: u64 = 1800;

/// Which cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Inside the guest.
    pub work: Work,
    /// The device.
    pub model: String,
    /// Between them.
    pub arm: Arm,
    /// Of everything random.
    pub seed: u64,
}

impl CellIdentity for Key {
    /// `work/model/arm`
    fn path(&self) -> String {
        format!("{}/{}/{}", self.work.name(), self.model, self.arm.name())
    }

    fn turn(&self) -> Turn {
        Turn::Seed(self.seed)
    }
}

/// A finished cell. All but `real_s` is the same whenever it is run again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`afterimage_bench_kit::Record::VERSION`]
    pub version: u32,
    /// Which one.
    pub key: Key,
    /// What a request was charged.
    pub request_ns: u64,
    /// And a guest's system call.
    pub syscall_ns: u64,
    /// Operations.
    pub operations: u64,
    /// In how long, in seconds of virtual time.
    pub elapsed_s: f64,
    /// Each fsync, where the workload can tell.
    pub fsync: Option<LatencySummary>,
    /// 99th percentile of a transaction, in milliseconds.
    pub transaction_p99_ms: Option<f64>,
    /// What the guest asked of its disk meanwhile.
    pub guest: GuestIo,
    /// What reached the device meanwhile.
    pub device: Requests,
    /// And until everything was on it, in order.
    pub device_whole: Requests,
    /// What the guest asked of its disk until after its unmount: the same span.
    pub guest_whole: GuestIo,
    /// Sum of the trace of all requests.
    pub trace: String,
    /// Sum of the image at last.
    pub image: String,
    /// How long it took in real time.
    pub real_s: f64,
}

impl Record {
    /// Operations a second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.elapsed_s
    }

    /// What is said of it while others run.
    pub fn words(&self) -> String {
        let Self { operations, elapsed_s, device, .. } = self;
        format!(
            "{operations} in {elapsed_s:.2} s: {:.1}/s; {} flushes, {} seeks",
            self.rate(),
            device.flushes,
            device.seeks
        )
    }
}

impl afterimage_bench_kit::Record for Record {
    type Key = Key;
    const VERSION: u32 = 1;

    fn key(&self) -> &Key {
        &self.key
    }
}

/// A disk before a cell, and which of its blocks the host's file system holds: those that the guest's file system uses, as after a guest
/// had made and filled it.
#[derive(Clone, Debug)]
pub struct Image {
    path: PathBuf,
    laid_out: Vec<[u64; 2]>,
}

impl Image {
    /// Of a raw ext4.
    ///
    /// # Errors
    /// It is none.
    pub fn of(path: &Path) -> Result<Self> {
        let dumpe2fs = locate::system_program("dumpe2fs", "e2fsprogs")?;
        let output = Command::new(dumpe2fs).arg(path).output().context(|| "run dumpe2fs".to_owned())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let bytes = std::fs::metadata(path).context(|| format!("look at {}", path.display()))?.len();
        let path = path.canonicalize().context(|| format!("find {}", path.display()))?;
        Ok(Self { path, laid_out: used(&text, bytes)? })
    }
}

/// What dumpe2fs does not list as free.
fn used(text: &str, bytes: u64) -> Result<Vec<[u64; 2]>> {
    const BLOCK: u64 = 4096;
    let strange = |line: &str| BenchError::Workload(format!("dumpe2fs says '{line}'"));
    if !text.lines().any(|line| line.starts_with("Block size:") && line.ends_with(" 4096")) {
        return Err(strange("no block size of 4096"));
    }
    let mut free = Vec::new();
    for line in text.lines() {
        let Some(ranges) = line.strip_prefix("  Free blocks: ") else { continue };
        for range in ranges.split(", ").filter(|range| !range.is_empty()) {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let block = |word: &str| word.trim().parse::<u64>().map_err(|_| strange(line));
            free.push([block(from)? * BLOCK, (block(to)? + 1) * BLOCK]);
        }
    }
    free.sort_unstable();
    let mut used = Vec::new();
    let mut at = 0;
    for [from, to] in free.into_iter().chain([[bytes, bytes]]) {
        if from > at {
            used.push([at, from]);
        }
        at = to;
    }
    Ok(used)
}

/// Runs a cell.
///
/// # Errors
/// It comes to no end, or the guest does not say what it has to.
pub fn measure(key: &Key, image: &Image, virtual_time: &Virtual) -> Result<Record> {
    let outcome = virtual_time.run(&cell(key, image)?)?;
    record(key, &outcome)
}

fn cell(key: &Key, image: &Image) -> Result<Cell> {
    let scale = Scale::paper();
    let shape = key.arm.shape();
    Ok(Cell {
        memory_mib: scale.memory_mib(key.work.workload()),
        script: with_prologue(&virtual_script(key.work, key.arm, &scale))?,
        image: Some(image.path.clone()),
        laid_out: image.laid_out.clone(),
        contract: shape.contract.to_owned(),
        direct: shape.direct,
        write_through: shape.write_through,
        host_fs: shape.host_fs.to_owned(),
        log_bytes: shape.log_bytes,
        model: key.model.clone(),
        dirty_background_bytes: DIRTY_BACKGROUND_BYTES,
        dirty_bytes: DIRTY_BYTES,
        seed: key.seed,
        append: vec![format!("syscall_ns={SYSCALL_NS}")],
        request_ns: REQUEST_NS,
        settle_meetings: u32::from(!key.work.host_is_warm()),
        limit_s: LIMIT_S,
        ..plain_cell("")?
    })
}

/// What the script tells.
#[derive(Debug, Deserialize)]
struct Mark {
    bench: String,
    stat: String,
}

fn record(key: &Key, outcome: &Outcome) -> Result<Record> {
    let missing =
        |what: &str| BenchError::Workload(format!("{}: the guest did not report {what}", key.path()));
    let guest = outcome.guests.first().ok_or_else(|| missing("anything"))?;
    let (mut marks, mut agent): (Vec<Mark>, _) = (Vec::new(), None);
    for arrival in reports(guest) {
        marks.extend(arrival.report::<Mark>("bench")?);
        if let Some(Agent::Workload(said)) = arrival.agent()? {
            agent = Some(said);
        }
    }
    let stat = |name: &str| {
        let mark = marks.iter().find(|mark| mark.bench == name).ok_or_else(|| missing(name))?;
        GuestIo::of_stat(&mark.stat)
    };
    let from = stat("begin")?;
    let output = &guest.output;
    let (operations, elapsed_s, fsync, transaction_p99_ms) = match key.work {
        Work::Varmail | Work::Fileserver | Work::Webserver => {
            let said = agent.ok_or_else(|| missing("a result"))?;
            (said.operations, said.elapsed_ns as f64 / 1e9, agent_latency(&said.fsync), None)
        }
        Work::Oltp => (
            number_after(output, "transactions:")? as u64,
            number_after(output, "total time:")?,
            None,
            Some(number_after(output, "99th percentile:")?),
        ),
        _ => fio(output.split_once("fio-result: ").map_or("", |(_, json)| json))?,
    };
    if operations == 0 || elapsed_s <= 0.0 {
        return Err(missing(&format!("operations: {output}")));
    }
    let [begin, end, ..] = &outcome.meetings[..] else { return Err(missing("two meetings")) };
    let on_device = |until: &Counted| until.device.since(&begin.counted.device);
    Ok(Record {
        version: <Record as afterimage_bench_kit::Record>::VERSION,
        key: key.clone(),
        request_ns: REQUEST_NS,
        syscall_ns: SYSCALL_NS,
        operations,
        elapsed_s,
        fsync,
        transaction_p99_ms,
        guest: stat("end")?.since(&from),
        device: on_device(&end.counted),
        device_whole: on_device(&outcome.end.counted),
        guest_whole: stat("done")?.since(&from),
        trace: outcome.trace.clone(),
        image: guest.image.clone(),
        real_s: outcome.real_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_free_is_used() {
        let text = "Block size:               4096\nGroup 0:\n  Free blocks: 10-19, 30\nGroup 1:\n  Free blocks: \n  Free blocks: 90-99\n";
        let block = |from: u64, to: u64| [from * 4096, to * 4096];
        assert_eq!(used(text, 100 * 4096).unwrap(), [block(0, 10), block(20, 30), block(31, 90)]);
        assert!(used("Block size:               1024\n", 4096).is_err());
    }
}
