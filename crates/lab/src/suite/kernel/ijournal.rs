//! iJournaling: what was fsynced is there after a guest's death, by way of its i-transactions.
//!
//! ```text
//!   vext4 -o ijournal ─► fsyncs ─► VMM and daemon die, the kernel panics ─► vext4-recover ─► e2fsck -fn, a stock kernel reads
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
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
use crate::process::{self, Workdir};
use crate::suite::workload::{self, IMAGE_BYTES};
use crate::suite::{Case, Run, GUEST_LIMIT};

/// Where a build with faults can panic in an fsync, and the first time in question: late enough for something to have been promised.
const FAULTS: [(&str, u64); 3] = [("ijournal", 90), ("ijournal_way", 12), ("ijournal_written", 90)];

/// Fsyncs that have been said to be done before a guest is killed.
const FSYNCS: usize = 150;

/// One area for each, and one CPU each time for the file that is appended to.
const CPUS: u32 = 2;

/// Seconds from commit to commit.
const COMMITS_S: [u32; 3] = [1, 5, 300];

/// For a daemon that has ended to let go of its image.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a guest ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Killed, with its daemon, after so many fsyncs.
    Killed(usize),
    /// Its kernel panics.
    Panicked,
}

/// What a guest does: see `guest/kernel/tests/fsynced.c`.
#[derive(Clone, Copy, Debug)]
struct Work {
    seed: u64,
    /// Nothing that would commit, and nothing beside it.
    plain: bool,
}

impl Work {
    fn argument(self) -> String {
        format!("{}{}", self.seed, if self.plain { "p" } else { "" })
    }
}

/// The cases.
pub(super) fn cases(options: &KernelOptions, build: &Build) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let mut add = |name: String, quick: bool, run: Run| cases.push(Case { name, quick, run });
    let own = build.clone();
    add("vext4-ijournal-mounted".to_owned(), true, Box::new(move |e| mounted(e, &own)));
    for round in 0..options.kills {
        let (own, seed, plain) = (build.clone(), options.suite.seed * 1000 + round, round % 2 == 1);
        let end = End::Killed(FSYNCS + 61 * (round as usize % 7));
        let run = Box::new(move |e: &Evidence| died(e, &own, Work { seed, plain }, end));
        add(format!("vext4-ijournal-killed-{round}"), round < 2, run);
    }
    if let Some(folder) = &options.faults {
        let build = Build::of(folder)?;
        for (point, first) in FAULTS {
            for round in 0..options.panics {
                let parameters = format!("panic_at={point} panic_after={}", first + 37 * round);
                let (own, seed) =
                    (Build { parameters, ..build.clone() }, options.suite.seed * 1000 + 500 + round);
                let work = Work { seed, plain: false };
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
                let outcome = died(e, &own, Work { seed, plain: true }, End::Killed(FSYNCS));
                workload::canary(outcome, "what was left out of the modules is not missed")
            });
            add(format!("canary-vext4-{part}"), true, run);
        }
    }
    Ok(cases)
}

