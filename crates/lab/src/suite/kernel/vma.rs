//! `data=vma`: commits that are handed over to the control disk, and every death that may come between.
//!
//! ```text
//!   vext4 -o data=vma ─► commits ─► VMM, daemon, kernel die, the control disk refuses or goes ─► a stock kernel mounts, e2fsck -fn
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::{Build, KernelOptions, BROKEN};
use crate::acks::{Allowance, Ledger, Remains};
use crate::daemon::{self, Daemon, ServeOptions};
use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::fsck;
use crate::guest::{Ended, Guest, GuestBuilder};
use crate::process::Workdir;
use crate::suite::workload::{self, FileSystem, IMAGE_BYTES};
use crate::suite::{Case, Run};

/// How commits get there.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Of cases' names.
    name: &'static str,
    mount: &'static str,
    published: bool,
}

const SENT: Way = Way {
    name: "vma",
    mount: "mount -t vext4 -o data=vma,vma_disk=/dev/vdb /dev/vda /mnt",
    published: false,
};
const PUBLISHED: Way = Way {
    name: "vma-exitless",
    mount: "mount -t vext4 -o data=vma,vma_exitless,vma_disk=/dev/vdb /dev/vda /mnt",
    published: true,
};
const MOUNT: &str = SENT.mount;

/// What may be lost of what was published where VMM and daemon die together: as `serve` prints it.
const PUBLISHED_LOSS: Allowance = Allowance::Window { window_ms: 10.0 };

/// Syncs of each size whose median is taken.
const COST_ROUNDS: u32 = 400;

/// How long a daemon stands still before it dies with the VMM, and then for how long nothing may be acknowledged.
const STALLED: Duration = Duration::from_secs(2);

/// Those under which a journal is retained, and a death without a power cut loses nothing.
const CONTRACTS: [&str; 2] = ["guest-crash", "power-window=50ms"];

/// What the kernel says when it writes its journal to the disk.
const FELL_BACK: &str = "the control disk did not take";

/// How long it may take to say so.
const PATIENCE: Duration = Duration::from_secs(100);

/// QEMU looks for its daemon once a second.
const RECONNECT_S: u32 = 1;

/// Where a build with faults can panic in a commit that is handed over, and whether a command has to be refused before.
const FAULTS: [(&str, bool); 6] = [
    ("vma_gathered", false),
    ("vma_commit", false),
    ("vma_answered", false),
    ("vma_refused", true),
    ("vma_rewritten", true),
    ("vma_published", false),
];

/// What dies.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// The VMM.
    Vmm,
    /// The daemon, again and again under a running guest; then the VMM.
    Daemon,
    /// VMM and daemon.
    Both,
    /// The kernel, which reboots within the same VMM.
    Reboot,
}

impl Death {
    const ALL: [Death; 4] = [Death::Vmm, Death::Daemon, Death::Both, Death::Reboot];

    fn name(self) -> &'static str {
        match self {
            Death::Vmm => "vmm",
            Death::Daemon => "daemon",
            Death::Both => "both",
            Death::Reboot => "reboot",
        }
    }
}

/// What makes the control disk refuse in the middle of it.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// The next daemon does not retain the journal.
    Passthrough,
    /// The guest loses the device.
    Removed,
    /// One command names a guest that is not there (a build with faults).
    Spoilt,
}

impl Refusal {
    fn name(self) -> &'static str {
        match self {
            Refusal::Passthrough => "passthrough",
            Refusal::Removed => "removed",
            Refusal::Spoilt => "spoilt",
        }
    }
}

