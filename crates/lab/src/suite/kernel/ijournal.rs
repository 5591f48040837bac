//! iJournaling: what was fsynced is there after a guest's death, by way of its i-transactions.
//!
//! ```text
//!   vext4 -o ijournal ─► fsyncs ─► VMM and daemon die, the kernel panics, the power goes ─► vext4-recover ─► e2fsck -fn, a stock kernel reads
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{flock, FlockOperation};

use super::{guest, Build, KernelOptions, BROKEN};
use crate::channel::Arrival;
use crate::daemon::{self, Daemon, ServeOptions};
use crate::error::{Context, LabError, Result};
use crate::evidence::Evidence;
use crate::fsck;
use crate::guest::{Ended, Guest, Vmm};
use crate::powerfs::{ModelName, MountOptions, PowerMount};
use crate::process::{self, Workdir};
use crate::suite::cut;
use crate::suite::workload::{self, IMAGE_BYTES};
use crate::suite::{Case, Run, GUEST_LIMIT};

/// Where a build with faults can panic in an fsync, and the first time in question: late enough for something to have been promised.
const FAULTS: [(&str, u64); 3] = [("ijournal", 90), ("ijournal_way", 12), ("ijournal_written", 90)];

/// Fsyncs that have been said to be done before a guest is killed.
const FSYNCS: usize = 150;

/// So many threads of random operations the paper had.
const THREADS: u32 = 10;

/// One area for each, and one CPU each time for the file that is appended to.
const CPUS: u32 = 2;

/// Seconds from commit to commit.
const COMMITS_S: [u32; 3] = [1, 5, 300];

/// Thousands of fsyncs in an emulated guest.
const DEATH_LIMIT: Duration = Duration::from_secs(900);

/// For a daemon that has ended to let go of its image.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a guest ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Killed, with its daemon, after so many fsyncs.
    Killed(usize),
    /// Its kernel panics.
    Panicked,
    /// The power goes after so many fsyncs; what is durable then comes from a seed.
    Cut { fsyncs: usize, seed: u64 },
}

impl End {
    fn fsyncs(self) -> Option<usize> {
        match self {
            End::Killed(fsyncs) | End::Cut { fsyncs, .. } => Some(fsyncs),
            End::Panicked => None,
        }
    }
}

/// What a guest does.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Threads of random operations (`guest/kernel/tests/fsynced.c`). Plain: nothing that would commit, and nothing beside it.
    Random { seed: u64, plain: bool, threads: u32 },
    /// One of the paper's scenarios, or of ours beside them (`scenarios.c`), in so many steps.
    Scenario { name: &'static str, steps: u64 },
}

impl Work {
    fn random(seed: u64, plain: bool) -> Self {
        Self::Random { seed, plain, threads: 4 }
    }

    fn write(self, build: &Build) -> String {
        match self {
            Work::Random { .. } => {
                format!("{} write /mnt/fsynced {}", build.program("fsynced"), self.argument())
            }
            // It may come to its end, and then it is the kill that ends it.
            Work::Scenario { .. } => {
                format!("{} write /mnt/fsynced {}; sleep 1000", build.program("scenarios"), self.argument())
            }
        }
    }

    fn argument(self) -> String {
        match self {
            Work::Random { seed, plain, threads } => {
                format!("{seed}{}@{threads}", if plain { "p" } else { "" })
            }
            Work::Scenario { name, steps } => format!("{name} {steps}"),
        }
    }

    /// The command that looks at what is left; a scenario's says the last step that is there.
    fn check(self, build: &Build, promised: &BTreeMap<u64, u64>) -> String {
        match self {
            Work::Random { .. } => {
                let promises: Vec<String> =
                    promised.iter().map(|(thread, operation)| format!("{thread}:{operation}")).collect();
                format!(
                    "{} check /mnt/fsynced {} {}",
                    build.program("fsynced"),
                    self.argument(),
                    promises.join(" ")
                )
            }
            Work::Scenario { .. } => {
                format!("{} state /mnt/fsynced {}", build.program("scenarios"), self.argument())
            }
        }
    }

