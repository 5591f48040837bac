//! `afterimage-lab demo`: the main job. The same work with and without a retained journal; then real guests do real work on
//! every contract, and the guest, the daemon and the power die under them; what was acknowledged is compared with what is there.
//!
//! ```text
//!   plan ─► scenario (rig: image, server │ inside: scripts of the guests) ─► ledger, survivors ─► judge
//!        └► compare, speed ─────────────────────────────────────────────────────► rows
//!                                                     report ─► report.json, report.html, table
//! ```
//!
//! A promise counts as kept only where it was seen to hold; what could not be found out makes the demo fail, too.

mod headline;
mod heard;
mod html;
mod inside;
mod interrupt;
mod judge;
mod ledger;
mod plan;
mod progress;
mod report;
mod rig;
mod scenario;
mod server;
mod sql;
mod survivors;
mod table;

// How acknowledged work is judged, for others who crash guests.
pub use self::judge::judge;
pub use self::ledger::{Ack, Ledger, Stream};
pub use self::plan::Allowance;
pub use self::report::{Check, StreamReport};
pub use self::sql::{state, transactions, Journal};
pub use self::survivors::{Bank, Survivors};

use std::fs;
use std::path::{Path, PathBuf};

use afterimage_report::say;

use self::interrupt::Interrupt;
use self::plan::{Contract, Event, Scenario};
use self::progress::Progress;
use self::report::{Machine, Outcome, Report, ScenarioReport, SCHEMA};
use self::scenario::{Findings, Setting};
use crate::error::{Context, LabError, Result};
use crate::evidence::Evidence;
use crate::{guest, locate};

/// Free memory below which images go to the disk instead of `/dev/shm`, in bytes.
const SHARED_MEMORY_BYTES_MIN: u64 = 3 << 30;

/// What `afterimage-lab demo` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Only the scenarios of this name, or with it as a part: retain, power/vmm-kill, power-cut, speed, ...
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Decides transactions, instants of kills and what a power cut takes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print the report as JSON instead of the table
    #[arg(long)]
    pub json: bool,
    /// Run nothing: print the table of these raw results (demo.json.zst)
    #[arg(long, value_name = "FILE")]
    pub tables: Option<PathBuf>,
    /// Where report.html, report.json and evidence go
    #[arg(long, value_name = "FOLDER", default_value = "target/demo")]
    pub out: PathBuf,
    /// Where images go [default: /dev/shm, or the folder of --out where memory is short]
    #[arg(long, value_name = "FOLDER")]
    pub images: Option<PathBuf>,
}

/// Runs the demo. `Ok(true)` if every promise held.
///
/// # Errors
/// It could not begin: a program is missing, a folder can not be written, an unknown name was given.
pub fn run(options: &Options) -> Result<bool> {
    if let Some(path) = &options.tables {
        let raw = afterimage_report::raw::read::<Report>(path, "demo");
        let report = raw.map_err(|error| LabError::Peer(error.to_string()))?.results;
        say(&table::render(&report)).context(|| "write to stdout".to_owned())?;
        return Ok(true);
    }
    let scenarios = plan::selection(&options.only)?;
    let mut progress = Progress::new(scenarios.len());
    fs::create_dir_all(&options.out).context(|| format!("make {}", options.out.display()))?;
    let interrupt = Interrupt::watch()?;
    let images_in = options.images.clone().unwrap_or_else(|| images_folder(&options.out));
    check_programs(&scenarios, &progress)?;
    let mut report = Report {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: options.seed,
        held: false,
        elapsed_s: 0.0,
        machine: Machine {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            load: load(),
            images_in: images_in.display().to_string(),
        },
        retain: None,
        scenarios: Vec::new(),
        speed: Vec::new(),
    };
    for scenario in scenarios {
        progress.scenario(&title(scenario));
        let started = progress.elapsed();
        let evidence = Evidence::new(&options.out.join("evidence"), &scenario.to_string())?;
        interrupt.scratch(Some(evidence.folder()));
        let mut setting = Setting {
            progress: &progress,
            images_in: &images_in,
            evidence: &evidence,
            rng: scenario.rng(options.seed),
            round: 0,
        };
        let mut entry = run_one(scenario, &mut setting, &mut report);
        entry.elapsed_s = (progress.elapsed() - started).as_secs_f64();
        interrupt.scratch(None);
        progress.step(&verdict(&entry));
        if entry.outcome == Outcome::Held {
            evidence.discard();
        } else {
            let folder =
                fs::canonicalize(evidence.folder()).unwrap_or_else(|_| evidence.folder().to_path_buf());
            entry.evidence = Some(folder.display().to_string());
        }
        // The speed rows are the measurement; only a failed one needs an entry among the deaths.
        if scenario != Scenario::Speed || entry.outcome != Outcome::Held {
            report.scenarios.push(entry);
        }
    }
    report.held = report.scenarios.iter().all(|entry| entry.outcome == Outcome::Held);
    report.elapsed_s = progress.elapsed().as_secs_f64();
    report.write(&options.out)?;
    let page = html::write(&report, &options.out)?;
    let text = if options.json { report.json()? + "\n" } else { table::render(&report) };
    say(&text).context(|| "write to stdout".to_owned())?;
    progress.step(&format!("everything is in {}", options.out.join("report.json").display()));
    progress.step(&format!("to look at in a browser: {}", fs::canonicalize(&page).unwrap_or(page).display()));
    Ok(report.held)
}

