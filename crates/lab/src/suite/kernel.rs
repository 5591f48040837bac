//! `vext4` in QEMU guests (`docs/guest-kernel.md`): is it ext4 where nothing more is asked of it, is a sync one write and one
//! flush, and does a guest that dies in the middle of its commits lose nothing acknowledged?
//!
//! ```text
//!   vext4 writes ─► unmount, shutdown, VMM and daemon killed, power cut ─► a stock kernel replays, reads, e2fsck -fn
//! ```

mod encrypted;
mod ijournal;
mod modes;
mod vma;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::cut;
use super::workload::{self, FileSystem, IMAGE_BYTES};
use super::{run_cases, Case, SuiteOptions};
use crate::acks::{Allowance, Ledger};
use crate::daemon::{self, Daemon, ServeOptions};
use crate::error::{Context, LabError, Result};
use crate::evidence::Evidence;
use crate::fsck;
use crate::guest::{Ended, GuestBuilder, Vmm};
use crate::process::{self, quote, Workdir};

/// What `afterimage-lab test kernel` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct KernelOptions {
    /// The folder with vjbd2.ko, vext4.ko and the tests' programs, as ./x guest-kernel makes it
    #[arg(long, value_name = "DIR")]
    pub modules: PathBuf,
    /// SQLite's extension, as ./x guest-sqlite makes it
    #[arg(long, value_name = "FILE")]
    pub sqlite: Option<PathBuf>,
    /// A build that panics where it is told to and does without what it is told to, as ./x guest-kernel faults makes it
    #[arg(long, value_name = "DIR")]
    pub faults: Option<PathBuf>,
    /// Deaths of VMM and daemon
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub kills: u64,
    /// Power cuts
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub cuts: u64,
    /// Panics at each place
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub panics: u64,
    /// Runs of random operations under each mount
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub scrambles: u64,
    /// What all suites take
    #[command(flatten)]
    pub suite: SuiteOptions,
}

/// One build of the modules and of the tests' programs.
#[derive(Clone, Debug)]
struct Build {
    folder: PathBuf,
    /// Those of vjbd2.
    parameters: String,
}

impl Build {
    fn of(folder: &std::path::Path) -> Result<Build> {
        let folder = folder.canonicalize().context(|| format!("modules in {}", folder.display()))?;
        Ok(Build { folder, parameters: String::new() })
    }

    /// The shell command that loads the modules.
    fn load(&self) -> String {
        let folder = quote(&self.folder.to_string_lossy());
        format!("insmod {folder}/vjbd2.ko {} && insmod {folder}/vext4.ko", self.parameters)
    }

    /// A program, quoted for the shell.
    fn program(&self, name: &str) -> String {
        quote(&self.folder.join(name).to_string_lossy())
    }
}

/// What a script exits with where something is broken, and not only the test.
const BROKEN: i32 = 65;

/// A guest of this suite, which can encrypt: a busy emulated machine may find no working timer at boot (`setup_IO_APIC`).
fn guest(daemon: &Daemon) -> GuestBuilder {
    let guest = workload::guest(Vmm::Qemu, daemon).kernel_argument("no_timer_check");
    encrypted::MODULES.iter().fold(guest, |guest, module| guest.module(module))
}

/// Journaled data and commits in one write.
const SINGLE: &str = "mount -t vext4 -o data=journal,journal_async_commit /dev/vda /mnt";

/// Syncs of each way in the case that looks at requests.
const SYNCS: usize = 100;

/// Two disks, three mounts each, and everything emulated.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(400);