/// The cases.
pub(super) fn cases(options: &KernelOptions, build: &Build) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let mut add = |name: String, quick: bool, run: Run| cases.push(Case { name, quick, run });
    let own = build.clone();
    add("vext4-vma-mounted".to_owned(), true, Box::new(move |e| mounted(e, &own)));
    let own = build.clone();
    add("vext4-vma-cost".to_owned(), false, Box::new(move |e| cost(e, &own)));
    for way in [SENT, PUBLISHED] {
        for (at, death) in Death::ALL.into_iter().enumerate() {
            for (by, contract) in CONTRACTS.into_iter().enumerate() {
                for keep in [false, true] {
                    for round in 0..options.kills.div_ceil(4) {
                        let (own, acknowledged) = (build.clone(), 80 + 37 * (round % 8));
                        let death = (contract, keep, death);
                        let run = Box::new(move |e: &Evidence| died(e, &own, way, death, acknowledged));
                        let (way, death) = (way.name, death.2.name());
                        let keeps = if keep { "-keep" } else { "" };
                        let name = format!("vext4-{way}-{death}-{contract}{keeps}-{round}");
                        // Quick: each death once.
                        add(name, round == 0 && by == at % 2 && keep == (at % 2 == 1), run);
                    }
                }
            }
        }
        for (by, refusal) in [Refusal::Passthrough, Refusal::Removed].into_iter().enumerate() {
            for (to, contract) in CONTRACTS.into_iter().enumerate() {
                let own = build.clone();
                let run = Box::new(move |e: &Evidence| refused(e, &own, way, (contract, refusal), 60));
                add(format!("vext4-{}-{}-{contract}", way.name, refusal.name()), by == to, run);
            }
        }
    }
    if let Some(folder) = &options.faults {
        let build = Build::of(folder)?;
        for fault in FAULTS {
            for round in 0..options.panics {
                let (build, after) = (build.clone(), 15 + 9 * round);
                let run = Box::new(move |e: &Evidence| panicked(e, &build, fault, after));
                add(format!("vext4-vma-panicked-{}-{round}", fault.0), round == 0, run);
            }
        }
        for contract in CONTRACTS {
            let own = build.clone();
            let run = Box::new(move |e: &Evidence| refused(e, &own, SENT, (contract, Refusal::Spoilt), 60));
            add(format!("vext4-vma-spoilt-{contract}"), true, run);
        }
        let early = Build { parameters: "without=vma-publish".to_owned(), ..build.clone() };
        add("canary-vext4-vma-publish".to_owned(), true, Box::new(move |e| without_publication(e, &early)));
        let build = Build { parameters: "without=vma-rewrite".to_owned(), ..build };
        add("canary-vext4-vma-rewrite".to_owned(), true, Box::new(move |e| without_rewrite(e, &build)));
    }
    Ok(cases)
}

/// A disk whose journal is retained, and its control disk.
struct Rig {
    image: PathBuf,
    options: ServeOptions,
    daemon: Daemon,
    // Declared last: the folders go after the daemon.
    _folders: [Workdir; 2],
}

impl Rig {
    fn new(contract: &str, keep: bool) -> Result<Rig> {
        let (folder, memory) = (Workdir::new("vma")?, Workdir::new_in(Path::new("/dev/shm"), "arena")?);
        let image = folder.join("disk.raw");
        daemon::create_image(&image, IMAGE_BYTES)?;
        let arena = memory.path().display().to_string();
        let extra = ["--journal", "retain", "--arena", &arena].map(str::to_owned).to_vec();
        let options = ServeOptions {
            keep,
            control_disk: true,
            extra,
            ..ServeOptions::new(contract, std::slice::from_ref(&image))
        };
        let daemon = Daemon::serve(&options)?;
        Ok(Rig { image, options, daemon, _folders: [folder, memory] })
    }

    /// Blocks that this daemon was handed over.
    fn handed_over(&self) -> Result<u64> {
        let told = self.daemon.status()?.control_disk;
        Ok(told.map_or(0, |told| told.handed_over_blocks + told.published_blocks))
    }

    /// Commits that came in the way that they should.
    fn expect_commits(&self, way: Way) -> Result<()> {
        let told = self.daemon.status()?.control_disk;
        match told.map_or(0, |told| if way.published { told.published } else { told.mprotects }) {
            0 => Err(LabError::Broken("no commit was handed over to this daemon".to_owned())),
            _ => Ok(()),
        }
    }

    /// A stock kernel finds everything; and so does e2fsck when the daemon has ended.
    fn judge(self, evidence: &Evidence, ledger: &Ledger) -> Result<String> {
        self.judge_but_for(evidence, ledger, Allowance::Nothing)
    }

    /// The same, but for what may be lost.
    fn judge_but_for(self, evidence: &Evidence, ledger: &Ledger, lost: Allowance) -> Result<String> {
        let Rig { image, daemon, _folders, .. } = self;
        let stock = FileSystem::Ext4Journal;
        let outcome = workload::remains(evidence, &daemon, stock.mount(), stock.check())
            .and_then(|remains| workload::judge(evidence, ledger, &remains, lost));
        if outcome.is_err() {
            evidence.daemon(&daemon, "daemon");
        }
        let told = outcome?;
        daemon.stop()?;
        fsck::clean(&image, 0)?;
        Ok(told)
    }
}

/// Everything here is emulated, and waits for several lives of a daemon.
fn guest(daemon: &Daemon) -> GuestBuilder {
    super::guest(daemon).limit(super::EXCHANGE_LIMIT)
}

fn writing(build: &Build, mount: &str) -> String {
    workload::writing(&format!("{}\nmkfs.ext4 -q -F -b 4096 /dev/vda", build.load()), mount)
}

/// The counters, one of which must not be 0 in a case that is about it.
fn counted(said: &str, name: &str) -> u64 {
    let prefix = format!("{name} ");
    said.lines().rev().find_map(|line| line.strip_prefix(&prefix)?.trim().parse().ok()).unwrap_or(0)
}

