//! One cell, and what it leaves.
//!
//! ```text
//!   mount ─► set up ─► "ready" ─► meet ─► stream &  the task, its fsyncs timed ─► "end" ─► meet ─► unmount
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use afterimage_bench_kit::io::GuestIo;
use afterimage_bench_kit::virtual_time::{
    plain_cell, reports, with_prologue, Virtual, REQUEST_NS, SYSCALL_NS,
};
use afterimage_bench_kit::{BenchError, CellIdentity, Jbd2, Result};
use afterimage_lab::process::quote;
use afterimage_protocol::cell::{Cell, Outcome};
use afterimage_protocol::report::{Agent, SyncTimes};
use serde::{Deserialize, Serialize};

use crate::plan::{Key, Model};
use crate::scale::Scale;
use crate::script::Script;
use crate::task::Tools;

const LIMIT_S: u64 = 3600;
/// 16 MiB for the guest's one processor.
const AREA_BLOCKS: u32 = 4096;
const BLOCK_BYTES: f64 = 4096.0;
/// What journals count: jbd2's, a fast commit's, vext4's.
const COUNTS: &str = r#"counts() {
    cat /proc/fs/jbd2/*/info | tr '\n\t' ';;' | sed "s/^/ijournal: $1 jbd2 /; s/\$/\n/" 2> /dev/null || :
    cat /proc/fs/ext4/*/fc_info 2> /dev/null | sed "s/^/ijournal: $1 fast /"
    cat /proc/fs/vjbd2/*/single_io 2> /dev/null | sed "s/^/ijournal: $1 normal /"
    cat /proc/fs/vjbd2/*/ijournal 2> /dev/null | sed "s/^/ijournal: $1 own /"
}
"#;

/// A finished cell. All but `real_s` is the same whenever it is run again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`afterimage_bench_kit::Record::VERSION`]
    pub version: u32,
    /// Which one.
    pub key: Key,
    /// How long files were synced.
    pub seconds: u32,
    /// What a request was charged.
    pub request_ns: u64,
    /// And a guest's system call.
    pub syscall_ns: u64,
    /// Each fsync; what the disk wrote meanwhile is known in Figs. 6 to 8 only.
    pub syncs: SyncTimes,
    /// How long the task took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_ns: Option<u64>,
    /// What the guest asked of its disk meanwhile.
    pub guest: GuestIo,
    /// Bytes that its journals were written meanwhile, where they count them.
    pub journal_bytes: Option<f64>,
    /// How iJournaling served the fsyncs: its counters that are not 0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outcomes: BTreeMap<String, u64>,
    /// Sum of the trace of all requests.
    pub trace: String,
    /// How long it took in real time.
    pub real_s: f64,
}

impl Record {
    /// The time within which so many of a thousand fsyncs were done, in milliseconds.
    pub fn within_ms(&self, per_mille: usize) -> f64 {
        let mut ns = self.syncs.ns.clone();
        ns.sort_unstable();
        let last = ns.len().saturating_sub(1);
        ns.get(last * per_mille / 1000).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
    }

    /// The mean, in milliseconds.
    pub fn mean_ms(&self) -> f64 {
        self.syncs.ns.iter().sum::<u64>() as f64 / self.syncs.ns.len() as f64 / 1e6
    }

    /// What the disk wrote during an fsync: the mean and the most, in MiB.
    pub fn flushed_mib(&self) -> (f64, f64) {
        let bytes = &self.syncs.disk_bytes;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        (
            mib(bytes.iter().sum::<u64>()) / bytes.len() as f64,
            mib(bytes.iter().copied().max().unwrap_or_default()),
        )
    }

    /// KiB that journals were written for each fsync.
    pub fn journal_kib(&self) -> Option<f64> {
        self.journal_bytes.map(|bytes| bytes / 1024.0 / self.syncs.ns.len() as f64)
    }