/// Runs the suite; `true` if every case passed.
///
/// # Errors
/// As [`super::run`].
pub fn run(options: &KernelOptions) -> Result<bool> {
    let build = Build::of(&options.modules)?;
    let mut cases = Vec::new();
    let mut add = |name: String, quick: bool, run: super::Run| cases.push(Case { name, quick, run });
    for mode in ["data=ordered", "data=journal", "data=journal,journal_async_commit"] {
        let build = build.clone();
        add(format!("vext4-exchange-{mode}"), true, Box::new(move |e| exchange(e, &build, mode)));
    }
    let own = build.clone();
    add("vext4-one-write".to_owned(), true, Box::new(move |e| one_write(e, &own)));
    for rule in Rule::ALL {
        let own = build.clone();
        add(format!("vext4-rule-{}", rule.name()), true, Box::new(move |e| rule_held(e, &own, rule)));
    }
    for mount in modes::MOUNTS {
        let own = build.clone();
        add(format!("vext4-mode-replayed-{mount}"), true, Box::new(move |e| modes::replayed(e, &own, mount)));
        let own = build.clone();
        add(
            format!("vext4-mode-inherited-{mount}"),
            true,
            Box::new(move |e| modes::inherited(e, &own, mount)),
        );
        let own = build.clone();
        add(
            format!("vext4-mode-left-over-{mount}"),
            true,
            Box::new(move |e| modes::left_over(e, &own, mount)),
        );
        let own = build.clone();
        add(
            format!("vext4-mode-without-room-{mount}"),
            true,
            Box::new(move |e| modes::without_room(e, &own, mount)),
        );
        for round in 0..options.scrambles {
            let (own, seed) = (build.clone(), options.suite.seed * 100 + round);
            let run = Box::new(move |e: &Evidence| modes::scrambled(e, &own, mount, seed));
            add(format!("vext4-scrambled-{mount}-{round}"), round == 0, run);
        }
    }
    let (own, seed) = (build.clone(), options.suite.seed);
    add("vext4-encrypted".to_owned(), true, Box::new(move |e| encrypted::kept(e, &own, seed)));
    if let Some(extension) = &options.sqlite {
        let extension =
            extension.canonicalize().context(|| format!("the extension {}", extension.display()))?;
        let own = build.clone();
        add("vext4-sqlite".to_owned(), true, Box::new(move |e| modes::sqlite(e, &own, &extension)));
    }
    if let Some(folder) = &options.faults {
        let build = Build::of(folder)?;
        for (point, first, step) in FAULTS {
            for round in 0..options.panics {
                let (build, after) = (build.clone(), first + step * round);
                let run = Box::new(move |e: &Evidence| panicked(e, &build, point, after));
                add(format!("vext4-panicked-{point}-{round}"), round == 0, run);
            }
        }
        for part in PARTS {
            let build = Build { parameters: format!("without={part}"), ..build.clone() };
            add(format!("canary-vext4-{part}"), true, Box::new(move |e| canary(e, &build, part)));
        }
        let build = Build { parameters: "without=revoke".to_owned(), ..build.clone() };
        let missed = move |e: &Evidence| {
            workload::canary(
                encrypted::kept(e, &build, seed),
                "what was left out of the modules is not missed",
            )
        };
        add("canary-vext4-encrypted-revoke".to_owned(), true, Box::new(missed));
    }
    for round in 0..options.kills {
        // Every other one with files whose modes change all the time.
        let (build, switching) = (build.clone(), round % 2 == 1);
        let run = Box::new(move |e: &Evidence| killed(e, &build, 100 + 37 * (round % 8), switching));
        add(format!("vext4-killed-{round}"), round < 2, run);
    }
    for round in 0..options.cuts {
        let seed = options.suite.seed.wrapping_mul(1000) + 300 + round;
        let build = build.clone();
        add(format!("vext4-cut-{round}"), round == 0, Box::new(move |e| power_cut(e, &build, seed)));
    }
    cases.extend(vma::cases(options, &build)?);
    cases.extend(ijournal::cases(options, &build)?);
    run_cases(cases, &options.suite)
}

/// Parts that a build with faults can do without, and that a case of this suite misses then. The explorer misses the flush and
/// the checksum (`docs/guest-kernel.md`).
const PARTS: [&str; 5] = ["home-rule", "revoke-rule", "switch-flush", "revoke", "swap-rule"];

