//! The two background threads, and what has to wait for them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use afterimage_block::{BlockError, SequenceNumber};

use super::core::{lock, Core};
use crate::{Closing, Event};

/// Writes that nobody flushes become durable after this time.
const UNFLUSHED_MAX: Duration = Duration::from_secs(1);
/// A log to which nothing was appended for this time is emptied.
const IDLE: Duration = Duration::from_secs(2);

/// The running threads.
pub(super) struct Threads(Vec<JoinHandle<()>>);

impl Threads {
    pub(super) fn start(core: &Arc<Core>) -> std::io::Result<Self> {
        let mut threads = Self(Vec::new());
        let (syncer, checkpointer) = (Arc::clone(core), Arc::clone(core));
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        threads.0.push(named("log-sync").spawn(move || syncer.run_syncer())?);
        threads.0.push(named("checkpoint").spawn(move || checkpointer.run_checkpointer())?);
        Ok(threads)
    }

    /// Stops them where they are: nothing is brought home.
    pub(super) fn stop(&mut self, core: &Core) {
        lock(&core.progress).stop = true;
        core.sync_wake.notify_all();
        core.checkpoint_wake.notify_all();
        core.progressed.notify_all();
        for thread in self.0.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a background thread of the redo log panicked");
            }
        }
    }
}

/// The index of a full log is hundreds of megabytes of small pieces, which the C library keeps for the next one.
#[allow(unsafe_code)]
fn give_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointer, and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

impl Core {
    fn run_syncer(&self) {
        while self.wait_for_sync() {
            if let Err(error) = self.sync_once() {
                tracing::error!(%error, "the syncer stops");
                return;
            }
        }
    }

    /// Sleeps until a sync is due; `false` when the thread is to end.
    fn wait_for_sync(&self) -> bool {
        let mut progress = lock(&self.progress);
        loop {
            if progress.stop || self.health.check().is_err() {
                return false;
            }
            let now = self.clock.now();
            let wait = match Self::deadline(&progress, self.window) {
                Some(at) if at <= now => return true,
                Some(at) => at - now,
                None => UNFLUSHED_MAX,
            };
            let waited = self.sync_wake.wait_timeout(progress, wait).unwrap_or_else(PoisonError::into_inner);
            progress = waited.0;
            let unflushed = self.acknowledged.load(Ordering::SeqCst) > progress.durable;
            if wait == UNFLUSHED_MAX && waited.1.timed_out() && unflushed {
                return true;
            }
        }
    }

    fn run_checkpointer(&self) {
        let mut seen_head = 0;
        loop {
            let wanted = {
                let progress = lock(&self.progress);
                let sleeps = !progress.checkpoint_wanted && !progress.stop;
                let mut progress = if sleeps {
                    let woken = self.checkpoint_wake.wait_timeout(progress, IDLE);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                } else {
                    progress
                };
                if progress.stop || self.health.check().is_err() {
                    return;
                }
                std::mem::take(&mut progress.checkpoint_wanted)
            };
            let head = self.head.load(Ordering::SeqCst);
            let idle = head == seen_head;
            seen_head = head;
            // A request that was made while the last checkpoint ran may have been met by it: what is left can still grow
            // together.
            let idle = idle && self.log_bytes() > 0;
            if (wanted && self.is_half_full()) || idle {
                if let Err(error) = self.checkpoint_half() {
                    tracing::error!(%error, "the checkpointer stops");
                    return;
                }
            }
            if idle && self.log_bytes() == 0 {
                give_memory_back();
            }
        }
    }

    /// Makes what is in the log durable where little of it is, and brings the older half of the log home.
    fn checkpoint_half(&self) -> Result<(), BlockError> {
        let durable_bytes = {
            let progress = lock(&self.progress);
            progress.durable_position - progress.tail
        };
        if durable_bytes < self.log_bytes() / 2 || durable_bytes == 0 {
            let covers = self.acknowledged();
            self.request_sync();
            if !self.wait_durable(covers, None)? {
                return Ok(());
            }
        }
        self.checkpoint_once(self.area.bytes / 2)?;
        Ok(())
    }

    /// Everything that has completed, made durable now.
    pub(super) fn flush_durable(&self) -> Result<SequenceNumber, BlockError> {
        let covers = self.acknowledged();
        self.ask_durable(covers.0)?;
        if self.wait_durable(covers, None)? {
            Ok(covers)
        } else {
            Err(BlockError::Failed { reason: "the group is closing".into() })
        }
    }

    /// Holds appends back and brings everything before them home. On an error, or when the time is over, appends go on.
    pub(super) fn pause(&self, deadline: Option<Instant>) -> Result<SequenceNumber, BlockError> {
        let covers = {
            let mut append = lock(&self.append);
            append.paused = true;
            append.sequence
        };
        let paused = self.settle(covers, deadline);
        match &paused {
            Ok(()) => self.events.publish(&Event::Paused { sequence: covers }),
            Err(_) => self.let_go(),
        }
        paused.map(|()| SequenceNumber(covers))
    }

    fn settle(&self, covers: u64, deadline: Option<Instant>) -> Result<(), BlockError> {
        self.ask_durable(covers)?;
        let mut in_time = self.wait_durable(SequenceNumber(covers), deadline)?;
        while in_time && self.home().0 < covers {
            self.checkpoint_once(self.area.bytes / 4)?;
            in_time = deadline.is_none_or(|d| Instant::now() < d) || self.home().0 >= covers;
        }
        if in_time {
            return Ok(());
        }
        let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
        Err(BlockError::io("bringing the redo log home for a pause", late))
    }

    pub(super) fn paused(&self) -> bool {
        lock(&self.append).paused
    }

    fn let_go(&self) {
        lock(&self.append).paused = false;
        self.appends_changed();
    }

    /// Wakes everybody who waits to append: what they found may be otherwise now.
    fn appends_changed(&self) {
        lock(&self.progress).changes += 1;
        self.progressed.notify_all();
        self.signals.wake_parked();
    }

    pub(super) fn resume(&self) {
        self.let_go();
        self.events.publish(&Event::Resumed);
    }

    /// Appends fail from here on; everything is made durable, brought home, and the log marked clean.
    pub fn close(&self) -> Result<SequenceNumber, BlockError> {
        let closing = self.close_within(Duration::MAX)?;
        debug_assert_eq!(closing, Closing::Clean);
        Ok(self.acknowledged())
    }

    /// As [`Core::close`], but gives up going home after `limit`: everything is durable then, and the rest of the
    /// log is left for the next opening.
    pub fn close_within(&self, limit: Duration) -> Result<Closing, BlockError> {
        let covers = {
            let mut append = lock(&self.append);
            append.closed = true;
            append.sequence
        };
        self.appends_changed();
        self.sync_once()?;
        let begun = self.clock.now();
        // In pieces, so that the limit is noticed; without one there is no reason to coalesce less.
        let piece_bytes = if limit == Duration::MAX { self.area.bytes } else { self.area.bytes / 16 };
        while self.checkpoint_once(piece_bytes)? {
            if self.clock.now().saturating_sub(begun) >= limit {
                let log_bytes = self.head.load(Ordering::SeqCst) - self.tail.load(Ordering::SeqCst);
                if log_bytes > 0 {
                    return Ok(Closing::LogKept { log_bytes });
                }
            }
        }
        self.mark_clean()?;
        self.events.publish(&Event::Closed { sequence: covers });
        Ok(Closing::Clean)
    }
}
