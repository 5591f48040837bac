//! Flushes: which are acknowledged at once, which wait, and when the log is synced.
//!
//! The window rule: no flush is acknowledged while an earlier acknowledged, not yet durable one is older than the
//! window. Then the acknowledgements that a cut can lose were all given within one window, however long a sync takes:
//! take the oldest lost one, given at t; every later one was given at t + window at the latest.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use afterimage_block::{BlockError, FlushKind, SequenceNumber};

use super::area::page_up;
use super::core::{lock, Core, Progress};
use super::mutation::Mutation;
use crate::Event;

/// Room that the deadline leaves beside two sync times: waking up takes time, too.
const SLACK: Duration = Duration::from_millis(1);

/// Acknowledged flushes that are not durable yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements {
    /// What each covers, and when it was given.
    pending: VecDeque<(u64, Duration)>,
    /// The greatest age at which one became durable.
    pub(super) age_max: Duration,
}

impl Acknowledgements {
    pub(super) fn oldest(&self) -> Option<Duration> {
        self.pending.front().map(|(_, given)| *given)
    }

    fn give(&mut self, covers: u64, now: Duration) {
        // The older of two that cover the same says all about both: it is lost where the other is, and no younger.
        if self.pending.back().is_none_or(|(newest, _)| *newest < covers) {
            self.pending.push_back((covers, now));
        }
    }

    fn durable(&mut self, up_to: u64, now: Duration) {
        while let Some((covers, given)) = self.pending.front() {
            if *covers > up_to {
                break;
            }
            self.age_max = self.age_max.max(now.saturating_sub(*given));
            self.pending.pop_front();
        }
    }
}

/// May a flush complete now?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Complete,
    Hold,
}

/// One sync of the log, begun.
#[derive(Clone, Copy, Debug)]
pub struct LogSync {
    sequence: u64,
    position: u64,
    started: Duration,
}

impl Core {
    /// A guest flush that covers everything up to `covers`. To be asked last of all before the completion is handed to the
    /// guest's queue: it counts as acknowledged from this verdict on.
    pub(super) fn ask_order(&self, covers: u64) -> Result<Verdict, BlockError> {
        self.health.check()?;
        // Without the lock where nothing is new: the usual case of a flush behind a flush.
        if self.durable.load(Ordering::SeqCst) >= covers {
            return Ok(Verdict::Complete);
        }
        let mut progress = lock(&self.progress);
        if progress.durable >= covers {
            return Ok(Verdict::Complete);
        }
        let now = self.clock.now();
        if self.overdue(&progress, now) {
            self.want_sync(&mut progress);
            return Ok(Verdict::Hold);
        }
        let oldest = progress.acknowledgements.oldest();
        progress.acknowledgements.give(covers, now);
        if oldest.is_none() {
            // The syncer learns its deadline.
            self.sync_wake.notify_one();
        }
        Ok(Verdict::Complete)
    }

    /// Whether a flush that was held would be held again. Acknowledges nothing.
    pub(super) fn holds(&self, kind: FlushKind, covers: u64) -> bool {
        if self.health.check().is_err() || self.durable.load(Ordering::SeqCst) >= covers {
            return false;
        }
        kind == FlushKind::Durable || self.overdue(&lock(&self.progress), self.clock.now())
    }

    /// Whether an acknowledged flush that is not durable is older than the window.
    fn overdue(&self, progress: &Progress, now: Duration) -> bool {
        let oldest = progress.acknowledgements.oldest();
        oldest.is_some_and(|given| now.saturating_sub(given) > self.window)
            && !self.mutated(Mutation::IgnoreWindow)
    }

    /// A flush that means durability.
    pub(super) fn ask_durable(&self, covers: u64) -> Result<Verdict, BlockError> {
        self.health.check()?;
        if self.durable.load(Ordering::SeqCst) >= covers {
            return Ok(Verdict::Complete);
        }
        self.want_sync(&mut lock(&self.progress));
        Ok(Verdict::Hold)
    }

    /// Asks for a sync now.
    pub fn request_sync(&self) {
        self.want_sync(&mut lock(&self.progress));
    }

    fn want_sync(&self, progress: &mut Progress) {
        if !progress.sync_wanted {
            progress.sync_wanted = true;
            self.sync_wake.notify_one();
        }
    }

