//! Looks at the states of one stream: in parallel, within a budget, interruptible, and so that a seed is a result.
//!
//! Workers take chunks of the schedule in order and return what they counted; chunks are merged in order. So counts and
//! first failures do not depend on the number of workers, and what was merged is a point from which to go on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::check::Checker;
use crate::evaluate::{Evaluator, Known};
use crate::judge::{Class, Expectation, Judge, Problem, Verdict};
use crate::model::{Choice, Cut};
use crate::own::OwnRecovery;
use crate::schedule::{Item, Picking, Schedule};
use crate::stream::Stream;
use crate::tally::Tally;
use crate::{ExploreError, Result};

/// States in one piece of work: few, so that slow checks stop near the end of their budget.
const CHUNK: usize = 8;
/// What there is for the first few states, whatever the time.
pub const FIRST_STATES: Duration = Duration::from_secs(5);
/// States that are told apart at most; later ones count as new.
const SEEN_MAX: usize = 4 << 20;
/// Failures that are kept; one of each kind.
pub(crate) const FAILURES_MAX: usize = 8;
/// How often progress is told and saved.
const TELL: Duration = Duration::from_millis(500);

/// What is looked at.
pub struct Subject {
    /// The stream.
    pub stream: Stream,
    /// Its cuts.
    pub cuts: Vec<Cut>,
    /// The daemon's own recovery, where the stream is one of a redo log.
    pub own: Option<Arc<dyn OwnRecovery>>,
    /// How states are picked.
    pub picking: Picking,
    /// Of all draws.
    pub seed: u64,
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// After this long, also in the middle of a check; whatever the time, each worker's first few states are looked at where none were before and
    /// their checks are quick ([`FIRST_STATES`]).
    pub time: Duration,
    /// After this many states.
    pub states: Option<u64>,
    /// Both count what was done before a campaign was resumed, too. So a suite that was interrupted comes to the same end; who
    /// resumes a campaign by hand gives it another budget.
    pub in_all: bool,
    /// Workers.
    pub jobs: usize,
    /// After the first violation.
    pub first_only: bool,
}

/// A state that breaks a promise.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The event that does not happen any more at its cut.
    pub cut_event: usize,
    /// The event of the crash.
    pub crash_event: usize,
    /// What is lost.
    pub choice: Choice,
    /// What is wrong.
    pub verdict: Verdict,
}

/// How far a campaign has come: all that is needed to go on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// States of the schedule that are counted.
    pub done: u64,
    /// The counts.
    pub tally: Tally,
    /// The first violation of each kind.
    pub failures: Vec<Failure>,
    /// Why a state was not judged: the first one's reason.
    #[serde(default)]
    pub not_judged: Option<Problem>,
    /// Time spent.
    pub elapsed: Duration,
    /// There are no more states.
    pub exhausted: bool,
}

/// Makes one worker's checkers.
pub type MakeCheckers<'a> = dyn Fn(usize) -> Result<Vec<Box<dyn Checker>>> + Sync + 'a;
/// Told of progress about twice a second.
pub type Tell<'a> = dyn FnMut(&Progress) + 'a;

struct Merge {
    progress: Progress,
    /// States that were met, and the worst that each was.
    seen: FxHashMap<u64, Class>,
    /// A chunk was given up in its middle: what comes behind it counts, and is looked at again after `--resume`.
    has_gap: bool,
    /// Chunks that came before an earlier one.
    early: BTreeMap<u64, Chunk>,
    next: u64,
}

#[derive(Default)]
struct Chunk {
    tally: Tally,
    states: Vec<(u64, Class)>,
    is_whole: bool,
    failures: Vec<Failure>,
    not_judged: Option<Problem>,
}

struct Source<'a> {
    schedule: Schedule<'a>,
    chunk: u64,
    left: u64,
    exhausted: bool,
}

