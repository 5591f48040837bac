//! One state's way from bytes to a verdict, and what can be skipped on it.
//!
//! ```text
//!   state ─ digest known? ──────────────────────────────────────────────┐
//!     │ own recovery: refused? exactly a prefix?                          │ found before
//!   disks ─ digest known? ──────────────────────────────────────────────┤
//!     │ checkers, one after another, each on a copy; the first that       │
//!     ▼ finds a fault ends it                                             ▼
//!   Found ───────────────────────────────────────────────────────────► judged for this cut
//! ```
//!
//! What is found depends on the bytes alone, so it is shared between cuts; what may be there depends on the cut.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use crate::check::{Checker, Observation};
use crate::guest_recovery;
use crate::judge::{Class, Expectation, Judge, Verdict};
use crate::model::state_digest;
use crate::own::{OwnRecovery, Recovered};
use crate::state::{Image, Scratch};
use crate::Result;

/// What is known about some bytes.
#[derive(Clone, Debug)]
pub struct Found {
    /// Why the daemon's own recovery refuses them, or what is wrong with what it made of them.
    pub refused: Option<String>,
    /// How many of the guest's requests the recovered disks hold (the smallest such number); `None` without own recovery.
    pub prefix: Option<u64>,
    /// What each checker found.
    pub checks: Arc<Vec<(&'static str, Observation)>>,
    /// Of the disks, where they were recovered, or of the bytes: what tells states apart.
    pub digest: u128,
}

/// How much work was done, and how much was saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Work {
    /// States looked at.
    pub states: u64,
    /// Of these, states whose bytes had been looked at before.
    pub equal_bytes: u64,
    /// States that went through the daemon's own recovery.
    pub recovered: u64,
    /// Of these, states whose recovered disks had been looked at before.
    pub equal_disks: u64,
    /// States that went to the guest's recovery and the checkers.
    pub checked: u64,
    /// Times that a checker was run.
    pub checks: u64,
}

impl Work {
    /// Adds another worker's.
    pub fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.equal_bytes += other.equal_bytes;
        self.recovered += other.recovered;
        self.equal_disks += other.equal_disks;
        self.checked += other.checked;
        self.checks += other.checks;
    }
}

const SHARDS: usize = 16;

/// Answers that are remembered at most; about 1 GiB. Later states are then looked at again.
const KNOWN_MAX: usize = 4 << 20;

/// What all workers have found so far.
#[derive(Debug, Default)]
pub struct Known {
    states: [Mutex<FxHashMap<u128, Found>>; SHARDS],
    disks: [Mutex<FxHashMap<u128, Checks>>; SHARDS],
}

type Checks = Arc<Vec<(&'static str, Observation)>>;

fn shard<T>(shards: &[Mutex<T>; SHARDS], digest: u128) -> MutexGuard<'_, T> {
    shards[digest as usize % SHARDS].lock()
}

/// One worker's means.
pub struct Evaluator {
    known: Arc<Known>,
    own: Option<Arc<dyn OwnRecovery>>,
    judge: Arc<Judge>,
    checkers: Vec<Box<dyn Checker>>,
    /// What it has done.
    pub work: Work,
}

impl Evaluator {
    /// `own` where the state is one of the storage layer and has a log; checkers in the order in which they run.
    pub fn new(
        known: Arc<Known>,
        own: Option<Arc<dyn OwnRecovery>>,
        judge: Arc<Judge>,
        checkers: Vec<Box<dyn Checker>>,
    ) -> Self {
        Self { known, own, judge, checkers, work: Work::default() }
    }

    /// The outcome of a state. `crash` is what is known of the crash; where the daemon's recovery says how much of the
    /// guest's history is there, what must be visible follows from that.
    ///
    /// # Errors
    /// A checker could not do its work.
    pub fn evaluate(&mut self, images: Vec<Image>, crash: &Expectation) -> Result<Verdict> {
        self.tell_apart(images, crash).map(|(_, verdict)| verdict)
    }

    /// The same, and what tells the state apart from others.
    ///
    /// # Errors
    /// As [`Evaluator::evaluate`].
    pub(crate) fn tell_apart(&mut self, images: Vec<Image>, crash: &Expectation) -> Result<(u64, Verdict)> {
        let found = self.look(images)?;
        Ok((found.digest as u64, self.judge(&found, crash)))
    }

    /// Checks give up then.
    pub(crate) fn give_up_at(&mut self, until: Option<Instant>) {
        self.checkers.iter_mut().for_each(|checker| checker.give_up_at(until));
    }

