//! One sync of a file description at a time, and what it says to everybody.
//!
//! The kernel reports a failed write-back once for each file description (`file_check_and_advance_wb_err`): of two
//! syncs that run at once one takes the error and the other answers success for the same lost data. So a description has
//! one owner of its syncs, whoever wants them:
//!
//! ```text
//! write completes ─► written += 1 ─► completion posted ─► flush: need := written
//!
//!   need ≤ synced ────────────────────────────────────────────────► done
//!   else, nothing runs ─► covers := written ─► fdatasync ─► synced := covers ─► done: all whose need ≤ synced
//!   else, one runs ─────► waits for its end, looks again               └─ failed ─► everybody, for good
//! ```
//!
//! Flushes that wait share a sync; one that runs already will do where nothing was written since it began. A failure is
//! in the [`Health`] before the next sync can begin and before anybody who waited is told anything.
//!
//! Who may block (media, a lane without a ring) syncs in its own thread. A lane with a ring must not, and its thread may
//! be held up by its guest for as long as that likes: for lanes a thread of the file's own syncs, begun with the first
//! such wish.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use afterimage_block::{advice, Bell, BlockError, Health};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::note::{Doubt, Note};

/// See the module.
pub(crate) struct Syncs {
    path: PathBuf,
    health: Health,
    /// The system call.
    sync: Box<dyn Fn() -> io::Result<()> + Send + Sync>,
    written: AtomicU64,
    synced: AtomicU64,
    /// What outlives this process of what its syncs were told, where the file has a cache.
    note: OnceLock<Note>,
    turns: Mutex<Turns>,
    /// A sync has ended, a lane has asked, or the thread is to end.
    changed: Condvar,
}

#[derive(Default)]
struct Turns {
    /// Somebody syncs.
    running: bool,
    /// Lanes that wait, and for what.
    asked: Vec<(u64, Arc<Bell>)>,
    thread: Option<JoinHandle<()>>,
    stop: bool,
}

