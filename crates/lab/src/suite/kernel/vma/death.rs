//! A death among commits that are handed over.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::rig::{guest, killed, writing, Rig, FELL_BACK, RECONNECT_S};
use super::{Way, CONTRACTS, PUBLISHED, SENT};
use crate::acks::{Allowance, Ledger, Remains};
use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::guest::{Ended, Guest};
use crate::suite::kernel::Build;
use crate::suite::{kexec, workload};

/// What may be lost of what was published where VMM and daemon die together: as `serve` prints it.
const PUBLISHED_LOSS: Allowance = Allowance::Window { window_ms: 10.0 };

/// So many commits of each of two file systems.
const SIDE_BY_SIDE: u64 = 30;

/// How long a daemon stands still before it dies with the VMM, and then for how long nothing may be acknowledged.
const STALLED: Duration = Duration::from_secs(2);

/// Where a build with faults can panic in a commit that is handed over, and whether a command has to be refused before.
pub(super) const FAULTS: [(&str, bool); 6] = [
    ("vma_gathered", false),
    ("vma_commit", false),
    ("vma_answered", false),
    ("vma_refused", true),
    ("vma_rewritten", true),
    ("vma_published", false),
];

/// What dies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Death {
    /// The VMM.
    Vmm,
    /// The daemon, again and again under a running guest; then the VMM.
    Daemon,
    /// VMM and daemon.
    Both,
    /// The kernel, which reboots within the same VMM.
    Reboot,
    /// The kernel, in order: it starts another one over itself, from under the mounted file system.
    Kexec,
}

impl Death {
    pub const ALL: [Death; 5] = [Death::Vmm, Death::Daemon, Death::Both, Death::Reboot, Death::Kexec];

    pub fn name(self) -> &'static str {
        match self {
            Death::Vmm => "vmm",
            Death::Daemon => "daemon",
            Death::Both => "both",
            Death::Reboot => "reboot",
            Death::Kexec => "kexec",
        }
    }
}

/// A death among commits that are handed over.
pub(super) fn died(
    evidence: &Evidence,
    build: &Build,
    way: Way,
    (contract, keep, death): (&str, bool, Death),
    acknowledged: u64,
) -> Result<String> {
    let mut rig = Rig::new(contract, keep)?;
    if matches!(death, Death::Reboot | Death::Kexec) {
        return rebooted(evidence, build, rig, (way, matches!(death, Death::Kexec)), acknowledged);
    }
    let mut builder = guest(&rig.daemon);
    if matches!(death, Death::Daemon) && !keep {
        builder = builder.reconnect_s(RECONNECT_S);
    }
    let mut guest = builder.start(&writing(build, way.mount))?;
    let lived = live(&mut rig, &guest, death, acknowledged).and_then(|()| rig.expect_commits(way));
    let stalls = way.published && matches!(death, Death::Both) && !keep;
    let lived = lived.and_then(|()| if stalls { stall(&rig, &guest) } else { Ok(()) });
    guest.kill();
    if matches!(death, Death::Both) {
        rig.daemon.kill()?;
    }
    guest.wait()?;
    evidence.guest(&guest, "first");
    lived?;
    if guest.console().contains(FELL_BACK) {
        return Err(LabError::Broken(format!(
            "a control disk that was there was given up{}",
            guest.last_words()
        )));
    }
    let ledger = Ledger::of(guest.channel())?;
    if matches!(death, Death::Both) {
        rig.daemon.restart()?;
    }
    drop(guest);
    match death {
        Death::Both if way.published => rig.judge_but_for(evidence, &ledger, PUBLISHED_LOSS),
        _ => rig.judge(evidence, &ledger),
    }
}

/// Two file systems of one guest publish their commits side by side, to the one control disk; the VMM is killed.
pub(super) fn two_killed(evidence: &Evidence, build: &Build, contract: &str) -> Result<String> {
    let rig = Rig::of(2, contract, false)?;
    // Before the others, which never sleep: what is lent goes back after 100 ms without a commit, and the next one is not published.
    let mount = r#"options=data=vma,vma_exitless,vma_disk=/dev/vdc
mkfs.ext4 -q -F -b 4096 /dev/vdb
mkdir /run/other
mount -t vext4 -o $options /dev/vdb /run/other
sh -c 'renice -n -5 -p $$; i=0; while :; do i=$((i+1)); dd if=/bin/busybox of=/run/other/$((i%9)) bs=4k count=3 conv=fsync 2>/dev/null
    echo "other $(sed -n "s/^published //p" /proc/fs/vjbd2/vdb-*/vma)"; done' &
mount -t vext4 -o $options /dev/vda /mnt"#;
    let guest = guest(&rig.daemon).start(&writing(build, mount))?;
    let enough = |line: &str| line.strip_prefix("other ")?.parse().ok().filter(|n| *n > SIDE_BY_SIDE);
    let other = guest.wait_printed("commits of the other one", enough);
    let lived = other.and_then(|published: u64| {
        let all = rig.daemon.status()?.control_disk.map_or(0, |told| told.published);
        if all > published + SIDE_BY_SIDE {
            return Ok(());
        }
        Err(LabError::Broken(format!("{all} commits were published, {published} of one file system")))
    });
    let ledger = killed(evidence, guest, lived)?;
    rig.judge(evidence, &ledger)
}

