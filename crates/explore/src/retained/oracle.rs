//! Which prefixes each step of the redo log stands for.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use afterimage_format::log::RECORDS_OFFSET;
use afterimage_order::redo::payload_bytes_max;
use afterimage_trace::{Layer, Recording, Role};
use rustc_hash::FxHashMap;

use super::compare::{differences, Changed, Place};
use super::plain::Plain;
use super::side::Side;
use super::steps::{log_steps, LogStep};
use crate::log_recovery::{recover, RecoveryOptions};
use crate::own::{self, OwnRecovery};
use crate::prefix::{as_taken, change, steps, Breach, Prefixes, Step};
use crate::state::{digest, Image};
use crate::{ExploreError, Result};

/// At most so many blocks are named.
const NAMED_MAX: usize = 6;

/// What the oracle saw: one that compares nothing proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Steps of the redo log.
    pub steps: usize,
    /// Of these, sets of home writes.
    pub sets: usize,
    /// Steps that stand for no prefix.
    pub wrong: usize,
    /// Steps after which the guest's own recovery would have replayed something, and the daemon's disk had nothing to
    /// replay.
    pub applied: usize,
    /// Steps after which the daemon's disk had something to replay itself.
    pub handed_back: usize,
}

/// A state of the disks below the daemon.
struct State {
    digest: u128,
    /// Number of its newest record.
    sequence: u64,
    /// The prefixes that it stands for, ascending.
    ks: Vec<u32>,
    /// Why it stands for none.
    wrong: String,
}

/// See the [module](super).
pub struct RetainedOracle {
    prefixes: Prefixes,
    states: Vec<State>,
    /// Digest → states with that content, ascending.
    found: FxHashMap<u128, Vec<u32>>,
    census: Census,
}

impl RetainedOracle {
    /// For a recording with both layers, made with retained journals under `power-window`.
    ///
    /// # Errors
    /// The recording has no redo log, or its guest layer is not the disks of one group.
    pub fn of(recording: &Recording) -> Result<Self> {
        let disks = crate::layers::guest_disks(recording)?;
        let log = recording.of_layer(Layer::Storage).find(|(_, target)| target.role == Role::Log);
        let (log, target) = log.ok_or_else(|| {
            ExploreError::Usage(
                "journals were retained, and the recording has no redo log to judge".to_owned(),
            )
        })?;
        let part_bytes = payload_bytes_max(target.bytes.saturating_sub(RECORDS_OFFSET));
        let mut guest = steps(recording, &disks, Some(part_bytes));
        as_taken(&mut guest, recording, &disks, log);
        let prefixes = Prefixes::of_steps(recording, &disks, &guest)?;
        let bases = disks.iter().map(|id| (*recording.targets[id.0 as usize].base).clone());
        let bases: Vec<_> = bases.collect();
        let mut walk = Walk {
            digest: bases.iter().enumerate().fold(0, |all, (index, base)| all ^ digest(index, base)),
            ours: bases.iter().cloned().map(Side::new).collect(),
            plain: bases.into_iter().map(Plain::new).collect(),
            bad: BTreeSet::new(),
            states: Vec::new(),
            census: Census::default(),
        };
        walk.states.push(State { digest: walk.digest, sequence: 0, ks: vec![0], wrong: String::new() });
        let log_steps = log_steps(recording, log);
        let mut logged = &log_steps[..];
        let mut k = 0;
        while k < guest.len() {
            let submitted = guest[k].submitted;
            let count = guest[k..].iter().take_while(|step| step.submitted == submitted).count();
            let next = guest.get(k + count).map_or((usize::MAX, 0), |step| step.taken);
            // Before the first request the daemon writes nothing that matters; it belongs to that one.
            let (mine, rest) =
                logged.split_at(logged.partition_point(|step| (step.event, step.sequence) < next));
            logged = rest;
            walk.request(&guest[k..k + count], k, mine);
            k += count;
        }
        let (states, mut census) = (walk.states, walk.census);
        census.wrong = states.iter().filter(|state| state.ks.is_empty()).count();
        let mut found: FxHashMap<u128, Vec<u32>> = FxHashMap::default();
        for (index, state) in states.iter().enumerate() {
            found.entry(state.digest).or_default().push(index as u32);
        }
        Ok(Self { prefixes, states, found, census })
    }

    /// What was compared.
    pub fn census(&self) -> Census {
        self.census
    }

    /// The guest's requests and flushes.
    pub fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// The first step that stands for no prefix, and why.
    pub fn first_wrong(&self) -> Option<&str> {
        self.states.iter().find(|state| state.ks.is_empty()).map(|state| state.wrong.as_str())
    }

    fn states(&self, digest: u128) -> impl Iterator<Item = &State> {
        self.found.get(&digest).into_iter().flatten().map(|index| &self.states[*index as usize])
    }

    /// As [`Prefixes::judge`]; `floor` is a number of the redo log's.
    ///
    /// # Errors
    /// How the contract is broken.
    pub fn judge(
        &self,
        digest: u128,
        crash: RangeInclusive<usize>,
        floor: u64,
        window_ns: u64,
    ) -> std::result::Result<usize, Breach> {
        let newest = self.states(digest).last().ok_or_else(|| {
            Breach::NotRecovered("the disks hold no prefix of what was handed to the redo log".to_owned())
        })?;
        let mut ks: Vec<usize> = self.states(digest).flat_map(|s| &s.ks).map(|k| *k as usize).collect();
        ks.sort_unstable();
        if ks.is_empty() {
            return Err(Breach::NotRecovered(newest.wrong.clone()));
        }
        if newest.sequence < floor {
            return Err(Breach::Durable { k: newest.sequence as usize, floor: floor as usize });
        }
        let k = self.prefixes.longest(ks.into_iter(), crash.clone())?;
        self.prefixes.within(k, *crash.end(), window_ns)
    }
}