    /// Seconds from commit to commit: now and then some come in between, and sometimes none at all.
    fn commit_s(self) -> u32 {
        match self {
            Work::Random { seed, .. } => COMMITS_S[seed as usize % COMMITS_S.len()],
            Work::Scenario { .. } => 300,
        }
    }

    fn is_alone(self) -> bool {
        !matches!(self, Work::Random { plain: false, .. })
    }

    /// A file system with room for it; one that is full is what `reuse` is about.
    fn image_bytes(self) -> u64 {
        match self {
            Work::Scenario { name: "big", steps } => IMAGE_BYTES + steps * (600 << 10),
            Work::Scenario { name: "reuse", .. } => IMAGE_BYTES / 4,
            _ => IMAGE_BYTES,
        }
    }

    /// Areas in which all runs of one processor have room, where nothing may be there that was not fsynced: no commit comes between then.
    fn area_blocks(self) -> u64 {
        match self {
            Work::Scenario { name: "thousand" | "deep", .. } => 4 * AREA_BLOCKS,
            _ => AREA_BLOCKS,
        }
    }
}

/// An area, in blocks, which is full now and then: that is a commit.
const AREA_BLOCKS: u64 = 512;

/// The paper's first three scenarios (§ 6.4; the fourth is `threads`), hard links, blocks that are used again, fsyncs at the same time, and the
/// first one beside commits, in a directory with an index, and ways on which something else has happened: steps, quick and full. The paper's second one appends 4 KiB and an fsync up to 1 GB: here that is two, many fsyncs and a large file.
const SCENARIOS: [(&str, u64, u64); 10] = [
    ("thousand", 200, 1000),
    ("append", 400, 4000),
    ("big", 40, 2100),
    ("deep", 22, 100),
    ("links", 60, 300),
    ("reuse", 6, 12),
    ("data", 200, 2000),
    ("together", 240, 2400),
    ("many", 600, 2000),
    ("ways", 40, 120),
];

