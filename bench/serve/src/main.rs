//! Measures `afterimage serve` beside qemu-storage-daemon, without a guest: a vhost-user-blk driver in this process keeps
//! requests in flight against both, in turns.
//!
//! ```text
//! for each cell:  calibrate ─► best mode of the peer
//!                 start both servers, each on an image of its own
//!                 A B │ B A │ A B │ …   images exchanged half-way
//!                 ratio of each pair ─► median (min..max)
//! ```

mod cells;
mod driver;
mod replay;
mod report;
mod servers;
mod tape;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use afterimage_bench_kit::{insert, say, Bench, BenchError, Common, Result};
use afterimage_frontend::{Endpoint, FrontendStats, ServeOptions, Server as Frontend};
use afterimage_lab::calm;
use afterimage_report::{note, raw, Spread};
use afterimage_store::{ImageStore, OpenOptions};
use clap::{Args, Parser, Subcommand};

use cells::{Cell, Place};
use driver::Connection;
use report::{CellReport, Report, Run};
use servers::{Kind, Server};

/// Measures vhost-user-blk servers beside each other, without a guest.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Option<Do>,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Do {
    /// Serve an image with the frontend and the store alone.
    Server {
        /// The image.
        image: PathBuf,
        /// Where to listen.
        socket: PathBuf,
        /// How many queues.
        queues: u16,
    },
    /// Replay a recording with the journal passed through and retained, and compare the daemon's processor time.
    Replay(replay::Options),
}

#[derive(Args)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// With --tables: put the table into this file, between its lines `<!-- results: NAME -->` (of NAME.json.zst) and `<!-- end -->`.
    #[arg(long, value_name = "FILE", requires = "tables")]
    into: Option<PathBuf>,
    /// Seconds of each round [default: 2, quick: 0.5].
    #[arg(long)]
    seconds: Option<f64>,
    /// Rounds of each cell [default: 7, quick: 3].
    #[arg(long)]
    rounds: Option<usize>,
    /// Only cells whose name contains all of these words.
    #[arg(long)]
    only: Vec<String>,
    /// The `afterimage` program [default: the one beside this program].
    #[arg(long)]
    program: Option<PathBuf>,
    /// Measure beside this other `afterimage` program, an older build for instance, instead of qemu-storage-daemon.
    #[arg(long)]
    beside: Option<PathBuf>,
    /// The contract to serve with.
    #[arg(long, default_value = "power")]
    survives: String,
    /// Measure frontend and store without the program around them.
    #[arg(long)]
    bare: bool,
    /// Before each pair of rounds, wait for the rest of the machine to be idle, for at most this many seconds.
    #[arg(long, default_value_t = 0.0)]
    calm: f64,
    /// Where the image on a device lies.
    #[arg(long, default_value = "target/bench")]
    disk: PathBuf,
    /// Where the image in memory lies.
    #[arg(long, default_value = "/dev/shm")]
    memory: PathBuf,
    /// Size of each image in MiB.
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Where the raw results go: compressed JSON, as it is committed.
    #[arg(long, default_value = "target/bench/serve.json.zst")]
    raw: PathBuf,
}

fn main() -> ExitCode {
    afterimage_bench_kit::main("afterimage-bench-serve", |cli: &Cli| match &cli.command {
        Some(Do::Server { image, socket, queues }) => serve(image, socket, *queues).map(|()| true),
        Some(Do::Replay(options)) => {
            let program = our_program(options.program.as_deref())?;
            replay::run(options, program).map(|()| true)
        }
        None => bench(&cli.options),
    })
}

/// The `server` command; ends by signal.
fn serve(image: &Path, socket: &Path, queues: u16) -> Result<()> {
    let disk = ImageStore::open(&OpenOptions::new(image)).map_err(|e| e.to_string())?;
    let listener = UnixListener::bind(socket)?;
    let stats = Arc::new(FrontendStats::new(queues));
    let options = ServeOptions { queues, ..ServeOptions::default() };
    Frontend::start("bench", disk, Endpoint::Listen(listener), options, stats)
        .map_err(|e| e.to_string())?
        .join();
    Ok(())
}

