//! What a campaign counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::evaluate::Work;
use crate::judge::{Class, Verdict};

/// At most this many of the application's states are counted by name.
const STATES_NAMED_MAX: usize = 64;

/// See the module. Crashes are counted, and many crashes may leave one state; [`Tally::different`] counts states.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// States with everything that had been acknowledged.
    pub fresh: u64,
    /// States that are older, as the contract allows.
    pub stale: u64,
    /// States that lack what must be there.
    pub lost: u64,
    /// States that no crash may leave.
    pub inconsistent: u64,
    /// States whose check took too long.
    #[serde(default)]
    pub not_judged: u64,
    /// States that differ, each once, by the worst that it was found to be. Those of a campaign that was resumed may be counted once more.
    #[serde(default)]
    pub different: BTreeMap<Class, u64>,
    /// Of the lost and the inconsistent: the daemon kept its promise, the fault is the guest's.
    #[serde(default)]
    pub above_the_daemon: u64,
    /// How often each of the application's states was found.
    pub by_state: BTreeMap<String, u64>,
    /// States by age in whole milliseconds, the stale ones only.
    pub stale_ms: BTreeMap<u64, u64>,
    /// The greatest age, in milliseconds.
    pub stale_ms_max: f64,
    /// How much work was done and saved.
    pub work: Work,
}

impl Tally {
    /// Counts an outcome.
    pub fn count(&mut self, verdict: &Verdict) {
        match verdict.class {
            Class::Fresh => self.fresh += 1,
            Class::Stale => self.stale += 1,
            Class::Lost => self.lost += 1,
            Class::Inconsistent => self.inconsistent += 1,
            Class::NotJudged => self.not_judged += 1,
        }
        self.above_the_daemon += u64::from(verdict.is_above_the_daemon());
        if let Some(state) = &verdict.state {
            if self.by_state.len() < STATES_NAMED_MAX || self.by_state.contains_key(state) {
                *self.by_state.entry(state.clone()).or_default() += 1;
            }
        }
        if verdict.class == Class::Stale {
            *self.stale_ms.entry(verdict.stale_ms as u64).or_default() += 1;
            self.stale_ms_max = self.stale_ms_max.max(verdict.stale_ms);
        }
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Self) {
        self.fresh += other.fresh;
        self.stale += other.stale;
        self.lost += other.lost;
        self.inconsistent += other.inconsistent;
        self.not_judged += other.not_judged;
        for (class, count) in &other.different {
            *self.different.entry(*class).or_default() += count;
        }
        self.above_the_daemon += other.above_the_daemon;
        for (state, count) in &other.by_state {
            *self.by_state.entry(state.clone()).or_default() += count;
        }
        for (ms, count) in &other.stale_ms {
            *self.stale_ms.entry(*ms).or_default() += count;
        }
        self.stale_ms_max = self.stale_ms_max.max(other.stale_ms_max);
        self.work.add(&other.work);
    }

    /// Counts a state that was met, `before` as another class or not at all.
    pub fn differ(&mut self, before: Option<Class>, class: Class) {
        if before.is_some_and(|before| before >= class) {
            return;
        }
        if let Some(count) = before.and_then(|before| self.different.get_mut(&before)) {
            *count -= 1;
        }
        *self.different.entry(class).or_default() += 1;
    }

    /// States that differ and were found to be that at worst.
    pub fn different(&self, class: Class) -> u64 {
        self.different.get(&class).copied().unwrap_or_default()
    }

    /// States that differ and break a promise.
    pub fn different_violations(&self) -> u64 {
        self.different(Class::Lost) + self.different(Class::Inconsistent)
    }

    /// States looked at.
    pub fn states(&self) -> u64 {
        self.fresh + self.stale + self.lost + self.inconsistent + self.not_judged
    }

    /// States that break a promise.
    pub fn violations(&self) -> u64 {
        self.lost + self.inconsistent
    }

    /// States that break a promise and are not proved to be the guest's own fault.
    pub fn violations_of_the_daemon(&self) -> u64 {
        self.violations() - self.above_the_daemon
    }

    /// The age that this many of 1000 stale states do not exceed, in whole milliseconds.
    pub fn stale_ms_at(&self, per_mille: u64) -> u64 {
        let rank = self.stale * per_mille / 1000;
        let mut seen = 0;
        for (ms, count) in &self.stale_ms {
            seen += count;
            if seen > rank {
                return *ms;
            }
        }
        self.stale_ms.keys().next_back().copied().unwrap_or_default()
    }
}