/// The cases.
pub(super) fn cases(options: &KernelOptions, build: &Build) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let mut add = |name: String, quick: bool, run: Run| cases.push(Case { name, quick, run });
    let own = build.clone();
    add("vext4-ijournal-mounted".to_owned(), true, Box::new(move |e| mounted(e, &own)));
    for round in 0..options.kills {
        let (own, seed, plain) = (build.clone(), options.suite.seed * 1000 + round, round % 2 == 1);
        let end = End::Killed(FSYNCS + 61 * (round as usize % 7));
        let run = Box::new(move |e: &Evidence| died(e, &own, Work::random(seed, plain), end));
        add(format!("vext4-ijournal-killed-{round}"), round < 2, run);
    }
    for round in 0..options.cuts {
        let (own, seed, plain) = (build.clone(), options.suite.seed * 1000 + 700 + round, round % 2 == 1);
        let end = End::Cut { fsyncs: FSYNCS + 61 * (round as usize % 7), seed };
        let run = Box::new(move |e: &Evidence| died(e, &own, Work::random(seed, plain), end));
        add(format!("vext4-ijournal-cut-{round}"), round == 0, run);
    }
    for (at, (name, quick, full)) in SCENARIOS.into_iter().enumerate() {
        let work = Work::Scenario { name, steps: if options.suite.quick { quick } else { full } };
        // Every other file is fsynced.
        let Work::Scenario { steps, .. } = work else { continue };
        let fsyncs = if matches!(name, "thousand" | "many") { steps / 2 } else { steps } as usize * 9 / 10;
        let seed = options.suite.seed * 1000 + 800 + at as u64;
        for (how, end) in [("killed", End::Killed(fsyncs)), ("cut", End::Cut { fsyncs, seed })] {
            let own = build.clone();
            let run = Box::new(move |e: &Evidence| died(e, &own, work, end));
            add(format!("vext4-ijournal-{name}-{how}"), how == "killed", run);
        }
    }
    for (how, round) in [("killed", 0), ("cut", 1)] {
        let (own, seed) = (build.clone(), options.suite.seed * 1000 + 850 + round);
        let work = Work::Random { seed, plain: false, threads: THREADS };
        let fsyncs = if options.suite.quick { FSYNCS } else { 4 * FSYNCS };
        let end = if round == 0 { End::Killed(fsyncs) } else { End::Cut { fsyncs, seed } };
        let run = Box::new(move |e: &Evidence| died(e, &own, work, end));
        add(format!("vext4-ijournal-threads-{how}"), round == 0, run);
    }
    if let Some(folder) = &options.faults {
        let build = Build::of(folder)?;
        for (point, first) in FAULTS {
            for round in 0..options.panics {
                let parameters = format!("panic_at={point} panic_after={}", first + 37 * round);
                let (own, seed) =
                    (Build { parameters, ..build.clone() }, options.suite.seed * 1000 + 500 + round);
                let work = Work::random(seed, false);
                let run = Box::new(move |e: &Evidence| died(e, &own, work, End::Panicked));
                add(format!("vext4-ijournal-panicked-{point}-{round}"), round == 0, run);
            }
        }
        for part in ["ijournal-order", "ijournal-directory"] {
            let own = Build { parameters: format!("without={part}"), ..build.clone() };
            // One of those without commits in between.
            let seed =
                (options.suite.seed * 1000 + 900) / COMMITS_S.len() as u64 * COMMITS_S.len() as u64 + 2;
            let run = Box::new(move |e: &Evidence| {
                let outcome = died(e, &own, Work::random(seed, true), End::Killed(FSYNCS));
                workload::canary(outcome, "what was left out of the modules is not missed")
            });
            add(format!("canary-vext4-{part}"), true, run);
        }
    }
    Ok(cases)
}

/// The shell's commands up to a mount with areas.
fn made(build: &Build, options: &str, area_blocks: u64) -> String {
    format!(
        "{load}\nmkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda\n\
         mount -t vext4 /dev/vda /mnt\n{areas} /mnt {CPUS} {area_blocks}\numount /mnt\n\
         mount -t vext4 -o ijournal{options} /dev/vda /mnt\n",
        load = build.load(),
        areas = build.program("areas"),
    )
}

