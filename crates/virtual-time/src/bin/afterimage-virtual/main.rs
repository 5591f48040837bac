//! `afterimage-virtual`: guests in virtual time.

mod seeds;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use afterimage_journal::group::JournalOptions;
use afterimage_lab::device::ModelName;
use afterimage_lab::process::Workdir;
use afterimage_lab::processor::Processor;
use afterimage_order::Contract;
use afterimage_protocol::cell::Cell;
use afterimage_protocol::recording::Order;
use afterimage_virtual_time::{
    record, run, run_cell, DirtyLimits, GuestKernel, GuestOptions, GuestReport, HostFs, Report, RunOptions,
};
use clap::{Args, Parser, Subcommand};

/// Real guests on modelled disks in virtual time
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a script in guests, and print the result
    Run(Box<Options>),
    /// Run it twice and compare the guests' requests, to the nanosecond. A third run with another seed must differ
    Check(Box<Options>),
    /// Simulate whole systems from seeds: guests with databases, crashes, power cuts, lost interrupts, slow and failing devices.
    /// Acknowledged data must survive
    Simulate(Box<seeds::Seeds>),
    /// Run one cell of a benchmark, read as JSON from stdin; the result goes to stdout
    Cell(Kernel),
    /// Record a guest's requests, for afterimage explore record --virtual. Reads one line of JSON from stdin; end of file
    /// stops the recording early. The result goes to stdout
    Record(Kernel),
}

/// The guests' kernel
#[derive(Args)]
struct Kernel {
    /// The folder with the guests' kernel and its library, as ./x virtual makes it
    #[arg(long)]
    kernel: PathBuf,
}

/// What is run
#[derive(Args)]
struct Options {
    /// The folder with the guests' kernel and its library, as ./x virtual makes it
    #[arg(long)]
    kernel: PathBuf,
    /// Shell script to run in guests: $GUEST is the guest's number, $SEED the seed, /dev/vda the disk, /mnt a tmpfs. Default: a
    /// small file system with synced files, which are read again
    #[arg(long)]
    script: Option<PathBuf>,
    /// Number of guests that share the device, each with its own disk and daemon
    #[arg(long, default_value_t = 1)]
    guests: usize,
    /// The modelled device
    #[arg(long, value_enum, default_value = "hdd15k")]
    model: ModelName,
    /// A model of the host's file system below images and logs
    #[arg(long, value_enum, default_value = "bare")]
    host_fs: HostFs,
    /// What an acknowledged flush survives: power, power-window=MS ms, guest-crash
    #[arg(long, default_value = "power")]
    survives: Contract,
    /// Retain guests' journals
    #[arg(long)]
    retain: bool,
    /// Give each guest a control disk: the last 64 MiB of its disk, behind the image's end
    #[arg(long)]
    control_disk: bool,
    /// Under power: use the host's page cache instead of O_DIRECT
    #[arg(long)]
    buffered: bool,
    /// Each disk's size in MiB
    #[arg(long, default_value_t = 64)]
    size_mib: u64,
    /// Each guest's memory in MiB
    #[arg(long, default_value_t = 128)]
    memory_mib: u32,
    /// Host memory in MiB for dirty pages: writeback starts at 10 %, writers wait at 20 %
    #[arg(long, default_value_t = 8192)]
    host_mib: u64,
    /// Size of a redo log in MiB
    #[arg(long, default_value_t = 64)]
    log_mib: u64,
    /// Processor time of a request in the daemon, in nanoseconds (0: free)
    #[arg(long, default_value_t = 0)]
    request_ns: u64,
    /// Processor time of a guest's system call, in nanoseconds (0: free)
    #[arg(long, default_value_t = 0)]
    syscall_ns: u64,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Add to the guests' kernel's command line
    #[arg(long)]
    append: Vec<String>,
    /// Folder for the trace of requests
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Limit of a run in real time, in seconds
    #[arg(long, default_value_t = 600)]
    limit_s: u64,
}

/// Small, and everything that may differ from run to run: files, a journal, syncs, random numbers, clocks.
const SCRIPT: &str = r#"
set -e
mkfs.ext4 -q -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda
mount -t ext4 -o data=journal /dev/vda /mnt/disk
i=0
while [ $i -lt 40 ]; do
    dd if=/dev/urandom of=/mnt/disk/$i bs=8k count=1 conv=fsync 2> /dev/null
    i=$((i + 1))
