//! iJournaling's Fig. 9: how many synced writes a second as processors become more, in QEMU guests, in real time.
//!
//! ```text
//!   device × journaling × processors × rounds ─► a guest: on each processor sysbench, 128 files, 4 KiB and an fsync ─► writes a second, all together
//! ```
//! What it says is the machine's it runs on: with KVM, and as many free processors as a guest has.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use afterimage_bench_kit::{
    chosen, insert, read, run, say, write_all, BenchError, CellIdentity, Common, Result, Resume, Turn,
};
use afterimage_lab::daemon::{self, Daemon, ServeOptions};
use afterimage_lab::guest::{fetch_kernel, kvm_boots, Guest, Vmm};
use afterimage_lab::process::{quote, Workdir};
use afterimage_report::number::number;
use afterimage_report::{or_dash, page, Spread, Table};
use clap::{Parser, ValueEnum};
use maud::html;
use serde::{Deserialize, Serialize};

type Store = afterimage_bench_kit::Store<Record>;

const NAME: &str = "ijournal-scaling";
/// Of each processor, as sysbench's default is.
const FILES: u32 = 128;
const FILES_MIB: u32 = 32;
/// 16 MiB for each processor.
const AREA_BLOCKS: u32 = 4096;
/// File system, journal and areas.
const DISK_MIB: u32 = 512;
const BOOT_LIMIT: Duration = Duration::from_secs(900);

/// Synced writes a second on 1 to 8 processors of a QEMU guest, in real time: iJournaling, Fig. 9
#[derive(Debug, Parser)]
#[command(name = "afterimage-bench-ijournal-scaling", version)]
#[command(mut_arg("quick", |a| a.help("5 seconds, 1 and 2 processors, one round")))]
struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    resume: Resume,
    /// The folder with vjbd2.ko, vext4.ko and the tests' programs, as ./x guest-kernel makes it
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Processors of a guest [default: 1,2,4,8; 1,2 with --quick]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    cpus: Vec<u32>,
    /// Rounds [default: 3; 1 with --quick]
    #[arg(long)]
    rounds: Option<u32>,
    /// Only these cells: device/journaling/processors, each part a name or *, later parts may be left out
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Where results go
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// Where the file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Device {
    /// A disk with a queue for each processor, its image in the host's memory: what a fast drive leaves of the time to the guest.
    Disk,
    /// A RAM disk of the guest's.
    Ram,
}

/// How it journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Arm {
    /// Stock ext4.
    Normal,
    /// The same with its feature.
    FastCommit,
    /// vext4, one area for all processors.
    Shared,
    /// vext4, an area for each.
    PerCpu,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    device: Device,
    arm: Arm,
    cpus: u32,
    round: u32,
}

fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

impl CellIdentity for Key {
    fn path(&self) -> String {
        format!("{}/{}/{}", name_of(&self.device), name_of(&self.arm), self.cpus)
    }

    fn turn(&self) -> Turn {
        Turn::Round(self.round)
    }
}

/// A finished cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    key: Key,
    seconds: u32,
    /// Whether the host ran the guest's instructions itself.
    kvm: bool,
    /// So many processors the host had.
    host_cpus: u32,
    /// Synced writes a second, of each processor.
    writes_per_s: Vec<f64>,
}

impl Record {
    fn all_per_s(&self) -> f64 {
        self.writes_per_s.iter().sum()
    }
}

impl afterimage_bench_kit::Record for Record {
    type Key = Key;
    const VERSION: u32 = 1;

    fn key(&self) -> &Key {
        &self.key
    }
}

/// The raw results.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Results {
    records: Vec<Record>,
}

struct Scaling<'a> {
    seconds: u32,
    modules: &'a Path,
    store: Store,
}

impl afterimage_bench_kit::Bench for Scaling<'_> {
    type Cell = Key;
    type Outcome = Record;

    fn name(&self, key: &Key) -> String {
        key.name()
    }

    fn measure(&mut self, key: &Key) -> Result<(Record, String)> {
        let record = measure(key, self.seconds, self.modules)?;
        let words = format!("{:.0} writes/s", record.all_per_s());
        Ok((record, words))
    }

    fn keep(&mut self, record: Record) -> Result<()> {
        self.store.add(record)
    }
}

fn main() -> ExitCode {
    afterimage_bench_kit::main("afterimage-bench-ijournal-scaling", bench)
}