impl Syncs {
    /// Of the description that `sync` syncs, under `path` in messages.
    pub fn new(
        path: &Path,
        health: Health,
        sync: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            path: path.to_owned(),
            health,
            sync: Box::new(sync),
            // Whoever had the file before may have left something unsynced: the first flush always syncs.
            written: AtomicU64::new(1),
            synced: AtomicU64::new(0),
            note: OnceLock::new(),
            turns: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// The file's note is kept from here on. By whoever has the file locked.
    pub fn keep(&self, note: Note) {
        self.note.get_or_init(|| note);
    }

    /// A range is about to be written through the cache.
    pub fn begin_write(&self, offset: u64, len: u64) {
        if let Some(note) = self.note.get() {
            note.mark(offset, len);
        }
    }

    /// A range was written; to be called before the completion can be seen.
    pub fn note_write(&self, offset: u64, len: u64) {
        self.begin_write(offset, len);
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Syncs what an earlier process has written. `look` makes sure of what is in doubt: what an earlier process noted, and
    /// everything where the kernel tells an error that it has told nobody. Nobody else uses the description yet.
    pub fn settle(
        &self,
        sync: &dyn Fn() -> io::Result<()>,
        file: &File,
        size: u64,
        look: &dyn Fn(&Note, Doubt) -> io::Result<u64>,
    ) -> io::Result<u64> {
        self.health.check().map_err(BlockError::into_io)?;
        if let Err(error) = sync() {
            let note = match self.note.get() {
                Some(note) => note,
                None => {
                    let made = Note::of(file, size)?;
                    self.note.get_or_init(|| made)
                }
            };
            note.suspect_all(Doubt::Failed);
            tracing::warn!(%error, path = %self.path.display(), "what was written before this start was not all stored");
        }
        let doubted = self.note.get().and_then(|note| Some((note, note.doubt()?)));
        let Some((note, doubt)) = doubted else { return Ok(0) };
        let written = look(note, doubt)?;
        self.sync_by(sync).map_err(BlockError::into_io)?;
        note.settled();
        Ok(written)
    }

    /// This process uses the file no more, which it still has locked.
    pub fn end(&self) {
        if let Some(note) = self.note.get() {
            note.end();
        }
    }

    /// What a flush submitted now needs: everything that has completed. Never less than before.
    pub fn need(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// The answer to a flush with that need, if it can be given.
    pub fn verdict(&self, need: u64) -> Option<Result<(), BlockError>> {
        match self.health.check() {
            Ok(()) => (self.synced.load(Ordering::Acquire) >= need).then_some(Ok(())),
            failed => Some(failed),
        }
    }

    /// Syncs, or waits for others' syncs, until there is a verdict.
    pub fn wait(&self, need: u64) -> Result<(), BlockError> {
        let mut turns = self.turns();
        loop {
            if let Some(verdict) = self.verdict(need) {
                return verdict;
            }
            if turns.running {
                self.changed.wait(&mut turns);
                continue;
            }
            turns = self.take_turn(turns, &self.sync)?;
        }
    }

    /// Syncs with another call, which makes no less durable, in its turn.
    pub fn sync_by(&self, sync: &dyn Fn() -> io::Result<()>) -> Result<(), BlockError> {
        let mut turns = self.turns();
        while turns.running {
            self.changed.wait(&mut turns);
        }
        self.health.check()?;
        self.take_turn(turns, sync).map(|_| ())
    }

    /// Rings when there is a verdict. The lane does not wait here, unless no thread can be started.
    pub fn ask(self: &Arc<Self>, need: u64, bell: &Arc<Bell>) {
        let mut turns = self.turns();
        if self.verdict(need).is_some() {
            bell.ring();
            return;
        }
        turns.asked.push((need, Arc::clone(bell)));
        if turns.thread.is_none() {
            let this = Arc::clone(self);
            match std::thread::Builder::new().name("sync".to_owned()).spawn(move || this.run()) {
                Ok(thread) => turns.thread = Some(thread),
                Err(error) => {
                    tracing::warn!(%error, "no thread for syncs: a queue waits for its own");
                    drop(turns);
                    // The verdict is the lane's to fetch; its bell has been rung.
                    let _ = self.wait(need);
                    return;
                }
            }
        }
        self.changed.notify_all();
    }

    /// Ends the thread, after the sync that it may be in. Nobody asks any more.
    pub fn stop(&self) {
        let thread = {
            let mut turns = self.turns();
            turns.stop = true;
            turns.thread.take()
        };
        self.changed.notify_all();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(path = %self.path.display(), "the thread that syncs panicked");
        }
    }

    fn run(&self) {
        let mut turns = self.turns();
        while !turns.stop {
            if turns.running || turns.asked.is_empty() {
                self.changed.wait(&mut turns);
            } else {
                // A failure is the lanes' to hear; whoever asks afterwards is answered without a sync.
                turns = self.take_turn(turns, &self.sync).unwrap_or_else(|_| self.turns());
            }
        }
    }

    /// One sync, from its beginning to the bells of those whom it serves. Nobody else's may run.
    fn take_turn<'a>(
        &'a self,
        mut turns: MutexGuard<'a, Turns>,
        sync: &dyn Fn() -> io::Result<()>,
    ) -> Result<MutexGuard<'a, Turns>, BlockError> {
        debug_assert!(!turns.running, "one sync at a time");
        turns.running = true;
        let covers = self.need();
        drop(turns);
        if let Some(note) = self.note.get() {
            note.sync_begins();
        }
        let synced = sync();
        // Noted while nobody else may begin a sync: it would find the error gone.
        let synced = synced.map_err(|error| self.failed(error));
        if synced.is_ok() {
            if let Some(note) = self.note.get() {
                note.sync_was_good();
            }
            self.synced.fetch_max(covers, Ordering::AcqRel);
        }
        let mut turns = self.turns();
        turns.running = false;
        turns.asked.retain(|(need, bell)| {
            let over = self.verdict(*need).is_some();
            if over {
                bell.ring();
            }
            !over
        });
        self.changed.notify_all();
        synced.map(|()| turns)
    }

    /// What was acknowledged since the last good sync may be lost, so nothing is acknowledged any more.
    fn failed(&self, error: io::Error) -> BlockError {
        if let Some(note) = self.note.get() {
            note.sync_failed();
        }
        let context = format!("syncing {}", self.path.display());
        fail(&self.health, &context, &error);
        BlockError::io(context, error)
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock()
    }
}

impl Drop for Syncs {
    fn drop(&mut self) {
        // The system call has the file, so it is locked still.
        self.end();
    }
}