done
{ date; cat /proc/uptime /proc/sys/kernel/random/uuid; } > /mnt/disk/about
sync
echo 3 > /proc/sys/vm/drop_caches
find /mnt/disk -type f | sort | xargs cat | md5sum
"#;

impl Options {
    fn run(&self, seed: u64, trace: &Path) -> Result<Report, String> {
        let script = match &self.script {
            None => SCRIPT.to_owned(),
            Some(path) => {
                std::fs::read_to_string(path).map_err(|e| format!("read {}: {e}", path.display()))?
            }
        };
        let guest = GuestOptions {
            kernel: GuestKernel::of(&self.kernel).map_err(|e| e.to_string())?,
            memory_mib: self.memory_mib,
            seed,
            script,
            append: self.append.iter().cloned().chain(self.charge()).collect(),
            reports: false,
        };
        let options = RunOptions {
            guests: self.guests,
            model: self.model,
            host_fs: self.host_fs,
            limits: DirtyLimits::of_memory(self.host_mib << 20),
            image_bytes: self.size_mib << 20,
            contract: self.survives,
            journal: JournalOptions { retain: self.retain, ..JournalOptions::passthrough() },
            control_disk: self.control_disk,
            direct: !self.buffered,
            log_bytes: self.log_mib << 20,
            request_ns: self.request_ns,
            settle_meetings: 1,
            limit: Duration::from_secs(self.limit_s),
            ..RunOptions::of(guest)
        };
        let folder = Workdir::new_in(Path::new("/dev/shm"), "virtual").map_err(|e| e.to_string())?;
        run(&options, folder.path(), trace).map_err(|error| said(&error, folder.path(), self.guests))
    }

    /// What every figure from here says of itself.
    fn charged(&self) -> String {
        match (self.syscall_ns, self.request_ns) {
            (0, 0) => "processor free".to_owned(),
            (call, request) => format!("charged {call} ns a system call, {request} ns a request"),
        }
    }

    /// The guests' kernel is told what it charges for.
    fn charge(&self) -> Option<String> {
        (self.syscall_ns > 0).then(|| format!("syscall_ns={}", self.syscall_ns))
    }
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    // Before anything is started.
    let _processor = Processor::take();
    let done = match command {
        Command::Run(options) => run_once(&options),
        Command::Check(options) => check(&options),
        Command::Simulate(args) => seeds::run(&args),
        Command::Cell(options) => cell(&options.kernel),
        Command::Record(options) => record_order(&options.kernel),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("afterimage-virtual: {error}");
            ExitCode::FAILURE
        }
    }
}

/// An error, and what guests had said.
fn said(error: &dyn std::error::Error, folder: &Path, guests: usize) -> String {
    let mut said = error.to_string();
    for folder in [folder.to_owned(), folder.join("next")] {
        for guest in 0..guests {
            let console = |kind| std::fs::read_to_string(folder.join(format!("guest{guest}.{kind}")));
            for text in [console("out"), console("err")].into_iter().flatten().filter(|text| !text.is_empty())
            {
                said.push_str(&format!("\n  guest {guest}:\n{}", last_lines(&text)));
            }
        }
    }
    said
}

/// The end of what a guest said: the rest may be a line for each of its files.
fn last_lines(text: &str) -> &str {
    const LINES: usize = 40;
    let text = text.trim_end();
    text.rmatch_indices('\n').nth(LINES - 1).map_or(text, |(at, _)| &text[at + 1..])
}

fn cell(kernel: &Path) -> Result<(), String> {
    let cell: Cell = serde_json::from_reader(std::io::stdin()).map_err(|e| format!("read the cell: {e}"))?;
    let folder = Workdir::new_in(Path::new("/dev/shm"), "virtual").map_err(|e| e.to_string())?;
    let outcome = run_cell(&cell, kernel, folder.path())
        .map_err(|error| said(&error, folder.path(), cell.guests as usize))?;
    serde_json::to_writer(std::io::stdout(), &outcome).map_err(|e| format!("write the outcome: {e}"))
}

