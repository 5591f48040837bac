//! One campaign from a recording to its report: resumable, with the first failure minimised and saved.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_trace::Recording;
use serde::{Deserialize, Serialize};

use crate::campaign::{self, Limits, MakeCheckers, Progress, Subject, Tell};
use crate::evaluate::{Evaluator, Known};
use crate::hash::mix;
use crate::minimise::{minimise, Minimised};
use crate::report::Report;
use crate::schedule::Schedule;
use crate::setup::Setup;
use crate::{saved, ExploreError, Result};

/// One campaign.
pub struct Request<'a> {
    /// What it is called.
    pub name: &'a str,
    /// What is explored.
    pub recording: &'a Recording,
    /// How.
    pub setup: &'a Setup,
    /// When to stop.
    pub limits: Limits,
    /// Where progress and failures go.
    pub out: Option<&'a Path>,
    /// Go on from the progress that is there.
    pub resume: bool,
}

/// `progress.json`.
#[derive(Serialize, Deserialize)]
struct SavedProgress {
    setup: Setup,
    recording: u64,
    progress: Progress,
}

/// How long a failure is minimised at most.
const MINIMISE: Duration = Duration::from_secs(30);
/// How often progress is written.
const SAVE: Duration = Duration::from_secs(5);

/// Runs a campaign. A violation is no error: see [`Report::holds`].
///
/// # Errors
/// The campaign cannot be run.
pub fn explore(
    request: &Request<'_>,
    make_checkers: &MakeCheckers<'_>,
    stop: &AtomicBool,
    tell: &mut Tell<'_>,
) -> Result<Report> {
    let subject = request.setup.subject(request.recording)?;
    let identity = identity(&subject);
    let from = match (request.resume, request.out) {
        (true, Some(out)) => load_progress(out, request.setup, identity)?,
        _ => Progress::default(),
    };
    let mut written = Duration::ZERO;
    let mut newest = Progress::default();
    let mut keep_and_tell = |progress: &Progress| {
        newest = progress.clone();
        if let Some(out) = request.out {
            if progress.elapsed.saturating_sub(written) >= SAVE {
                written = progress.elapsed;
                if let Err(error) = save_progress(out, request.setup, identity, progress) {
                    tracing::warn!(%error, "progress is not saved");
                }
            }
        }
        tell(progress);
    };
    let outcome = campaign::run(&subject, &request.limits, make_checkers, from, stop, &mut keep_and_tell);
    // What was found before a checker failed is no less found.
    let saved = match request.out {
        Some(out) if outcome.is_ok() || newest.done > 0 => {
            save_progress(out, request.setup, identity, &newest)
        }
        _ => Ok(()),
    };
    let progress = outcome.map_err(|error| broken_off(error, &newest))?;
    saved?;
    let mut report = Report {
        name: request.name.to_owned(),
        setup: request.setup.clone(),
        cuts: subject.cuts.len(),
        all_states: Schedule::new(&subject.stream, &subject.cuts, subject.picking, subject.seed).all_states(),
        jobs: request.limits.jobs,
        progress,
        guests: None,
        known: None,
        saved: None,
        minimised: None,
    };
    if let Some(first) = report.progress.failures.first().cloned() {
        // The campaign's time is over: this has as much again, and not for long.
        let time = request.limits.time.clamp(campaign::FIRST_STATES, MINIMISE);
        let until = Some(Instant::now() + time);
        let found = match evaluator_until(&subject, make_checkers, until) {
            Err(ExploreError::OutOfTime) => Minimised { failure: first, is_minimal: false, tries: 0 },
            evaluator => minimise(&subject, &mut evaluator?, &first)?,
        };
        if let Some(out) = request.out {
            let folder = out.join("failure");
            saved::save(
                &folder,
                request.recording,
                &subject,
                request.setup,
                &found.failure,
                found.is_minimal,
            )?;
            report.saved = Some(folder);
        }
        report.minimised = Some(found.failure);
    } else if let Some(out) = request.out {
        // Of an earlier campaign: nobody shall take it for one of this.
        saved::remove(&out.join("failure"))?;
    }
    Ok(report)
}

/// Why a campaign ended early, and what it had found until then.
fn broken_off(error: ExploreError, progress: &Progress) -> ExploreError {
    let problems = progress.failures.iter().filter_map(|failure| failure.verdict.problem.as_ref());
    let found: Vec<String> = problems.map(|problem| format!("{}: {}", problem.check, problem.what)).collect();
    match found.is_empty() {
        true => error,
        false => ExploreError::Found { found: found.join("; "), source: Box::new(error) },
    }
}

/// An evaluator that knows nothing yet but which checks name states.
///
/// # Errors
/// A checker could not be made.
pub fn evaluator(subject: &Subject, make_checkers: &MakeCheckers<'_>) -> Result<Evaluator> {
    evaluator_until(subject, make_checkers, None)
}

fn evaluator_until(
    subject: &Subject,
    make_checkers: &MakeCheckers<'_>,
    until: Option<Instant>,
) -> Result<Evaluator> {
    let known = Arc::new(Known::default());
    let judge = Arc::new(campaign::judge(subject, &known, make_checkers, until)?);
    let mut evaluator = Evaluator::new(known, subject.own.clone(), judge, make_checkers(0)?);
    evaluator.give_up_at(until);
    Ok(evaluator)
}

/// Tells streams apart: a campaign must not go on with another recording.
fn identity(subject: &Subject) -> u64 {
    subject.stream.writes.iter().fold(subject.cuts.len() as u64, |id, write| {
        let content = write.sectors.iter().fold(0, |all, sector| mix(all ^ sector.hash() as u64));
        mix(id ^ mix(write.first) ^ mix(write.submitted as u64) ^ content)
    })
}

fn load_progress(out: &Path, setup: &Setup, recording: u64) -> Result<Progress> {
    let path = out.join("progress.json");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Progress::default()),
        Err(e) => return Err(ExploreError::io(format!("cannot read {}", path.display()))(e)),
    };
    let found: SavedProgress = serde_json::from_str(&text)
        .map_err(|e| ExploreError::Corrupt(format!("{} is damaged ({e}): remove it", path.display())))?;
    if found.setup != *setup || found.recording != recording {
        return Err(ExploreError::Usage(format!(
            "{} is the progress of another campaign (recording, seed or options differ): choose another --out, or leave \
             --resume out",
            path.display()
        )));
    }
    Ok(found.progress)
}

fn save_progress(out: &Path, setup: &Setup, recording: u64, progress: &Progress) -> Result<()> {
    let path = out.join("progress.json");
    let draft = out.join("progress.json.new");
    let saved = SavedProgress { setup: setup.clone(), recording, progress: progress.clone() };
    let text = serde_json::to_string(&saved).map_err(|e| ExploreError::Corrupt(e.to_string()))?;
    fs::create_dir_all(out)
        .and_then(|()| fs::write(&draft, text))
        .and_then(|()| fs::rename(&draft, &path))
        .map_err(ExploreError::io(format!("cannot write {}", path.display())))
}
