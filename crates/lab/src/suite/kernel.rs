//! `vext4` in QEMU guests (`docs/guest-kernel.md`): is it ext4 where nothing more is asked of it, is a sync one write and one
//! flush, and does a guest that dies in the middle of its commits lose nothing acknowledged?
//!
//! ```text
//!   vext4 writes ─► unmount, shutdown, VMM and daemon killed, power cut ─► a stock kernel replays, reads, e2fsck -fn
//! ```

use std::fs;
use std::path::{Path, PathBuf};
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
use crate::guest::Vmm;
use crate::process::{self, quote, Workdir};

/// What `afterimage-lab test kernel` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct KernelOptions {
    /// The folder with vjbd2.ko, vext4.ko and the program synced, as ./x guest-kernel makes it
    #[arg(long, value_name = "DIR")]
    pub modules: PathBuf,
    /// Deaths of VMM and daemon
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub kills: u64,
    /// Power cuts
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub cuts: u64,
    /// What all suites take
    #[command(flatten)]
    pub suite: SuiteOptions,
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
    let modules =
        options.modules.canonicalize().context(|| format!("modules in {}", options.modules.display()))?;
    let load = format!("insmod {0}/vjbd2.ko && insmod {0}/vext4.ko", quote(&modules.to_string_lossy()));
    let mut cases = Vec::new();
    for mode in ["data=ordered", "data=journal", "data=journal,journal_async_commit"] {
        let load = load.clone();
        let run = Box::new(move |e: &Evidence| exchange(e, &load, mode));
        cases.push(Case { name: format!("vext4-exchange-{mode}"), quick: true, run });
    }
    let (script, synced) = (load.clone(), modules.join("synced"));
    let run = Box::new(move |e: &Evidence| one_write(e, &script, &synced));
    cases.push(Case { name: "vext4-one-write".to_owned(), quick: true, run });
    for round in 0..options.kills {
        let load = load.clone();
        let run = Box::new(move |e: &Evidence| killed(e, &load, 100 + 37 * (round % 8)));
        cases.push(Case { name: format!("vext4-killed-{round}"), quick: round == 0, run });
    }
    for round in 0..options.cuts {
        let seed = options.suite.seed.wrapping_mul(1000) + 300 + round;
        let load = load.clone();
        let run = Box::new(move |e: &Evidence| power_cut(e, &load, seed));
        cases.push(Case { name: format!("vext4-cut-{round}"), quick: round == 0, run });
    }
    run_cases(cases, &options.suite)
}

/// Two disks, one written by vext4 and one by the stock file system, in the same way; then they change drivers, after an
/// unmount and after a shutdown that leaves the journal to be replayed.
fn exchange(evidence: &Evidence, load: &str, mode: &str) -> Result<String> {
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
    let mut guest =
        workload::guest(Vmm::Qemu, &daemon).memory_mib(384).limit(EXCHANGE_LIMIT).start(&script)?;
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
fn one_write(evidence: &Evidence, load: &str, synced: &Path) -> Result<String> {
    let folder = Workdir::new("one-write")?;
    let (image, trace) = (folder.join("disk.raw"), folder.join("trace"));
    daemon::create_image(&image, IMAGE_BYTES / 2)?;
    // Here, so that the daemon knows the journal from the first request on.
    process::run(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096"]).arg(&image))?;
    let extra = vec!["--trace".to_owned(), trace.display().to_string()];
    let serve = ServeOptions { extra, ..ServeOptions::new("power", std::slice::from_ref(&image)) };
    let daemon = Daemon::serve(&serve)?;
    let ways = ["fsync", "fdatasync", "osync", "msync"];
    let script = format!(
        "set -e\n{load}\n{SINGLE}\nunset AFTERIMAGE_REPORT\nfor way in {}; do\n\
         {} write /mnt/$way {SYNCS} $way; sync; done\ncat /proc/fs/vjbd2/*/single_io\n",
        ways.join(" "),
        quote(&synced.to_string_lossy())
    );
    let mut guest = workload::guest(Vmm::Qemu, &daemon).start(&script)?;
    let ended = guest.wait_success();
    evidence.guest(&guest, "guest");
    ended?;
    daemon.stop()?;
    evidence.files(std::slice::from_ref(&trace), "");
    let text = fs::read_to_string(&trace).context(|| format!("read {}", trace.display()))?;
    let runs = runs_of_pairs(&text);
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

/// VMM and daemon die between commits or in one; a stock kernel replays.
fn killed(evidence: &Evidence, load: &str, acknowledged: u64) -> Result<String> {
    let folder = Workdir::new("killed")?;
    let image = folder.join("disk.raw");
    daemon::create_image(&image, IMAGE_BYTES)?;
    let mut daemon = Daemon::serve(&ServeOptions::new("power", std::slice::from_ref(&image)))?;
    let script = workload::writing(&format!("{load}\nmkfs.ext4 -q -F /dev/vda"), SINGLE);
    let mut guest = workload::guest(Vmm::Qemu, &daemon).start(&script)?;
    let begun = guest.wait_acknowledged(acknowledged);
    guest.kill();
    daemon.kill()?;
    guest.wait()?;
    evidence.guest(&guest, "first");
    begun?;
    let ledger = Ledger::of(guest.channel())?;
    daemon.restart()?;
    let stock = FileSystem::Ext4Journal;
    let outcome = workload::remains(evidence, &daemon, stock.mount(), stock.check())
        .and_then(|remains| workload::judge(evidence, &ledger, &remains, Allowance::Nothing));
    if outcome.is_err() {
        evidence.files(std::slice::from_ref(&image), "");
    }
    outcome
}

/// The power goes below the daemon; a stock kernel replays.
fn power_cut(evidence: &Evidence, load: &str, seed: u64) -> Result<String> {
    let plan = cut::Plan {
        vmm: Vmm::Qemu,
        make: &format!("{load}\nmkfs.ext4 -q -F /dev/vda"),
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
}