fn title(scenario: Scenario) -> String {
    match scenario {
        Scenario::Crash(contract, event) => format!("{scenario}: {}: {}", contract.flag(), event.title()),
        Scenario::RetainBytes => format!("{scenario}: the same work with and without --journal retain"),
        Scenario::RetainKill => format!("{scenario}: --journal retain: {}", Event::VmmKill.title()),
        Scenario::RetainCanary => {
            format!(
                "{scenario}: never to be used: the VMM is killed, and the daemon has forgotten the journal"
            )
        }
        Scenario::Canary => {
            format!("{scenario}: not ours: the power is cut under qemu-storage-daemon without flushes")
        }
        Scenario::Speed => format!("{scenario}: the same work on each server"),
    }
}

fn run_one(scenario: Scenario, setting: &mut Setting<'_>, report: &mut Report) -> ScenarioReport {
    let mut entry = ScenarioReport {
        name: scenario.to_string(),
        contract: "all".to_owned(),
        event: "the same work on each server".to_owned(),
        outcome: Outcome::Failed,
        reason: None,
        medium: String::new(),
        guest: String::new(),
        elapsed_s: 0.0,
        bound_ms: None,
        expects_loss: scenario.expects_loss(),
        streams: Vec::new(),
        rounds: Vec::new(),
        postmark_rounds: 0,
        daemon_restarts: 0,
        recovery: None,
        checks: Vec::new(),
        evidence: None,
    };
    let outcome = match scenario {
        Scenario::Crash(contract, event) => {
            entry.contract = contract.flag();
            entry.event = event.title().to_owned();
            if let Allowance::Window(window) = Scenario::allowance(contract, event) {
                entry.bound_ms = Some(window.as_secs_f64() * 1000.0);
            }
            scenario::crash(setting, contract, event)
        }
        Scenario::RetainBytes => {
            entry.contract = "guest-crash".to_owned();
            entry.event = "the same work with and without a retained journal".to_owned();
            scenario::compare(setting).map(|(compared, findings)| {
                report.retain = Some(compared);
                findings
            })
        }
        Scenario::RetainKill => {
            entry.contract = "guest-crash, retain".to_owned();
            entry.event = Event::VmmKill.title().to_owned();
            scenario::retain_kill(setting)
        }
        Scenario::RetainCanary => {
            entry.contract = "(journal forgotten)".to_owned();
            entry.event = Event::VmmKill.title().to_owned();
            scenario::retain_canary(setting)
        }
        Scenario::Canary => {
            entry.contract = "(qsd no-flush)".to_owned();
            entry.event = "the power is cut".to_owned();
            scenario::canary(setting)
        }
        Scenario::Speed => scenario::measure(setting).map(|rows| {
            report.speed = rows;
            Findings::default()
        }),
    };
    match outcome {
        Ok(findings) => conclude(&mut entry, findings),
        Err(LabError::Broken(text)) => {
            entry.outcome = Outcome::Broken;
            entry.reason = Some(text);
        }
        Err(error) => entry.reason = Some(error.to_string()),
    }
    entry
}