/// A write or a sync failed: nothing more is written or acknowledged.
pub(crate) fn fail(health: &Health, context: &str, error: &io::Error) {
    let reason = format!("{context} failed: {error}{}", advice(error));
    if health.fail(reason.as_str()) {
        tracing::error!(reason, "nothing is written there any more");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, Receiver, Sender};

    use super::*;

    /// A file whose syncs end when and how the test says. As in the kernel, a write-back error is told to one sync only.
    struct Device {
        begun: Receiver<()>,
        answer: Sender<io::Result<()>>,
    }

    fn file(health: &Health) -> (Arc<Syncs>, Device) {
        let (begin, begun) = channel();
        let (answer, answers) = channel();
        let answers = Mutex::new(answers);
        let syncs = Syncs::new(Path::new("file"), health.clone(), move || {
            begin.send(()).expect("the test listens");
            let answers = answers.try_lock().expect("two syncs of one description run at once");
            answers.recv().expect("the test answers")
        });
        (syncs, Device { begun, answer })
    }

    impl Device {
        /// Waits until a sync runs.
        fn begun(&self) {
            self.begun.recv().expect("a sync begins");
        }

        fn answers(&self, answer: io::Result<()>) {
            self.answer.send(answer).expect("a sync runs");
        }

        fn is_idle(&self) -> bool {
            self.begun.try_recv().is_err()
        }
    }

    fn lost() -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EIO))
    }

    #[test]
    fn an_error_that_one_sync_was_told_is_everybodys() {
        let health = Health::default();
        let (syncs, device) = file(&health);
        std::thread::scope(|threads| {
            let first = threads.spawn(|| syncs.wait(syncs.need()));
            device.begun();
            // While it runs: a write, and everybody who flushes.
            syncs.note_write(0, 512);
            let second = threads.spawn(|| syncs.wait(syncs.need()));
            let bell = Arc::new(Bell::new().unwrap());
            syncs.ask(syncs.need(), &bell);
            device.answers(lost());
            assert!(matches!(first.join().unwrap(), Err(BlockError::Io { .. })));
            assert!(matches!(second.join().unwrap(), Err(BlockError::Failed { .. })));
            afterimage_block::wait_readable(&[bell.fd()], None).unwrap();
            assert!(matches!(syncs.verdict(syncs.need()), Some(Err(BlockError::Failed { .. }))));
            // The kernel would answer the next one well.
            assert!(syncs.wait(syncs.need()).is_err());
            syncs.ask(syncs.need(), &bell);
            syncs.stop();
        });
        assert!(device.is_idle(), "one sync, and none after it");
        assert!(health.failure().is_some_and(|reason| reason.contains("syncing file")));
    }

    #[test]
    fn a_failure_of_anything_else_is_looked_at_before_completing() {
        let health = Health::default();
        let (syncs, device) = file(&health);
        std::thread::scope(|threads| {
            let flush = threads.spawn(|| syncs.wait(syncs.need()));
            device.begun();
            health.fail("another queue's write failed");
            device.answers(Ok(()));
            assert!(matches!(flush.join().unwrap(), Err(BlockError::Failed { .. })));
        });
    }

    #[test]
    fn flushes_share_a_sync_that_begins_after_what_they_cover() {
        let (syncs, device) = file(&Health::default());
        let bells: Vec<_> = (0..3).map(|_| Arc::new(Bell::new().unwrap())).collect();
        std::thread::scope(|threads| {
            let (before, syncs) = (syncs.need(), &syncs);
            let first = threads.spawn(move || syncs.wait(before));
            device.begun();
            // Nothing was written since that sync began: it will do for this one, too.
            let same = threads.spawn(move || syncs.wait(before));
            syncs.note_write(0, 512);
            let after = syncs.need();
            let later: Vec<_> = (0..2).map(|_| threads.spawn(move || syncs.wait(after))).collect();
            bells.iter().for_each(|bell| syncs.ask(after, bell));
            device.answers(Ok(()));
            first.join().unwrap().unwrap();
            same.join().unwrap().unwrap();
            assert!(syncs.verdict(after).is_none(), "a write during a sync is left for the next");
            device.begun();
            device.answers(Ok(()));
            later.into_iter().for_each(|flush| flush.join().unwrap().unwrap());
            for bell in &bells {
                afterimage_block::wait_readable(&[bell.fd()], None).unwrap();
            }
            syncs.wait(syncs.need()).unwrap();
        });
        syncs.stop();
        assert!(device.is_idle(), "two syncs served six flushes");
    }
}
