//! `afterimage-virtual`: guests in virtual time.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use afterimage_journal::group::JournalOptions;
use afterimage_lab::device::ModelName;
use afterimage_lab::process::Workdir;
use afterimage_order::Contract;
use afterimage_protocol::cell::Cell;
use afterimage_protocol::recording::Order;
use afterimage_virtual_time::{
    record, run, run_cell, simulate, Canary, DirtyLimits, GuestKernel, GuestOptions, GuestReport, HostFs,
    Report, RunOptions, SimulateOptions, Simulated, Tally,
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
    /// Run a script in guests, and say what came of it
    Run(Box<Options>),
    /// Run it twice and compare what the guests asked of their disks, to the nanosecond; and once more with another seed, which has to
    /// be seen
    Check(Box<Options>),
    /// Whole systems from seeds: guests with databases, daemons and power that die at any instant, lost interrupts, slow and failing
    /// devices; what was acknowledged is looked for
    Simulate(Box<SimulateArgs>),
    /// Run one cell of a benchmark: reads it as JSON from stdin, and writes what came of it to stdout
    Cell(Kernel),
    /// Record what a guest makes of its disk: reads the order as a line of JSON from stdin, whose end is the request to end early, and
    /// writes what came of it to stdout; for afterimage explore record --virtual
    Record(Kernel),
}

/// The guests' kernel
#[derive(Args)]
struct Kernel {
    /// The folder with the guests' kernel and its library, as ./x virtual makes it
    #[arg(long)]
    kernel: PathBuf,
}

/// What is simulated
#[derive(Args)]
struct SimulateArgs {
    #[command(flatten)]
    kernel: Kernel,
    /// The program that works inside the guests
    #[arg(long)]
    agent: PathBuf,
    /// The seeds, from A up to but without B
    #[arg(long, value_name = "A..B", value_parser = seeds, default_value = "1..11")]
    seeds: std::ops::Range<u64>,
    /// End after the seed that is being run then
    #[arg(long)]
    minutes: Option<u64>,
    /// No more guests than so many share the device
    #[arg(long, default_value_t = 3)]
    guests_max: usize,
    /// Run each seed twice, and compare
    #[arg(long)]
    twice: bool,
    /// Something is broken on purpose: succeed when one of the seeds finds it. A device that breaks its word (syncs, synced-page,
    /// last-writes), or a mistake of our layers' (order-drop-log-sync, journal-release-early and so on: an unknown name is answered with all)
    #[arg(long, value_name = "NAME", default_value = "nothing")]
    canary: Canary,
    /// Guests have vext4; the kernel is the build of it that can fail
    #[arg(long)]
    vext4: bool,
    /// One line of JSON for each seed, and one for all
    #[arg(long)]
    json: bool,
    /// Keep the last seed's trace of requests and of what went wrong there
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Real time that a seed may take, in seconds
    #[arg(long, default_value_t = 900)]
    limit_s: u64,
    /// The first of the seeds, in this process
    #[arg(long, hide = true)]
    here: bool,
}

fn seeds(text: &str) -> Result<std::ops::Range<u64>, String> {
    let wrong = || format!("{text} is no range of seeds: 1..11 is ten of them, and 7 is one");
    let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
    match text.split_once("..") {
        None => number(text).map(|seed| seed..seed + 1),
        Some((from, to)) => Ok(number(from)?..number(to)?),
    }
}

