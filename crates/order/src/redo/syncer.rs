//! The shell around the [`Window`]: its clock and lock, the log's syncs, and the thread that runs them.
//!
//! ```text
//! flush ─► ask ─► Window ─► completes, or is held until ─┐
//!                   │ due                                ▼
//!                   └─► begin (seals the page) ─► run (fdatasync) ─► finish ─► durable
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
use crate::sequence::LogPosition;
use crate::window::{Verdict, Window};

/// Writes that nobody flushes become durable after this time; where a flush has been acknowledged and waits for its sync, with that one, which
/// a longer window puts off for longer.
pub const UNFLUSHED_MAX: Duration = Duration::from_secs(1);

/// One sync of the log, begun.
#[derive(Clone, Copy, Debug)]
pub struct LogSync {
    sequence: SequenceNumber,
    position: LogPosition,
    started: Duration,
}

/// See the module.
pub struct Syncer {
    window: Mutex<Window>,
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
        let (window, wake) = (Mutex::new(Window::new(window, clock.now())), Condvar::new());
        Self { window, wake, clock, log, board, log_syncs, held_flushes, mistake }
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
        let window = self.window.lock();
        if self.is_durable(covers) {
            return Ok(Verdict::Complete);
        }
        Ok(self.change(window, |window| match kind {
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
            || self.window.lock().holds(self.clock.now()) && !self.mistake.is(Mutation::IgnoreWindow)
    }

    fn is_durable(&self, covers: SequenceNumber) -> bool {
        self.board.sequence.durable.get() >= covers
    }

    /// Asks for a sync now.
    pub fn request(&self) {
        self.change(self.window.lock(), Window::want_sync);
    }

    /// Changes the window; the thread hears of it where its deadline is another one then.
    fn change<R>(&self, mut window: MutexGuard<'_, Window>, change: impl FnOnce(&mut Window) -> R) -> R {
        let before = window.next_sync_at();
        let result = change(&mut window);
        if window.next_sync_at() != before {
            self.wake.notify_one();
        }
        result
    }

    /// When the next sync should start: `None` while nothing has been acknowledged since the last.
    pub fn next_at(&self) -> Option<Duration> {
        self.window.lock().next_sync_at()
    }

    /// Age of the oldest acknowledged flush that is not durable, and the greatest such age so far.
    pub fn ages(&self) -> (Option<Duration>, Duration) {
        let window = self.window.lock();
        let now = self.clock.now();
        (window.oldest_age(now), window.age_max(now))
    }

    /// Makes everything appended so far durable, with one sync. Returns whether there was anything.
    ///
    /// # Errors
    /// The group has failed, or fails with this sync.
    pub fn sync(&self) -> Result<bool, BlockError> {
        let Some(sync) = self.begin()? else { return Ok(false) };
        self.run(&sync)?;
        self.finish(&sync);
        self.log.write_ahead()?;
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
        self.window.lock().sync_begun();
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
            let mut window = self.window.lock();
            self.log.space().synced(position);
            self.board.sequence.durable.raise(sequence);
            window.sync_finished(sequence, started, self.clock.now());
        }
        self.board.tell_durable(sequence);
    }

    /// What the thread does until it is stopped or the group fails.
    pub(super) fn work(&self) {
        let _whole = self.board.whole();
        while self.wait_until_due() {
            if let Err(error) = self.sync() {
                tracing::error!(%error, "the syncer stops");
                return;
            }
        }
    }

    /// Ends [`Syncer::work`], where the board says that it is to end.
    pub(super) fn stop(&self) {
        drop(self.window.lock());
        self.wake.notify_all();
    }

    /// Sleeps until a sync is due; `false` when the thread is to end.
    fn wait_until_due(&self) -> bool {
        let mut window = self.window.lock();
        loop {
            if self.board.is_stopped() || self.board.health.check().is_err() {
                return false;
            }
            let now = self.clock.now();
            let due = window.next_sync_at();
            let wait = match due {
                Some(at) if at <= now => return true,
                Some(at) => at - now,
                None => UNFLUSHED_MAX,
            };
            let waited = self.wake.wait_for(&mut window, wait);
            let unflushed = !self.is_durable(self.board.sequence.acknowledged.get());
            if due.is_none() && waited.timed_out() && unflushed {
                return true;
            }
        }
    }
}