    /// The judge who knows which checks name the application's state in this one.
    ///
    /// # Errors
    /// A checker could not do its work.
    pub(crate) fn naming(&mut self, images: Vec<Image>) -> Result<Judge> {
        let found = self.look(images)?;
        let which = |is: fn(&Observation) -> bool| {
            found.checks.iter().filter(|(_, found)| is(found)).map(|(check, _)| *check).collect()
        };
        let judge = Judge::clone(&self.judge);
        Ok(judge
            .naming(which(|found| matches!(found, Observation::Named { .. })))
            .unknown(which(|found| matches!(found, Observation::NotJudged { .. }))))
    }

    fn look(&mut self, images: Vec<Image>) -> Result<Found> {
        self.work.states += 1;
        let digest = state_digest(&images);
        let before = shard(&self.known.states, digest).get(&digest).cloned();
        match before {
            Some(found) => {
                self.work.equal_bytes += 1;
                Ok(found)
            }
            None => {
                let found = self.find(images, digest)?;
                let mut known = shard(&self.known.states, digest);
                if known.len() < KNOWN_MAX / SHARDS {
                    known.insert(digest, found.clone());
                }
                Ok(found)
            }
        }
    }

    fn find(&mut self, images: Vec<Image>, digest: u128) -> Result<Found> {
        let Some(own) = self.own.clone() else {
            let checks = self.check(&images)?;
            return Ok(Found { refused: None, prefix: None, checks, digest });
        };
        self.work.recovered += 1;
        match own.recover(images) {
            Err(refused) => {
                Ok(Found { refused: Some(refused), prefix: None, checks: Arc::default(), digest })
            }
            Ok(Recovered { disks, digest, prefix }) => {
                let before = shard(&self.known.disks, digest).get(&digest).cloned();
                let checks = match before {
                    Some(checks) => {
                        self.work.equal_disks += 1;
                        checks
                    }
                    None => {
                        let images: Vec<Image> = disks.iter().map(|disk| disk.snapshot()).collect();
                        let checks = self.check(&images)?;
                        shard(&self.known.disks, digest).insert(digest, Arc::clone(&checks));
                        checks
                    }
                };
                Ok(Found { refused: None, prefix: Some(prefix), checks, digest })
            }
        }
    }

    fn check(&mut self, images: &[Image]) -> Result<Checks> {
        self.work.checked += 1;
        let mut checks = Vec::new();
        let recovered = match guest_recovery::recover(images)? {
            Ok(recovered) => recovered,
            Err(broken) => return Ok(Arc::new(vec![(guest_recovery::NAME, broken)])),
        };
        for checker in &mut self.checkers {
            self.work.checks += 1;
            // A copy each: what one checker repairs must not help the next.
            let disks: Vec<Arc<Scratch>> =
                recovered.iter().map(|image| Arc::new(Scratch::new(image.clone()))).collect();
            let found = checker.check(&disks)?;
            let is_enough = matches!(found, Observation::Inconsistent { .. } | Observation::NotJudged { .. });
            checks.push((checker.name(), found));
            if is_enough {
                break;
            }
        }
        Ok(Arc::new(checks))
    }

    fn judge(&self, found: &Found, crash: &Expectation) -> Verdict {
        if let Some(refused) = &found.refused {
            return Verdict::broken(Class::Inconsistent, "own recovery", refused.clone(), String::new());
        }
        let mut expected = *crash;
        let mut verdict = Verdict::fresh();
        if let (Some(own), Some(prefix)) = (&self.own, found.prefix) {
            match own.promised(prefix, crash.since..=crash.crash) {
                Ok(required) => expected.required = required.min(crash.crash),
                Err(broken) => verdict = Verdict::broken(Class::Lost, "window rule", broken, String::new()),
            }
        }
        let says_what_is_there = |found: &Observation| !matches!(found, Observation::Sound);
        if !found.checks.iter().any(|(_, found)| says_what_is_there(found)) {
            verdict = verdict.and(self.judge.missing(&expected));
        }
        let kept = self.own.is_some() && !verdict.class.is_violation();
        for (check, observation) in found.checks.iter() {
            verdict = verdict.and(self.judge.judge(check, observation, &expected));
        }
        let is_violation = verdict.class.is_violation();
        if let Some(problem) = verdict.problem.as_mut().filter(|_| is_violation) {
            problem.above_the_daemon = kept;
        }
        verdict
    }
}
