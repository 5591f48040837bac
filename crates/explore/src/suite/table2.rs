//! vDrive's two case studies (§ 6.3, Table 2): an editor's atomic save, and one transaction of SQLite, at crash points.
//!
//! The paper takes 10 and 30 crash points, *nested* (both file systems journal and flush) and under vDrive. Here `power` is
//! what nested journaling promises, and `power-window` what vDrive does; on models ([`SuiteOptions::case_on_models`]) `power` also waits as long
//! as nested journaling does. Points are drawn as crashes happen: at moments spread evenly over the run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afterimage_trace::Recording;
use serde::{Deserialize, Serialize};

use super::record::Recordings;
use super::workloads::{self, Workload};
use super::{folder, Listener, SuiteOptions};
use crate::campaign::{Limits, Progress};
use crate::check::apps::{App, Synchronous};
use crate::record::ModelledHost;
use crate::report::Report;
use crate::runner::{explore, Request};
use crate::schedule::Picking;
use crate::setup::Setup;
use crate::Result;

/// A row and its counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The contract.
    pub contract: String,
    /// Image and log lie on models, in virtual time: of the paper's disk, and of a host's ext4.
    pub on_models: bool,
    /// Crash points.
    pub points: u64,
    /// Points that left the state before.
    pub old: u64,
    /// Points that left the state after.
    pub new: u64,
    /// Points that broke a promise.
    pub broken: u64,
    /// The greatest age of what was found, in milliseconds.
    pub stale_ms_max: f64,
    /// The paper's old and new, where it has this row.
    pub paper: Option<(u64, u64)>,
}

/// One application.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaseStudy {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub rows: Vec<Row>,
}

/// The daemon's usual window.
const WINDOW: &str = "power-window=50ms";

pub(super) struct Study {
    name: &'static str,
    workload: Workload,
    old: &'static str,
    points: u64,
    nested: (u64, u64),
    vdrive: (u64, u64),
}

/// Two windows.
const IDLE_S: f64 = 0.1;

/// Before and after the save nothing is done, for two windows: the crash may come then, too.
fn idle_around(workload: Workload, old: &str) -> Workload {
    let App { name, setup, command, check } = workload.app;
    let command = format!(
        "\"$AFTERIMAGE_AGENT\" say '{{\"mark\":\"{old}\"}}'\nsleep {IDLE_S}\n{command}sleep {IDLE_S}\n"
    );
    let name = format!("{name} once");
    Workload { name: name.clone(), app: App { name, setup, command, check }, ..workload }
}

/// Those of the suite.
pub(super) fn studies(options: &SuiteOptions) -> Vec<Study> {
    let all = if options.case_states > 0 { all() } else { Vec::new() };
    all.into_iter().filter(|study| options.wants(study.name)).collect()
}

fn all() -> Vec<Study> {
    vec![
        Study {
            name: "editor, one save",
            workload: idle_around(workloads::editor(1, true), "v0"),
            old: "v0",
            points: 10,
            nested: (3, 7),
            vdrive: (5, 5),
        },
        Study {
            name: "SQLite, one transaction",
            workload: idle_around(workloads::sqlite(1, Synchronous::Extra), "t0"),
            old: "t0",
            points: 30,
            nested: (12, 18),
            vdrive: (21, 9),
        },
    ]
}

pub(super) fn run(
    options: &SuiteOptions,
    studies: &[Study],
    recordings: &mut Recordings,
    stop: &AtomicBool,
    listener: &mut dyn Listener,
) -> Result<Vec<CaseStudy>> {
    let nested = ModelledHost { device: "hdd10k".to_owned(), file_system: "ordered".to_owned() };
    let hosts = [None, Some(&nested)];
    let hosts = &hosts[..if options.case_on_models { 2 } else { 1 }];
    let mut found = Vec::new();
    for study in studies {
        let mut rows = Vec::new();
        for host in hosts {
            for (contract, paper) in [("power", study.nested), (WINDOW, study.vdrive)] {
                for (points, paper) in [(study.points, Some(paper)), (options.case_states, None)] {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(found);
                    }
                    let recording = recordings.get_on(&study.workload, contract, *host)?;
                    let below = if host.is_some() { " on models" } else { "" };
                    let name = format!("{} {contract}{below} {points}", study.name);
                    let report = at_points(options, &name, &recording, points, stop, listener)?;
                    let tally = &report.progress.tally;
                    let old = tally.by_state.get(study.old).copied().unwrap_or_default();
                    rows.push(Row {
                        contract: contract.to_owned(),
                        on_models: host.is_some(),
                        points: tally.states(),
                        old,
                        new: tally.by_state.values().sum::<u64>() - old,
                        broken: tally.violations(),
                        stale_ms_max: tally.stale_ms_max,
                        paper,
                    });
                    listener.report(&report);
                }
            }
        }
        found.push(CaseStudy { name: study.name.to_owned(), rows });
    }
    Ok(found)
}

/// What so many crash points leave of a recording.
fn at_points(
    options: &SuiteOptions,
    name: &str,
    recording: &Recording,
    points: u64,
    stop: &AtomicBool,
    listener: &mut dyn Listener,
) -> Result<Report> {
    listener.begin(name);
    let setup = Setup { picking: Picking::Moments, seed: options.seed, ..Setup::of(recording)? };
    let tools = setup.tools(recording, options.jobs)?;
    let checkers = |_worker: usize| tools.checkers();
    // The number of points is the limit; the time only ends what hangs.
    let time = Duration::from_secs(3600);
    let limits = Limits { time, states: Some(points), jobs: options.jobs, in_all: true, first_only: false };
    let out = folder(&options.out, name);
    let request = Request { name, recording, setup: &setup, limits, out: Some(&out), resume: options.resume };
    let mut tell = |p: &Progress| listener.progress(p, time, Some(points));
    let explored = explore(&request, &checkers, stop, &mut tell)?;
    Ok(Report { guests: tools.pool(), ..explored })
}