/// The shell's commands up to a mount with areas.
fn made(build: &Build, options: &str) -> String {
    format!(
        "{load}\nmkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda\n\
         mount -t vext4 /dev/vda /mnt\n{areas} /mnt {CPUS} 512\numount /mnt\n\
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
# what COUNTER COMMAND: a command of which one sync is counted so.
what() {{ before=$(counted $1); shift_=$1; shift; sh -c "$*"; [ $(counted $shift_) = $((before + 1)) ] || broken "$*: not $shift_: $(cat /proc/fs/vjbd2/vda-8/ijournal)"; }}
{made}
what written 'echo 1 >/mnt/new; sync /mnt/new'
what written 'echo 2 >>/mnt/new; sync -d /mnt/new'
what written 'mkdir -p /mnt/a/b/c; echo 1 >/mnt/a/b/c/deep; sync /mnt/a/b/c/deep'
[ $(counted runs) = 8 ] || broken "runs: $(counted runs)"
what committed 'sync /mnt/new; sync -f /mnt; sync /mnt/new'
what written 'echo 3 >>/mnt/new; sync /mnt/new'
what directory 'echo 1 >/mnt/other; sync /mnt'
what hard_link 'ln /mnt/new /mnt/link; sync /mnt/new'
what rename 'mv /mnt/other /mnt/moved; sync /mnt/moved'
what name_reuse 'rm /mnt/link; echo 1 >/mnt/link; sync /mnt/link'
what journaled_data ': >/mnt/journaled; {journaling} set data /mnt/journaled; echo 1 >>/mnt/journaled; sync /mnt/journaled'
e2fsck -fn /dev/vda >/said 2>&1 && broken "e2fsck takes a file system with i-transactions"
grep -q 'unsupported feature' /said || broken "e2fsck: $(cat /said)"
rm /mnt/.vext4-ijournal 2>/dev/null && broken "the areas are gone"
mount -t vext4 -o remount,dioread_lock /dev/vda /mnt 2>/dev/null && broken "dioread_lock came with a remount"
mount -o remount,ro /mnt; e2fsck -fn /dev/vda; mount -o remount,rw /mnt
what written 'echo 4 >>/mnt/new; sync /mnt/new'
umount /mnt; e2fsck -fn /dev/vda
for options in data=journal data=writeback nodelalloc dioread_lock journal_async_commit; do
    mount -t vext4 -o ijournal,$options /dev/vda /mnt 2>/dev/null && broken "mounted with $options"
done
mount -t vext4 /dev/vda /mnt; chattr -i /mnt/.vext4-ijournal; truncate -s 1M /mnt/.vext4-ijournal; umount /mnt
mount -t vext4 -o ijournal /dev/vda /mnt 2>/dev/null && broken "mounted with areas that are too short"
mount -t ext4 /dev/vda /mnt; [ "$(tr -d '\n' </mnt/new)" = 1234 ] || broken "contents"; umount /mnt
dmesg | grep -q 'ijournal: the areas are not as long as their header says' || broken "no message: $(dmesg | tail)"
"#,
        made = made(build, ",commit=300"),
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

/// A guest dies among fsyncs; its i-transactions are recovered, and everything that it has fsynced is there.
fn died(evidence: &Evidence, build: &Build, work: Work, end: End) -> Result<String> {
    let folder = Workdir::new("ijournal")?;
    let image = folder.join("disk.raw");
    daemon::create_image(&image, IMAGE_BYTES)?;
    let mut daemon = Daemon::serve(&ServeOptions::new("power", std::slice::from_ref(&image)))?;
    // Now and then commits come in between, and sometimes none at all.
    let commit = COMMITS_S[work.seed as usize % COMMITS_S.len()];
    let script = format!(
        "set -e\n{}mkdir /mnt/noise /mnt/fsynced\nsync\n{}\
         (while sleep 2; do grep -v ' 0$' /proc/fs/vjbd2/vda-8/ijournal | tr '\\n' ' '; echo; done) &\n\
         {} write /mnt/fsynced {}\n",
        made(build, &format!(",commit={commit}")),
        if work.plain { "" } else { workload::NOISE },
        build.program("fsynced"),
        work.argument(),
    );
    let mut guest = guest(&daemon).cpus(CPUS).start(&script)?;
    match end {
        End::Killed(fsyncs) => {
            let mut said = 0;
            let begun = guest.channel().wait_for(0, GUEST_LIMIT, "fsyncs", |line| {
                said += usize::from(mark(line).is_some());
                (said >= fsyncs).then_some(())
            });
            guest.kill();
            daemon.kill()?;
            guest.wait()?;
            evidence.guest(&guest, "first");
            if begun?.is_none() {
                return Err(LabError::Guest(format!("it ended by itself{}", guest.last_words())));
            }
            daemon.restart()?;
        }
        End::Panicked => {
            let ended = guest.wait();
            evidence.guest(&guest, "first");
            if ended? != Ended::Panicked || !guest.console().contains("injected at") {
                return Err(LabError::Guest(format!("the guest did not panic{}", guest.last_words())));
            }
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
    fsck::clean(image, 0)?;
    let daemon = Daemon::serve(&ServeOptions::new("power", &[image.to_path_buf()]))?;
    let promises: Vec<String> =
        promised.iter().map(|(thread, operation)| format!("{thread}:{operation}")).collect();
    let script = format!(
        "mount -t ext4 /dev/vda /mnt || exit 61\n{} check /mnt/fsynced {} {} || exit {BROKEN}\numount /mnt\n",
        build.program("fsynced"),
        work.argument(),
        promises.join(" "),
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
    let files = guest.output().lines().last().unwrap_or_default().to_owned();
    Ok(format!("{files}; {}", said.trim()))
}