/// Whether every cell came to a result.
fn bench(options: &Options) -> Result<bool> {
    let common = &options.common;
    if let Some(path) = &common.tables {
        let report: Report = afterimage_bench_kit::read(path, "serve-driver")?;
        say(&report.text())?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let into = |page: &PathBuf| insert(page, name.trim_end_matches(".json.zst"), &report.markdown());
        return options.into.as_ref().map_or(Ok(true), |page| into(page).map(|()| true));
    }
    let seconds = options.seconds.unwrap_or(if common.quick { 0.5 } else { 2.0 });
    let rounds = options.rounds.unwrap_or(if common.quick { 3 } else { 7 });
    let ours = our_kind(options)?;
    let peer = match &options.beside {
        Some(program) => {
            format!("the build beside it, {}", first_line(Command::new(program).arg("--version"))?)
        }
        None => first_line(Command::new("qemu-storage-daemon").arg("--version"))?,
    };
    std::fs::create_dir_all(&options.disk)?;
    let machine = format!(
        "Linux {}, {} processors",
        first_line(Command::new("uname").arg("-r"))?,
        std::thread::available_parallelism()?
    );
    let cells: Vec<Cell> = cells::all().into_iter().filter(|c| wanted(c, &options.only)).collect();
    let report = Report { ours: ours.name(), peer, machine, seconds, rounds, cells: Vec::new() };
    let plan =
        Plan { time: Duration::from_secs_f64(seconds), rounds, calm: Duration::from_secs_f64(options.calm) };
    let mut pairs = Pairs { options, ours, plan, place: None, report };
    let failed = afterimage_bench_kit::run(&mut pairs, &cells, 0, Duration::ZERO)?;
    say(&pairs.report.text())?;
    note(&format!("raw results: {}\n", options.raw.display()));
    Ok(failed.is_empty())
}

/// Both servers, cell after cell.
struct Pairs<'a> {
    options: &'a Options,
    ours: Kind,
    plan: Plan,
    /// Images where the last cell wanted them: writing them takes longer than a cell.
    place: Option<(Place, Scratch, Images)>,
    report: Report,
}

impl Bench for Pairs<'_> {
    type Cell = Cell;
    type Outcome = CellReport;

    fn name(&self, cell: &Cell) -> String {
        cell.name()
    }

    fn measure(&mut self, cell: &Cell) -> Result<(CellReport, String)> {
        let (place, scratch, images) = match self.place.take() {
            Some(last) if last.0 == cell.place => last,
            last => {
                drop(last);
                let memory = cell.place == Place::Memory;
                let scratch = Scratch::new(if memory { &self.options.memory } else { &self.options.disk })?;
                let image = |name: &str| cells::image(&scratch.0, name, self.options.mib);
                let images = Images { first: image("first.img")?, second: image("second.img")? };
                (cell.place, scratch, images)
            }
        };
        let peers = match &self.options.beside {
            Some(program) => vec![Kind::program(program, &self.options.survives)],
            None => Kind::all_of_qemu(cell.place == Place::Memory),
        };
        let measured = measure(cell, &self.ours, &peers, &images, &scratch.0, self.plan);
        self.place = Some((place, scratch, images));
        let report = measured?;
        let words = format!("{:.2} of {}", report.iops_ratio.median, report.peer_mode);
        Ok((report, words))
    }

    fn keep(&mut self, cell: CellReport) -> Result<()> {
        self.report.cells.push(cell);
        Ok(raw::write(&self.options.raw, "serve-driver", &self.report)?)
    }
}

fn wanted(cell: &Cell, words: &[String]) -> bool {
    words.iter().all(|word| cell.name().contains(word.as_str()))
}

fn our_kind(options: &Options) -> Result<Kind> {
    if options.bare {
        return Ok(Kind::Bare);
    }
    let program = our_program(options.program.as_deref())?;
    Ok(Kind::program(&program, &options.survives))
}

fn our_program(named: Option<&Path>) -> Result<PathBuf> {
    let program = match named {
        Some(program) => program.to_owned(),
        None => std::env::current_exe()?.with_file_name("afterimage"),
    };
    if !program.exists() {
        let sentence = format!("{} does not exist: build it, or name it with --program", program.display());
        return Err(BenchError::Usage(sentence));
    }
    Ok(program)
}

fn first_line(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|e| format!("running {:?}: {e}", command.get_program()))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}

/// How long, how often, and how patiently.
#[derive(Clone, Copy)]
struct Plan {
    time: Duration,
    rounds: usize,
    calm: Duration,
}

