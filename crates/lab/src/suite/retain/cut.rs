//! The power goes, with a retained journal under `power-window`: the arena is memory, and gone with it.
//!
//! ```text
//!   guest on a retained journal ─► power cut in the act ─► everybody dead, the arena gone ─► the next daemon ─► stopped
//!     ─► the image, alone: journal empty, e2fsck mends nothing but orphans and totals ─► the next guest: every record
//!        but for a window
//! ```
//!
//! What is durable is recovery(prefix): complete transactions at home, and a journal with nothing in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::cut::{
    allowance, cut_in_the_act, end_with_the_power, serve_after_cut, torn_per_mille, ACKNOWLEDGED_BEFORE,
};
use super::super::workload::{self, FileSystem, IMAGE_BYTES};
use super::rig::{copy, expect_retained};
use crate::daemon::{self, Daemon, ServeOptions};
use crate::error::{Context, LabError, Result};
use crate::evidence::Evidence;
use crate::fsck;
use crate::guest::Vmm;
use crate::locate::system_program;
use crate::powerfs::{Cut, ModelName, MountOptions, PowerMount};
use crate::process::Workdir;

/// Runs one.
pub(super) fn run(
    evidence: &Evidence,
    file_system: FileSystem,
    contract: &'static str,
    seed: u64,
) -> Result<String> {
    let mount = PowerMount::mount(&MountOptions { model: ModelName::Ssd, seed, ..MountOptions::default() })?;
    let image = mount.join("disk.raw");
    daemon::create_image(&image, IMAGE_BYTES)?;
    // The image was there long before the guest.
    mount.request(&serde_json::json!({ "command": "settle" }))?;
    let outcome = cut_and_verify(evidence, &mount, &image, file_system, contract, seed);
    if outcome.is_err() {
        let mut files = vec![image.clone()];
        files.extend(workload::with_log(&image));
        evidence.files(&files, "");
    }
    outcome
}

/// `guest-crash` trusts the host: a power cut that takes the arena has to show.
pub(super) fn canary(evidence: &Evidence, seed: u64) -> Result<String> {
    let outcome = run(evidence, FileSystem::Ext4Journal, "guest-crash", seed);
    workload::canary(outcome, "a journal that was only memory survived a power cut")
}

fn cut_and_verify(
    evidence: &Evidence,
    mount: &PowerMount,
    image: &PathBuf,
    file_system: FileSystem,
    contract: &str,
    seed: u64,
) -> Result<String> {
    let memory = Workdir::new_in(Path::new("/dev/shm"), "arena")?;
    let retain = |arena: &Path, more: &[&str]| {
        let arena = arena.display().to_string();
        let mut extra: Vec<String> =
            ["--journal", "retain", "--arena", &arena].iter().map(ToString::to_string).collect();
        extra.extend(more.iter().map(ToString::to_string));
        let log_max = contract.starts_with("power-window").then(|| "32M".to_owned());
        ServeOptions { extra, log_max, ..ServeOptions::new(contract, std::slice::from_ref(image)) }
    };
    let daemon = Daemon::serve(&retain(memory.path(), &[]))?;
    let script = workload::writing(file_system.make(), file_system.mount());
    let guest = workload::guest(Vmm::Uml, &daemon).start(&script)?;
    let worked = guest.wait_acknowledged(ACKNOWLEDGED_BEFORE).and_then(|()| expect_retained(&daemon));
    if let Err(error) = worked {
        evidence.guest(&guest, "first");
        evidence.daemon(&daemon, "first");
        return Err(error);
    }
    let done: Cut = match contract.starts_with("power-window") {
        true => cut_in_the_act(mount, seed, torn_per_mille(contract))?,
        // Where nothing is ever synced, there may be no operation to wait for.
        false => mount.cut_keeping(seed, 300, 0)?,
    };
    let ledger = end_with_the_power(evidence, mount, guest, daemon, &done)?;
    drop(memory);

    let memory = Workdir::new_in(Path::new("/dev/shm"), "arena")?;
    let more: &[&str] = if contract.starts_with("power-window") { &[] } else { &["--accept-loss"] };
    let options = retain(memory.path(), more);
    // Nobody attached: what the daemon alone makes of it.
    serve_after_cut(&options)?.stop()?;
    let folder = Workdir::new("cut")?;
    let alone = folder.join("alone.raw");
    copy(image, &alone)?;
    let judged = expect_empty_journal(&alone).and_then(|()| fsck::mend(&alone));
    if judged.is_err() {
        evidence.files(std::slice::from_ref(&alone), "");
    }
    judged?;

    let daemon = serve_after_cut(&options)?;
    let remains = workload::remains(evidence, &daemon, file_system.mount(), file_system.check());
    evidence.daemon(&daemon, "second");
    let told = workload::judge(evidence, &ledger, &remains?, allowance(contract))?;
    daemon.stop()?;
    let sectors = done.report.content;
    let volatile = sectors.sectors_lost + sectors.sectors_kept + sectors.sectors_torn;
    Ok(format!(
        "{told}; of {volatile} volatile sectors {} lost; the image alone is whole",
        sectors.sectors_lost
    ))
}

/// Whether the journal on the disk says that there is nothing in it.
fn expect_empty_journal(image: &Path) -> Result<()> {
    let program = system_program("dumpe2fs", "e2fsprogs")?;
    let said = Command::new(program).arg("-h").arg(image).output().context(|| "run dumpe2fs".to_owned())?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let start = said.lines().find_map(|line| line.strip_prefix("Journal start:")).map(str::trim);
    match start {
        Some("0") => Ok(()),
        _ => Err(LabError::Broken(format!(
            "after the cut the journal on the disk is not empty (it starts at {start:?})"
        ))),
    }
}
