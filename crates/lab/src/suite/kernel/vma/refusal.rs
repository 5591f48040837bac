//! The control disk takes no more, in the middle of it: the journal is on the disk from then on.

use std::time::{Duration, Instant};

use super::rig::{guest, killed, writing, Rig, FELL_BACK, RECONNECT_S};
use super::{Way, CONTRACTS, SENT};
use crate::acks::Ledger;
use crate::daemon::ServeOptions;
use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::guest::Guest;
use crate::suite::kernel::Build;
use crate::suite::workload;

/// How long the kernel may take to say that it writes its journal to the disk.
const PATIENCE: Duration = Duration::from_secs(100);

/// What makes the control disk refuse in the middle of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// The next daemon does not retain the journal.
    Passthrough,
    /// The guest loses the device.
    Removed,
    /// One command names a guest that is not there (a build with faults).
    Spoilt,
}

impl Refusal {
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Passthrough => "passthrough",
            Refusal::Removed => "removed",
            Refusal::Spoilt => "spoilt",
        }
    }
}

/// The control disk takes no more, in the middle of it: the journal is on the disk from then on.
pub(super) fn refused(
    evidence: &Evidence,
    build: &Build,
    way: Way,
    (contract, refusal): (&str, Refusal),
    acknowledged: u64,
) -> Result<String> {
    let mut rig = Rig::new(contract, false)?;
    let mount = way.mount;
    let mount = match refusal {
        // Nothing may empty the journal meanwhile: a transaction that is missing there would not be missed.
        Refusal::Passthrough | Refusal::Spoilt => mount.to_owned(),
        Refusal::Removed => format!(
            "{mount}\n(until [ -e /mnt/acks ] && [ \"$(sed -n 's/^handed_over //p' /proc/fs/vjbd2/vda-*/vma)\" -gt {acknowledged} ]; \
             do sleep 0.2; done; echo 1 > $(readlink -f /sys/block/vdb/device)/../remove) &"
        ),
    };
    let build = match refusal {
        Refusal::Spoilt => Build {
            parameters: format!("{} vma_blocks=5 vma_refuse_after={}", build.parameters, acknowledged * 2),
            ..build.clone()
        },
        _ => build.clone(),
    };
    let guest = guest(&rig.daemon).reconnect_s(RECONNECT_S).start(&writing(&build, &mount))?;
    let lived = fall_back(&mut rig, &guest, (way, refusal), acknowledged);
    let ledger = killed(evidence, guest, lived)?;
    rig.judge(evidence, &ledger)
}

/// Until the journal is written to the disk, and some more.
fn fall_back(rig: &mut Rig, guest: &Guest, (way, refusal): (Way, Refusal), acknowledged: u64) -> Result<()> {
    guest.wait_acknowledged(acknowledged)?;
    if matches!(refusal, Refusal::Passthrough) {
        rig.expect_commits(way)?;
        rig.daemon.end()?;
        let passing = ServeOptions {
            extra: ["--journal", "passthrough"].map(str::to_owned).to_vec(),
            ..rig.options.clone()
        };
        rig.daemon.restart_as(&passing)?;
    }
    let end = Instant::now() + PATIENCE;
    while !guest.console().contains(FELL_BACK) {
        if Instant::now() >= end {
            return Err(LabError::Guest(format!("the journal did not go to the disk{}", guest.last_words())));
        }
        std::thread::sleep(PATIENCE / 400);
    }
    let so_far = Ledger::of(guest.channel())?.acks.len() as u64;
    guest.wait_acknowledged(so_far + 60)
}

/// A fallback that does not write the transaction that was refused: whatever comes behind it is lost.
pub(super) fn without_rewrite(evidence: &Evidence, build: &Build) -> Result<String> {
    let outcome = refused(evidence, build, SENT, (CONTRACTS[0], Refusal::Spoilt), 60);
    workload::canary(outcome, "a transaction that was refused and not written is not missed")
}