/// What was left out shows in a case that holds otherwise.
fn canary(evidence: &Evidence, build: &Build, part: &str) -> Result<String> {
    let outcome = match part {
        "home-rule" => rule_held(evidence, build, Rule::HomeData),
        "revoke-rule" => rule_held(evidence, build, Rule::LongRevoke),
        _ => modes::replayed(evidence, build, modes::MOUNTS[0]),
    };
    workload::canary(outcome, "what was left out of the modules is not missed")
}

/// Two disks, one written by vext4 and one by the stock file system, in the same way; then they change drivers, after an
/// unmount and after a shutdown that leaves the journal to be replayed.
fn exchange(evidence: &Evidence, build: &Build, mode: &str) -> Result<String> {
    let load = build.load();
    let folder = Workdir::new("exchange")?;
    let images = ["a.raw", "b.raw"].map(|name| folder.join(name));
    for image in &images {
        daemon::create_image(image, IMAGE_BYTES / 2)?;
    }
    let daemon = Daemon::serve(&ServeOptions::new("power", &images))?;
    // The stock kernel takes commits without a flush only where data is journaled.
    let script = format!(
        r#"set -e
{load}
mkdir -p /a /b
mkfs.ext4 -q -F -b 4096 /dev/vda; mkfs.ext4 -q -F -b 4096 /dev/vdb
fill() {{
    mkdir "$1/$2"; cd "$1/$2"
    # Few programs are started: emulated, each takes a tenth of a second.
    cp -r /usr/share/doc/e2fsprogs /usr/share/doc/bash .
    mkdir -p d/e/f links; i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo "$2 $i" > f$i; done
    ln f* links; ln -s f1 s1; chmod 600 f2*; rm f1*; mv f2* d/e; mv d/e g; rm -r bash
    dd if=/bin/busybox of=big bs=64k 2>/dev/null; dd if=/bin/busybox of=big bs=4k seek=900 count=3 conv=notrunc,fsync 2>/dev/null
    truncate -s 700000 big; truncate -s 9000000 big; fallocate -l 3M space; fallocate -p -o 8192 -l 100000 big
    cd /
}}
mount -t vext4 -o {mode} /dev/vda /a; mount -t ext4 -o {mode} /dev/vdb /b
fill /a one; fill /b one; diff -r --no-dereference /a /b
umount /a; umount /b; e2fsck -fn /dev/vda; e2fsck -fn /dev/vdb
mount -t ext4 -o {mode} /dev/vda /a; mount -t vext4 -o {mode} /dev/vdb /b
diff -r --no-dereference /a /b; fill /a two; fill /b two; diff -r --no-dereference /a /b
sync; for at in /a /b; do "$AFTERIMAGE_AGENT" shutdown $at --commit; umount $at; done
for disk in vda vdb; do dumpe2fs -h /dev/$disk 2>/dev/null | grep -q needs_recovery; done
mount -t vext4 -o {mode} /dev/vda /a; mount -t ext4 -o {mode} /dev/vdb /b
diff -r --no-dereference /a /b; echo "$(find /a | wc -l) files"
umount /a; umount /b; e2fsck -fn /dev/vda; e2fsck -fn /dev/vdb
"#
    );
    let mut guest = guest(&daemon).memory_mib(384).limit(EXCHANGE_LIMIT).start(&script)?;
    let ended = guest.wait_success();
    evidence.guest(&guest, "guest");
    if ended.is_err() {
        evidence.files(&images, "");
    }
    ended?;
    daemon.stop()?;
    for image in &images {
        fsck::clean(image, 0)?;
    }
    let said = guest.output();
    let files = said.lines().find(|line| line.ends_with(" files")).unwrap_or_default().to_owned();
    Ok(format!("{files}, the same after an unmount and after a replay, by either driver"))
}

