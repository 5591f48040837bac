//! One cell in virtual time: the same disks, scripts and accounts as in real time ([`crate::cell`]), on a modelled device, in
//! `afterimage-virtual` (docs/virtual-time.md). What a page cache of the host may hold dirty is the same, too.
//!
//! Table III: the guest dies at an instant of virtual time; what the host has cached goes to the device, and from there the clock and
//! the counters run.
//!
//! ```text
//!   death ─► page cache to the device ─┐ kill-guest: the daemon ends in order (retained: writes home)        daemon_s
//!                                      │ kill-both:  another daemon takes over what it left, and ends        settle_s
//!   a new daemon, a new guest (not timed) ─► mount, with the kernel's replay: mount_s ─► to the device: settle_mount_s
//! ```

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use afterimage_bench_kit::io::{load_average, StorageIo};
use afterimage_bench_kit::process::run as run_program;
use afterimage_bench_kit::virtual_time::{plain_cell, reports, with_prologue, Virtual};
use afterimage_bench_kit::{BenchError, Result};
use afterimage_lab::process::Workdir;
use afterimage_protocol::cell::{Cell, Journal, Kill, KillAt, Outcome, Requests, Retained};

use crate::catalog::{JournalPolicy, Kind, Setup, RAM_JOURNAL_MIB, RECORD_KILLS};
use crate::outcome::{self, timed_s};
use crate::record::{CellKey, Record, Records, Recovery, Sample};
use crate::scale::{Scale, HOST_DIRTY_BYTES};
use crate::script::{recover_script, run_script, update_script, verify_script};
use crate::source::Sources;

/// How often is looked at what a daemon retains (Fig. 17).
const SAMPLE: Duration = Duration::from_millis(100);

/// What all cells of a run have in common.
#[derive(Clone, Debug)]
pub struct World<'a> {
    /// What runs them.
    pub machine: &'a Virtual,
    /// Sizes.
    pub scale: &'a Scale,
    /// The Linux source tree.
    pub sources: &'a Sources,
    /// An existing folder in which each guest's daemon leaves a trace of what reaches its image; see [`trace_name`].
    pub traces: Option<&'a Path>,
    /// Real time that one may take.
    pub limit: Duration,
}

/// The trace of a guest's daemon.
pub fn trace_name(guest: usize) -> String {
    format!("guest{guest}.trace.zst")
}

/// Runs one cell. `kill_s`: when the guest is to be killed, for cells that kill it.
///
/// # Errors
/// Anything that keeps it from a result; [`BenchError::TooLate`] where the work was done before.
pub fn run(
    key: &CellKey,
    world: &World<'_>,
    template: &Path,
    kill_s: Option<f64>,
) -> Result<(Record, Vec<Sample>)> {
    let (started, load) = (Instant::now(), load_average());
    if let Setup::Records(kib) = key.setup {
        let mut record = Record::empty(key, world.scale, load);
        record.records = kills(key, world, template, kib)?;
        record.wall_s = started.elapsed().as_secs_f64();
        return Ok((record, Vec::new()));
    }
    let folder = Workdir::new_in(Path::new("/dev/shm"), "vma-cell")?;
    let mut cell = cell(key, world, template)?;
    if let Some(kill_s) = kill_s {
        cell.kill = Some(Kill {
            at: KillAt::Ns((kill_s * 1e9) as u64),
            daemons: key.kind == Kind::KillBoth,
            then: with_prologue(&recover_script(key.mode, key.setup))?,
        });
        // What the mount left in the page cache goes to the device, too.
        (cell.settle_meetings, cell.images) = (2, Some(folder.path().to_owned()));
    }
    let outcome = world.machine.run(&cell)?;
    let [begin, end] = [0, 1].map(|meeting| outcome.meetings.get(meeting));
    let begin = begin.ok_or_else(|| BenchError::Workload("guests never began".to_owned()))?;
    let since = |now: &Requests, then: &Requests| StorageIo::of_requests(&now.since(then));
    let mut record = Record::empty(key, world.scale, load);
    record.trace = Some(outcome.trace.clone());
    let mut samples = Vec::new();
    if let Some(kill_s) = kill_s {
        let mut recovery = recovery(&outcome, kill_s)?;
        recovery.clean = run_program(Command::new("e2fsck").arg("-fn").arg(folder.join("disk0.img"))).is_ok();
        record.recovery = Some(recovery);
    } else {
        let end = end.ok_or_else(|| BenchError::Workload("guests never ended their work".to_owned()))?;
        for guest in &outcome.guests {
            record.guests.push(outcome::read(&reports(guest))?);
        }
        record.storage_measured = since(&end.counted.device, &begin.counted.device);
        record.storage = since(&outcome.end.counted.device, &begin.counted.device);
        record.daemon_io = since(&outcome.end.counted.daemons, &begin.counted.daemons);
        record.absorbed_bytes = absorbed(&outcome.end.retained)
            .zip(absorbed(&begin.retained))
            .map(|(now, then)| now.saturating_sub(then));
        let first = end.retained.first().cloned().flatten();
        record.file_systems = first.map_or_else(Vec::new, |retained| retained.file_systems);
        let first = |sample: &afterimage_protocol::cell::Sample| {
            let retained = sample.retained.first()?.clone()?;
            let at_ms = (sample.at_ns - begin.at_ns) / 1_000_000;
            Some(Sample { at_ms, file_systems: retained.file_systems })
        };
        samples.extend(outcome.samples.iter().filter_map(first));
    }
    record.wall_s = started.elapsed().as_secs_f64();
    Ok((record, samples))
}