    /// When the next sync should start: `None` while nothing has been acknowledged since the last. Early enough
    /// that the oldest acknowledged flush is durable before the window ends even where this sync takes twice as long
    /// as usual.
    pub fn next_sync_at(&self) -> Option<Duration> {
        Self::deadline(&lock(&self.progress), self.window)
    }

    pub(super) fn deadline(progress: &Progress, window: Duration) -> Option<Duration> {
        if progress.sync_wanted {
            return Some(Duration::ZERO);
        }
        let given = progress.acknowledgements.oldest()?;
        Some(given + window.saturating_sub(progress.sync_time * 2 + SLACK))
    }

    /// Age of the oldest acknowledged flush that is not durable, and the greatest such age so far.
    pub fn not_durable_ages(&self) -> (Option<Duration>, Duration) {
        let progress = lock(&self.progress);
        let now = self.clock.now();
        let age = progress.acknowledgements.oldest().map(|given| now.saturating_sub(given));
        (age, progress.acknowledgements.age_max.max(age.unwrap_or_default()))
    }

    /// Makes everything appended so far durable, with one sync. Returns whether there was anything.
    pub fn sync_once(&self) -> Result<bool, BlockError> {
        let Some(sync) = self.begin_sync()? else { return Ok(false) };
        self.run_sync(&sync)?;
        self.finish_sync(&sync);
        Ok(true)
    }

    /// Fixes what the next sync covers: everything appended so far; `None` where all of it is durable. Appends go on
    /// between this, [`Core::run_sync`] and [`Core::finish_sync`].
    pub fn begin_sync(&self) -> Result<Option<LogSync>, BlockError> {
        self.health.check()?;
        let (sequence, position) = {
            let mut append = lock(&self.append);
            // Sealed: the next record starts on a page of its own, so that no later write can tear what this sync
            // makes durable.
            if !self.mutated(Mutation::OpenPageAfterSync) {
                append.head = page_up(append.head);
                self.head.store(append.head, Ordering::SeqCst);
            }
            (append.sequence, append.head)
        };
        let mut progress = lock(&self.progress);
        progress.sync_wanted = false;
        Ok((progress.durable_position != position).then(|| LogSync {
            sequence,
            position,
            started: self.clock.now(),
        }))
    }

    /// Syncs the log.
    pub fn run_sync(&self, _sync: &LogSync) -> Result<(), BlockError> {
        if !self.mutated(Mutation::DropLogSync) {
            self.area.medium.sync().map_err(|e| self.fail("syncing the redo log".to_owned(), e))?;
        }
        self.counters.log_syncs.fetch_add(1, Ordering::Relaxed);
        // Something else may have failed meanwhile: then nothing is declared durable any more.
        self.health.check()
    }

    /// Declares durable what the sync covers.
    pub fn finish_sync(&self, sync: &LogSync) {
        let LogSync { mut sequence, mut position, started } = *sync;
        if self.mutated(Mutation::CountAfterSync) {
            let append = lock(&self.append);
            (sequence, position) = (append.sequence, append.head);
        }
        let now = self.clock.now();
        {
            let mut progress = lock(&self.progress);
            if position > progress.durable_position {
                progress.durable = sequence;
                progress.durable_position = position;
                self.durable.store(sequence, Ordering::SeqCst);
            }
            progress.acknowledgements.durable(sequence, now);
            let took = now.saturating_sub(started);
            progress.sync_time =
                if progress.sync_time.is_zero() { took } else { (progress.sync_time * 3 + took) / 4 };
        }
        self.progressed.notify_all();
        self.signals.wake_parked();
        self.events.publish(&Event::Durable { sequence });
    }

    /// Waits until `sequence` is durable, the group fails, or the time is over (`false`).
    pub fn wait_durable(
        &self,
        sequence: SequenceNumber,
        deadline: Option<Instant>,
    ) -> Result<bool, BlockError> {
        self.wait_until(deadline, |progress| progress.durable >= sequence.0)
    }

    pub(super) fn wait_until(
        &self,
        deadline: Option<Instant>,
        done: impl Fn(&Progress) -> bool,
    ) -> Result<bool, BlockError> {
        let mut progress = lock(&self.progress);
        loop {
            if done(&progress) {
                return Ok(true);
            }
            self.health.check()?;
            if progress.stop {
                return Ok(false);
            }
            progress = match deadline {
                None => self.progressed.wait(progress).unwrap_or_else(std::sync::PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(false);
                    }
                    let waited = self.progressed.wait_timeout(progress, left);
                    waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
                }
            };
        }
    }
}
