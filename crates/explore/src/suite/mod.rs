//! The suites: every contract under real workloads, and the proof that a suite can fail.
//!
//! ```text
//!   workloads ─► recordings (once each) ─► campaigns, each with its share of the budget ─► nothing may be broken
//!                                      └► planted faults ─► each must be found
//!                                      └► vDrive's two case studies ─► Table 2
//! ```

mod cases;
mod faults;
mod record;
mod summary;
mod table2;
mod workloads;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use afterimage_trace::Recording;

pub use cases::{cases, Case};
pub use faults::Planted;
pub use summary::Summary;
pub use table2::{CaseStudy, Row};
pub use workloads::Workload;

use crate::campaign::{Limits, Progress};
use crate::check::pool::CHECK_TIMEOUT;
use crate::derive;
use crate::report::Report;
use crate::retained::{DeathOptions, Deaths};
use crate::runner::{explore, Request};
use crate::{ExploreError, Result};
use record::Recordings;

/// Each death costs an e2fsck twice and three mounts, and the first one a guest.
const DEATHS_MIN: Duration = Duration::from_secs(10);

/// What a suite is to be.
#[derive(Clone, Debug)]
pub struct SuiteOptions {
    /// The short suite.
    pub quick: bool,
    /// For the campaigns in all.
    pub budget: Duration,
    /// Seed of all draws.
    pub seed: u64,
    /// Workers.
    pub jobs: usize,
    /// Where recordings, progress and failures go.
    pub out: PathBuf,
    /// Go on with what is there.
    pub resume: bool,
    /// Only campaigns, faults and case studies whose name contains this.
    pub only: Option<String>,
    /// States of each case study, in the long suite; 0: none.
    pub case_states: u64,
    /// Case studies come again in virtual time, on models of the paper's disk and of a host's ext4 on it.
    pub case_on_models: bool,
}

impl SuiteOptions {
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

/// Told of what is going on.
pub trait Listener {
    /// Something begins.
    fn begin(&mut self, what: &str);
    /// A campaign goes on.
    fn progress(&mut self, progress: &Progress, budget: Duration, states: Option<u64>);
    /// A campaign has ended.
    fn report(&mut self, report: &Report);
    /// A planted fault was found, or not.
    fn fault(&mut self, fault: &Planted);
}

/// Runs a suite. What it found is in the summary; see [`Summary::passed`].
///
/// # Errors
/// The suite cannot be run, or has nothing of the name that it is to be limited to.
pub fn run(options: &SuiteOptions, stop: &AtomicBool, listener: &mut dyn Listener) -> Result<Summary> {
    let begin = Instant::now();
    // What is explored is linked into this very program.
    afterimage_lab::locate::product()?;
    let cases: Vec<Case> =
        cases(options.quick).into_iter().filter(|case| options.wants(&case.name)).collect();
    let faults: Vec<_> =
        faults::all(options.quick).into_iter().filter(|fault| options.wants(fault.name())).collect();
    let studies = table2::studies(options);
    if cases.is_empty() && faults.is_empty() && studies.is_empty() {
        return Err(ExploreError::Usage(format!(
            "--only {}: no campaign, planted fault or case study of this suite has that in its name (the report of a suite \
             without --only names them all)",
            options.only.as_deref().unwrap_or_default()
        )));
    }
    std::fs::create_dir_all(&options.out)
        .map_err(ExploreError::io(format!("cannot make {}", options.out.display())))?;
    let stopped = || stop.load(Ordering::Relaxed);
    let mut recordings = Recordings::new(&options.out, options.resume);
    let mut summary = Summary { seed: options.seed, quick: options.quick, ..Summary::default() };
    let shares: u32 = cases.iter().map(|case| case.share).sum();
    for case in cases.iter().take_while(|_| !stopped()) {
        let time = options.budget * case.share / shares.max(1);
        let report = run_case(options, case, time, &mut recordings, stop, listener)?;
        listener.report(&report);
        summary.reports.push(report);
    }
    for fault in faults.iter().take_while(|_| !stopped()) {
        listener.begin(&format!("planted fault {}", fault.name()));
        let found = fault.hunt(options, &mut recordings, stop)?;
        listener.fault(&found);
        summary.faults.push(found);
    }
    summary.case_studies = table2::run(options, &studies, &mut recordings, stop, listener)?;
    summary.interrupted = stopped();
    summary.elapsed = begin.elapsed();
    Ok(summary)
}

fn run_case(
    options: &SuiteOptions,
    case: &Case,
    time: Duration,
    recordings: &mut Recordings,
    stop: &AtomicBool,
    listener: &mut dyn Listener,
) -> Result<Report> {
    listener.begin(&case.name);
    let recording = recordings.get(&case.workload, case.recorded_under)?;
    if let Some(points) = case.deaths {
        let how = DeathOptions { seed: options.seed, points, ..DeathOptions::default() };
        let (level, time) = (case.level, time.max(DEATHS_MIN));
        let deaths = Deaths {
            name: &case.name,
            recording: &recording,
            how,
            level,
            check: None,
            first_only: false,
            check_timeout: CHECK_TIMEOUT,
            time,
            out: None,
        };
        return deaths.run(stop);
    }
    let derived: Option<Recording> = match case.derived {
        None => None,
        Some(derived) => {
            let area_bytes = derived.log_area_bytes;
            Some(derive::under(&recording, derived.contract, derived.retain, area_bytes, options.seed)?)
        }
    };
    let recording: &Recording = derived.as_ref().unwrap_or(&recording);
    let setup = case.setup(recording, options.seed)?;
    let limits =
        Limits { time, states: case.states_max, jobs: options.jobs, in_all: true, first_only: false };
    let out = folder(&options.out, &case.name);
    let tools = setup.tools(recording, options.jobs)?;
    let checkers = |_worker: usize| tools.checkers();
    let request = Request {
        name: &case.name,
        recording,
        setup: &setup,
        limits,
        out: Some(&out),
        resume: options.resume,
    };
    let mut tell = |p: &Progress| listener.progress(p, time, case.states_max);
    let report = explore(&request, &checkers, stop, &mut tell)?;
    // What the guests have done is known only now.
    Ok(Report { guests: tools.pool(), known: case.known.clone(), ..report })
}

fn folder(out: &Path, name: &str) -> PathBuf {
    out.join(name.replace([' ', '/', '='], "-"))
}
