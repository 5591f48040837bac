//! Of each daemon its clock, and what its threads would do in the background.
//!
//! A daemon's clock stands at the calendar's time when its turn begins. What a thread would sleep for moves it: that daemon is then
//! ahead, and takes its next turn no earlier. What another thread does meanwhile is done apart ([`Machine::apart`]): its requests
//! reach the device in its own time, and the clock goes back.
//!
//! A daemon that may be killed ([`Machine::mortal`]) is one thread, but for syncs of its log: what it has in memory is then what it has
//! done by its own clock, and it ends where that reaches the instant of its death, within whatever it does ([`Died`]).

use std::collections::BTreeSet;
use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::BlockError;
use afterimage_order::redo::Redo;
use afterimage_order::{Clock, Host};
use parking_lot::Mutex;

use crate::calendar::Ns;
use crate::storage::{ns, File, Io, Storage};

/// How far somebody looks ahead who waits for what nobody has begun.
const GLANCE: Duration = Duration::from_micros(100);

/// One daemon's machine: see the module.
#[derive(Debug)]
pub struct Machine {
    storage: Arc<Mutex<Storage>>,
    now_ns: AtomicU64,
    /// When requests in flight complete, each once.
    due: Mutex<BTreeSet<(Ns, u64)>>,
    order: AtomicU64,
    /// What a request costs the daemon.
    request_ns: Ns,
    background: Mutex<Background>,
    /// Whether it may be killed.
    mortal: bool,
    dies_at: AtomicU64,
    /// From then on it dies within the first write of several pages.
    dies_writing_from: AtomicU64,
    dead: AtomicBool,
    /// Another thread's work is being done, which the daemon's death does not break off.
    is_apart: AtomicBool,
    /// Since when, by the daemon's own clock.
    apart_from: AtomicU64,
}

/// The daemon has died: it unwinds from where it was, and nothing of it happens any more.
pub struct Died;

/// The threads of a redo log; what they do, and when, is its schedule's.
#[derive(Debug, Default)]
struct Background {
    redo: Option<Known>,
    /// When the sync of the log ends that runs.
    syncing_until: Option<Ns>,
    /// The thread that syncs writes the log out ahead until then.
    sync_busy_until: Ns,
    /// The thread that brings records home is busy.
    home_busy: bool,
    home_busy_until: Ns,
}

struct Known(Arc<Redo>);

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a redo log")
    }
}

impl Machine {
    /// A daemon's, whose requests cost it that each.
    pub fn new(storage: &Arc<Mutex<Storage>>, request_ns: Ns) -> Arc<Self> {
        Arc::new(Self {
            storage: Arc::clone(storage),
            now_ns: AtomicU64::new(0),
            due: Mutex::default(),
            order: AtomicU64::new(0),
            request_ns,
            background: Mutex::default(),
            mortal: false,
            dies_at: AtomicU64::new(Ns::MAX),
            dies_writing_from: AtomicU64::new(Ns::MAX),
            dead: AtomicBool::new(false),
            is_apart: AtomicBool::new(false),
            apart_from: AtomicU64::new(0),
        })
    }

    /// One of a daemon that begins at that time, and may be killed.
    pub fn mortal(storage: &Arc<Mutex<Storage>>, request_ns: Ns, now: Ns) -> Arc<Self> {
        let machine = Arc::into_inner(Self::new(storage, request_ns)).expect("nobody else has it yet");
        machine.reach(now);
        Arc::new(Self { mortal: true, ..machine })
    }

    /// Whether it may be killed.
    pub fn is_mortal(&self) -> bool {
        self.mortal
    }

    /// When it is to die.
    pub fn die_at(&self, at: Ns) {
        self.dies_at.fetch_min(at, Ordering::SeqCst);
    }

    /// It is to die earlier, if it begins a write of several pages from that time on: within that.
    pub fn die_writing_from(&self, at: Ns) {
        self.dies_writing_from.fetch_min(at, Ordering::SeqCst);
    }

    /// A write of several pages is under way. When it dies within it, if it does.
    pub fn dies_writing(&self) -> Option<Ns> {
        let is_its_own = self.mortal && !self.is_apart.load(Ordering::SeqCst);
        if is_its_own && self.now_ns() >= self.dies_writing_from.load(Ordering::SeqCst) {
            self.die_at(self.now_ns());
        }
        self.is_dying().then(|| self.dies_at.load(Ordering::SeqCst))
    }

