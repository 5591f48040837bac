//! Runs in parallel, with progress on a terminal; Ctrl-C keeps what is finished.

use std::io::IsTerminal;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::drive::Source;
use super::CliError;
use crate::config::{Config, FtlKind};
use crate::control::{Control, RunError};
use crate::place::RunOptions;
use crate::report::Report;
use crate::scan::Scan;
use crate::sim;
use crate::trace::{Options, Prefetch};
use afterimage_report::number::thousands;

/// One FTL with one set of parameters on one trace.
pub struct Job<'a> {
    pub ftl: FtlKind,
    pub config: Config,
    pub source: &'a Source,
    pub scan: &'a Scan,
}

/// What became of the jobs, in their order.
pub struct Outcome {
    /// `None`: not finished.
    pub reports: Vec<Option<Result<Report, RunError>>>,
    /// Ctrl-C was pressed, or another signal asked for the end.
    pub interrupted: bool,
}

/// What stops everything.
pub fn control() -> Result<Control, CliError> {
    let control = Control::default();
    let install = |e: std::io::Error| CliError::Failed(format!("cannot watch for signals: {e}"));
    // The second one ends the program at once.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&control.stop))
            .map_err(install)?;
        signal_hook::flag::register(signal, Arc::clone(&control.stop)).map_err(install)?;
    }
    Ok(control)
}

/// The first pass over a trace.
pub fn scan(config: &Config, source: &Source, read: &Options, control: &Control) -> Result<Scan, CliError> {
    // What a pipe gives is gone when it is read again; one without a writer would be waited for.
    let is_pipe = |file: &&PathBuf| std::fs::metadata(file).is_ok_and(|found| found.file_type().is_fifo());
    if let Some(pipe) = source.files.iter().find(is_pipe) {
        return Err(CliError::Failed(format!(
            "the trace {} is a pipe, and a trace is read twice: write it to a file first",
            pipe.display()
        )));
    }
    let trace = Prefetch::open(&source.files, read).map_err(RunError::from)?;
    let line = || {
        let requests = thousands(control.scanned.load(Ordering::Relaxed));
        format!("first pass over {}: {requests} requests", source.name)
    };
    Ok(watched(line, || Scan::trace(config.geometry, trace, control))?)
}

/// Does something, and meanwhile shows a changing line if stderr is a terminal.
fn watched<T>(line: impl Fn() -> String + Sync, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    /// Ends the watch also when the work panics; the scope would wait for ever otherwise.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                eprint!("\r\x1b[K{}", line());
                std::thread::sleep(Duration::from_millis(100));
            }
            eprint!("\r\x1b[K");
        });
        let _done = Done(&done);
        work()
    })
}

/// Runs all jobs on `workers` threads.
pub fn run(
    jobs: &[Job<'_>],
    workers: usize,
    read: &Options,
    options: &RunOptions,
    control: &Control,
) -> Outcome {
    let reports: Vec<Mutex<Option<Result<Report, RunError>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let total: u64 = jobs.iter().map(|j| j.scan.traffic.requests()).sum();
    let worker = || {
        while !control.stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(number) else { break };
            let result = one(job, read, options, control);
            if !matches!(result, Err(RunError::Interrupted)) {
                finished.fetch_add(1, Ordering::Relaxed);
                *lock(&reports[number]) = Some(result);
            }
        }
    };
    let line =
        || bar(control.served.load(Ordering::Relaxed), total, finished.load(Ordering::Relaxed), jobs.len());
    watched(line, || {
        std::thread::scope(|scope| {
            // A panic is a defect of the simulator: the scope waits for the others and passes it on.
            (0..workers.clamp(1, jobs.len().max(1))).for_each(|_| drop(scope.spawn(worker)));
        });
    });
    let reports = reports.iter().map(|slot| lock(slot).take()).collect();
    Outcome { reports, interrupted: control.stop.load(Ordering::Relaxed) }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn one(job: &Job<'_>, read: &Options, options: &RunOptions, control: &Control) -> Result<Report, RunError> {
    let trace = Prefetch::open(&job.source.files, read)?;
    let mut report = sim::run(&job.config, job.ftl, job.scan, trace, options, control)?;
    report.trace.clone_from(&job.source.name);
    Ok(report)
}

fn bar(served: u64, total: u64, finished: usize, jobs: usize) -> String {
    let share = if total == 0 { 0.0 } else { (served as f64 / total as f64).min(1.0) };
    let filled = (share * 30.0) as usize;
    format!(
        "[{}{}] {:3.0} %  {finished} of {jobs} runs, {} requests",
        "#".repeat(filled),
        ".".repeat(30 - filled),
        share * 100.0,
        thousands(served)
    )
}

/// As many as the machine has processors.
pub fn default_workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Ends a command whose runs may have failed or been interrupted; the finished ones have been shown.
pub fn verdict(outcome: Outcome) -> Result<(), CliError> {
    let jobs = outcome.reports.len();
    let finished = outcome.reports.iter().filter(|r| matches!(r, Some(Ok(_)))).count();
    let failed = outcome.reports.into_iter().flatten().find_map(Result::err);
    match failed {
        Some(error) if jobs == 1 || matches!(error, RunError::Config(_)) => Err(error.into()),
        Some(error) => {
            Err(CliError::Failed(format!("{finished} of {jobs} runs finished; the first failure: {error}")))
        }
        None if outcome.interrupted && finished < jobs => {
            Err(CliError::Failed(format!("interrupted; {finished} of {jobs} runs finished and are shown")))
        }
        None => Ok(()),
    }
}
