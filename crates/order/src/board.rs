//! What everybody of a group looks at and waits for: how far it has got, whether it has failed, whether writes may pass.
//!
//! ```text
//! shells ─ raise a watermark, fail, open or close the gate ─► Board ─┬► subscribers (events)
//!                                                                    ├► lanes that hold something back (signals)
//!                                                                    └► threads that wait ([`Board::wait_until`])
//! ```

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{advice, BlockError, Health, SequenceNumber};
use parking_lot::{Condvar, Mutex};

use crate::clock::Clock;
use crate::events::Events;
use crate::sequence::Sequence;
use crate::signal::Signals;
use crate::Event;

/// Whether writes may pass.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    paused: AtomicBool,
    closed: AtomicBool,
}

impl Gate {
    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    /// # Errors
    /// The group is closed: no write will ever pass.
    pub(crate) fn check(&self) -> Result<(), BlockError> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(BlockError::Failed { reason: "the group is closed".into() }),
            false => Ok(()),
        }
    }
}

/// See the module.
pub struct Board {
    /// How far the history has got.
    pub sequence: Sequence,
    /// The state after the first failure; shared by all disks of the group.
    pub health: Health,
    pub(crate) gate: Gate,
    pub(crate) events: Events,
    pub(crate) signals: Signals,
    /// Nobody works in the background any more.
    stopped: AtomicBool,
    /// Counts what may let somebody go on who waits: room made, the end of a pause, the group's end.
    changes: AtomicU64,
    /// Taken by who changes what is waited for, after the change, so that nobody who has just looked goes to sleep.
    sleep: Mutex<()>,
    changed: Condvar,
    clock: Arc<dyn Clock>,
}

impl Board {
    pub(crate) fn new(sequence: Sequence, clock: Arc<dyn Clock>) -> Self {
        Self {
            sequence,
            health: Health::default(),
            gate: Gate::default(),
            events: Events::default(),
            signals: Signals::default(),
            stopped: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            sleep: Mutex::default(),
            changed: Condvar::new(),
            clock,
        }
    }

    /// The group's time.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// When that much time is over.
    pub(crate) fn after(&self, timeout: Duration) -> Duration {
        self.now().saturating_add(timeout)
    }

    /// See [`Clock::pass`].
    pub(crate) fn pass(&self) -> bool {
        self.clock.pass()
    }

    /// The group stops taking writes: nothing after this may be acknowledged, and what is stored stays for recovery.
    pub(crate) fn fail(&self, reason: impl Into<String>, error: io::Error) -> BlockError {
        let reason = reason.into();
        self.fail_for(format!("{reason}: {error}{}", advice(&error)));
        BlockError::io(reason, error)
    }

    fn fail_for(&self, reason: String) {
        if self.health.fail(reason.as_str()) {
            tracing::error!(%reason, "the group stopped taking writes");
            self.events.publish(&Event::Failed { reason });
        }
        self.wake();
    }

    /// For whoever changes what others rely on, in several steps: a panic between them fails the group, so that nothing
    /// half done is built upon.
    pub(crate) fn whole(&self) -> Whole<'_> {
        Whole(self)
    }

    /// Wakes everybody who waits: what they found may be otherwise now.
    pub(crate) fn wake(&self) {
        drop(self.sleep.lock());
        self.changed.notify_all();
        self.signals.wake_parked();
    }

    /// As [`Board::wake`], for those who wait until something has changed at all.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Everything up to `sequence` is durable from here on; said once it is.
    pub(crate) fn tell_durable(&self, sequence: SequenceNumber) {
        self.wake();
        self.events.publish(&Event::Durable { sequence: sequence.0 });
    }

    /// Holds writes back that come from here on.
    pub(crate) fn pause(&self) {
        self.gate.paused.store(true, Ordering::SeqCst);
    }

    /// Lets writes pass again. Returns whether they were held back.
    pub(crate) fn let_go(&self) -> bool {
        let held = self.gate.paused.swap(false, Ordering::SeqCst);
        self.note_change();
        held
    }

    /// Writes that come from here on fail.
    pub(crate) fn close(&self) {
        self.gate.closed.store(true, Ordering::SeqCst);
        self.note_change();
    }

    /// Nobody works in the background any more: whoever waits for that gives up.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Waits until `sequence` is durable, the group fails, or it is that time (`false`).
    ///
    /// # Errors
    /// The group has failed.
    pub fn wait_durable(
        &self,
        sequence: SequenceNumber,
        until: Option<Duration>,
    ) -> Result<bool, BlockError> {
        self.wait_until(until, || self.sequence.durable.get() >= sequence)
    }

    /// Waits until `done`, the group fails, it is that time or nobody works in the background any more (`false`).
    pub(crate) fn wait_until(
        &self,
        until: Option<Duration>,
        done: impl Fn() -> bool,
    ) -> Result<bool, BlockError> {
        loop {
            let passed = !done() && self.pass();
            let mut sleep = self.sleep.lock();
            if done() {
                return Ok(true);
            }
            self.health.check()?;
            let rest = until.map(|until| until.saturating_sub(self.now()));
            if self.is_stopped() || rest == Some(Duration::ZERO) {
                return Ok(false);
            }
            match rest {
                _ if passed => {}
                None => self.changed.wait(&mut sleep),
                Some(rest) => drop(self.changed.wait_for(&mut sleep, rest)),
            }
        }
    }
}

/// See [`Board::whole`].
pub(crate) struct Whole<'a>(&'a Board);

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail_for("a thread broke off in the middle of a change: this is a defect".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_breaks_off_fails_the_group() {
        let board = Board::new(Sequence::default(), Arc::new(crate::SystemClock));
        std::thread::scope(|scope| {
            let broken = scope.spawn(|| {
                let _whole = board.whole();
                panic!("a defect");
            });
            assert!(broken.join().is_err());
        });
        assert!(board.health.check().is_err());
        drop(board.whole());
        let reason = board.health.failure().expect("it has failed");
        assert!(reason.contains("defect"), "{reason}");
    }
}