/// What storage sees of fsync, fdatasync, O_SYNC and msync: nothing but one write to the journal and one flush, each time.
fn one_write(evidence: &Evidence, build: &Build) -> Result<String> {
    let ways = ["fsync", "fdatasync", "osync", "msync"];
    let script = format!(
        "{SINGLE}\nfor way in {}; do {} write /mnt/$way {SYNCS} $way; sync; done\n",
        ways.join(" "),
        build.program("synced")
    );
    let runs = runs_of_pairs(&traced(evidence, build, &script)?.trace);
    let long: Vec<usize> = runs.into_iter().filter(|pairs| *pairs >= SYNCS).collect();
    if long.len() != ways.len() {
        return Err(LabError::Broken(format!(
            "of {} ways to sync {} were one write to the journal and one flush each time; runs of {long:?}",
            ways.len(),
            long.len()
        )));
    }
    Ok(format!("{} × {SYNCS} syncs: one write to the journal and one flush each", ways.join(", ")))
}

/// What a script did to storage, and what it said.
struct Traced {
    trace: String,
    said: String,
}

/// Runs a script whose writes are recorded, and shows the journal's counters at its end.
fn traced(evidence: &Evidence, build: &Build, script: &str) -> Result<Traced> {
    let folder = Workdir::new("traced")?;
    let (image, trace) = (folder.join("disk.raw"), folder.join("trace"));
    daemon::create_image(&image, IMAGE_BYTES / 2)?;
    // Here, so that the daemon knows the journal from the first request on; and nothing is initialized later.
    process::run(
        Command::new("mkfs.ext4")
            .args(["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
            .arg(&image),
    )?;
    let extra = vec!["--trace".to_owned(), trace.display().to_string()];
    let serve = ServeOptions { extra, ..ServeOptions::new("power", std::slice::from_ref(&image)) };
    let daemon = Daemon::serve(&serve)?;
    let script = format!(
        "set -e\n{}\nunset AFTERIMAGE_REPORT\n{script}\ncat /proc/fs/vjbd2/*/single_io\n",
        build.load()
    );
    let mut guest = guest(&daemon).start(&script)?;
    let ended = guest.wait_success();
    evidence.guest(&guest, "guest");
    ended?;
    daemon.stop()?;
    evidence.files(std::slice::from_ref(&trace), "");
    let text = fs::read_to_string(&trace).context(|| format!("read {}", trace.display()))?;
    Ok(Traced { trace: text, said: guest.output() })
}

/// What forbids that a transaction is committed in one write.
#[derive(Clone, Copy, Debug)]
enum Rule {
    HomeData,
    LongRevoke,
}

/// Transactions that the rule concerns, in its test.
const RULED: usize = 20;

impl Rule {
    const ALL: [Rule; 2] = [Rule::HomeData, Rule::LongRevoke];

    fn name(self) -> &'static str {
        match self {
            Rule::HomeData => "home_data",
            Rule::LongRevoke => "long_revoke",
        }
    }

    /// Transactions of the rule's kind beside others of which each is one write.
    fn script(self, build: &Build) -> String {
        let journaling = build.program("journaling");
        let body = match self {
            // Both kinds of data are in one transaction, and what is synced is the journaled one every other time.
            Rule::HomeData => {
                "dd if=/bin/busybox of=/mnt/home bs=4k count=1 seek=$i conv=notrunc,fsync 2>/dev/null"
            }
            Rule::LongRevoke => {
                "dd if=/bin/busybox of=/mnt/data/long bs=4k count=200 conv=fsync 2>/dev/null\n\
                 rm /mnt/data/long; echo $i > /mnt/data/last; sync /mnt/data/last"
            }
        };
        format!(
            "mount -t vext4 -o data=ordered,journal_async_commit /dev/vda /mnt\nmkdir /mnt/data\n\
             {journaling} set data /mnt/data; : > /mnt/home; : > /mnt/data/last; sync\n\
             i=0; while [ $i -lt {RULED} ]; do i=$((i+1))\n{body}\ndone\n"
        )
    }
}

/// A transaction of the rule's kind has a flush in front of its commit block.
fn rule_held(evidence: &Evidence, build: &Build, rule: Rule) -> Result<String> {
    let traced = traced(evidence, build, &rule.script(build))?;
    let counter = format!("classic_{} ", rule.name());
    let counted =
        traced.said.lines().find_map(|line| line.strip_prefix(&counter)?.parse().ok()).unwrap_or(0usize);
    let order = order(&traced.trace);
    let (held, what) = match rule {
        // Home, content, flush, commit block, flush.
        Rule::HomeData => (order.matches("hjfjf").count(), "home write"),
        // Two commits a round: one of content in one write, and one of revoke records in two.
        Rule::LongRevoke => (order.matches("jf").count().saturating_sub(2 * RULED), "long revoke block"),
    };
    if held < RULED || counted < RULED {
        return Err(LabError::Broken(format!(
            "of {RULED} transactions with a {what} {held} had a flush before their commit block, {counted} were counted: {order}"
        )));
    }
    Ok(format!("{RULED} transactions with a {what}, each with a flush before its commit block"))
}

/// A trace in letters: writes home, writes to the journal, flushes; the same several times in a row is one.
fn order(trace: &str) -> String {
    let mut order = String::new();
    for line in trace.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let letter = match (fields.get(2).copied(), fields.get(5).copied()) {
            (Some("flush"), _) => 'f',
            (Some("write"), Some("journal")) => 'j',
            (Some("write"), _) => 'h',
            _ => continue,
        };
        if !order.ends_with(letter) {
            order.push(letter);
        }
    }
    order
}

