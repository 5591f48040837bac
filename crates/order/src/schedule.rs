//! The timetable of a redo log: what is done in the background, and when.
//!
//! ```text
//! sync   the window says so, or a look finds unflushed writes ─► Begin ─► it runs ─► Finish ─► Ahead ─► ...
//! home   room is wanted and the log is half full, or a look finds it as the look before did ─► the older half goes home
//! ```
//!
//! The daemon's two threads and every simulator follow these two machines. They are told what happens, and have no clock, lock,
//! thread or file. Within one machine one thing is done at a time; the two run side by side.

use std::time::Duration;

use crate::redo::mutation::{Mistake, Mutation};
use crate::sequence::LogPosition;
use crate::window::Window;

/// Writes that no flush covers are synced at looks that are this far apart. An acknowledged flush that waits for its sync takes them along, and a
/// longer window then puts them off for longer.
pub const UNFLUSHED_MAX: Duration = Duration::from_secs(1);
/// A log to which nothing was appended for this time, and of which no sync is owed, is emptied.
const IDLE: Duration = Duration::from_secs(2);

/// What is to be done of syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncTask {
    /// Fix what the next sync covers, and run it. [`SyncSchedule::ran`] is told when it is over, [`SyncSchedule::covers_nothing`] where all is durable.
    Begin,
    /// Declare durable what the sync covers that has run.
    Finish,
    /// Write a piece of a new log out, ahead of its head.
    Ahead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Rests,
    Runs,
    Ran,
    Finished,
}

/// When the log is synced, and written out ahead.
#[derive(Debug)]
pub(crate) struct SyncSchedule {
    pub(crate) window: Window,
    phase: Phase,
    look_at: Duration,
    mistake: Mistake,
}

impl SyncSchedule {
    pub(crate) fn new(window: Window, now: Duration, mistake: Mistake) -> Self {
        Self { window, phase: Phase::Rests, look_at: now + UNFLUSHED_MAX, mistake }
    }

    /// When there is something to do, or to look at: [`Duration::ZERO`] is at once, `None` not before [`SyncSchedule::ran`].
    pub(crate) fn next(&self) -> Option<Duration> {
        match self.phase {
            Phase::Rests => Some(self.window.next_sync_at().unwrap_or(self.look_at)),
            Phase::Runs => None,
            Phase::Ran | Phase::Finished => Some(Duration::ZERO),
        }
    }

    /// What is to be done now. `unflushed`: something was appended that is not durable.
    pub(crate) fn turn(&mut self, now: Duration, unflushed: bool) -> Option<SyncTask> {
        match self.phase {
            Phase::Rests => {
                let looks = self.look_at <= now;
                let due = match self.window.next_sync_at() {
                    Some(at) => at <= now,
                    None => looks && unflushed,
                };
                if looks || due {
                    self.look_at = now + UNFLUSHED_MAX;
                }
                if !due {
                    return None;
                }
                self.phase = if self.mistake.is(Mutation::FinishEarly) { Phase::Ran } else { Phase::Runs };
                Some(SyncTask::Begin)
            }
            Phase::Runs => None,
            Phase::Ran => {
                self.phase = Phase::Finished;
                Some(SyncTask::Finish)
            }
            Phase::Finished => {
                self.phase = Phase::Rests;
                Some(SyncTask::Ahead)
            }
        }
    }

    /// Everything is durable: the sync that was to begin does not.
    pub(crate) fn covers_nothing(&mut self) {
        self.phase = Phase::Rests;
    }

    /// The sync that was begun has run.
    pub(crate) fn ran(&mut self) {
        if self.phase == Phase::Runs {
            self.phase = Phase::Ran;
        }
    }
}

/// A log at the moment of a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    /// Where the next record goes.
    pub(crate) head: LogPosition,
    /// It holds something.
    pub(crate) used: bool,
    pub(crate) half_full: bool,
    /// An acknowledged flush is not durable. Home writes would keep the sync it waits for from its end.
    pub(crate) sync_owed: bool,
}

/// When the older half of the log goes home.
#[derive(Debug)]
pub(crate) struct HomeSchedule {
    wanted: bool,
    look_at: Duration,
    seen: LogPosition,
}

impl HomeSchedule {
    pub(crate) fn new(now: Duration) -> Self {
        Self { wanted: false, look_at: now + IDLE, seen: LogPosition::default() }
    }