/// The daemon stands still: what is published is not taken, and soon nothing is acknowledged.
fn stall(rig: &Rig, guest: &Guest) -> Result<()> {
    rig.daemon.signal(Signal::STOP)?;
    std::thread::sleep(STALLED);
    let so_far = Ledger::of(guest.channel())?.acks.len();
    std::thread::sleep(STALLED);
    match Ledger::of(guest.channel())?.acks.len() - so_far {
        0 => Ok(()),
        more => Err(LabError::Broken(format!("{more} acknowledged while nobody takes what is published"))),
    }
}

fn live(rig: &mut Rig, guest: &Guest, death: Death, acknowledged: u64) -> Result<()> {
    guest.wait_acknowledged(acknowledged)?;
    if matches!(death, Death::Daemon) {
        for turn in 1..=3 {
            rig.daemon.kill()?;
            rig.daemon.restart()?;
            guest.wait_acknowledged(acknowledged + turn * acknowledged / 2)?;
        }
    }
    Ok(())
}

/// Another kernel within the same VMM, a mount by vext4 as before it, and everything is there.
fn rebooted(
    evidence: &Evidence,
    build: &Build,
    rig: Rig,
    (way, by_kexec): (Way, bool),
    acknowledged: u64,
) -> Result<String> {
    let (mut builder, mut mount) = (guest(&rig.daemon), way.mount.to_owned());
    if by_kexec {
        builder = kexec::with_kernel(builder)?.memory_mib(512);
        mount += &format!(
            "\n(until [ -e /mnt/acks ] && [ \"$(sed -n 's/^handed_over //p' /proc/fs/vjbd2/vda-*/vma)\" -gt {acknowledged} ]; \
             do sleep 0.2; done\n{}) &",
            kexec::script("afterimage.second")
        );
    }
    let make = |label: &str| format!("{}\nmkfs.ext4 -q -F -b 4096 {label} /dev/vda", build.load());
    let script = format!(
        "if dumpe2fs -h /dev/vda 2>/dev/null | grep -q 'volume name:   *first'; then\n\
         {}\necho again\n{}exit 0\nfi\n{}",
        build.load(),
        workload::checking(way.mount, "e2fsck -fn /dev/vda"),
        workload::writing(&make("-L first"), &mount),
    );
    let mut guest = builder.start(&script)?;
    let begun = guest.wait_acknowledged(acknowledged).and_then(|()| rig.expect_commits(way));
    let begun = begun.and_then(|()| if by_kexec { Ok(()) } else { panic(&guest) });
    let ended = begun.and_then(|()| guest.wait());
    evidence.guest(&guest, "guest");
    match ended? {
        Ended::Exited(0) => {}
        Ended::Exited(61..=64) => return Err(LabError::Broken(guest.last_words())),
        other => {
            return Err(LabError::Guest(format!("the guest ended with {other:?}{}", guest.last_words())))
        }
    }
    let (ledger, remains) = (Ledger::of(guest.channel())?, Remains::of(guest.channel())?);
    let told = workload::judge(evidence, &ledger, &remains, Allowance::Nothing)?;
    drop(guest);
    rig.judge(evidence, &ledger)?;
    Ok(told)
}

/// The kernel panics, and its VMM boots it again.
fn panic(guest: &Guest) -> Result<()> {
    let mut qmp = guest.qmp()?;
    qmp.execute("set-action", Some(json!({ "reboot": "reset", "panic": "none" })))?;
    qmp.execute("inject-nmi", None).map(drop)
}

/// The kernel panics at a place of a commit.
pub(super) fn panicked(
    evidence: &Evidence,
    build: &Build,
    (point, refused): (&str, bool),
    after: u64,
) -> Result<String> {
    let mut rig = Rig::new(CONTRACTS[after as usize % CONTRACTS.len()], false)?;
    // Transactions take several commands.
    let mut parameters = format!("panic_at={point} vma_blocks=3");
    parameters += &match refused {
        true => format!(" panic_after=1 vma_refuse_after={}", 4 * after),
        false => format!(" panic_after={after}"),
    };
    let build = Build { parameters, ..build.clone() };
    let way = if point == "vma_published" { PUBLISHED } else { SENT };
    let mut guest = guest(&rig.daemon).start(&writing(&build, way.mount))?;
    let ended = guest.wait();
    evidence.guest(&guest, "first");
    if ended? != Ended::Panicked || !guest.console().contains("injected at") {
        return Err(LabError::Guest(format!("the guest did not panic at {point}{}", guest.last_words())));
    }
    rig.expect_commits(way)?;
    let ledger = Ledger::of(guest.channel())?;
    drop(guest);
    // Every other time what was retained is the next daemon's.
    if after % 2 == 1 {
        rig.daemon.kill()?;
        rig.daemon.restart()?;
    }
    rig.judge(evidence, &ledger)
}

/// Kills until one has to have come between an acknowledgement and the moment when its transaction was sent in another way.
const KILLS: u32 = 12;

/// A transaction that counts as committed before its store: whoever dies before it is sent in another way takes it along.
pub(super) fn without_publication(evidence: &Evidence, build: &Build) -> Result<String> {
    let mut missed = String::new();
    for kill in 1..=KILLS {
        let mut rig = Rig::new(CONTRACTS[0], false)?;
        let guest = guest(&rig.daemon).start(&writing(build, PUBLISHED.mount))?;
        let lived = live(&mut rig, &guest, Death::Vmm, 80);
        let ledger = killed(evidence, guest, lived)?;
        let told = rig.judge(evidence, &ledger);
        match workload::canary(told, "a commit that was told and not published is not missed") {
            Err(LabError::Broken(again)) => missed = again,
            seen => return seen.map(|seen| format!("kill {kill}: {seen}")),
        }
    }
    Err(LabError::Broken(format!("{KILLS} kills, the last: {missed}")))
}