/// How often "one write to the journal, one flush" was repeated without anything else in between, run by run.
fn runs_of_pairs(trace: &str) -> Vec<usize> {
    let (mut runs, mut pairs, mut written) = (Vec::new(), 0, false);
    for line in trace.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        match (fields.get(2).copied(), fields.get(5).copied(), written) {
            (Some("write"), Some("journal"), false) => written = true,
            (Some("flush"), _, true) => {
                written = false;
                pairs += 1;
            }
            (Some("read"), ..) => {}
            (operation, class, _) => {
                runs.push(std::mem::take(&mut pairs));
                written = operation == Some("write") && class == Some("journal");
            }
        }
    }
    runs.push(pairs);
    runs
}

/// Files that are written meanwhile change their mode all the time.
fn switching(build: &Build) -> String {
    let journaling = build.program("journaling");
    format!(
        "(while :; do for mode in ordered data default; do \
         {journaling} set $mode /mnt/acks /mnt/acks/* 2>/dev/null || :; done; done) &\n"
    )
}

/// VMM and daemon die between commits or in one; a stock kernel replays.
fn killed(evidence: &Evidence, build: &Build, acknowledged: u64, switches: bool) -> Result<String> {
    let folder = Workdir::new("killed")?;
    let image = folder.join("disk.raw");
    daemon::create_image(&image, IMAGE_BYTES)?;
    let mut daemon = Daemon::serve(&ServeOptions::new("power", std::slice::from_ref(&image)))?;
    let mount = if switches { format!("{SINGLE}\n{}", switching(build)) } else { SINGLE.to_owned() };
    let script = workload::writing(&format!("{}\nmkfs.ext4 -q -F /dev/vda", build.load()), &mount);
    let mut guest = guest(&daemon).start(&script)?;
    let begun = guest.wait_acknowledged(acknowledged);
    guest.kill();
    daemon.kill()?;
    guest.wait()?;
    evidence.guest(&guest, "first");
    begun?;
    let ledger = Ledger::of(guest.channel())?;
    daemon.restart()?;
    replayed_by_stock(evidence, &daemon, &ledger, &image)
}

