//! `afterimage explore run RECORDING`

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afterimage_explore::campaign::{Limits, Progress};
use afterimage_explore::derive;
use afterimage_explore::model::Model;
use afterimage_explore::report::Report;
use afterimage_explore::retained::{DeathOptions, Deaths};
use afterimage_explore::runner::{explore, Request};
use afterimage_explore::schedule::Picking;
use afterimage_explore::setup::{atomic_bytes, Level, Setup};
use afterimage_trace::{Layer, Recording};

use super::{explain, interrupt, progress, workers};
use afterimage::commands::print_report;
use afterimage::failure::Failure;
use afterimage::units::parse_size;

/// Explore the crash states of a recording, and check each against the contract
///
/// Every state is recovered as after a real crash: the daemon's own recovery, e2fsck, a mount by a real guest's kernel.
/// Exit status 1: a state breaks the contract. The first one is minimised and saved for `explore show` and
/// `explore replay`. Exit status 130: Ctrl-C, and nothing was found.
///
/// After `explore record --journal retain`, the durable state is a prefix as the guest's own recovery leaves it. With
/// --model guest, and under guest-crash, deaths of guest and daemon are judged.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A recording made by `explore record`
    recording: PathBuf,
    /// Stream to cut: requests to the files below the daemon (storage), or the guest's requests (guest)
    #[arg(long, value_name = "LAYER")]
    layer: Option<LayerWord>,
    /// Storage model: a crash leaves any subset of writes not covered by a sync (disk), a prefix (prefix), or any part of
    /// what was in flight when the guest died (guest)
    #[arg(long, value_name = "MODEL")]
    model: Option<Model>,
    /// Depth of the check: the daemon's recovery (log), e2fsck (fsck), mount and application check (mount)
    #[arg(long, value_name = "LEVEL")]
    level: Option<Level>,
    /// The application's check, run with the file system at /mnt. Exit status 0 means sound. Its last line of output names
    /// the mark's state; it prints one in all states or in none. `records DIR` and `editor FILE` are built in
    #[arg(long, value_name = "CMD")]
    check: Option<String>,
    /// Judge another contract: the guest's requests are replayed through the real ordering layer
    #[arg(long, value_name = "CONTRACT")]
    survives: Option<String>,
    /// Size of the redo log for --survives power-window; small logs wrap often
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = parse_size, requires = "survives")]
    log_max: u64,
    /// Retain the guest's journal: in the replay (power-window), or when guest and daemon die (guest-crash)
    #[arg(long, value_name = "MODE", requires = "survives")]
    journal: Option<super::JournalWord>,
    /// Atomic write unit of the disk, in bytes. Default: 4096 as reported to guests (ext4 needs it before Linux 6.10), 512
    /// below a redo log
    #[arg(long, value_name = "BYTES")]
    atomic: Option<u32>,
    /// Time limit, also within a check
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = super::some_time)]
    budget: Duration,
    /// Time limit of one check; its state is then not judged
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = super::some_time)]
    check_timeout: Duration,
    /// Number of states to look at
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    states: Option<u64>,
    /// Crash at random moments of the run, one state each, instead of a directed search
    #[arg(long)]
    moments: bool,
    /// Random seed: the same seed visits the same states in the same order
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Workers
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Stop at the first state that breaks the contract
    #[arg(long)]
    first: bool,
    /// Folder of progress and failures
    #[arg(long, value_name = "DIR", default_value = "explore-out")]
    out: PathBuf,
    /// Continue the campaign in --out, for another --budget and --states
    #[arg(long)]
    resume: bool,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LayerWord {
    Guest,
    Storage,
}

const EXAMPLES: &str = "\
Examples:
  Does my database survive a power cut on a disk with a volatile cache?
    afterimage explore record --out db.afrec --setup 'make-db /mnt/db' -- sh -c 'run-transactions /mnt/db'
    afterimage explore run db.afrec --check 'check-db /mnt/db'

  The same requests under a window of 20 ms, with a log so small that it wraps often:
    afterimage explore run db.afrec --survives power-window=20ms --log-max 256K --budget 10m

  Only the daemon's own recovery, as fast as it goes:
    afterimage explore run db.afrec --level log --states 1000000";