/// What a mount takes and refuses; commits that write no journal; an orderly end.
fn mounted(evidence: &Evidence, build: &Build) -> Result<String> {
    let script = format!(
        r#"set -e
{load}
unset AFTERIMAGE_REPORT
broken() {{ echo "broken: $*"; exit {BROKEN}; }}
refused() {{ words=$1; shift; dmesg -C; if "$@" 2>/dev/null; then broken "not refused: $*"; fi
    dmesg | grep -q "$words" || broken "refused without '$words': $* ($(dmesg | tail -n 3))"; }}
mkfs.ext4 -q -F -b 4096 /dev/vda
refused 'is no control disk that takes commits' mount -t vext4 -o data=vma,vma_disk=/dev/vda /dev/vda /mnt
refused 'there is no control disk at' mount -t vext4 -o data=vma /dev/vda /mnt
refused 'vma_disk= is for data=vma' mount -t vext4 -o data=journal,vma_disk=/dev/vdb /dev/vda /mnt
refused 'no use for journal_async_commit' mount -t vext4 -o data=vma,vma_disk=/dev/vdb,journal_async_commit /dev/vda /mnt
refused 'vma_exitless is for data=vma' mount -t vext4 -o data=journal,vma_exitless /dev/vda /mnt
mkfs.ext4 -q -F -b 1024 /dev/vda
refused 'in blocks of 4096 bytes' mount -t vext4 -o data=vma,vma_disk=/dev/vdb /dev/vda /mnt
mkfs.ext4 -q -F -b 4096 /dev/vda
{MOUNT}
grep -q ' /mnt vext4 .*data=vma' /proc/mounts || broken "$(grep /mnt /proc/mounts)"
refused 'Cannot change data mode' mount -o remount,data=journal /mnt
mount -o remount,data=vma /mnt
# Lazily initialized tables go home beside it, and their transactions are handed over as well.
i=0; while [ $i -lt 100 ]; do i=$((i+1)); dd if=/bin/busybox of=/mnt/f$i bs=4k count=3 conv=fsync 2>/dev/null; done
dd if=/bin/busybox of=/mnt/mapped bs=64k 2>/dev/null; sync
{synced} write /mnt/msync 20 msync
cp -r /usr/share/doc/e2fsprogs /mnt; sync; rm -r /mnt/e2fsprogs; sync
cat /proc/fs/vjbd2/vda-*/vma
umount /mnt
dmesg | grep 'did not take' && broken "a commit was refused"
e2fsck -fn /dev/vda || broken e2fsck
mount -t ext4 /dev/vda /mnt
i=0; while [ $i -lt 100 ]; do i=$((i+1)); head -c 12288 /bin/busybox | cmp - /mnt/f$i || broken "file $i"; done
umount /mnt
"#,
        load = build.load(),
        synced = build.program("synced"),
    );
    let rig = Rig::new(CONTRACTS[0], false)?;
    let mut guest = guest(&rig.daemon).start(&script)?;
    let ended = guest.wait();
    evidence.guest(&guest, "guest");
    let said = guest.output();
    if let (Ended::Exited(BROKEN), Some(what)) =
        (ended?, said.lines().find(|line| line.starts_with("broken: ")))
    {
        return Err(LabError::Broken(what.to_owned()));
    }
    guest.wait_success()?;
    let (commits, blocks) = (counted(&said, "handed_over"), counted(&said, "handed_over_blocks"));
    let received = rig.handed_over()?;
    if commits < 120 || blocks > received || counted(&said, "fallbacks") != 0 {
        return Err(LabError::Broken(format!(
            "{commits} commits with {blocks} blocks were handed over, and the daemon was given {received}"
        )));
    }
    let Rig { image, daemon, _folders, .. } = rig;
    daemon.stop()?;
    fsck::clean(&image, 0)?;
    Ok(format!(
        "{commits} commits with {blocks} blocks handed over; 7 mounts refused, each with its sentence"
    ))
}