/// What the mount refuses, which fsyncs are runs and which commits, and what another kernel and e2fsck say of it.
fn mounted(evidence: &Evidence, build: &Build) -> Result<String> {
    let folder = Workdir::new("mounted")?;
    let image = folder.join("disk.raw");
    daemon::create_image(&image, IMAGE_BYTES)?;
    let daemon = Daemon::serve(&ServeOptions::new("power", std::slice::from_ref(&image)))?;
    let script = format!(
        r#"set -e
broken() {{ echo "broken: $*"; exit {BROKEN}; }}
counted() {{ sed -n "s/^$1 //p" /proc/fs/vjbd2/vda-8/ijournal; }}
# Does the journal say that there may be i-transactions?
bit() {{ dumpe2fs -h /dev/vda 2>/dev/null | grep -q '^Journal features:.*FEATURE_I30'; }}
# what COUNTER COMMAND: a command of which one sync is counted so.
what() {{ before=$(counted $1); shift_=$1; shift; sh -c "$*"; [ $(counted $shift_) = $((before + 1)) ] || broken "$*: not $shift_: $(cat /proc/fs/vjbd2/vda-8/ijournal)"; }}
{made}
what written 'echo 1 >/mnt/new; sync /mnt/new'
what written 'echo 2 >>/mnt/new; sync -d /mnt/new'
what written 'mkdir -p /mnt/a/b/c; echo 1 >/mnt/a/b/c/deep; sync /mnt/a/b/c/deep'
[ $(counted runs) = 8 ] || broken "runs: $(counted runs)"
echo 1 >/mnt/gone
what committed 'sync /mnt/new; sync -f /mnt; sync /mnt/new'
what written 'echo 3 >>/mnt/new; sync /mnt/new'
what logged 'printf 1 1<>/mnt/new; sync -d /mnt/new'
what directory 'echo 1 >/mnt/other; sync /mnt'
what committed 'sync /mnt'
what written 'rm /mnt/gone; echo 1 >/mnt/made; sync /mnt/made'
what hard_link 'ln /mnt/new /mnt/link; sync /mnt/new'
what rename 'mv /mnt/other /mnt/moved; sync /mnt/moved'
what name_reuse 'rm /mnt/link; echo 1 >/mnt/link; sync /mnt/link'
what journaled_data ': >/mnt/journaled; {journaling} set data /mnt/journaled; echo 1 >>/mnt/journaled; sync /mnt/journaled'
# Of a full file system recovery may have no block for a name; what was freed is free when that is committed.
echo 0 >/sys/fs/vext4/vda/reserved_clusters; fallocate -l $((($(stat -f -c %f /mnt) - 150) * 4096)) /mnt/fill; sync -f /mnt
what no_space 'echo 1 >/mnt/full; sync /mnt/full'
what no_space 'rm /mnt/fill; echo 2 >>/mnt/full; sync /mnt/full'
sync -f /mnt
what written 'echo 3 >>/mnt/full; sync /mnt/full'
tune2fs -l /dev/vda | grep -q needs_recovery || broken "tune2fs: $(tune2fs -l /dev/vda)"
bit || broken "no bit: $(dumpe2fs -h /dev/vda)"
rm /mnt/.vext4-ijournal 2>/dev/null && broken "the areas are gone"
mount -t vext4 -o remount,dioread_lock /dev/vda /mnt 2>/dev/null && broken "dioread_lock came with a remount"
mount -o remount,ro /mnt; e2fsck -fn /dev/vda; mount -o remount,rw /mnt
bit || broken "no bit after a remount"
fsfreeze --freeze /mnt; ! bit || broken "the bit of a frozen file system"; fsfreeze --unfreeze /mnt
bit || broken "no bit after a thaw"
what written 'echo 4 >>/mnt/new; sync /mnt/new'
umount /mnt; e2fsck -fn /dev/vda
# A file that is deleted while it is open goes at the next mount, which has the bit by then.
mount -t vext4 /dev/vda /mnt; cp /bin/busybox /mnt/orphan; exec 9</mnt/orphan; rm /mnt/orphan
"$AFTERIMAGE_AGENT" shutdown /mnt --commit; exec 9<&-; umount /mnt
mount -t vext4 -o ijournal /dev/vda /mnt; umount /mnt; e2fsck -fn /dev/vda || broken "an orphan is left"
for options in data=journal data=writeback nodelalloc dioread_lock journal_async_commit; do
    mount -t vext4 -o ijournal,$options /dev/vda /mnt 2>/dev/null && broken "mounted with $options"
done
mount -t vext4 /dev/vda /mnt; chattr -i /mnt/.vext4-ijournal; truncate -s 1M /mnt/.vext4-ijournal; umount /mnt
mount -t vext4 -o ijournal /dev/vda /mnt 2>/dev/null && broken "mounted with areas that are too short"
mount -t ext4 /dev/vda /mnt; [ "$(tr -d '\n' </mnt/new)" = 1234 ] || broken "contents"; umount /mnt
dmesg | grep -q 'ijournal: the areas are not as long as their header says' || broken "no message: $(dmesg | tail)"
# A remount that fails when the bit is set: the block that tells of other mounts is no such block any more.
mkfs.ext4 -q -F -b 4096 -O mmp -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda
mount -t vext4 /dev/vda /mnt; {areas} /mnt {CPUS} {AREA_BLOCKS}; umount /mnt
mount -t vext4 -o ro,ijournal /dev/vda /mnt
block=$(dumpe2fs -h /dev/vda 2>/dev/null | sed -n 's/^MMP block number: *//p')
dd if=/dev/zero of=/dev/vda bs=4096 seek=$block count=1 conv=notrunc,fsync status=none
mount -o remount,rw /mnt 2>/dev/null && broken "remounted without a block for other mounts"
! bit || broken "a remount that failed has left the bit"
umount /mnt; mkfs.ext4 -q -F /dev/vda
"#,
        made = made(build, ",commit=300", AREA_BLOCKS),
        areas = build.program("areas"),
        journaling = build.program("journaling"),
    );
    let mut guest = guest(&daemon).start(&script)?;
    let ended = guest.wait();
    evidence.guest(&guest, "guest");
    match ended? {
        Ended::Exited(0) => {}
        Ended::Exited(BROKEN) => return Err(LabError::Broken(guest.last_words())),
        other => {
            return Err(LabError::Guest(format!("the guest ended with {other:?}{}", guest.last_words())))
        }
    }
    daemon.stop()?;
    fsck::clean(&image, 0)?;
    Ok("runs and commits as documented; refused where they must be; e2fsck before and after".to_owned())
}