/// Runs it.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.check.is_some() && args.level.is_some_and(|level| level < Level::Mount) {
        return Err(Failure::usage(
            "--check needs the mounted file system: leave --level out, or say --level mount",
        ));
    }
    let recording = load(&args.recording)?;
    let recording = match &args.survives {
        None => recording,
        Some(contract) => {
            let retain = matches!(args.journal, Some(super::JournalWord::Retain));
            derive::under(&recording, contract, retain, args.log_max, args.seed).map_err(explain)?
        }
    };
    let limits = limits(args);
    let stop = interrupt::flag()?;
    if args.layer.is_none() && Deaths::suit(&recording, args.model) {
        let ignored = [
            ("--resume", args.resume),
            ("--jobs", args.jobs.is_some()),
            ("--moments", args.moments),
            ("--atomic", args.atomic.is_some()),
        ];
        if let Some((option, _)) = ignored.into_iter().find(|(_, given)| *given) {
            return Err(Failure::usage(format!(
                "{option} does not go with deaths of guest and daemon, which this recording is judged by: leave it \
                 out, or name a --layer"
            )));
        }
        return finish(&deaths(args, &recording).run(&stop).map_err(explain)?, args, &stop, false);
    }
    let setup = setup(args, &recording)?;
    let name = args.recording.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let request = Request {
        name: &name,
        recording: &recording,
        setup: &setup,
        limits,
        out: Some(&args.out),
        resume: args.resume,
    };
    let tools = setup.tools(&recording, limits.jobs).map_err(explain)?;
    let checkers = |_worker: usize| tools.checkers();
    let mut line = progress::Line::new(Some(args.budget), args.states);
    let mut before = None;
    let mut tell = |p: &Progress| line.show(p, p.done - *before.get_or_insert(p.done));
    let mut report = explore(&request, &checkers, &stop, &mut tell).map_err(explain)?;
    line.end();
    report.guests = tools.pool();
    finish(&report, args, &stop, true)
}

/// Guest and daemon die, and image and arena outlive them: so journals are judged that were retained under `guest-crash`.
fn deaths<'a>(args: &'a Args, recording: &'a Recording) -> Deaths<'a> {
    let most = DeathOptions::default();
    let points = args.states.and_then(|states| usize::try_from(states).ok()).unwrap_or(most.points);
    Deaths {
        name: "deaths",
        recording,
        how: DeathOptions { seed: args.seed, points, ..most },
        level: args.level.unwrap_or(Level::Mount),
        check: args.check.clone(),
        first_only: args.first,
        check_timeout: args.check_timeout,
        time: args.budget,
        out: Some(&args.out),
    }
}

/// `is_kept`: what was looked at is there for `--resume`.
fn finish(report: &Report, args: &Args, stop: &AtomicBool, is_kept: bool) -> Result<(), Failure> {
    print_report(report, args.json)?;
    if stop.load(Ordering::Relaxed) && report.progress.tally.violations() == 0 {
        eprintln!("afterimage: interrupted{}", if is_kept { "; --resume goes on" } else { "" });
        return Err(Failure::Status(interrupt::STATUS));
    }
    if report.holds() {
        Ok(())
    } else {
        Err(Failure::Status(1))
    }
}

fn setup(args: &Args, recording: &Recording) -> Result<Setup, Failure> {
    let mut setup = Setup::of(recording).map_err(explain)?;
    match args.layer {
        Some(LayerWord::Guest) => setup.layer = Layer::Guest,
        Some(LayerWord::Storage) => setup.layer = Layer::Storage,
        None if args.model == Some(Model::Prefix) => setup.layer = Layer::Guest,
        None => {}
    }
    setup.model = args.model.unwrap_or(setup.model);
    setup.level = args.level.unwrap_or(setup.level);
    setup.check = args.check.clone().or(setup.check);
    setup.check_timeout = args.check_timeout;
    setup.seed = args.seed;
    setup.atomic_bytes = args.atomic.unwrap_or_else(|| atomic_bytes(recording, setup.layer));
    if args.moments {
        setup.picking = Picking::Moments;
    }
    Ok(setup)
}

fn limits(args: &Args) -> Limits {
    Limits {
        time: args.budget,
        states: args.states,
        in_all: false,
        jobs: workers(args.jobs),
        first_only: args.first,
    }
}

/// Reads a recording.
fn load(path: &std::path::Path) -> Result<Recording, Failure> {
    Recording::load(path).map_err(Failure::failed)
}