    /// Room is wanted. Whether that is new.
    pub(crate) fn want(&mut self) -> bool {
        !std::mem::replace(&mut self.wanted, true)
    }

    /// Whether room is wanted.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// When there is something to do or to look at: [`Duration::ZERO`] is at once.
    pub(crate) fn next(&self) -> Duration {
        if self.wanted {
            return Duration::ZERO;
        }
        self.look_at
    }

    /// Whether the older half goes home now.
    pub(crate) fn turn(&mut self, now: Duration, log: Fill) -> bool {
        // The round before may have met a request that was made while it ran: what is left can still grow together.
        let crowded = std::mem::take(&mut self.wanted) && log.half_full;
        let looks = self.look_at <= now;
        let idle =
            looks && std::mem::replace(&mut self.seen, log.head) == log.head && log.used && !log.sync_owed;
        if looks {
            self.look_at = now + IDLE;
        }
        crowded || idle
    }
}

#[cfg(test)]
mod tests {
    use afterimage_block::SequenceNumber;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMIT: Duration = Duration::from_millis(50);

    fn syncs() -> SyncSchedule {
        SyncSchedule::new(Window::new(LIMIT, SECOND), SECOND, Mistake::default())
    }

    #[test]
    fn a_sync_is_finished_when_it_has_run_and_then_the_log_is_written_ahead() {
        let mut s = syncs();
        s.window.want_sync();
        assert_eq!(s.next(), Some(Duration::ZERO));
        assert_eq!(s.turn(SECOND, true), Some(SyncTask::Begin));
        s.window.sync_begun();
        assert_eq!((s.next(), s.turn(SECOND * 9, true)), (None, None), "it runs");
        s.ran();
        assert_eq!((s.next(), s.turn(SECOND * 9, true)), (Some(Duration::ZERO), Some(SyncTask::Finish)));
        assert_eq!((s.next(), s.turn(SECOND * 9, true)), (Some(Duration::ZERO), Some(SyncTask::Ahead)));
        assert_eq!(s.next(), Some(SECOND * 2), "a look");
    }

    #[test]
    fn unflushed_writes_are_synced_at_looks_unless_a_flush_takes_them_along() {
        let mut s = syncs();
        assert_eq!(s.turn(SECOND, true), None, "not yet");
        assert_eq!(s.next(), Some(SECOND * 2));
        assert_eq!(s.turn(SECOND * 2, false), None, "nothing is new");
        assert_eq!(s.next(), Some(SECOND * 3));
        let given = SECOND * 3 - Duration::from_millis(10);
        s.window.acknowledge(SequenceNumber(1), given);
        assert_eq!(s.turn(SECOND * 3, true), None, "the flush's own sync takes them along");
        let due = s.next().expect("it rests");
        assert!(due < given + LIMIT && due > SECOND * 3);
        assert_eq!(s.turn(due, true), Some(SyncTask::Begin));
        s.window.sync_begun();
        s.covers_nothing();
        s.window.sync_finished(SequenceNumber(1), due, due);
        assert_eq!(s.next(), Some(due + SECOND), "a sync counts as a look");
        assert_eq!(s.turn(due + SECOND, true), Some(SyncTask::Begin));
    }

    #[test]
    fn what_goes_home_is_asked_for_or_idle_and_never_while_a_sync_is_owed() {
        let fill = |head| Fill { head: LogPosition(head), used: true, half_full: false, sync_owed: false };
        let full = |head| Fill { half_full: true, ..fill(head) };
        let mut s = HomeSchedule::new(Duration::ZERO);
        assert!(s.want() && !s.want());
        assert_eq!(s.next(), Duration::ZERO);
        assert!(!s.turn(SECOND, fill(1)), "there is room by now");
        assert!(!s.turn(SECOND, full(1)), "room is not wanted");
        s.want();
        assert!(s.turn(SECOND, full(1)));
        assert_eq!(s.next(), IDLE, "what was wanted is no look");
        assert!(!s.turn(IDLE, fill(1)), "the first look");
        assert!(!s.turn(IDLE * 2, fill(2)), "something was appended");
        assert!(!s.turn(IDLE * 3, Fill { sync_owed: true, ..fill(2) }));
        assert!(s.turn(IDLE * 4, fill(2)));
        assert!(!s.turn(IDLE * 4, fill(2)), "one look at a time");
        assert!(s.turn(IDLE * 5, fill(2)), "the other half");
        assert!(!s.turn(IDLE * 6, Fill { used: false, ..fill(2) }));
    }
}