/// Where the image is.
enum Place {
    Folder(Workdir),
    /// What was not synced can be lost.
    Power(PowerMount),
}

impl Place {
    fn of(end: End) -> Result<Self> {
        let End::Cut { seed, .. } = end else { return Workdir::new("ijournal").map(Place::Folder) };
        let options =
            MountOptions { model: ModelName::Ssd, seed, sector_bytes: 4096, ..MountOptions::default() };
        PowerMount::mount(&options).map(Place::Power)
    }

    fn image(&self, bytes: u64) -> Result<PathBuf> {
        let image = match self {
            Place::Folder(folder) => folder.join("disk.raw"),
            Place::Power(mount) => mount.join("disk.raw"),
        };
        daemon::create_image(&image, bytes)?;
        // It was there long before the guest.
        if let Place::Power(mount) = self {
            mount.request(&serde_json::json!({ "command": "settle" }))?;
        }
        Ok(image)
    }
}

/// A guest dies among fsyncs; its i-transactions are recovered, and everything that it has fsynced is there.
fn died(evidence: &Evidence, build: &Build, work: Work, end: End) -> Result<String> {
    let place = Place::of(end)?;
    let image = place.image(work.image_bytes())?;
    let mut daemon = Daemon::serve(&ServeOptions::new("power", std::slice::from_ref(&image)))?;
    let script = format!(
        "set -e\n{}mkdir /mnt/noise /mnt/fsynced\nsync\n{}\
         (while sleep 2; do grep -v ' 0$' /proc/fs/vjbd2/vda-8/ijournal | tr '\\n' ' '; echo; done) &\n\
         {}\n",
        made(build, &format!(",commit={}", work.commit_s()), work.area_blocks()),
        if work.is_alone() { "" } else { workload::NOISE },
        work.write(build),
    );
    let mut guest = guest(&daemon).cpus(CPUS).limit(DEATH_LIMIT).start(&script)?;
    if let Some(fsyncs) = end.fsyncs() {
        let mut said = 0;
        let begun = guest.channel().wait_for(0, DEATH_LIMIT, "fsyncs", |line| {
            said += usize::from(mark(line).is_some());
            (said >= fsyncs).then_some(())
        });
        if let (Place::Power(mount), End::Cut { seed, .. }, Ok(Some(()))) = (&place, end, &begun) {
            let done = cut::cut_in_the_act(mount, seed, 0)?;
            evidence.text("cut.txt", &format!("{done:#?}"));
        }
        guest.kill();
        daemon.kill()?;
        guest.wait()?;
        evidence.guest(&guest, "first");
        if begun?.is_none() {
            return Err(LabError::Guest(format!("it ended by itself{}", guest.last_words())));
        }
        match &place {
            Place::Power(mount) => {
                drop(daemon);
                mount.restore()?;
                daemon = Daemon::serve(&ServeOptions::new("power", std::slice::from_ref(&image)))?;
            }
            Place::Folder(_) => daemon.restart()?,
        }
    } else {
        let ended = guest.wait();
        evidence.guest(&guest, "first");
        if ended? != Ended::Panicked || !guest.console().contains("injected at") {
            return Err(LabError::Guest(format!("the guest did not panic{}", guest.last_words())));
        }
    }
    daemon.stop()?;
    let promised: BTreeMap<u64, u64> = guest.channel().lines().iter().filter_map(mark).collect();
    let outcome = recovered(evidence, build, work, &image, &promised);
    if outcome.is_err() {
        evidence.files(std::slice::from_ref(&image), "");
    }
    outcome
}