/// What a guest may have written when it dies (§ 5.5), and a page more each time: at the same byte always it would die at the same place
/// of a record.
const SUBMITTED_BYTES: u64 = 4 << 20;
const SUBMITTED_MORE_BYTES: u64 = 4 << 10;
/// What an update costs a guest at least, about what a processor needs for 64 KiB: where it costs nothing, no time passes, and nothing is
/// ever written back.
pub const UPDATE_NS: u64 = 100_000;

/// Fig. 19: guests that update records and die, each on a disk of its own, and what the next one finds there.
fn kills(key: &CellKey, world: &World<'_>, template: &Path, kib: u32) -> Result<Vec<Records>> {
    let mut world = world.clone();
    let scale = Scale { syscall_ns: world.scale.syscall_ns.max(UPDATE_NS), ..world.scale.clone() };
    world.scale = &scale;
    let kill = |number| {
        let mut cell = cell(key, &world, template)?;
        cell.seed = u64::from(key.round - 1) * RECORD_KILLS + number;
        cell.script = with_prologue(&update_script(key.mode, key.setup, kib))?;
        let then = with_prologue(&verify_script(key.mode, key.setup, kib))?;
        let at = KillAt::WrittenBytes(SUBMITTED_BYTES + number * SUBMITTED_MORE_BYTES);
        cell.kill = Some(Kill { at, daemons: false, then });
        let outcome = world.machine.run(&cell)?;
        let next = outcome.then.as_ref().and_then(|next| next.guests.first());
        let next = next.ok_or_else(|| BenchError::Workload("the guest was not killed".to_owned()))?;
        outcome::verified(&reports(next))
    };
    (1..=RECORD_KILLS).map(kill).collect()
}

fn cell(key: &CellKey, world: &World<'_>, template: &Path) -> Result<Cell> {
    let script = run_script(key.workload, key.mode, key.setup, world.scale, world.sources);
    let mut append = Vec::new();
    if key.setup == Setup::RamJournal {
        append.push(format!("ramdisk_size={}", RAM_JOURNAL_MIB << 10));
    }
    if world.scale.syscall_ns > 0 {
        append.push(format!("syscall_ns={}", world.scale.syscall_ns));
    }
    let retains = key.mode.policy() == JournalPolicy::Retain;
    Ok(Cell {
        guests: key.guests,
        memory_mib: key.setup.guest_mib(world.scale),
        append,
        image: Some(template.to_owned()),
        contract: key.contract.clone(),
        journal: match key.mode.policy() {
            JournalPolicy::Passthrough => Journal::Passthrough,
            JournalPolicy::Retain => Journal::Retain,
            JournalPolicy::Drop => Journal::DropForBench,
        },
        retain_bytes_max: world.scale.retain_max_mib.filter(|_| retains).map(|mib| mib << 20),
        vflush_at_truncation: key.setup == Setup::Vflush,
        control_disk: key.mode.hands_over(),
        model: key.device.name().to_owned(),
        // A strict limit's background half, as `/sys/class/bdi/*/strict_limit` has it.
        dirty_background_bytes: HOST_DIRTY_BYTES / 2,
        dirty_bytes: HOST_DIRTY_BYTES,
        seed: u64::from(key.round),
        request_ns: world.scale.request_ns,
        storage_traces: world.traces.map(Path::to_owned),
        sample_ns: (retains && key.guests == 1 && key.kind == Kind::Run).then_some(SAMPLE.as_nanos() as u64),
        limit_s: world.limit.as_secs(),
        ..plain_cell(&script)?
    })
}

fn recovery(outcome: &Outcome, kill_s: f64) -> Result<Recovery> {
    let Some(next) = &outcome.then else { return Err(BenchError::TooLate { after_s: kill_s }) };
    let (end, [before, after]) = (&outcome.end, &next.meetings[..]) else {
        return Err(BenchError::Workload("the next guest did not mount".to_owned()));
    };
    let seconds = |from: u64, to: u64| Duration::from_nanos(to - from).as_secs_f64();
    let [guest] = &next.guests[..] else {
        return Err(BenchError::Usage("recovery is measured with one guest".to_owned()));
    };
    Ok(Recovery {
        killed_at_s: kill_s,
        daemon_s: seconds(end.from_ns, end.daemons_ns),
        settle_s: seconds(end.daemons_ns, end.settled_ns),
        mount_s: timed_s(&reports(guest), "mount")?,
        settle_mount_s: seconds(after.met_ns, after.at_ns),
        daemon_io: StorageIo::of_requests(&end.counted.device.since(&end.before.device)),
        mount_io: StorageIo::of_requests(&after.counted.device.since(&before.counted.device)),
        clean: false,
    })
}

/// Journal writes that all daemons kept from storage so far.
fn absorbed(retained: &[Option<Retained>]) -> Option<u64> {
    let of = |found: &Retained| found.file_systems.first().map_or(0, |f| f.classes.journal_absorbed_bytes);
    retained.iter().map(|found| found.as_ref().map(of)).sum()
}
