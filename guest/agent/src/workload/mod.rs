//! Workloads that no packaged program offers: filebench's personalities.
//!
//! ```text
//!   workload-prepare (on the host, into a folder that becomes a file system) ─► the files that exist at the start
//!   workload         (in the guest) threads × passes until the time is over ─► one report
//! ```
//! Both derive the file set from name, number of files and seed, so they agree without a file between them.

mod fileset;
pub mod micro;
mod personality;

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use afterimage_protocol::report::{self, Agent};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rand_distr::Gamma;

use crate::args::{invalid, Arguments};
use crate::report::Report;
use crate::sys;

use fileset::FileSet;
use personality::{Personality, Tally, Worker, IO_BYTES};

struct Plan {
    name: String,
    personality: Personality,
    directory: String,
    set: FileSet,
    seed: u64,
}

fn plan(arguments: &mut Arguments) -> io::Result<Plan> {
    let name = arguments.word("the personality")?;
    let directory = arguments.word("the directory to work in")?;
    let files = arguments.number("files")?;
    let seed = arguments.number("seed")?.unwrap_or(1);
    let personality = Personality::named(&name)
        .ok_or_else(|| invalid(format!("'{name}' is none of varmail, fileserver, webserver")))?;
    let mut shape = personality.shape();
    if let Some(files) = files {
        shape.files = u32::try_from(files).map_err(|_| invalid(format!("--files {files} is too many")))?;
    }
    let set = FileSet::open(Path::new(&directory), shape, seed)?;
    Ok(Plan { name, personality, directory, set, seed })
}

/// `workload-prepare`: makes the files that exist at the start.
pub fn prepare(mut arguments: Arguments) -> io::Result<()> {
    let plan = plan(&mut arguments)?;
    arguments.finish()?;
    plan.set.prepare(&content(plan.seed))
}

/// Shape of the sizes' gamma distribution (filebench's default).
const SIZE_GAMMA: f64 = 1.5;

/// Sizes of files, in bytes, around a mean.
fn sizes(mean: f64) -> io::Result<Gamma<f64>> {
    Gamma::new(SIZE_GAMMA, mean / SIZE_GAMMA)
        .map_err(|error| invalid(format!("files of {mean} bytes: {error}")))
}

/// Bytes that neither compress nor count as zeroes.
fn content(seed: u64) -> Vec<u8> {
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ 0x636f_6e74_656e_7421);
    let mut content = vec![0; IO_BYTES];
    random.fill_bytes(&mut content);
    content
}

/// `workload`: runs a prepared personality for a time, or until so many operations are done. The seed is
/// that of the files; `--choices` another one for what threads choose. `--sync-times`: each fsync's time, too.
pub fn run(mut arguments: Arguments) -> io::Result<()> {
    let plan = plan(&mut arguments)?;
    let seconds = arguments.number("seconds")?.unwrap_or(10);
    let operations_max = arguments.number("operations")?.unwrap_or(u64::MAX);
    let choices = arguments.number("choices")?.unwrap_or(plan.seed);
    let threads = arguments.number("threads")?.unwrap_or_else(|| plan.personality.threads()).max(1);
    let each = arguments.flag("sync-times")?;
    let report = Report::open(&mut arguments)?;
    arguments.finish()?;
    if plan.set.present() <= threads as usize {
        return Err(invalid(format!(
            "{} holds {} files, too few for {threads} threads: run workload-prepare with the same --files first",
            plan.directory,
            plan.set.present()
        )));
    }
    let log_path = Path::new(&plan.directory).join("log");
    let log = OpenOptions::new().append(true).create(true).open(log_path)?;
    let content = content(plan.seed);

    let start_ns = sys::monotonic_ns();
    let end_ns = start_ns.saturating_add(seconds.saturating_mul(1_000_000_000));
    // Of whole passes.
    let operations = AtomicU64::new(0);
    let mut total = Tally::default();
    let mut failure = None;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let mut worker = Worker {
                    set: &plan.set,
                    log: &log,
                    random: ChaCha8Rng::seed_from_u64(choices.wrapping_add((thread + 1) << 32)),
                    content: &content,
                    buffer: vec![0; IO_BYTES],
                    tally: Tally::default(),
                };
                let (personality, operations) = (plan.personality, &operations);
                scope.spawn(move || {
                    while sys::monotonic_ns() < end_ns && operations.load(Ordering::Relaxed) < operations_max
                    {
                        let before = worker.tally.operations;
                        worker.pass(personality)?;
                        operations.fetch_add(worker.tally.operations - before, Ordering::Relaxed);
                    }
                    Ok::<Tally, io::Error>(worker.tally)
                })
            })
            .collect();
        for worker in workers {
            match worker.join() {
                Ok(Ok(tally)) => total.merge(tally),
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(io::Error::other("a worker thread died")),
            }
        }
    });
    if let Some(error) = failure {
        return Err(error);
    }
    let elapsed_ns = sys::monotonic_ns() - start_ns;
    if each {
        let ns = total.fsyncs.all_ns().to_vec();
        report.say(&Agent::SyncTimes(report::SyncTimes { ns, disk_bytes: Vec::new() }))?;
    }
    report.say(&Agent::Workload(report::Workload {
        name: plan.name,
        threads,
        operations: total.operations,
        passes: total.passes,
        reads: total.reads,
        writes: total.writes,
        read_bytes: total.read_bytes,
        write_bytes: total.write_bytes,
        elapsed_ns,
        fsync: total.fsyncs.summary(),
    }))
}