    /// When it was to die at the latest, as far as is known.
    pub fn dies_at(&self) -> Ns {
        self.dies_at.load(Ordering::SeqCst)
    }

    /// Whether it has nothing to do, and nothing is on its way to it, but that it looks at its log from time to time.
    pub fn rests(&self, now: Ns) -> bool {
        let background = self.background.lock();
        let busy_until = self.now_ns().max(background.home_busy_until).max(background.sync_busy_until);
        let waits = background.redo.as_ref().is_some_and(|Known(redo)| {
            let sequence = &redo.board.sequence;
            let unflushed = sequence.durable.get() < sequence.acknowledged.get();
            unflushed || redo.syncer.next().is_none_or(|at| at.is_zero()) || redo.going_home.is_requested()
        });
        busy_until <= now && !waits && background.syncing_until.is_none() && self.due.lock().is_empty()
    }

    /// It is dead: what is left of it is dropped, and reaches nothing.
    pub fn bury(&self) {
        self.dead.store(true, Ordering::SeqCst);
        *self.background.lock() = Background::default();
    }

    /// Whether it dies now. (Another thread's work is judged by its times, see [`Volatile::die`].)
    pub fn is_dying(&self) -> bool {
        self.mortal
            && !self.is_apart.load(Ordering::SeqCst)
            && !self.dead.load(Ordering::SeqCst)
            && self.now_ns() >= self.dies_at.load(Ordering::SeqCst)
    }

    /// Breaks off where it dies.
    ///
    /// # Errors
    /// It is dead.
    pub fn lives(&self) -> io::Result<()> {
        let dying = self.is_dying();
        // What is dropped on the way out is told as by the dead: who dies twice takes all of us with it.
        if self.dead.load(Ordering::SeqCst) || dying && std::thread::panicking() {
            return Err(io::Error::other("the process is dead"));
        }
        if dying {
            resume_unwind(Box::new(Died));
        }
        Ok(())
    }

    /// The daemon's own time.
    pub fn now_ns(&self) -> Ns {
        self.now_ns.load(Ordering::SeqCst)
    }

    /// The same, but for another thread's work: when that was begun.
    pub fn outside_ns(&self) -> Ns {
        match self.is_apart.load(Ordering::SeqCst) {
            true => self.apart_from.load(Ordering::SeqCst),
            false => self.now_ns(),
        }
    }

    /// Time is there, or later.
    pub fn reach(&self, at: Ns) {
        self.now_ns.fetch_max(at, Ordering::SeqCst);
    }

    /// What a request costs, whoever it is asked of.
    pub fn charge(&self) {
        self.reach(self.now_ns() + self.request_ns);
    }

    /// Does what another thread would do from now on, and returns when that is over.
    pub fn apart<R>(&self, work: impl FnOnce() -> R) -> (R, Ns) {
        let now = self.now_ns();
        let before = self.is_apart.swap(true, Ordering::SeqCst);
        if !before {
            self.apart_from.store(now, Ordering::SeqCst);
        }
        let result = work();
        self.is_apart.store(before, Ordering::SeqCst);
        (result, self.now_ns.swap(now, Ordering::SeqCst))
    }

    /// The same of what changes the daemon's memory: by the one thread of a daemon that may be killed.
    pub fn beside<R>(&self, work: impl FnOnce() -> R) -> (R, Ns) {
        match self.mortal {
            true => (work(), self.now_ns()),
            false => self.apart(work),
        }
    }

    /// When something that a file is asked now is done.
    pub fn serve(&self, file: &File, io: Io) -> Ns {
        ns(self.storage.lock().serve(self.now(), file, io))
    }

    /// A request will complete then.
    pub fn promise(&self, due: Ns) -> (Ns, u64) {
        let due = (due, self.order.fetch_add(1, Ordering::SeqCst));
        self.due.lock().insert(due);
        due
    }

    /// It has completed.
    pub fn keep(&self, due: (Ns, u64)) {
        self.due.lock().remove(&due);
    }

    /// When there is something for the daemon to do; not before its own time.
    pub fn next(&self) -> Option<Ns> {
        let background = self.background.lock();
        let due = self.due.lock().first().map(|(at, _)| *at);
        let next = due.into_iter().chain(background.next()).min()?;
        Some(next.max(self.now_ns()))
    }

