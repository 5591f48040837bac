//! Retained journals: the same work with and without, and what a killed guest had committed.
//!
//! ```text
//!   compare:  for each way to keep a journal: guest ready ─► counters ─► go ─► work, sync, unmount ─► sync of the host
//!             ─► counters ─► orderly end ─► e2fsck of the plain image
//!   kill:     guest at work ─► status ─► SIGKILL ─► status until nothing is in memory only ─► the next guest, the same
//!             daemon ─► judge
//! ```
//!
//! What the kill may leave: everything that was acknowledged. It was committed to a journal that is only in memory, and
//! what the guest had not written home has to come from there; a daemon that forgets these writes must be seen to lose some.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use afterimage_protocol::status::{FileSystemStatus, StorageStatus};
use rand::Rng as _;

use super::speed::{difference, stored};
use super::{
    jitter, ledger_of, on_rig, plain_image, recover_and_judge, start_work, wait_for_work, Findings, Setting,
};
use crate::demo::heard::Heard;
use crate::demo::inside::{self, Data, Load, Mixed};
use crate::demo::plan::{Allowance, Contract, COMMITS_MIN, DISK_BYTES, RECORDS_MIN, RETAIN_GUEST_MIB};
use crate::demo::report::{Check, Recovery, RetainReport, RetainRow, Traffic};
use crate::demo::rig::Rig;
use crate::demo::server::Kind;
use crate::error::{Context, LabError, Result};
use crate::guest::{Guest, Vmm};
use crate::powerfs::ModelName;
use crate::process;

/// VMA's disk: what a journal costs is seeks and bytes, and this device has a price for both.
const MODEL: ModelName = ModelName::Hdd15k;
/// Large enough for the work; mke2fs gives it a journal of 16 MiB.
const COMPARED_DISK_BYTES: u64 = 512 << 20;
/// As much as the model's own cache. A host with much memory would otherwise take everything in, and a journal that
/// wraps around would reach the device only once.
const HOST_DIRTY_BYTES: u64 = 16 << 20;
const WORK: Mixed = Mixed { append_bytes: 96 << 20, files: 1500, median_bytes: 8 << 10 };
/// Of the bytes of `data=journal`, what may be left with a retained journal. A block is written once instead of twice; what the
/// journal needs besides (descriptors, commits) only helps.
const HALF_PERCENT: u64 = 55;
/// How long a daemon may take to bring a dead guest's blocks home.
const HOME_LIMIT: Duration = Duration::from_secs(30);

struct Mode {
    title: &'static str,
    data: Data,
    journal: &'static str,
    kind: Kind,
}

const MODES: [Mode; 3] = [
    Mode {
        title: "data=ordered",
        data: Data::Ordered,
        journal: "passthrough",
        kind: Kind::Ours(Contract::GuestCrash),
    },
    Mode {
        title: "data=journal",
        data: Data::Journal,
        journal: "passthrough",
        kind: Kind::Ours(Contract::GuestCrash),
    },
    Mode {
        title: "data=journal, --journal retain",
        data: Data::Journal,
        journal: "retain",
        kind: Kind::Retaining,
    },
];

/// Measures each way to keep a journal, one after the other.
///
/// # Errors
/// A daemon or its guest failed.
pub fn compare(setting: &mut Setting<'_>) -> Result<(RetainReport, Findings)> {
    let mut report = RetainReport {
        medium: format!("the lab's FUSE model of a device ({})", MODEL.as_str()),
        guest_mib: RETAIN_GUEST_MIB,
        work: format!(
            "{} MiB appended to one file, 8 KiB at a time, then {} files of about {} KiB with an fsync each",
            WORK.append_bytes >> 20,
            WORK.files,
            WORK.median_bytes >> 10
        ),
        files: WORK.files,
        modes: Vec::new(),
    };
    let mut plain: Option<Check> = None;
    for (round, mode) in (1..).zip(&MODES) {
        setting.round = round;
        let (row, check) = measure(setting, mode)?;
        setting.progress.step(&format!(
            "{}: {:.1} MB to storage, {:.1} s",
            row.mode,
            row.storage.bytes as f64 / 1e6,
            row.elapsed_s
        ));
        report.modes.push(row);
        match &mut plain {
            None => plain = Some(check),
            Some(known) => {
                known.held &= check.held;
                known.detail = format!("{} | {}", known.detail, check.detail);
            }
        }
    }
    let mut checks = half(&report.modes);
    checks.extend(plain);
    let findings =
        Findings { checks, medium: report.medium.clone(), guest: "UML".to_owned(), ..Findings::default() };
    Ok((report, findings))
}