/// Runs a campaign, from the beginning or from where an earlier one stopped. `stop` ends it early, in order.
///
/// # Errors
/// A checker could not be made, or could not do its work.
pub fn run(
    subject: &Subject,
    limits: &Limits,
    make_checkers: &MakeCheckers<'_>,
    from: Progress,
    stop: &AtomicBool,
    tell: &mut Tell<'_>,
) -> Result<Progress> {
    let begin = Instant::now();
    // Where it begins: who shows what is to go has to know.
    tell(&from);
    let spent = from.elapsed;
    let mut schedule = Schedule::new(&subject.stream, &subject.cuts, subject.picking, subject.seed);
    schedule.leave_out(from.done);
    let (time_before, states_before) = if limits.in_all { (spent, from.done) } else { Default::default() };
    let left = limits.states.map_or(u64::MAX, |max| max.saturating_sub(states_before));
    // The first guest may take longer to boot than there is time, and a campaign of no state proves nothing.
    let is_new = from.done == 0;
    let source = Mutex::new(Source { schedule, chunk: 0, left, exhausted: false });
    let merge = Mutex::new(Merge {
        progress: from,
        seen: FxHashMap::default(),
        has_gap: false,
        early: BTreeMap::new(),
        next: 0,
    });
    let known = Arc::new(Known::default());
    let until = begin.checked_add(limits.time.saturating_sub(time_before));
    let first = |until: Option<Instant>| until.map(|until| until.max(Instant::now() + FIRST_STATES));
    let judge = match judge(subject, &known, make_checkers, if is_new { first(until) } else { until }) {
        Err(ExploreError::OutOfTime) => {
            let mut progress = merge.into_inner().progress;
            progress.elapsed = spent + begin.elapsed();
            tell(&progress);
            return Ok(progress);
        }
        judge => Arc::new(judge?),
    };
    let until = if is_new { first(until) } else { until };
    let enough = AtomicBool::new(false);
    let halt = || stop.load(Ordering::Relaxed) || enough.load(Ordering::Relaxed);
    let outcome: Result<()> = std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for worker in 0..limits.jobs.max(1) {
            let (source, merge, known, judge, enough) = (&source, &merge, &known, &judge, &enough);
            workers.push(scope.spawn(move || -> Result<()> {
                let run = || -> Result<()> {
                    let own = subject.own.clone();
                    let checkers = make_checkers(worker)?;
                    let mut evaluator = Evaluator::new(Arc::clone(known), own, Arc::clone(judge), checkers);
                    evaluator.give_up_at(until);
                    let mut is_first = is_new;
                    while !halt() && (is_first || time_before + begin.elapsed() < limits.time) {
                        is_first = false;
                        let (number, items) = take(&mut source.lock());
                        if items.is_empty() {
                            break;
                        }
                        let chunk = work(subject, &mut evaluator, &items)?;
                        if limits.first_only && !chunk.failures.is_empty() {
                            enough.store(true, Ordering::Relaxed);
                        }
                        let is_whole = chunk.is_whole;
                        merge.lock().put(number, chunk);
                        if !is_whole {
                            break;
                        }
                    }
                    Ok(())
                };
                let result = run();
                if result.is_err() {
                    enough.store(true, Ordering::Relaxed);
                }
                result
            }));
        }
        let mut told = Instant::now();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(5));
            if told.elapsed() >= TELL {
                told = Instant::now();
                let mut progress = merge.lock().progress.clone();
                progress.elapsed = spent + begin.elapsed();
                tell(&progress);
            }
        }
        for worker in workers {
            match worker.join() {
                Ok(result) => result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    });
    if outcome.is_err() {
        // What was found until then is kept.
        let mut progress = merge.lock().progress.clone();
        progress.elapsed = spent + begin.elapsed();
        tell(&progress);
    }
    outcome?;
    let mut merge = merge.into_inner();
    // Chunks behind one that was given up at the end.
    for chunk in std::mem::take(&mut merge.early).into_values() {
        merge.add(&chunk);
    }
    let mut progress = merge.progress;
    progress.elapsed = spent + begin.elapsed();
    progress.exhausted = source.into_inner().exhausted && !merge.has_gap;
    tell(&progress);
    Ok(progress)
}

/// What verdicts are made by. Which checks name states is asked of the end with nothing lost: an answer that depends neither on
/// the order of states nor on the number of workers.
pub(crate) fn judge(
    subject: &Subject,
    known: &Arc<Known>,
    make_checkers: &MakeCheckers<'_>,
    until: Option<Instant>,
) -> Result<Judge> {
    let judge = Judge::new(&subject.stream.marks);
    let Some(end) = subject.cuts.last().filter(|_| judge.names_states()) else { return Ok(judge) };
    let (own, checkers) = (subject.own.clone(), make_checkers(0)?);
    let mut evaluator = Evaluator::new(Arc::clone(known), own, Arc::new(judge.clone()), checkers);
    evaluator.give_up_at(until);
    evaluator.naming(end.state(&subject.stream, &Choice::default()))
}