/// Both disks, side by side.
struct Walk {
    ours: Vec<Side>,
    plain: Vec<Plain>,
    digest: u128,
    /// Where they differ.
    bad: BTreeSet<Place>,
    states: Vec<State>,
    census: Census,
}

impl Walk {
    /// One request of the guest, in parts, and what was handed to the log while it was the newest. Before the next request
    /// it is in the log as a whole, so only here a state may stand for some of its parts.
    fn request(&mut self, parts: &[Step<'_>], base: usize, logged: &[LogStep]) {
        let mut plains = vec![(self.plain.clone(), Changed::default())];
        for part in parts {
            let (mut plain, mut changed) = plains[plains.len() - 1].clone();
            changed.add(part.disk, &plain[part.disk].apply(part.offset, part.len, part.data()));
            plains.push((plain, changed));
        }
        let mut since = Changed::default();
        self.look(&plains[1..], base + 1, &since);
        for step in logged {
            let fault = self.step(step, &plains[plains.len() - 1].0, &mut since);
            let wrong = fault.clone().unwrap_or_default();
            self.states.push(State { digest: self.digest, sequence: step.sequence, ks: Vec::new(), wrong });
            if fault.is_none() {
                self.look(&plains, base, &since);
            }
            let (replays, theirs) = (|s: &Side| !s.homes.is_empty(), |p: &Plain| !p.side.homes.is_empty());
            self.census.steps += 1;
            self.census.sets += usize::from(step.records.len() > 1);
            let handed_back = self.ours.iter().any(replays);
            self.census.handed_back += usize::from(handed_back);
            let applied = !handed_back && plains.last().is_some_and(|(plain, _)| plain.iter().any(theirs));
            self.census.applied += usize::from(applied);
        }
        let (plain, changed) = plains.swap_remove(plains.len() - 1);
        self.bad = differences(&self.ours, &plain, &self.bad, &[&since, &changed]);
        self.plain = plain;
    }

    /// Notes for which of these prefixes (the first of them has `base` requests) the newest state stands.
    fn look(&mut self, plains: &[(Vec<Plain>, Changed)], base: usize, since: &Changed) {
        for (k, (plain, changed)) in (base..).zip(plains) {
            let bad = differences(&self.ours, plain, &self.bad, &[since, changed]);
            let Some(state) = self.states.last_mut() else { return };
            if bad.is_empty() {
                state.ks.push(k as u32);
            } else if state.wrong.is_empty() {
                let named: Vec<String> =
                    bad.iter().take(NAMED_MAX).map(|(disk, block)| format!("{disk}:{block}")).collect();
                state.wrong = format!(
                    "the disks hold no recovery of a prefix of the guest's requests: from that of {k} they differ in {} \
                     blocks (disk:block {}{})",
                    bad.len(),
                    named.join(", "),
                    if bad.len() > NAMED_MAX { ", …" } else { "" }
                );
            }
        }
    }

    /// The disk below the daemon goes on by a step. Says what is wrong with its journal.
    fn step(&mut self, step: &LogStep, guest: &[Plain], since: &mut Changed) -> Option<String> {
        let mut fault = None;
        for record in &step.records {
            let Some(side) = self.ours.get_mut(record.disk) else { continue };
            let before = side.clone();
            self.digest ^=
                change(&mut side.content, record.disk, record.offset, record.len, record.data.as_deref());
            let touched = side.changed(record.offset, record.len);
            if touched.journal {
                fault = side.journal_fault(&before, &guest[record.disk].side).or(fault);
            }
            since.add(record.disk, &touched);
        }
        fault
    }
}

/// The daemon's recovery of a power cut, judged by a [`RetainedOracle`].
pub struct RetainedRecovery {
    oracle: Arc<RetainedOracle>,
    window_ns: u64,
    options: RecoveryOptions,
}

impl RetainedRecovery {
    /// For a recording with this oracle, made under that window.
    pub fn new(oracle: Arc<RetainedOracle>, window: Duration, options: RecoveryOptions) -> Self {
        Self { oracle, window_ns: window.as_nanos() as u64, options }
    }
}

impl OwnRecovery for RetainedRecovery {
    fn recover(&self, media: Vec<Image>) -> std::result::Result<own::Recovered, String> {
        let recovered = recover(media, true, &self.options).map_err(|e| e.to_string())?;
        let digest = recovered.digest;
        // Whatever the crash: some prefix has to be there. Its place stands for it.
        self.oracle.judge(digest, usize::MAX..=usize::MAX, 0, u64::MAX).map_err(|e| e.to_string())?;
        let state = self.oracle.found[&digest][0];
        Ok(own::Recovered { disks: recovered.images, digest, prefix: state.into() })
    }

    fn promised(&self, prefix: u64, crash: RangeInclusive<usize>) -> std::result::Result<usize, String> {
        let digest = self.oracle.states[prefix as usize].digest;
        let k = self.oracle.judge(digest, crash.clone(), 0, self.window_ns).map_err(|e| e.to_string())?;
        Ok(self.oracle.prefixes.promised(k, *crash.end()))
    }
}