/// What is run
#[derive(Args)]
struct Options {
    /// The folder with the guests' kernel and its library, as ./x virtual makes it
    #[arg(long)]
    kernel: PathBuf,
    /// A shell script for inside: $GUEST is the guest's number, $SEED the seed, /dev/vda the disk, /mnt is memory (default: a small
    /// file system, synced files, all of it read again)
    #[arg(long)]
    script: Option<PathBuf>,
    /// How many guests share the device, each with a disk and a daemon of its own
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
    /// Each guest has a control disk: the last 64 MiB of its disk, behind the image's end
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
    /// The host's memory that can be dirty, in MiB: 10 % of it in the background, 20 % before writers wait
    #[arg(long, default_value_t = 8192)]
    host_mib: u64,
    /// Size of a redo log in MiB
    #[arg(long, default_value_t = 64)]
    log_mib: u64,
    /// What a request costs the daemon in processor time, in nanoseconds (0: processor free)
    #[arg(long, default_value_t = 0)]
    request_ns: u64,
    /// What a system call costs a guest, in nanoseconds (0: processor free)
    #[arg(long, default_value_t = 0)]
    syscall_ns: u64,
    /// The seed of everything random inside
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Add to the guests' kernel's command line
    #[arg(long)]
    append: Vec<String>,
    /// Keep the trace of requests there
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Real time that a run may take, in seconds
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
    let done = match Cli::parse().command {
        Command::Run(options) => run_once(&options),
        Command::Check(options) => check(&options),
        Command::Simulate(args) => run_seeds(&args),
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

/// The seeds, one after another.
fn run_seeds(args: &SimulateArgs) -> Result<(), String> {
    let agent = args.agent.canonicalize();
    let options = SimulateOptions {
        kernel: GuestKernel::of(&args.kernel.kernel).map_err(|e| e.to_string())?,
        agent: agent.map_err(|e| format!("{}: {e}: ./x simulate builds it", args.agent.display()))?,
        guests_max: args.guests_max.max(1),
        canary: args.canary,
        vext4: args.vext4.then(|| args.kernel.kernel.clone()),
        limit: Duration::from_secs(args.limit_s),
    };
    if args.canary.guest().is_some() && !args.vext4 {
        return Err(format!("{} is a canary for --vext4", args.canary));
    }
    let scratch = tempfile::tempdir().map_err(|e| format!("make a folder: {e}"))?;
    let trace = args.trace.clone().unwrap_or_else(|| scratch.path().join("trace"));
    if args.here {
        return run_seed_here(args, &options, &trace);
    }
    let once = |seed: u64| run_seed(args, seed, &options.kernel.pin, &trace);
    let begun = std::time::Instant::now();
    let (mut all, mut broken) = (Tally::default(), Vec::new());
    for seed in args.seeds.clone() {
        if args.minutes.is_some_and(|minutes| begun.elapsed() >= Duration::from_secs(60 * minutes)) {
            break;
        }
        let from = std::time::Instant::now();
        let simulated = once(seed)?;
        if args.twice {
            let again = once(seed)?;
            if (again.trace, &again.broken) != (simulated.trace, &simulated.broken) {
                return Err(format!(
                    "seed {seed} was another run the second time: {again:?} after {simulated:?}"
                ));
            }
        }
        all.add(&simulated.tally);
        say_seed(args, seed, &simulated, from.elapsed());
        if simulated.broken.is_some() {
            broken.push(seed);
        }
        if args.canary != Canary::default() && !broken.is_empty() {
            break;
        }
    }
    say_all(args, &all, &broken, begun.elapsed());
    match (args.canary == Canary::default(), broken.as_slice()) {
        (true, []) => Ok(()),
        (true, broken) => Err(format!("{} of {} seeds broke a promise: {broken:?}", broken.len(), all.runs)),
        (false, []) => Err(format!("{} was not noticed by {} seeds", args.canary, all.runs)),
        (false, _) => Ok(()),
    }
}

/// A seed in a process of its own, whose random numbers are pinned.
fn run_seed(args: &SimulateArgs, seed: u64, pin: &Path, trace: &Path) -> Result<Simulated, String> {
    let failed = |what: &str| format!("seed {seed}: {what}");
    let program = std::env::current_exe().map_err(|e| failed(&format!("find this program: {e}")))?;
    let report = tempfile::NamedTempFile::new().map_err(|e| failed(&format!("make its report: {e}")))?;
    let out = report.reopen().map_err(|e| failed(&format!("make its report: {e}")))?;
    let mut child = std::process::Command::new(program)
        .args(["simulate", "--here", "--seeds", &seed.to_string(), "--canary", &args.canary.to_string()])
        .args(["--guests-max", &args.guests_max.to_string(), "--limit-s", &args.limit_s.to_string()])
        .args(args.vext4.then_some("--vext4"))
        .arg("--kernel")
        .arg(&args.kernel.kernel)
        .arg("--agent")
        .arg(&args.agent)
        .arg("--trace")
        .arg(trace)
        .env("LD_PRELOAD", pin)
        .env("AFTERIMAGE_GUEST_SEED", seed.to_string())
        .stdout(out)
        .spawn()
        .map_err(|e| failed(&format!("run this program: {e}")))?;
    // It looks at its limit between turns: one that never ends is a finding, too.
    let end = std::time::Instant::now() + Duration::from_secs(args.limit_s + 60);
    let status = loop {
        let ended = child.try_wait().map_err(|e| failed(&format!("wait for it: {e}")))?;
        match ended {
            Some(status) => break status,
            None if std::time::Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                let broken = format!(
                    "within {} s of real time it did not end, nor come to its next turn",
                    args.limit_s
                );
                return Ok(Simulated {
                    plan: "?".to_owned(),
                    tally: Tally::default(),
                    trace: 0,
                    broken: Some(broken),
                });
            }
        }
    };
    if !status.success() {
        return Err(failed(&format!("{status}; again: ./x simulate --seeds {seed}")));
    }
    let report = std::fs::read(report.path()).map_err(|e| failed(&format!("read its report: {e}")))?;
    serde_json::from_slice(&report).map_err(|e| failed(&format!("its report cannot be read: {e}")))
}

/// The first seed; the report goes to stdout.
fn run_seed_here(args: &SimulateArgs, options: &SimulateOptions, trace: &Path) -> Result<(), String> {
    // Whoever asked for it is gone: nobody reads the report.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|e| format!("ask to end with whoever asked: {e}"))?;
    let folder = Workdir::new_in(Path::new("/dev/shm"), "simulate").map_err(|e| e.to_string())?;
    let simulated = simulate(args.seeds.start, options, folder.path(), trace).map_err(|e| e.to_string())?;
    println!("{}", serde_json::to_string(&simulated).map_err(|e| e.to_string())?);
    Ok(())
}

fn say_seed(args: &SimulateArgs, seed: u64, simulated: &Simulated, took: Duration) {
    let Simulated { plan, tally, trace, broken } = simulated;
    if args.json {
        let line = serde_json::json!({
            "seed": seed, "plan": plan, "trace": format!("{trace:016x}"), "real_s": took.as_secs_f64(),
            "tally": tally, "broken": broken,
        });
        return println!("{line}");
    }
    println!(
        "seed {seed}: {plan}: {:.1} guest-s in {:.1} s, {} boots, {} daemon kills, {} guest kills, {} panics, {} cuts, {} calls lost, \
         {} I/O errors; {} acknowledged, {} lost within a window; trace {trace:016x}",
        tally.guest_s,
        took.as_secs_f64(),
        tally.boots,
        tally.daemon_kills,
        tally.guest_kills,
        tally.panics,
        tally.power_cuts,
        tally.calls_lost,
        tally.io_errors,
        tally.acknowledged,
        tally.lost_within_window,
    );
    if let Some(what) = broken {
        let mut with = if args.vext4 { " --vext4".to_owned() } else { String::new() };
        if args.guests_max != 3 {
            with.push_str(&format!(" --guests-max {}", args.guests_max));
        }
        if args.canary != Canary::default() {
            with.push_str(&format!(" --canary {}", args.canary));
        }
        println!("BROKEN by seed {seed}: {what}\n  again: ./x simulate --seeds {seed}{with} --trace OUT");
    }
}

fn say_all(args: &SimulateArgs, all: &Tally, broken: &[u64], took: Duration) {
    if args.json {
        let line = serde_json::json!({ "all": all, "broken": broken, "real_s": took.as_secs_f64() });
        return println!("{line}");
    }
    println!(
        "{} seeds, {:.3} guest-hours of virtual time in {:.0} min: {} boots, {} daemons killed ({} while they recovered), \
         {} begun again, {} guests killed, {} panics, {} power cuts, {} interrupts lost, {} stalls, {} I/O errors; {} writes and \
         transactions acknowledged, {} of them lost within a window; judged {} times, {} clean file systems; {} broken",
        all.runs,
        all.guest_s / 3600.0,
        took.as_secs_f64() / 60.0,
        all.boots,
        all.daemon_kills,
        all.kills_in_recovery,
        all.restarts,
        all.guest_kills,
        all.panics,
        all.power_cuts,
        all.calls_lost,
        all.stalls,
        all.io_errors,
        all.acknowledged,
        all.lost_within_window,
        all.judged,
        all.checks,
        broken.len(),
    );
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
