//! The guest dies in the middle of its work; under every contract nothing acknowledged may be missing.

use std::process::Command;

use super::workload::{self, FileSystem, IMAGE_BYTES};
use super::Evidence;
use crate::acks::{Allowance, Ledger};
use crate::daemon::{self, Daemon, ServeOptions};
use crate::error::{LabError, Result};
use crate::guest::Vmm;
use crate::process::{self, Workdir};

/// How the guest dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// SIGKILL of the VMM, and of the daemon at once: the process rule.
    Killed,
    /// A kernel panic; the daemon lives and serves the next guest.
    Panicked,
}

impl Death {
    pub fn name(self) -> &'static str {
        match self {
            Death::Killed => "killed",
            Death::Panicked => "panicked",
        }
    }
}

const ACKNOWLEDGED_BEFORE: u64 = 400;

pub(super) fn run(
    evidence: &Evidence,
    vmm: Vmm,
    file_system: FileSystem,
    contract: &str,
    death: Death,
) -> Result<String> {
    let folder = Workdir::new("crash")?;
    let image = folder.join("disk.raw");
    daemon::create_image(&image, IMAGE_BYTES)?;
    let mut daemon = Daemon::serve(&ServeOptions::new(contract, std::slice::from_ref(&image)))?;
    let outcome = die_and_verify(evidence, &mut daemon, vmm, file_system, death);
    evidence.daemon(&daemon, "first");
    if outcome.is_err() {
        evidence.files(&workload::with_log(&image), "");
        return outcome;
    }
    daemon.stop()?;
    // Closed in order, the image is a plain raw file: no log, and any other tool may read it.
    if workload::with_log(&image)[1].exists() {
        return Err(LabError::Broken("the redo log is still there after an orderly stop".to_owned()));
    }
    if file_system != FileSystem::Xfs {
        let check = process::run(Command::new("e2fsck").arg("-fn").arg(&image));
        if let Err(error) = check {
            evidence.files(&[image], "");
            return Err(LabError::Broken(format!("the closed image is damaged: {error}")));
        }
    }
    outcome
}

fn die_and_verify(
    evidence: &Evidence,
    daemon: &mut Daemon,
    vmm: Vmm,
    file_system: FileSystem,
    death: Death,
) -> Result<String> {
    let script = workload::writing(file_system.make(), file_system.mount());
    let mut guest = workload::guest(vmm, daemon).start(&script)?;
    let begun = guest.wait_acknowledged(ACKNOWLEDGED_BEFORE);
    if begun.is_ok() {
        match death {
            Death::Killed => {
                guest.kill();
                daemon.kill()?;
            }
            Death::Panicked => guest.panic()?,
        }
        guest.wait()?;
    }
    evidence.guest(&guest, "first");
    begun?;
    let ledger = Ledger::of(guest.channel())?;
    drop(guest);
    if death == Death::Killed {
        daemon.restart()?;
    }
    let remains = workload::remains(evidence, daemon, file_system.mount(), file_system.check())?;
    workload::judge(evidence, &ledger, &remains, Allowance::Nothing)
}
