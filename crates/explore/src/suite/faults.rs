//! Planted faults: a suite that does not find them proves nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use afterimage_trace::{Layer, Recording};
use serde::{Deserialize, Serialize};

use super::cases::{RETAINED_LOG_BYTES, WINDOW};
use super::record::Recordings;
use super::workloads::{self, Workload};
use super::SuiteOptions;
use crate::campaign::{self, Limits, Progress};
use crate::check::apps::Synchronous;
use crate::fault::Fault;
use crate::judge::Class;
use crate::layers::{LayersOptions, Retain};
use crate::model::Model;
use crate::setup::{Level, Setup};
use crate::{runner, Result};

/// For each fault: in the quick suite they are found within a few seconds; more is for busy machines.
const BUDGET: Duration = Duration::from_secs(240);
/// Shared by so many draws, where it is one of many that is planted.
const DRAWS: u32 = 6;
/// A small log wraps and checkpoints in a short recording, too.
const LOG_AREA_BYTES: u64 = 64 * 4096;

/// One planted fault, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planted {
    /// Its name.
    pub name: String,
    /// What is wrong.
    pub describe: String,
    /// Whether a state was found that shows it.
    pub found: bool,
    /// States until then.
    pub states: u64,
    /// How it showed: lost or inconsistent, and the first sentence.
    pub how: String,
    /// Milliseconds until then.
    pub elapsed_ms: u64,
}

/// A mistake of one of the parties.
pub(super) enum Mistake {
    /// Of the daemon.
    Daemon(Fault),
    /// Of a guest or its program: this workload is wrong on a disk with a volatile cache.
    Guest { name: &'static str, describe: &'static str, workload: Workload },
    /// Of the disk: it tears what ext4 needs whole.
    TornBlocks(Workload),
}

/// All of a suite.
pub(super) fn all(quick: bool) -> Vec<Mistake> {
    let mut faults: Vec<Mistake> = if quick {
        [Fault::NoOrder, Fault::EarlyFlush, Fault::SkipLogSync, Fault::LoseLogTail]
            .map(Mistake::Daemon)
            .into()
    } else {
        Fault::ALL.map(Mistake::Daemon).into()
    };
    faults.extend(Fault::RETAINED.map(Mistake::Daemon));
    faults.push(Mistake::Guest {
        name: "ext4-nobarrier",
        describe: "ext4 is mounted with nobarrier: its commits are not ordered.",
        workload: workloads::records(300).mounted("nobarrier"),
    });
    faults.push(Mistake::Guest {
        name: "sqlite-synchronous-off",
        describe: "SQLite commits with synchronous=OFF: it never syncs.",
        workload: workloads::sqlite(30, Synchronous::Off),
    });
    faults.push(Mistake::Guest {
        name: "editor-no-fsync",
        describe: "An editor renames its new file without having synced it (ext4 with noauto_da_alloc).",
        workload: workloads::editor(25, false).mounted("noauto_da_alloc"),
    });
    faults.push(Mistake::TornBlocks(workloads::records(300)));
    faults
}

impl Mistake {
    pub fn name(&self) -> &str {
        match self {
            Self::Daemon(fault) => fault.name(),
            Self::Guest { name, .. } => name,
            Self::TornBlocks(_) => "torn-blocks",
        }
    }

    fn describe(&self) -> &str {
        match self {
            Self::Daemon(fault) => fault.describe(),
            Self::Guest { describe, .. } => describe,
            Self::TornBlocks(_) => {
                "A disk tears 4 KiB blocks, which ext4 needs whole before Linux 6.10; only a redo log helps there."
            }
        }
    }

    fn is_shown_by(&self, what: &str) -> bool {
        match self {
            Self::Daemon(fault) => fault.is_shown_by(what),
            Self::Guest { .. } | Self::TornBlocks(_) => true,
        }
    }