fn bench(options: &Options) -> Result<bool> {
    let (quick, resume) = (options.common.quick, &options.resume);
    if let Some(path) = &options.common.tables {
        return say(&markdown(&read::<Results>(path, NAME)?.records)).map(|()| true);
    }
    let (scale, seconds) = if quick { ("quick", 5) } else { ("full", 20) };
    let out = options.out.join(NAME).join(scale);
    let mut store = Store::open(&out.join("cells"), |record| record.seconds == seconds)?;
    let write = |store: &Store| -> Result<String> {
        let records: Vec<Record> = store.records().cloned().collect();
        let text = markdown(&records);
        let page = page::page("iJournaling on many processors", &html! { pre { (text) } });
        write_all(&out, NAME, &Results { records }, &text, &page)?;
        Ok(text)
    };
    if resume.report {
        let text = write(&store)?;
        say(&text)?;
        return resume.into.as_ref().map_or(Ok(true), |path| insert(path, "scaling", &text).map(|()| true));
    }
    let keys = keys(options)?;
    let Some(todo) = store.to_run(&keys, resume)? else { return Ok(true) };
    let modules = options.modules.as_ref().filter(|path| path.join("vext4.ko").is_file());
    let sentence = "--modules names no folder with vext4.ko: run ./x bench ijournal-scaling";
    let modules = modules.ok_or_else(|| BenchError::Usage(sentence.to_owned()))?.canonicalize()?;
    let kept = keys.len() - todo.len();
    let mut scaling = Scaling { seconds, modules: &modules, store };
    let failed = run(&mut scaling, &todo, kept, Duration::from_secs(resume.calm))?;
    say(&write(&scaling.store)?)?;
    Ok(failed.is_empty())
}

fn keys(options: &Options) -> Result<Vec<Key>> {
    let quick = options.common.quick;
    let cpus = match (options.cpus.as_slice(), quick) {
        ([], true) => &[1, 2][..],
        ([], false) => &[1, 2, 4, 8],
        (cpus, _) => cpus,
    };
    if cpus.contains(&0) {
        return Err(BenchError::Usage("a guest has at least one processor".to_owned()));
    }
    let mut keys = Vec::new();
    for round in 1..=options.rounds.unwrap_or(if quick { 1 } else { 3 }) {
        for device in Device::value_variants() {
            for arm in Arm::value_variants() {
                keys.extend(cpus.iter().map(|cpus| Key { device: *device, arm: *arm, cpus: *cpus, round }));
            }
        }
    }
    chosen(keys, &options.only, "device/journaling/processors, as in ram/per-cpu/2")
}

/// What the guest's shell does.
fn script(key: &Key, seconds: u32, modules: &Path, kernel_modules: &Path) -> String {
    let file = |folder: &Path, name: &str| quote(&folder.join(name).to_string_lossy());
    let last = key.cpus - 1;
    let (disk, make_disk) = match key.device {
        Device::Disk => ("/dev/vda", String::new()),
        Device::Ram => (
            "/dev/ram0",
            format!(
                "insmod {} rd_nr=1 rd_size={}\n",
                file(kernel_modules, "kernel/drivers/block/brd.ko"),
                disk_mib(key.cpus) << 10
            ),
        ),
    };
    let feature = if key.arm == Arm::FastCommit { " -O fast_commit" } else { "" };
    let areas = match key.arm {
        Arm::Shared => 1,
        _ => key.cpus,
    };
    let mount = match key.arm {
        Arm::Normal | Arm::FastCommit => format!("mount -t ext4 -o noatime {disk} /mnt"),
        Arm::Shared | Arm::PerCpu => format!(
            "insmod {}\ninsmod {}\nmount -t vext4 {disk} /mnt\n{} /mnt {areas} {AREA_BLOCKS}\numount /mnt\n\
             mount -t vext4 -o noatime,ijournal {disk} /mnt",
            file(modules, "vjbd2.ko"),
            file(modules, "vext4.ko"),
            file(modules, "areas")
        ),
    };
    format!(
        "set -e\n{make_disk}mkfs.ext4 -q -F -b 4096{feature} -J size=64 -E lazy_itable_init=0,lazy_journal_init=0 {disk}\n{mount}\n\
         IO=\"sysbench fileio --file-num={FILES} --file-total-size={FILES_MIB}M --file-block-size=4096 --file-test-mode=rndwr --file-fsync-all=on\"\n\
         for n in $(seq 0 {last}); do mkdir /mnt/$n; (cd /mnt/$n; $IO prepare > /dev/null); done\nsync\n\
         for n in $(seq 0 {last}); do (cd /mnt/$n; exec taskset -c $n $IO --time={seconds} run > /run/said.$n) & done\nwait\n\
         for n in $(seq 0 {last}); do echo \"writes $(sed -n 's,^ *writes/s: *,,p' /run/said.$n)\"; done\n\
         umount /mnt\n"
    )
}