/// Which thread says which operation to be durable.
fn mark(line: &Arrival) -> Option<(u64, u64)> {
    let json: serde_json::Value = serde_json::from_str(&line.line).ok()?;
    let (thread, operation) = json["mark"].as_str()?.split_once(' ')?;
    Some((thread.parse().ok()?, operation.parse().ok()?))
}

/// Waits until nobody holds an image: a daemon's ring lets go of it a moment after the daemon has ended.
fn free(image: &Path) -> Result<()> {
    let file = File::open(image).context(|| format!("open {}", image.display()))?;
    let end = Instant::now() + PATIENCE;
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= end {
            return Err(LabError::Deadline {
                what: "an image that nobody holds".to_owned(),
                limit: PATIENCE,
            });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn recovered(
    evidence: &Evidence,
    build: &Build,
    work: Work,
    image: &Path,
    promised: &BTreeMap<u64, u64>,
) -> Result<String> {
    let recover = crate::locate::own_program("vext4-recover")?;
    free(image)?;
    let said = process::run(Command::new(recover).arg(image))
        .map_err(|why| LabError::Broken(format!("vext4-recover: {why}")))?;
    evidence.text("recovery", &said);
    // A file that was being deleted is on the list of orphans, as after any replay.
    fsck::mend(image)?;
    let daemon = Daemon::serve(&ServeOptions::new("power", &[image.to_path_buf()]))?;
    let script = format!(
        "mount -t ext4 /dev/vda /mnt || exit 61\n{} || exit {BROKEN}\numount /mnt\n",
        work.check(build, promised),
    );
    let mut guest = daemon
        .sockets()
        .iter()
        .fold(Guest::builder(Vmm::Uml).memory_mib(256).limit(GUEST_LIMIT), |guest, socket| guest.disk(socket))
        .start(&script)?;
    let ended = guest.wait();
    evidence.guest(&guest, "second");
    match ended? {
        Ended::Exited(0) => {}
        Ended::Exited(BROKEN | 61) => {
            let output = guest.output();
            let first =
                output.lines().find(|line| line.starts_with("broken")).unwrap_or("no mount").to_owned();
            return Err(LabError::Broken(first + &guest.last_words()));
        }
        other => {
            return Err(LabError::Guest(format!(
                "the second guest ended with {other:?}{}",
                guest.last_words()
            )))
        }
    }
    daemon.stop()?;
    fsck::clean(image, 0)?;
    let mut found = guest.output().lines().last().unwrap_or_default().to_owned();
    if let Work::Scenario { .. } = work {
        let step = found.strip_prefix("0 ").and_then(|step| step.parse().ok()).unwrap_or(0u64);
        let promised = promised.get(&0).copied().unwrap_or(0);
        if step < promised {
            return Err(LabError::Broken(format!("step {promised} had been promised, and {step} is there")));
        }
        found = format!("step {step} is there, {promised} was promised");
    }
    Ok(format!("{found}; {}", said.trim()))
}