    /// How often it is drawn. Where it is one of many that are alike (a sync that is skipped), that one may show in no state: a record that
    /// followed it may have been made just before the sync's end was known, and say nothing of it. Then another one is drawn.
    fn draws(&self) -> u32 {
        match self {
            Self::Daemon(Fault::SkipImageSync | Fault::SkipLogSync) => DRAWS,
            _ => 1,
        }
    }

    /// Looks for a state that shows it.
    pub fn hunt(
        &self,
        options: &SuiteOptions,
        recordings: &mut Recordings,
        stop: &AtomicBool,
    ) -> Result<Planted> {
        let mut planted = self.hunt_one(options, options.seed, recordings, stop)?;
        for draw in 1..self.draws() {
            if planted.found || stop.load(Ordering::Relaxed) {
                break;
            }
            let Planted { states, elapsed_ms, .. } = planted;
            planted = self.hunt_one(options, options.seed + u64::from(draw), recordings, stop)?;
            planted.states += states;
            planted.elapsed_ms += elapsed_ms;
        }
        Ok(planted)
    }

    fn hunt_one(
        &self,
        options: &SuiteOptions,
        seed: u64,
        recordings: &mut Recordings,
        stop: &AtomicBool,
    ) -> Result<Planted> {
        let (recording, setup) = self.plant(seed, recordings)?;
        let subject = setup.subject(&recording)?;
        let tools = setup.tools(&recording, options.jobs)?;
        let time = BUDGET / self.draws();
        let limits = Limits { time, states: None, jobs: options.jobs, in_all: true, first_only: true };
        let checkers = |_worker: usize| tools.checkers();
        let progress =
            campaign::run(&subject, &limits, &checkers, Progress::default(), stop, &mut |_: &Progress| ())?;
        let first = progress.failures.first();
        // Shown again, by one worker with nothing remembered: what was found must be a property of the state.
        let mut evaluator = runner::evaluator(&subject, &checkers)?;
        let again = first
            .map(|f| campaign::again(&subject, &mut evaluator, f.cut_event, f.crash_event, &f.choice))
            .transpose()?;
        let how = again.as_ref().and_then(|verdict| {
            let problem = verdict.problem.as_ref().filter(|problem| self.is_shown_by(&problem.what))?;
            let class = if verdict.class == Class::Lost { "lost" } else { "inconsistent" };
            Some(format!("{class}: {}: {}", problem.check, problem.what))
        });
        Ok(Planted {
            name: self.name().to_owned(),
            describe: self.describe().to_owned(),
            found: how.is_some(),
            states: progress.tally.states(),
            how: how.unwrap_or_default(),
            elapsed_ms: progress.elapsed.as_millis() as u64,
        })
    }

    fn plant(&self, seed: u64, recordings: &mut Recordings) -> Result<(Arc<Recording>, Setup)> {
        match self {
            Self::TornBlocks(workload) => {
                let recording = recordings.get(workload, "power")?;
                let setup = Setup { seed, atomic_bytes: 512, ..Setup::of(&recording)? };
                Ok((recording, setup))
            }
            Self::Guest { workload, .. } => {
                let recording = recordings.get(workload, "power")?;
                let setup = Setup { seed, ..Setup::of(&recording)? };
                Ok((recording, setup))
            }
            Self::Daemon(fault) => {
                let source = recordings
                    .get(&workloads::records(300), if fault.breaks_power() { "power" } else { WINDOW })?;
                let retained = Fault::RETAINED.contains(fault);
                let layers = LayersOptions {
                    log_area_bytes: if retained { RETAINED_LOG_BYTES } else { LOG_AREA_BYTES },
                    retain: retained.then(Retain::default),
                    seed,
                    window: Duration::from_millis(20),
                    ..LayersOptions::default()
                };
                let planted = fault.plant(&source, &layers)?;
                let recording = planted.recording;
                let setup = Setup {
                    layer: Layer::Storage,
                    model: Model::Disk,
                    level: if retained { Level::Log } else { Level::Mount },
                    lose_records: planted.recovery.lose_records,
                    seed,
                    ..Setup::of(&recording)?
                };
                Ok((Arc::new(recording), setup))
            }
        }
    }
}
