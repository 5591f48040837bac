//! The shell around [`SyncSchedule`] and its [`Window`]: their clock and lock, the log's syncs, and the thread that runs them.
//!
//! ```text
//! flush ─► ask ─► Window ─► completes, or is held until ───────┐
//!                   │ due                                      ▼
//!                   └─► turn: begin (seals the page) ─► run (fdatasync) ─► turn: finish ─► durable ─► turn: write ahead
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{BlockError, FlushKind, SequenceNumber};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::log::RedoLog;
use super::mutation::{Mistake, Mutation};
use crate::board::Board;
use crate::clock::Clock;
use crate::schedule::{SyncSchedule, SyncTask};
use crate::sequence::LogPosition;
use crate::window::{Verdict, Window};

/// One sync of the log, begun.
#[derive(Clone, Copy, Debug)]
pub struct LogSync {
    sequence: SequenceNumber,
    position: LogPosition,
    started: Duration,
}

/// See the module.
pub struct Syncer {
    schedule: Mutex<SyncSchedule>,
    /// What the sync covers that the schedule has begun and not finished.
    begun: Mutex<Option<LogSync>>,
    /// The thread sleeps here.
    wake: Condvar,
    clock: Arc<dyn Clock>,
    log: Arc<RedoLog>,
    board: Arc<Board>,
    pub(super) log_syncs: AtomicU64,
    pub(super) held_flushes: AtomicU64,
    mistake: Mistake,
}

impl Syncer {
    pub(super) fn new(
        window: Duration,
        clock: Arc<dyn Clock>,
        log: Arc<RedoLog>,
        board: Arc<Board>,
        mistake: Mistake,
    ) -> Self {
        let (log_syncs, held_flushes) = (AtomicU64::new(0), AtomicU64::new(0));
        let now = clock.now();
        let schedule = Mutex::new(SyncSchedule::new(Window::new(window, now), now, mistake));
        let (begun, wake) = (Mutex::default(), Condvar::new());
        Self { schedule, begun, wake, clock, log, board, log_syncs, held_flushes, mistake }
    }

    /// How often a flush was held back by the window rule.
    pub fn held_flushes(&self) -> u64 {
        self.held_flushes.load(Ordering::Relaxed)
    }

    /// Whether a flush that covers everything up to `covers` may complete. To be asked last of all before the completion is
    /// handed to the guest's queue: it counts as acknowledged from this verdict on.
    pub(super) fn ask(&self, kind: FlushKind, covers: SequenceNumber) -> Result<Verdict, BlockError> {
        self.board.health.check()?;
        // Without the lock where nothing is new: the usual case of a flush behind a flush.
        if self.is_durable(covers) {
            return Ok(Verdict::Complete);
        }
        let schedule = self.schedule.lock();
        if self.is_durable(covers) {
            return Ok(Verdict::Complete);
        }
        Ok(self.change(schedule, |window| match kind {
            FlushKind::Order if self.mistake.is(Mutation::IgnoreWindow) => {
                window.acknowledge(covers, self.clock.now());
                Verdict::Complete
            }
            FlushKind::Order => window.ask(covers, self.clock.now()),
            FlushKind::Told { since } => window.ask_told(covers, since, self.clock.now()),
            FlushKind::Durable => {
                window.want_sync();
                Verdict::Hold
            }
        }))
    }

    /// Whether a flush that was held would be held again. Acknowledges nothing.
    pub(super) fn holds(&self, kind: FlushKind, covers: SequenceNumber) -> bool {
        if self.board.health.check().is_err() || self.is_durable(covers) {
            return false;
        }
        kind == FlushKind::Durable
            || self.schedule.lock().window.holds(self.clock.now()) && !self.mistake.is(Mutation::IgnoreWindow)
    }

    fn is_durable(&self, covers: SequenceNumber) -> bool {
        self.board.sequence.durable.get() >= covers
    }

    /// Asks for a sync now.
    pub fn request(&self) {
        self.change(self.schedule.lock(), Window::want_sync);
    }

    /// Changes the window; the thread hears of it where its deadline is another one then.
    fn change<R>(
        &self,
        mut schedule: MutexGuard<'_, SyncSchedule>,
        change: impl FnOnce(&mut Window) -> R,
    ) -> R {
        let before = schedule.next();
        let result = change(&mut schedule.window);
        if schedule.next() != before {
            self.wake.notify_one();
        }
        result
    }

    /// When the window wants the next sync to start: `None` while nothing has been acknowledged since the last.
    pub fn next_at(&self) -> Option<Duration> {
        self.schedule.lock().window.next_sync_at()
    }