    /// What the redo log's threads do now.
    ///
    /// # Errors
    /// The group has failed.
    pub fn turn(&self) -> Result<(), BlockError> {
        let Some(redo) = self.redo() else { return Ok(()) };
        let done = self.turn_of(&redo);
        if done.is_err() && self.mortal {
            // Its threads end, and its guest is told errors.
            *self.background.lock() = Background::default();
            return Ok(());
        }
        done
    }

    fn turn_of(&self, redo: &Redo) -> Result<(), BlockError> {
        let now = self.now_ns();
        if self.background.lock().syncing_until.take_if(|until| *until <= now).is_some() {
            redo.syncer.ran();
        }
        while self.next_sync(redo).is_some_and(|at| at <= self.now_ns()) {
            self.turn_sync(redo)?;
        }
        let now = self.now_ns();
        if self.background.lock().next_home(redo) <= now {
            let (done, until) = self.beside(|| self.bring_home(redo));
            done?;
            self.background.lock().home_busy_until = until;
        }
        Ok(())
    }

    fn next_sync(&self, redo: &Redo) -> Option<Ns> {
        self.background.lock().next_sync(redo)
    }

    fn redo(&self) -> Option<Arc<Redo>> {
        self.background.lock().redo.as_ref().map(|known| Arc::clone(&known.0))
    }

    /// The thread that syncs takes a turn.
    fn turn_sync(&self, redo: &Redo) -> Result<(), BlockError> {
        let (turned, until) = self.beside(|| redo.syncer.turn());
        self.background.lock().sync_busy_until = until;
        if let Some(sync) = turned? {
            let (run, until) = self.apart(|| redo.syncer.run(&sync));
            run?;
            self.background.lock().syncing_until = Some(until);
        }
        Ok(())
    }

    fn bring_home(&self, redo: &Redo) -> Result<(), BlockError> {
        self.background.lock().home_busy = true;
        let result = redo.turn_home();
        self.background.lock().home_busy = false;
        result.map(drop)
    }
}

impl Background {
    fn next(&self) -> Option<Ns> {
        let Known(redo) = self.redo.as_ref()?;
        let sync = self.next_sync(redo).into_iter().chain(self.syncing_until);
        sync.chain([self.next_home(redo)]).min()
    }

    /// When the thread that syncs takes a turn.
    fn next_sync(&self, redo: &Redo) -> Option<Ns> {
        redo.syncer.next().map(|at| ns(at).max(self.sync_busy_until))
    }

    /// When the other one does.
    fn next_home(&self, redo: &Redo) -> Ns {
        ns(redo.going_home.next()).max(self.home_busy_until)
    }
}

impl Clock for Machine {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns())
    }

    /// Somebody of this daemon waits for what its other threads do.
    fn pass(&self) -> bool {
        // Whoever waits for the dead is told by the files' errors.
        if self.lives().is_err() {
            return false;
        }
        let Some(redo) = self.redo() else {
            self.reach(self.now_ns() + ns(GLANCE));
            return true;
        };
        let syncing_until = self.background.lock().syncing_until.take();
        if let Some(until) = syncing_until {
            self.reach(until);
            redo.syncer.ran();
        }
        // An error is the group's failure, which everybody is told.
        let is_due = syncing_until.is_some() || redo.syncer.next_at().is_some();
        if let Some(at) = self.next_sync(&redo).filter(|_| is_due) {
            self.reach(at);
            let _ = self.turn_sync(&redo);
        } else if self.background.lock().home_busy {
            self.reach(self.now_ns() + ns(GLANCE));
        } else {
            let busy_until = self.background.lock().home_busy_until;
            self.reach(busy_until.max(self.now_ns() + ns(GLANCE)));
            redo.going_home.request();
            let _ = self.bring_home(&redo);
        }
        true
    }
}

/// The machine as a group's host.
#[derive(Debug)]
pub struct OnMachine(pub Arc<Machine>);

impl Host for OnMachine {
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.0) as Arc<dyn Clock>
    }

    fn is_stepped(&self) -> bool {
        true
    }

    fn take(&self, redo: &Arc<Redo>) {
        self.0.background.lock().redo = Some(Known(Arc::clone(redo)));
    }
}