fn half(rows: &[RetainRow]) -> Vec<Check> {
    let find =
        |journal: &str| rows.iter().find(|row| row.mount == Data::Journal.option() && row.journal == journal);
    let (Some(without), Some(with)) = (find("passthrough"), find("retain")) else { return Vec::new() };
    vec![
        Check::new(
            "with --journal retain the daemon keeps what the guest writes to its journal",
            with.commits > 0 && with.absorbed_bytes > 0,
            format!("{} transactions, {} bytes", with.commits, with.absorbed_bytes),
        ),
        Check::new(
            format!("with --journal retain at most {HALF_PERCENT} % of data=journal's bytes reach storage"),
            with.storage.bytes * 100 <= without.storage.bytes * HALF_PERCENT,
            format!("{} instead of {}", with.storage.bytes, without.storage.bytes),
        ),
    ]
}

fn measure(setting: &mut Setting<'_>, mode: &Mode) -> Result<(RetainRow, Check)> {
    let rig = Rig::power(MODEL, setting.images_in, setting.rng.next_u64(), COMPARED_DISK_BYTES)?;
    let mut rig = rig.for_guests(RETAIN_GUEST_MIB, mode.data);
    if let Err(error) = limit_dirty_pages(rig.mount()?.path()) {
        tracing::warn!(%error, "the host may hold back more than the model's cache: times and device bytes say less");
    }
    rig.make_file_system()?;
    rig.serve(mode.kind)?;
    let mut guest = rig.guest(Vmm::Uml).start(&inside::mixed(WORK, mode.data))?;
    let measured = run(&mut rig, &mut guest);
    setting.evidence.guest(&guest, &setting.tag("1-work"));
    let Measured { before, after, file_system, elapsed } = measured?;
    rig.stop_server()?;
    let check = plain_image(setting, &rig)?;
    if !check.held {
        rig.keep(setting.evidence, &setting.tag("4-at-the-end"));
    }
    let heard = Heard::read(&guest.channel().lines(), mode.title)?;
    let row = RetainRow {
        mode: mode.title.to_owned(),
        mount: mode.data.option().to_owned(),
        journal: mode.journal.to_owned(),
        guest: difference(heard.disk("end")?, heard.disk("begin")?),
        storage: difference(after.written, before.written),
        device: difference(after.device, before.device),
        append_s: heard.micro_s("append")?,
        files_s: heard.micro_s("create")?,
        elapsed_s: elapsed.as_secs_f64(),
        // Only of a retained journal: of any other the daemon finds no file system.
        absorbed_bytes: file_system.as_ref().map_or(0, |found| found.classes.journal_absorbed_bytes),
        commits: file_system.as_ref().map_or(0, |found| found.classes.journal_commits),
    };
    Ok((row, check))
}

struct Measured {
    before: Counts,
    after: Counts,
    /// What the daemon says of it, when everything was on the device; `None` where journals are passed through.
    file_system: Option<FileSystemStatus>,
    elapsed: Duration,
}

struct Counts {
    /// What the daemon wrote to the image's file.
    written: Traffic,
    /// What reached the model.
    device: Traffic,
}

fn run(rig: &mut Rig, guest: &mut Guest) -> Result<Measured> {
    guest.wait_report("at", "begin")?;
    process::run(Command::new("sync").arg("-f").arg(rig.image()))?;
    let (before, _) = counts(rig)?;
    let start = Instant::now();
    guest.channel().send("go")?;
    guest.wait_report("at", "end")?;
    process::run(Command::new("sync").arg("-f").arg(rig.image()))?;
    let elapsed = start.elapsed();
    let (after, file_system) = counts(rig)?;
    guest.wait_success()?;
    Ok(Measured { before, after, file_system, elapsed })
}

fn counts(rig: &mut Rig) -> Result<(Counts, Option<FileSystemStatus>)> {
    let device = stored(&rig.mount()?.counters()?);
    let disk = rig.server()?.disk()?;
    let StorageStatus { writes, write_bytes, syncs, .. } = disk.storage;
    let written = Traffic { writes, bytes: write_bytes, flushes: syncs };
    Ok((Counts { written, device }, disk.file_systems.into_iter().next()))
}