fn record_order(kernel: &Path) -> Result<(), String> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|e| format!("read the order: {e}"))?;
    let order: Order = serde_json::from_str(&line).map_err(|e| format!("read the order: {e}"))?;
    let interrupt = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&interrupt);
    std::thread::spawn(move || {
        // Nothing else comes: this waits for the end.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        theirs.store(true, Ordering::SeqCst);
    });
    let folder = Workdir::new_in(Path::new("/dev/shm"), "record").map_err(|e| e.to_string())?;
    let recorded = record(&order, kernel, folder.path(), &interrupt, &mut |line| eprintln!("{line}"))
        .map_err(|error| said(&error, folder.path(), 1))?;
    serde_json::to_writer(std::io::stdout(), &recorded).map_err(|e| format!("write what came of it: {e}"))
}

fn succeeded(guests: &[GuestReport]) -> Result<(), String> {
    match guests.iter().enumerate().find(|(_, guest)| guest.exit != Some(0)) {
        None => Ok(()),
        Some((id, guest)) => {
            Err(format!("guest {id}'s script ended with {:?}, and had said:\n{}", guest.exit, guest.output))
        }
    }
}

fn run_once(options: &Options) -> Result<(), String> {
    let scratch = tempfile::tempdir().map_err(|e| format!("make a folder: {e}"))?;
    let trace = options.trace.clone().unwrap_or_else(|| scratch.path().join("trace"));
    let report = options.run(options.seed, &trace)?;
    for (id, guest) in report.guests.iter().enumerate() {
        print!("{}", guest.output);
        let counts = guest.counts;
        println!(
            "guest {id}: {:.6} s, {} reads of {} KiB, {} writes of {} KiB, {} flushes, {} others; image {:016x}",
            Duration::from_nanos(guest.ended).as_secs_f64(),
            counts.reads,
            counts.read_bytes >> 10,
            counts.writes,
            counts.written_bytes >> 10,
            counts.flushes,
            counts.others,
            guest.image,
        );
    }
    println!("{}", summary(&report, options));
    succeeded(&report.guests)
}

fn summary(report: &Report, options: &Options) -> String {
    format!(
        "{:.6} s of virtual time ({}) in {:.1} s; {} messages; trace {:016x}",
        report.virtual_time.as_secs_f64(),
        options.charged(),
        report.real_time.as_secs_f64(),
        report.messages,
        report.trace
    )
}

fn check(options: &Options) -> Result<(), String> {
    let scratch = tempfile::tempdir().map_err(|e| format!("make a folder: {e}"))?;
    let traced = |name: &str, seed: u64| {
        let path = scratch.path().join(name);
        let report = options.run(seed, &path)?;
        println!("{name}: {}", summary(&report, options));
        succeeded(&report.guests)?;
        let text = std::fs::read_to_string(&path).map_err(|e| format!("read the trace: {e}"))?;
        Ok::<_, String>((report, text))
    };
    let (first, first_trace) = traced("first", options.seed)?;
    let (second, second_trace) = traced("again", options.seed)?;
    if first_trace != second_trace {
        let mut lines = first_trace.lines().zip(second_trace.lines()).enumerate();
        let difference = lines.find(|(_, (a, b))| a != b);
        if let Some(path) = &options.trace {
            let _ = std::fs::write(path, &first_trace);
            let _ = std::fs::write(path.with_extension("again"), &second_trace);
        }
        return Err(match difference {
            Some((line, (a, b))) => format!("the same seed gave two runs; line {}:\n  {a}\n  {b}", line + 1),
            None => "the same seed gave two runs, one longer than the other".to_owned(),
        });
    }
    if first.guests != second.guests {
        return Err("the same requests, and guests that say other things or images that differ".to_owned());
    }
    let (_, other_trace) = traced("another seed", options.seed + 1)?;
    if other_trace == first_trace {
        return Err("another seed gave the same trace: nothing was compared".to_owned());
    }
    println!("the same seed gives the same {} requests, to the nanosecond", first_trace.lines().count());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_guest_said_the_end_is_kept() {
        let lines = |from: u32, to: u32| (from..to).map(|n| format!("{n}\n")).collect::<String>();
        assert_eq!(last_lines("one\n"), "one");
        assert_eq!(last_lines(&lines(0, 40)), lines(0, 40).trim_end());
        assert_eq!(last_lines(&lines(0, 1000)), lines(960, 1000).trim_end());
    }
}