struct Images {
    first: PathBuf,
    second: PathBuf,
}

fn measure(
    cell: &Cell,
    ours: &Kind,
    peers: &[Kind],
    images: &Images,
    scratch: &Path,
    plan: Plan,
) -> Result<CellReport> {
    let Plan { time, rounds, calm } = plan;
    calm::wait(calm)?;
    let (best, calibration) = calibrate(cell, peers, &images.second, scratch, time / 3)?;
    let (mut our_runs, mut peer_runs) = (Vec::new(), Vec::new());
    // Where a file lies on its device matters as much as who serves it: each server gets each image for half the rounds.
    let halves =
        [(rounds.div_ceil(2), &images.first, &images.second), (rounds / 2, &images.second, &images.first)];
    for (rounds, our_image, peer_image) in halves {
        let our_server = Server::start(ours, our_image, scratch, "ours", cell.load.queues)?;
        let peer_server = Server::start(&best, peer_image, scratch, "peer", cell.load.queues)?;
        let mut our_end = Connection::new(&our_server.socket, cell.load)?;
        let mut peer_end = Connection::new(&peer_server.socket, cell.load)?;
        // One unmeasured round each: caches, pools and the kernel's workers.
        our_end.run(time / 4, 1)?;
        peer_end.run(time / 4, 1)?;
        for round in 0..rounds {
            let seed = round as u64 + 2;
            calm::wait(calm)?;
            // Whoever goes first finds the device as the other left it: take turns.
            if round % 2 == 0 {
                our_runs.push(one(&our_server, &mut our_end, time, seed)?);
                peer_runs.push(one(&peer_server, &mut peer_end, time, seed)?);
            } else {
                peer_runs.push(one(&peer_server, &mut peer_end, time, seed)?);
                our_runs.push(one(&our_server, &mut our_end, time, seed)?);
            }
        }
    }
    let ratio = |number: fn(&Run) -> f64| {
        Spread::of_pairs(&our_runs, &peer_runs, |ours, theirs| number(ours) / number(theirs))
            .ok_or_else(|| BenchError::Workload("nothing was measured: --rounds is at least 1".to_owned()))
    };
    Ok(CellReport {
        cell: cell.name(),
        place: cell.place,
        peer_mode: best.name(),
        calibration,
        iops_ratio: ratio(|r| r.iops)?,
        cpu_ratio: ratio(|r| r.cpu_us)?,
        target: matches!(best, Kind::Qemu { .. }).then_some(cell.target),
        ours: our_runs,
        peer: peer_runs,
    })
}

fn one(server: &Server, end: &mut Connection, time: Duration, seed: u64) -> Result<Run> {
    let before = server.cpu()?;
    let reached = end.run(time, seed)?;
    Ok(Run::new(&reached, server.cpu()?.saturating_sub(before)))
}

/// What each mode of the peer reached, in requests a second, the best first.
type Calibration = Vec<(String, f64)>;

/// Which mode of the peer is fastest for this cell. A mode that does not start on this file is left out.
fn calibrate(
    cell: &Cell,
    peers: &[Kind],
    image: &Path,
    scratch: &Path,
    time: Duration,
) -> Result<(Kind, Calibration)> {
    let (mut reached, mut refused) = (Vec::new(), Vec::new());
    for kind in peers {
        let run = || -> Result<f64> {
            let server = Server::start(kind, image, scratch, "calibrate", cell.load.queues)?;
            let mut end = Connection::new(&server.socket, cell.load)?;
            end.run(time / 4, 1)?;
            Ok(one(&server, &mut end, time, 2)?.iops)
        };
        match run() {
            Ok(iops) => reached.push((iops, kind)),
            Err(error) => refused.push(format!("{}: {error}", kind.name())),
        }
    }
    reached.sort_by(|a, b| b.0.total_cmp(&a.0));
    let Some((_, best)) = reached.first() else {
        return Err(format!("the peer works in no mode: {}", refused.join("; ")).into());
    };
    Ok(((*best).clone(), reached.iter().map(|(iops, kind)| (kind.name(), *iops)).collect()))
}

/// A directory that goes away.
struct Scratch(PathBuf);

impl Scratch {
    fn new(root: &Path) -> std::io::Result<Self> {
        let path = std::path::absolute(root)?.join(format!("afterimage-bench.{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