fn conclude(entry: &mut ScenarioReport, findings: Findings) {
    let mut held = findings.held();
    entry.streams = findings.streams;
    entry.rounds = findings.rounds;
    entry.checks = findings.checks;
    entry.medium = findings.medium;
    entry.guest = findings.guest;
    entry.postmark_rounds = findings.postmark_rounds;
    entry.daemon_restarts = findings.daemon_restarts;
    entry.recovery = findings.recovery;
    if entry.expects_loss {
        // The broken checks are what was expected; one that says so replaces the verdict.
        held = entry.streams.iter().any(|stream| stream.lost > 0);
        entry.checks.push(Check::new(
            format!("the checks see it: {}, and {}", entry.contract, entry.event),
            held,
            if held { "they do" } else { "nothing was seen to be lost: these checks can not be trusted" },
        ));
    }
    entry.outcome = if held { Outcome::Held } else { Outcome::Broken };
    if !held {
        let broken: Vec<&Check> = entry.checks.iter().filter(|check| !check.held).collect();
        entry.reason = broken.first().map(|first| {
            format!(
                "{} of {} promises, first: {}: {}",
                broken.len(),
                entry.checks.len(),
                first.promise,
                first.detail
            )
        });
    }
}

fn verdict(entry: &ScenarioReport) -> String {
    let lost: u64 = entry.streams.iter().map(|stream| stream.lost).sum();
    let reason = entry.reason.as_deref().unwrap_or_default();
    match entry.outcome {
        Outcome::Held if entry.expects_loss => {
            format!("{lost} acknowledged writes lost: the checks can fail")
        }
        Outcome::Held if entry.checks.is_empty() => "measured".to_owned(),
        Outcome::Held if entry.streams.is_empty() => format!("held: {} checks", entry.checks.len()),
        Outcome::Held => format!("held: {} checks, {lost} acknowledged writes lost", entry.checks.len()),
        Outcome::Broken => format!("BROKEN: {reason}"),
        Outcome::Failed => format!("FAILED: {reason}"),
    }
}

/// The load average over the last minute; 0 where the system does not say.
fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// `/dev/shm` where it is large enough: kills do not care what an image lies on, and the demo is quicker.
fn images_folder(out: &Path) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    if free >= SHARED_MEMORY_BYTES_MIN {
        memory.to_path_buf()
    } else {
        fs::canonicalize(out).unwrap_or_else(|_| out.to_path_buf()).join("images")
    }
}

/// Everything that will be needed, so that a missing program is said at once and downloads come first.
fn check_programs(scenarios: &[Scenario], progress: &Progress) -> Result<()> {
    locate::product()?;
    for program in ["afterimage-lab", "afterimage-agent"] {
        locate::own_program(program)?;
    }
    for (program, package) in [
        ("linux.uml", "user-mode-linux"),
        ("busybox", "busybox-static"),
        ("sqlite3", "sqlite3"),
        ("postmark", "postmark"),
        ("mkfs.ext4", "e2fsprogs"),
        ("e2fsck", "e2fsprogs"),
        ("qemu-storage-daemon", "qemu-utils"),
        ("fusermount3", "fuse3"),
    ] {
        locate::system_program(program, package)?;
    }
    let wants_qemu = |s: &Scenario| {
        Contract::ALL.iter().any(|contract| *s == Scenario::Crash(*contract, Event::DaemonKillQemu))
    };
    if scenarios.iter().any(wants_qemu) {
        locate::system_program("qemu-system-x86_64", "qemu-system-x86")?;
        progress.step("looking for the QEMU guests' kernel (fetched once), and whether KVM runs it");
        guest::fetch_kernel()?;
        let kvm = guest::kvm_boots();
        progress.step(if kvm {
            "QEMU guests run on KVM"
        } else {
            "QEMU guests are translated (TCG): slow, not wrong"
        });
    }
    Ok(())
}