/// A death among commits that are handed over.
fn died(
    evidence: &Evidence,
    build: &Build,
    way: Way,
    (contract, keep, death): (&str, bool, Death),
    acknowledged: u64,
) -> Result<String> {
    let mut rig = Rig::new(contract, keep)?;
    if matches!(death, Death::Reboot) {
        return rebooted(evidence, build, rig, way, acknowledged);
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

fn expect_handed_over(blocks: u64) -> Result<()> {
    match blocks {
        0 => Err(LabError::Broken("no commit was handed over to this daemon".to_owned())),
        _ => Ok(()),
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

/// A panic, a reboot within the VMM, a mount by vext4 as before it, and everything is there.
fn rebooted(evidence: &Evidence, build: &Build, rig: Rig, way: Way, acknowledged: u64) -> Result<String> {
    let script = format!(
        "if dumpe2fs -h /dev/vda 2>/dev/null | grep -q 'volume name:   *first'; then\n\
         {}\n{}\n{}exit 0\nfi\n{}",
        build.load(),
        "echo again",
        workload::checking(way.mount, "e2fsck -fn /dev/vda"),
        workload::writing(&format!("{}\nmkfs.ext4 -q -F -b 4096 -L first /dev/vda", build.load()), way.mount),
    );
    let mut guest = guest(&rig.daemon).start(&script)?;
    let begun = guest.wait_acknowledged(acknowledged).and_then(|()| {
        rig.expect_commits(way)?;
        let mut qmp = guest.qmp()?;
        qmp.execute("set-action", Some(json!({ "reboot": "reset", "panic": "none" })))?;
        qmp.execute("inject-nmi", None).map(drop)
    });
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

/// The kernel panics at a place of a commit.
fn panicked(
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
    expect_handed_over(rig.handed_over()?)?;
    let ledger = Ledger::of(guest.channel())?;
    drop(guest);
    // Every other time what was retained is the next daemon's.
    if after % 2 == 1 {
        rig.daemon.kill()?;
        rig.daemon.restart()?;
    }
    rig.judge(evidence, &ledger)
}

/// The control disk takes no more, in the middle of it: the journal is on the disk from then on.
fn refused(
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
    let lived = fall_back(&mut rig, &guest, refusal, acknowledged);
    let ledger = killed(evidence, guest, lived)?;
    rig.judge(evidence, &ledger)
}

/// Ends a guest, whatever became of it, and says what it had been promised if it has lived as it should.
fn killed(evidence: &Evidence, mut guest: Guest, lived: Result<()>) -> Result<Ledger> {
    guest.kill();
    guest.wait()?;
    evidence.guest(&guest, "first");
    lived?;
    Ledger::of(guest.channel())
}

/// Until the journal is written to the disk, and some more.
fn fall_back(rig: &mut Rig, guest: &Guest, refusal: Refusal, acknowledged: u64) -> Result<()> {
    guest.wait_acknowledged(acknowledged)?;
    if matches!(refusal, Refusal::Passthrough) {
        expect_handed_over(rig.handed_over()?)?;
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
fn without_rewrite(evidence: &Evidence, build: &Build) -> Result<String> {
    let outcome = refused(evidence, build, SENT, (CONTRACTS[0], Refusal::Spoilt), 60);
    workload::canary(outcome, "a transaction that was refused and not written is not missed")
}

/// A transaction that counts as committed before its store: whoever dies before it is sent in another way takes it along.
fn without_publication(evidence: &Evidence, build: &Build) -> Result<String> {
    let mut rig = Rig::new(CONTRACTS[0], false)?;
    let guest = guest(&rig.daemon).start(&writing(build, PUBLISHED.mount))?;
    let lived = live(&mut rig, &guest, Death::Vmm, 80);
    let ledger = killed(evidence, guest, lived)?;
    workload::canary(rig.judge(evidence, &ledger), "a commit that was told and not published is not missed")
}

/// How long an fsync takes, by the pages that were written: a measurement, in which nothing is judged but that each commit went its way.
fn cost(evidence: &Evidence, build: &Build) -> Result<String> {
    let journal = "mount -t vext4 -o data=journal /dev/vda /mnt";
    let single = "mount -t vext4 -o data=journal,journal_async_commit /dev/vda /mnt";
    let mut script = format!("set -e\n{}\nunset AFTERIMAGE_REPORT\n", build.load());
    for (name, mount) in
        [("journal", journal), ("single", single), ("sent", SENT.mount), ("published", PUBLISHED.mount)]
    {
        script += &format!(
            "mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda\n{mount}\n\
             for pages in 1 8 64; do echo \"{name} $({} /mnt/file $pages {COST_ROUNDS})\"; done\n\
             [ ! -e /proc/fs/vjbd2/vda-*/vma ] || sed 's/^/{name}: /' /proc/fs/vjbd2/vda-*/vma\numount /mnt\n",
            build.program("sync_cost"),
        );
    }
    let rig = Rig::new(CONTRACTS[0], false)?;
    let mut guest = guest(&rig.daemon).start(&script)?;
    let ended = guest.wait_success();
    evidence.guest(&guest, "guest");
    ended?;
    rig.expect_commits(PUBLISHED)?;
    let said = guest.output();
    let lines = said.lines().filter(|line| line.contains(" fsync_us ") || line.contains("published "));
    Ok(lines.collect::<Vec<_>>().join("; "))
}
