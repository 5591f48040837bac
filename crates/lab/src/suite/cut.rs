//! The power goes below the real store: what the daemon forgot to sync is gone.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::workload::{self, FileSystem, IMAGE_BYTES};
use super::{Evidence, WINDOW_MS};
use crate::acks::{Allowance, Ledger};
use crate::daemon::{self, Daemon, ServeOptions};
use crate::error::{LabError, Result};
use crate::guest::{run_script, Guest, Vmm};
use crate::powerfs::{Cut, ModelName, MountOptions, PowerMount};

/// Long enough for several windows and for the log's home-going to be under way.
pub(super) const ACKNOWLEDGED_BEFORE: u64 = 400;

/// An armed cut comes within this many operations.
const OPERATIONS_AHEAD_MAX: u64 = 23;

/// The guest never stops writing: an armed cut is due at once.
const PATIENCE: Duration = Duration::from_secs(30);

/// Torn sectors, of 1000: a disk does not tear a sector, and neither file systems nor `power`, which passes
/// the guest's own sectors on, have a defence. The redo log of a window does, and covers the image too.
pub(super) fn torn_per_mille(contract: &str) -> u64 {
    if contract.starts_with("power-window") {
        30
    } else {
        0
    }
}

/// `power` passes on what the disk does, and a guest's ext4 counts on blocks that are written whole: before Linux 6.10 it refuses a journal of
/// which a cut has torn the last commit block ("transaction is corrupt"). So its disk has the physical sectors that the daemon reports.
fn sector_bytes(contract: &str) -> u64 {
    if contract == "power" {
        4096
    } else {
        512
    }
}

pub(super) fn allowance(contract: &str) -> Allowance {
    if contract.starts_with("power-window") {
        Allowance::Window { window_ms: WINDOW_MS }
    } else {
        Allowance::Nothing
    }
}

/// The daemon behind a cut: that it opens the disk is a promise.
pub(super) fn serve_after_cut(options: &ServeOptions) -> Result<Daemon> {
    Daemon::serve(options).map_err(|error| {
        LabError::Broken(format!("the daemon does not open the disk after the cut: {error}"))
    })
}

pub(super) struct Plan<'a> {
    pub vmm: Vmm,
    pub contract: &'a str,
    pub seed: u64,
    pub disks: usize,
    pub make: &'a str,
    pub mount: &'a str,
    /// How the guest behind the cut mounts.
    pub mount_after: &'a str,
    pub check: &'a str,
    /// What the disk writes whole.
    pub sector_bytes: u64,
    /// Formatted and closed in order under `power` first: a contract may be changed between two runs.
    pub made_under_power: bool,
}

impl<'a> Plan<'a> {
    /// One disk of a User Mode Linux guest.
    pub fn of(file_system: FileSystem, contract: &'a str, seed: u64) -> Self {
        Self {
            vmm: Vmm::Uml,
            contract,
            seed,
            disks: 1,
            make: file_system.make(),
            mount: file_system.mount(),
            mount_after: file_system.mount(),
            check: file_system.check(),
            sector_bytes: sector_bytes(contract),
            made_under_power: false,
        }
    }
}

pub(super) fn one_disk(
    evidence: &Evidence,
    file_system: FileSystem,
    contract: &str,
    seed: u64,
) -> Result<String> {
    run(evidence, &Plan::of(file_system, contract, seed), None)
}

/// jbd2 with its journal on another disk needs order across disks: the group rule.
pub(super) fn two_disks(evidence: &Evidence, seed: u64) -> Result<String> {
    let mount = "mount -t ext4 -o journal_path=/dev/vdb /dev/vda /mnt";
    let cut = Plan {
        disks: 2,
        make: "mke2fs -q -F -O journal_dev -b 4096 /dev/vdb && mkfs.ext4 -q -F -b 4096 -J device=/dev/vdb /dev/vda",
        mount,
        mount_after: mount,
        check: "e2fsck -fn -j /dev/vdb /dev/vda",
        ..Plan::of(FileSystem::Ext4Ordered, "power-window=50ms", seed)
    };
    run(evidence, &cut, None)
}

/// What was written under another contract must not make the log refuse its own image after a cut.
pub(super) fn changed_contract(evidence: &Evidence, seed: u64) -> Result<String> {
    let plan = Plan::of(FileSystem::Ext4Ordered, "power-window=50ms", seed);
    run(evidence, &Plan { made_under_power: true, ..plan }, None)
}

/// `guest-crash` promises nothing for a power cut: if even that looks whole, the cuts do not cut.
pub(super) fn canary(evidence: &Evidence) -> Result<String> {
    let plan = Plan::of(FileSystem::Ext4Ordered, "guest-crash", 1);
    workload::canary(run(evidence, &plan, Some(300)), "a disk that is never synced survived a power cut")
}