fn take(source: &mut Source<'_>) -> (u64, Vec<Item>) {
    let wanted = (CHUNK as u64).min(source.left) as usize;
    let items: Vec<Item> = source.schedule.by_ref().take(wanted).collect();
    source.exhausted |= items.len() < wanted;
    source.left -= items.len() as u64;
    source.chunk += 1;
    (source.chunk - 1, items)
}

fn work(subject: &Subject, evaluator: &mut Evaluator, items: &[Item]) -> Result<Chunk> {
    let mut chunk = Chunk { is_whole: true, ..Chunk::default() };
    evaluator.work = Default::default();
    for item in items {
        let cut = &subject.cuts[item.cut];
        let state = cut.state_at(&subject.stream, &item.choice, item.crash.crash);
        let (digest, verdict) = match evaluator.tell_apart(state, &item.crash) {
            Err(ExploreError::OutOfTime) => {
                chunk.is_whole = false;
                break;
            }
            judged => judged?,
        };
        chunk.tally.count(&verdict);
        chunk.states.push((digest, verdict.class));
        if verdict.class == Class::NotJudged && chunk.not_judged.is_none() {
            chunk.not_judged.clone_from(&verdict.problem);
        }
        if verdict.class.is_violation() {
            chunk.failures.push(Failure {
                cut_event: cut.event,
                crash_event: item.crash.crash,
                choice: item.choice.clone(),
                verdict,
            });
        }
    }
    chunk.tally.work = evaluator.work;
    Ok(chunk)
}

impl Merge {
    fn put(&mut self, number: u64, chunk: Chunk) {
        self.early.insert(number, chunk);
        while let Some(chunk) = self.early.remove(&self.next) {
            self.next += 1;
            self.add(&chunk);
        }
    }

    fn add(&mut self, chunk: &Chunk) {
        let progress = &mut self.progress;
        if !self.has_gap {
            progress.done += chunk.states.len() as u64;
        }
        self.has_gap |= !chunk.is_whole;
        progress.tally.add(&chunk.tally);
        for (digest, class) in &chunk.states {
            let before = self.seen.get(digest).copied();
            progress.tally.differ(before, *class);
            if before.is_none_or(|before| before < *class) && (before.is_some() || self.seen.len() < SEEN_MAX)
            {
                self.seen.insert(*digest, *class);
            }
        }
        if progress.not_judged.is_none() {
            progress.not_judged.clone_from(&chunk.not_judged);
        }
        for failure in &chunk.failures {
            let is_new = progress.failures.iter().all(|f| kind(&f.verdict) != kind(&failure.verdict));
            if is_new && progress.failures.len() < FAILURES_MAX {
                progress.failures.push(failure.clone());
            }
        }
    }
}

/// Failures of one kind differ in numbers, and in how many are listed, only.
pub(crate) fn kind(verdict: &Verdict) -> Option<(String, String)> {
    let problem = verdict.problem.as_ref()?;
    let what = problem.what.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect::<String>();
    let mut short = String::new();
    for c in what.chars().filter(|c| !c.is_whitespace()) {
        if !(c == '#' && short.ends_with('#')) {
            short.push(c);
        }
    }
    while short.contains("#,#") {
        short = short.replace("#,#", "#");
    }
    Some((problem.check.clone(), short))
}

/// Evaluates one known state again.
///
/// # Errors
/// A checker could not do its work; [`crate::ExploreError::Corrupt`] where the stream has no such cut.
pub fn again(
    subject: &Subject,
    evaluator: &mut Evaluator,
    cut_event: usize,
    crash_event: usize,
    choice: &Choice,
) -> Result<Verdict> {
    let cut = subject.cuts.iter().find(|cut| cut.event == cut_event).ok_or_else(|| {
        crate::ExploreError::Corrupt(format!("the recording has no crash point before event {cut_event}"))
    })?;
    let crash = Expectation::at(&subject.stream, cut, choice, crash_event);
    evaluator.evaluate(cut.state_at(&subject.stream, choice, crash_event), &crash)
}