    /// When a turn is due: [`Duration::ZERO`] is at once, `None` not before [`Syncer::ran`].
    pub fn next(&self) -> Option<Duration> {
        self.schedule.lock().next()
    }

    /// Does what is due now. A sync that is to run is returned: its caller runs it ([`Syncer::run`]) and says when that is over
    /// ([`Syncer::ran`]).
    ///
    /// # Errors
    /// The group has failed, or fails with this.
    pub fn turn(&self) -> Result<Option<LogSync>, BlockError> {
        let unflushed = !self.is_durable(self.board.sequence.acknowledged.get());
        let task = self.schedule.lock().turn(self.clock.now(), unflushed);
        match task {
            None => {}
            Some(SyncTask::Begin) => {
                let sync = self.begin()?;
                *self.begun.lock() = sync;
                if sync.is_none() {
                    self.schedule.lock().covers_nothing();
                }
                return Ok(sync);
            }
            Some(SyncTask::Finish) => {
                if let Some(sync) = self.begun.lock().take() {
                    self.finish(&sync);
                }
            }
            Some(SyncTask::Ahead) => self.log.write_ahead()?,
        }
        Ok(None)
    }

    /// The sync that a turn has returned has run.
    pub fn ran(&self) {
        self.schedule.lock().ran();
    }

    /// Age of the oldest acknowledged flush that is not durable, and the greatest such age so far.
    pub fn ages(&self) -> (Option<Duration>, Duration) {
        let schedule = self.schedule.lock();
        let now = self.clock.now();
        (schedule.window.oldest_age(now), schedule.window.age_max(now))
    }

    /// Makes everything appended so far durable, with one sync, beside the schedule. Returns whether there was anything.
    ///
    /// # Errors
    /// The group has failed, or fails with this sync.
    pub fn sync(&self) -> Result<bool, BlockError> {
        let Some(sync) = self.begin()? else { return Ok(false) };
        self.run(&sync)?;
        self.finish(&sync);
        Ok(true)
    }

    /// Fixes what the next sync covers: everything appended so far; `None` where all of it is durable. Appends go on
    /// between this, [`Syncer::run`] and [`Syncer::finish`].
    ///
    /// # Errors
    /// The group has failed.
    pub fn begin(&self) -> Result<Option<LogSync>, BlockError> {
        self.board.health.check()?;
        // In this order: who asks from here on may want what is not sealed.
        self.schedule.lock().window.sync_begun();
        let sealed = self.log.seal();
        let started = self.clock.now();
        Ok(sealed.map(|(sequence, position)| LogSync { sequence, position, started }))
    }

    /// Syncs the log.
    ///
    /// # Errors
    /// The group has failed, or fails with this sync.
    pub fn run(&self, _sync: &LogSync) -> Result<(), BlockError> {
        if !self.mistake.is(Mutation::DropLogSync) {
            self.log.sync().map_err(|e| self.board.fail("syncing the redo log", e))?;
        }
        self.log_syncs.fetch_add(1, Ordering::Relaxed);
        // Something else may have failed meanwhile: then nothing is declared durable any more.
        self.board.health.check()
    }

    /// Declares durable what the sync covers.
    pub fn finish(&self, sync: &LogSync) {
        let LogSync { mut sequence, mut position, started } = *sync;
        if self.mistake.is(Mutation::CountAfterSync) {
            (sequence, position) = self.log.appended();
        }
        {
            let mut schedule = self.schedule.lock();
            self.log.space().synced(position);
            self.board.sequence.durable.raise(sequence);
            schedule.window.sync_finished(sequence, started, self.clock.now());
        }
        self.board.tell_durable(sequence);
    }

    /// What the thread does until it is stopped or the group fails.
    pub(super) fn work(&self) {
        let _whole = self.board.whole();
        while self.wait_until_due() {
            if let Err(error) = self.work_once() {
                tracing::error!(%error, "the syncer stops");
                return;
            }
        }
    }

    fn work_once(&self) -> Result<(), BlockError> {
        if let Some(sync) = self.turn()? {
            self.run(&sync)?;
            self.ran();
        }
        Ok(())
    }

    /// Ends [`Syncer::work`], where the board says that it is to end.
    pub(super) fn stop(&self) {
        drop(self.schedule.lock());
        self.wake.notify_all();
    }

    /// Sleeps until a turn is due; `false` when the thread is to end.
    fn wait_until_due(&self) -> bool {
        let mut schedule = self.schedule.lock();
        loop {
            if self.board.is_stopped() || self.board.health.check().is_err() {
                return false;
            }
            let now = self.clock.now();
            // The sync that runs is this thread's own.
            match schedule.next() {
                Some(at) if at > now => drop(self.wake.wait_for(&mut schedule, at - now)),
                _ => return true,
            }
        }
    }
}