/// Lets the host hold only [`HOST_DIRTY_BYTES`] of a mount dirty (`/sys/class/bdi`, Linux 6.2 and newer, as root).
fn limit_dirty_pages(mountpoint: &Path) -> Result<()> {
    let device = fs::metadata(mountpoint).context(|| format!("look at {}", mountpoint.display()))?.dev();
    let folder = format!("/sys/class/bdi/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    for (name, value) in [("strict_limit", "1".to_owned()), ("max_bytes", HOST_DIRTY_BYTES.to_string())] {
        let path = format!("{folder}/{name}");
        fs::write(&path, value).context(|| format!("write {path}"))?;
    }
    Ok(())
}

/// Kills a guest whose journal is retained; the daemon lives, and has to bring everything home.
///
/// # Errors
/// It could not be found out whether the promises held.
pub fn kill(setting: &mut Setting<'_>) -> Result<Findings> {
    killed(setting, Kind::Retaining)
}

/// The same under a daemon that forgets journal writes.
///
/// # Errors
/// The guest could not be killed or looked at.
pub fn canary(setting: &mut Setting<'_>) -> Result<Findings> {
    killed(setting, Kind::Forgetting)
}

fn killed(setting: &mut Setting<'_>, kind: Kind) -> Result<Findings> {
    let rig = Rig::plain(setting.images_in, DISK_BYTES)?.for_guests(RETAIN_GUEST_MIB, Data::Journal);
    on_rig(setting, rig, |setting, rig| {
        rig.serve(kind)?;
        let mut guest = start_work(setting, rig, Vmm::Uml, Load::NATIVE)?;
        wait_for_work(setting, &guest, 0, (RECORDS_MIN, COMMITS_MIN))?;
        jitter(&mut setting.rng);
        let before = file_system(rig)?;
        guest.kill();
        let killed = Instant::now();
        let recovery = if kind == Kind::Retaining { Some(recovery(rig, &before, killed)?) } else { None };
        let ledger = ledger_of(setting, &guest, None)?;
        drop(guest);
        let (streams, mut checks) = recover_and_judge(setting, rig, &ledger, Allowance::Nothing)?;
        if let Some((recovery, check)) = &recovery {
            setting.progress.step(&format!(
                "the daemon brought {} blocks home within {:.0} ms",
                recovery.blocks_home, recovery.home_ms
            ));
            checks.insert(0, check.clone());
        }
        Ok(Findings {
            streams,
            checks,
            medium: "plain file".to_owned(),
            guest: "UML".to_owned(),
            postmark_rounds: ledger.postmark_rounds,
            recovery: recovery.map(|(recovery, _)| recovery),
            ..Findings::default()
        })
    })
}

fn file_system(rig: &mut Rig) -> Result<FileSystemStatus> {
    let found = rig.server()?.file_system()?;
    found
        .ok_or_else(|| LabError::Broken("the daemon has found no file system on the guest's disk".to_owned()))
}

/// Waits until nothing that the dead guest had committed is in memory only.
fn recovery(rig: &mut Rig, before: &FileSystemStatus, killed: Instant) -> Result<(Recovery, Check)> {
    let mut now = file_system(rig)?;
    while now.versions_pending > 0 && killed.elapsed() < HOME_LIMIT {
        std::thread::sleep(Duration::from_millis(2));
        now = file_system(rig)?;
    }
    let recovery = Recovery {
        transactions: before.transactions,
        blocks_pending: before.versions_pending,
        blocks_home: now.classes.checkpoint_blocks.saturating_sub(before.classes.checkpoint_blocks),
        home_ms: killed.elapsed().as_secs_f64() * 1e3,
    };
    let pending = now.versions_pending;
    let check = Check::new(
        "the journal was retained, and the daemon brings home what the dead guest had committed",
        before.mode == "retain" && recovery.transactions > 0 && pending == 0,
        format!(
            "before: mode {}, {} transactions, {} blocks in memory only; {} ms after the kill: {} brought home, {pending} in memory only",
            before.mode,
            recovery.transactions,
            recovery.blocks_pending,
            recovery.home_ms.round(),
            recovery.blocks_home
        ),
    );
    Ok((recovery, check))
}