/// Where a build with faults can panic, the first time in question there, and how many later the next: late enough for
/// something to have been acknowledged.
const FAULTS: [(&str, u64, u64); 7] = [
    ("revoke", 2, 3),
    ("mapped", 300, 97),
    ("content", 60, 97),
    ("commit_block", 60, 97),
    ("flushed", 60, 97),
    ("switch", 3, 7),
    ("switch_flushed", 3, 7),
];

/// The guest's kernel panics in the middle of a commit or of a switch; a stock kernel replays.
fn panicked(evidence: &Evidence, build: &Build, point: &str, after: u64) -> Result<String> {
    let folder = Workdir::new("panicked")?;
    let image = folder.join("disk.raw");
    daemon::create_image(&image, IMAGE_BYTES)?;
    let daemon = Daemon::serve(&ServeOptions::new("power", std::slice::from_ref(&image)))?;
    let load = Build { parameters: format!("panic_at={point} panic_after={after}"), ..build.clone() }.load();
    let beside = match point {
        "mapped" => format!(
            "(unset AFTERIMAGE_REPORT; {} write /mnt/mapped 100000 msync) &\n",
            build.program("synced")
        ),
        "switch" | "switch_flushed" => switching(build),
        _ => String::new(),
    };
    let script =
        workload::writing(&format!("{load}\nmkfs.ext4 -q -F /dev/vda"), &format!("{SINGLE}\n{beside}"));
    let mut guest = guest(&daemon).start(&script)?;
    let ended = guest.wait();
    evidence.guest(&guest, "first");
    if ended? != Ended::Panicked || !guest.console().contains("injected at") {
        return Err(LabError::Guest(format!("the guest did not panic at {point}{}", guest.last_words())));
    }
    let ledger = Ledger::of(guest.channel())?;
    replayed_by_stock(evidence, &daemon, &ledger, &image)
}

fn replayed_by_stock(
    evidence: &Evidence,
    daemon: &Daemon,
    ledger: &Ledger,
    image: &PathBuf,
) -> Result<String> {
    let stock = FileSystem::Ext4Journal;
    let outcome = workload::remains(evidence, daemon, stock.mount(), stock.check())
        .and_then(|remains| workload::judge(evidence, ledger, &remains, Allowance::Nothing));
    if outcome.is_err() {
        evidence.files(std::slice::from_ref(image), "");
    }
    outcome
}

/// The power goes below the daemon; a stock kernel replays.
fn power_cut(evidence: &Evidence, build: &Build, seed: u64) -> Result<String> {
    let plan = cut::Plan {
        vmm: Vmm::Qemu,
        make: &format!("{}\nmkfs.ext4 -q -F /dev/vda", build.load()),
        mount: SINGLE,
        // The checksum is to find what is torn.
        sector_bytes: 512,
        ..cut::Plan::of(FileSystem::Ext4Journal, "power", seed)
    };
    cut::run(evidence, &plan, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_something_else_is_written() {
        let journal = "1 disk0 write 4096 8192 journal\n1 disk0 flush 0 0 home\n";
        let trace = format!("# head\n{journal}{journal}1 disk0 read 0 4096 home\n{journal}1 disk0 write 0 4096 home\n{journal}");
        assert_eq!(runs_of_pairs(&trace), [3, 1]);
        assert_eq!(
            runs_of_pairs(
                "1 disk0 write 4096 4096 journal\n1 disk0 write 8192 4096 journal\n1 disk0 flush 0 0 home"
            ),
            [0, 1]
        );
    }

    #[test]
    fn an_order_says_what_was_written_before_what() {
        let (home, journal, flush) =
            ("1 disk0 write 0 4096 home\n", "1 disk0 write 4096 8192 journal\n", "1 disk0 flush 0 0 home\n");
        let trace = format!(
            "# head\n{home}{home}{journal}1 disk0 read 0 4096 home\n{journal}{flush}{journal}{flush}{home}"
        );
        assert_eq!(order(&trace), "hjfjfh");
    }
}