fn disk_mib(cpus: u32) -> u32 {
    DISK_MIB + cpus * (FILES_MIB + AREA_BLOCKS / 256)
}

fn measure(key: &Key, seconds: u32, modules: &Path) -> Result<Record> {
    let folder = Workdir::new_in(Path::new("/dev/shm"), "scaling")?;
    let image = folder.join("disk.raw");
    daemon::create_image(&image, u64::from(disk_mib(key.cpus)) << 20)?;
    let queues = u16::try_from(key.cpus).unwrap_or(u16::MAX);
    let daemon = Daemon::serve(&ServeOptions { queues, ..ServeOptions::new("power", &[image]) })?;
    let kernel = fetch_kernel()?;
    let builder = Guest::builder(Vmm::Qemu)
        .cpus(key.cpus)
        .queues(queues)
        .memory_mib(1024 + disk_mib(key.cpus))
        .kernel_argument("no_timer_check")
        .limit(BOOT_LIMIT + Duration::from_secs(u64::from(seconds)));
    let builder = daemon.sockets().iter().fold(builder, |guest, socket| guest.disk(socket));
    let mut guest = builder.start(&script(key, seconds, modules, &kernel.modules))?;
    guest.wait_success()?;
    daemon.stop()?;
    let output = guest.output();
    let writes_per_s: Vec<f64> = writes(&output);
    if writes_per_s.len() != key.cpus as usize {
        let sentence =
            format!("{}: sysbench did not say how many it wrote{}", key.path(), guest.last_words());
        return Err(BenchError::Workload(sentence));
    }
    Ok(Record {
        version: <Record as afterimage_bench_kit::Record>::VERSION,
        key: key.clone(),
        seconds,
        kvm: kvm_boots(),
        host_cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        writes_per_s,
    })
}

fn writes(output: &str) -> Vec<f64> {
    let words = output.lines().filter_map(|line| line.trim_end().strip_prefix("writes "));
    words.filter_map(|word| word.trim().parse().ok()).collect()
}

fn markdown(records: &[Record]) -> String {
    let mut cpus: Vec<u32> = records.iter().map(|record| record.key.cpus).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let head = ["device".to_owned(), "journaling".to_owned()];
    let mut table = Table::new(head.into_iter().chain(cpus.iter().map(|cpus| format!("{cpus} processors"))));
    for device in Device::value_variants() {
        for arm in Arm::value_variants() {
            let of = |cpus: &u32| {
                let is = |record: &&Record| {
                    (record.key.device, record.key.arm, record.key.cpus) == (*device, *arm, *cpus)
                };
                or_dash(Spread::of(records.iter().filter(is).map(Record::all_per_s)), |spread| {
                    spread.show(number)
                })
            };
            table.row([name_of(device), name_of(arm)].into_iter().chain(cpus.iter().map(of)));
        }
    }
    let emulated = if records.iter().all(|record| record.kvm) { "with KVM" } else { "emulated, without KVM" };
    let host = records.iter().map(|record| record.host_cpus).max().unwrap_or_default();
    let words = format!(
        "On each of a guest's processors sysbench writes 4 KiB and syncs, in {FILES} files of its own. In real time, {emulated}, on a host with {host} processors."
    );
    table.section("Fig. 9: synced writes a second", &words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_shell() {
        let options = Options::parse_from(["scaling"]);
        for key in keys(&options).unwrap() {
            let script = script(&key, 5, Path::new("/a b"), Path::new("/it's"));
            let status = std::process::Command::new("/bin/sh").args(["-n", "-c", &script]).status().unwrap();
            assert!(status.success(), "{script}");
        }
    }

    #[test]
    fn what_sysbench_says_is_read() {
        assert_eq!(writes("boot\nwrites 12.50\r\nwrites  3\nwrites\n"), [12.5, 3.0]);
    }

    #[test]
    fn a_guest_without_processors_is_refused() {
        assert!(keys(&Options::parse_from(["scaling", "--cpus", "0,2"])).is_err());
        assert_eq!(keys(&Options::parse_from(["scaling", "--only", "ram/*/2"])).unwrap().len(), 12);
    }
}