    /// What is said of it while others run.
    pub fn words(&self) -> String {
        format!(
            "{} fsyncs, mean {:.1} ms, p95 {:.1} ms, max {:.1} ms",
            self.syncs.ns.len(),
            self.mean_ms(),
            self.within_ms(950),
            self.within_ms(1000)
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

/// The script of a cell.
fn script(key: &Key, model: Model, scale: Scale, areas: Option<&Path>, tools: &Tools) -> String {
    let (kind, options) = key.arm.mount();
    // The paper's applications run with online discard.
    let discard = if key.task.is_append() { "" } else { ",discard" };
    let background = u64::from(model.dirty_background_mib) << 20;
    let most = 2 * background;
    let (requests, request_kib) = (model.scheduler_requests, model.request_kib);
    let stream = match key.stream_mb_per_s {
        0 => String::new(),
        // Whoever says when it has ended ends it.
        rate => format!(
            "\"$A\" stream /mnt/disk/beside --bytes-per-s {rate}000000 --seconds {} &\nstream=$!\n",
            if key.task.is_append() { u64::from(scale.seconds) } else { LIMIT_S }
        ),
    };
    let end_stream = match (key.stream_mb_per_s, key.task.is_append()) {
        (0, _) => "",
        (_, true) => "wait\n",
        (_, false) => "kill $stream\nwait $stream || :\n",
    };
    let boost = if key.arm.is_boosted() { "'ionice -c 1 -n 0'" } else { "" };
    // The mount option `journal_ioprio` knows no real-time class.
    let boost_jbd2 = match key.arm.is_boosted() {
        true => "J=; for P in /proc/[0-9]*; do case $(cat $P/comm) in *jbd2/*) ionice -c 1 -n 0 -p ${P#/proc/}; J=$P ;; esac; done; [ -n \"$J\" ]\n",
        false => "",
    };
    let areas = areas.map_or(String::new(), |program| {
        let program = quote(&program.to_string_lossy());
        format!("mount -t ext4 /dev/vda /mnt/disk\n{program} /mnt/disk 1 {AREA_BLOCKS}\numount /mnt/disk\n")
    });
    let Script { set_up, work, tear_down } = key.task.script(scale, key.seed, tools);
    format!(
        "echo mq-deadline > /sys/block/vda/queue/scheduler\n\
         echo {requests} > /sys/block/vda/queue/nr_requests\n\
         echo {request_kib} > /sys/block/vda/queue/max_sectors_kb\n\
         echo {background} > /proc/sys/vm/dirty_background_bytes\n\
         echo {most} > /proc/sys/vm/dirty_bytes\n\
         {areas}mount -t {kind} -o {options}{discard} /dev/vda /mnt/disk\n{boost_jbd2}mkdir /mnt/disk/beside\n\
         BOOST={boost}\n{set_up}\ncat > /run/task << 'END'\nset -e\n{work}\nEND\n\
         sync\n{COUNTS}tell ready\ncounts ready\nmeet\n{stream}\
         began=$(date +%s%N)\nA=\"$A\" $BOOST sh /run/task\nended=$(date +%s%N)\n\
         tell end\ncounts end\n{end_stream}echo \"ijournal: elapsed $((ended - began))\"\n{SYNCS}meet\n{tear_down}umount /mnt/disk\n"
    )
}

/// What `syncs.c` has noted.
const SYNCS: &str = r#"if [ -f /run/syncs ]; then
    n=$(od -An -v -t u8 -N 8 /run/syncs)
    od -An -v -t u8 -w64 -j 8 -N $((8 * n)) /run/syncs | sed "s/^/ijournal: syncs /"
fi
"#;

/// Runs a cell.
///
/// # Errors
/// It comes to no end, or the guest does not say what it has to.
pub fn measure(key: &Key, scale: Scale, image: &Path, tools: &Tools, machine: &Virtual) -> Result<Record> {
    let model = key.model()?;
    let areas = (key.arm.mount().0 == "vext4").then(|| machine.with_kernel("areas")).transpose()?;
    let cell = Cell {
        memory_mib: model.memory_mib,
        script: with_prologue(&script(key, model, scale, areas.as_deref(), tools))?,
        image: Some(image.to_owned()),
        // The disk's own flushes and writes are what is compared: each request goes to the device as it is.
        contract: "power".to_owned(),
        model: key.model.clone(),
        seed: key.seed,
        append: vec![
            format!("syscall_ns={SYSCALL_NS}"),
            format!("virtio_blk.queue_depth={}", model.queue_depth),
        ],
        request_ns: REQUEST_NS,
        limit_s: LIMIT_S,
        ..plain_cell("")?
    };
    record(key, scale, &machine.run(&cell)?)
}

/// What journals counted up to a moment.
#[derive(Debug, Default)]
struct Counts {
    jbd2: String,
    /// Blocks of fast commits.
    fast_blocks: Option<u64>,
    /// Bytes of vext4's journal.
    normal_bytes: Option<u64>,
    /// iJournaling's.
    own: BTreeMap<String, u64>,
}

impl Counts {
    fn of(output: &str, moment: &str) -> Self {
        let mut counts = Self::default();
        for line in output.lines() {
            let Some(rest) = line.trim_end().strip_prefix("ijournal: ") else { continue };
            let Some((kind, text)) =
                rest.strip_prefix(moment).and_then(|rest| rest.trim_start().split_once(' '))
            else {
                continue;
            };
            let number = |name: &str| text.trim().strip_prefix(name)?.trim().parse().ok();
            match kind {
                "jbd2" => text.clone_into(&mut counts.jbd2),
                "fast" => {
                    counts.fast_blocks =
                        counts.fast_blocks.or_else(|| text.trim().strip_suffix(" numblks")?.parse().ok())
                }
                "normal" => counts.normal_bytes = counts.normal_bytes.or_else(|| number("journal_bytes ")),
                "own" => counts.own.extend(
                    text.split_once(' ')
                        .and_then(|(name, n)| Some((name.to_owned(), n.trim().parse().ok()?))),
                ),
                _ => {}
            }
        }
        counts
    }

    fn bytes(&self) -> Result<Option<f64>> {
        let stock = Jbd2::of_info(&self.jbd2)?.map(|jbd2| BLOCK_BYTES * jbd2.blocks());
        let normal = stock.or(self.normal_bytes.map(|bytes| bytes as f64));
        let beside = BLOCK_BYTES * self.fast_blocks.unwrap_or(0) as f64
            + self.own.get("bytes").copied().unwrap_or(0) as f64;
        Ok(normal.map(|bytes| bytes + beside))
    }
}

#[derive(Debug, Deserialize)]
struct Mark {
    bench: String,
    stat: String,
}

/// The numbers on a script's lines of that name.
fn numbers(output: &str, name: &str) -> Vec<u64> {
    let lines = output.lines().filter_map(|line| line.trim_end().strip_prefix("ijournal: "));
    let words = lines.filter_map(|line| line.strip_prefix(name)).flat_map(str::split_whitespace);
    words.filter_map(|word| word.parse().ok()).collect()
}

fn record(key: &Key, scale: Scale, outcome: &Outcome) -> Result<Record> {
    let strange =
        |what: &str| BenchError::Workload(format!("{}: the guest did not report {what}", key.path()));
    let guest = outcome.guests.first().ok_or_else(|| strange("anything"))?;
    let (mut syncs, mut marks) = (None, Vec::new());
    for arrival in reports(guest) {
        if let Some(mark) = arrival.report::<Mark>("bench")? {
            marks.push((mark.bench, GuestIo::of_stat(&mark.stat)?));
        } else if let Some(Agent::SyncTimes(times)) = arrival.agent()? {
            syncs = Some(times);
        }
    }
    let stat = |name: &str| {
        let found = marks.iter().find(|(mark, _)| mark == name);
        found.map(|(_, io)| *io).ok_or_else(|| strange(name))
    };
    let noted = SyncTimes { ns: numbers(&guest.output, "syncs"), disk_bytes: Vec::new() };
    let syncs = syncs
        .or(Some(noted))
        .filter(|times| !times.ns.is_empty())
        .ok_or_else(|| strange("a single fsync"))?;
    let (ready, end) = (Counts::of(&guest.output, "ready"), Counts::of(&guest.output, "end"));
    let elapsed_ns = match key.task.is_append() {
        true => None,
        false => Some(*numbers(&guest.output, "elapsed").first().ok_or_else(|| strange("how long it took"))?),
    };
    Ok(Record {
        version: <Record as afterimage_bench_kit::Record>::VERSION,
        key: key.clone(),
        seconds: scale.seconds,
        request_ns: REQUEST_NS,
        syscall_ns: SYSCALL_NS,
        guest: stat("end")?.since(&stat("ready")?),
        journal_bytes: end.bytes()?.zip(ready.bytes()?).map(|(end, ready)| end - ready),
        outcomes: end
            .own
            .iter()
            .filter_map(|(name, n)| {
                let before = ready.own.get(name).copied().unwrap_or_default();
                (*n > before).then(|| (name.clone(), n - before))
            })
            .collect(),
        syncs,
        elapsed_ns,
        trace: outcome.trace.clone(),
        real_s: outcome.real_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{self, Figures};

    #[test]
    fn every_script_is_shell() {
        let tools = Tools {
            syncs: "/a b/syncs.so".into(),
            package: "/a b/it's.deb".into(),
            tpcc: "/a b/tpcc.lua".into(),
        };
        for key in plan::keys(Scale::QUICK, &Figures::ALL, 1, &[]).unwrap() {
            let areas = Some(Path::new("/a b/areas"));
            let script = script(&key, key.model().unwrap(), Scale::QUICK, areas, &tools);
            let status = std::process::Command::new("/bin/sh").args(["-n", "-c", &script]).status().unwrap();
            assert!(status.success(), "{script}");
        }
    }

    #[test]
    fn journals_counts_are_read() {
        let text = "ijournal: ready jbd2 3 transactions (2 requested), each up to 8 blocks;average: ;  5 logged blocks per transaction;\r\n\
                    ijournal: ready fast 7 numblks\nijournal: end normal single 3\nijournal: end normal journal_bytes 8192\n\
                    ijournal: end own written 4\nijournal: end own bytes 4096\n";
        let (ready, end) = (Counts::of(text, "ready"), Counts::of(text, "end"));
        assert_eq!(ready.bytes().unwrap(), Some(4096.0 * 22.0));
        assert_eq!((end.bytes().unwrap(), end.own["written"]), (Some(12_288.0), 4));
        assert_eq!(Counts::of(text, "other").bytes().unwrap(), None);
        let text = "ijournal: syncs  1  2\r\nijournal: syncs 3\nijournal: elapsed 4\nsyncs 5\n";
        assert_eq!((numbers(text, "syncs"), numbers(text, "elapsed")), (vec![1, 2, 3], vec![4]));
    }

    #[test]
    fn a_part_of_the_fsyncs_is_so_quick() {
        let key = plan::keys(Scale::QUICK, &Figures::ALL, 1, &[]).unwrap().remove(0);
        let syncs = SyncTimes {
            ns: (1..=101).rev().map(|ms| ms * 1_000_000).collect(),
            disk_bytes: [vec![0; 100], vec![101 << 20]].concat(),
        };
        let record = Record {
            version: 1,
            key,
            seconds: 5,
            request_ns: 0,
            syscall_ns: 0,
            syncs,
            elapsed_ns: None,
            guest: GuestIo::default(),
            journal_bytes: None,
            outcomes: BTreeMap::new(),
            trace: String::new(),
            real_s: 0.0,
        };
        assert_eq!(
            (record.within_ms(500), record.within_ms(950), record.within_ms(1000)),
            (51.0, 96.0, 101.0)
        );
        assert_eq!((record.mean_ms(), record.flushed_mib()), (51.0, (1.0, 101.0)));
    }
}