pub(super) fn run(evidence: &Evidence, cut: &Plan<'_>, kept_per_mille: Option<u64>) -> Result<String> {
    let mount = PowerMount::mount(&MountOptions {
        model: ModelName::Ssd,
        seed: cut.seed,
        sector_bytes: cut.sector_bytes,
        ..MountOptions::default()
    })?;
    let images: Vec<PathBuf> = (0..cut.disks).map(|index| mount.join(format!("disk{index}.raw"))).collect();
    for (index, image) in images.iter().enumerate() {
        daemon::create_image(image, if index == 0 { IMAGE_BYTES } else { 64 << 20 })?;
    }
    // The images were there long before the guest.
    mount.request(&serde_json::json!({ "command": "settle" }))?;
    let outcome = cut_and_verify(evidence, &mount, &images, cut, kept_per_mille);
    if outcome.is_err() {
        let mut files = images.clone();
        files.extend(workload::with_log(&images[0]));
        evidence.files(&files, "");
    }
    outcome
}

/// Cuts at one of the next operations that reach storage: between a write and its sync, more often than not,
/// which a cut at a moment of our choosing would hardly ever hit.
pub(super) fn cut_in_the_act(mount: &PowerMount, seed: u64, torn_per_mille: u64) -> Result<Cut> {
    mount.arm(1 + seed % OPERATIONS_AHEAD_MAX, seed, torn_per_mille)?;
    let end = Instant::now() + PATIENCE;
    loop {
        let status = mount.status()?;
        if let (false, Some(cut)) = (status.powered, status.last_cut) {
            return Ok(cut);
        }
        if Instant::now() >= end {
            return Err(LabError::Deadline { what: "the armed power cut".to_owned(), limit: PATIENCE });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// After the cut guest and daemon are dead, and the files are what it has left. What the guest had been told.
pub(super) fn end_with_the_power(
    evidence: &Evidence,
    mount: &PowerMount,
    mut guest: Guest,
    mut daemon: Daemon,
    done: &Cut,
) -> Result<Ledger> {
    guest.kill();
    daemon.kill()?;
    guest.wait()?;
    let ledger = Ledger::of(guest.channel())?;
    evidence.guest(&guest, "first");
    evidence.daemon(&daemon, "first");
    evidence.text("cut.txt", &format!("{done:#?}"));
    drop(guest);
    drop(daemon);
    mount.restore()?;
    Ok(ledger)
}

fn cut_and_verify(
    evidence: &Evidence,
    mount: &PowerMount,
    images: &[PathBuf],
    cut: &Plan<'_>,
    kept_per_mille: Option<u64>,
) -> Result<String> {
    let log_max = cut.contract.starts_with("power-window").then(|| "32M".to_owned());
    let options = ServeOptions { log_max, ..ServeOptions::new(cut.contract, images) };
    let mut make = cut.make;
    if cut.made_under_power {
        let daemon = Daemon::serve(&ServeOptions::new("power", images))?;
        let script =
            format!("{} && {} && cp -r /usr/share/doc/bash /mnt && umount /mnt", cut.make, cut.mount);
        run_script(workload::guest(Vmm::Uml, &daemon), &script)?;
        daemon.stop()?;
        make = "true";
    }
    let daemon = Daemon::serve(&options)?;
    let guest = workload::guest(cut.vmm, &daemon).start(&workload::writing(make, cut.mount))?;
    if let Err(error) = guest.wait_acknowledged(ACKNOWLEDGED_BEFORE) {
        evidence.guest(&guest, "first");
        evidence.daemon(&daemon, "first");
        return Err(error);
    }
    let torn = torn_per_mille(cut.contract);
    let done = match kept_per_mille {
        Some(kept) => mount.cut_keeping(cut.seed, kept, torn)?,
        None => cut_in_the_act(mount, cut.seed, torn)?,
    };
    let ledger = end_with_the_power(evidence, mount, guest, daemon, &done)?;

    let daemon = serve_after_cut(&options)?;
    let remains = workload::remains(evidence, &daemon, cut.mount_after, cut.check);
    evidence.daemon(&daemon, "second");
    let told = workload::judge(evidence, &ledger, &remains?, allowance(cut.contract))?;
    daemon.stop()?;
    let sectors = done.report.content;
    let volatile = sectors.sectors_lost + sectors.sectors_kept + sectors.sectors_torn;
    Ok(format!(
        "{told}; of {volatile} volatile sectors {} lost, {} torn",
        sectors.sectors_lost, sectors.sectors_torn
    ))
}
