//! The machine below: media that know what is durable ([`SimWorld`]), an image over them, a clock, and what the daemon's threads
//! would do, done when somebody waits or when the schedule says so. It outlives daemons.

use std::any::Any;
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Completion, Disk, Front, Geometry, Health, Lane, Medium, MediumDisk, Tap,
};
use afterimage_block_conformance::sim::{SimMedium, SimWorld};
use afterimage_format::log::PAGE_BYTES;
use afterimage_order::redo::{LogSync, Redo};
use afterimage_order::{Clock, Host};
use afterimage_store::{Attributes, FileIdentity, Image};
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// The media of the world.
pub const LOG: usize = 0;
pub const IMAGE: usize = 1;

/// How often somebody may look whether what he waits for has come, in one operation of a guest.
const LOOKS_MAX: u64 = 20_000;

/// The process has died: it unwinds from where it was, and nothing of it happens any more.
pub struct Died;

/// The process waits for what never comes.
pub struct Stuck(pub String);

pub fn is_death(panic: &(dyn Any + Send)) -> bool {
    panic.is::<Died>()
}

pub struct Machine {
    pub world: SimWorld,
    now_ns: AtomicU64,
    looks: AtomicU64,
    rng: Mutex<ChaCha8Rng>,
    redo: Mutex<Option<Arc<Redo>>>,
    /// A sync of the log that the schedule has begun, and that has not run.
    syncing: Mutex<Option<LogSync>>,
    going_home: AtomicBool,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a simulated machine")
    }
}

/// The same machine after a power cut, or another one.
impl Machine {
    pub fn new(world: SimWorld, now: Duration) -> Arc<Self> {
        Arc::new(Self {
            world,
            now_ns: AtomicU64::new(now.as_nanos() as u64),
            looks: AtomicU64::new(0),
            rng: Mutex::new(ChaCha8Rng::seed_from_u64(0)),
            redo: Mutex::new(None),
            syncing: Mutex::default(),
            going_home: AtomicBool::new(false),
        })
    }

    pub fn reseed(&self, seed: u64) {
        *self.rng.lock() = ChaCha8Rng::seed_from_u64(seed);
        self.looks.store(0, Ordering::SeqCst);
    }

    fn chance(&self, one_in: u32) -> bool {
        self.rng.lock().random_ratio(1, one_in)
    }

    pub fn advance(&self, by: Duration) {
        self.now_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }

    pub fn redo(&self) -> Option<Arc<Redo>> {
        self.redo.lock().clone()
    }

    /// Forgets the process that has died.
    pub fn bury(&self) {
        *self.redo.lock() = None;
        *self.syncing.lock() = None;
        self.going_home.store(false, Ordering::SeqCst);
        self.world.revive();
        self.world.heal();
    }

    /// Looks whether somebody waits for ever.
    pub fn look(&self) {
        if self.looks.fetch_add(1, Ordering::SeqCst) > LOOKS_MAX {
            resume_unwind(Box::new(Stuck("nothing happens any more, and somebody waits".into())));
        }
    }

    /// The thread that syncs the log goes on, if something is due, or nobody minds: a turn of the schedule, or the sync itself.
    pub fn sync_turn(&self) {
        let Some(redo) = self.redo() else { return };
        // A sync that takes long: the schedule is asked meanwhile.
        if self.syncing.lock().is_some() && self.chance(2) {
            return self.end_sync(&redo);
        }
        let due = redo.syncer.next().is_some_and(|at| at <= self.now());
        if !due && !self.chance(4) {
            return;
        }
        if !due {
            redo.syncer.request();
        }
        // An error is the group's failure, which everybody is told.
        if let Ok(Some(sync)) = redo.syncer.turn() {
            // Only a broken schedule has two at once.
            self.end_sync(&redo);
            *self.syncing.lock() = Some(sync);
        }
    }

    /// The sync that was begun runs, if it has not yet.
    pub fn end_sync(&self, redo: &Redo) {
        let sync = *self.syncing.lock();
        if let Some(sync) = sync {
            let run = redo.syncer.run(&sync);
            *self.syncing.lock() = None;
            if run.is_ok() {
                redo.syncer.ran();
            }
        }
    }

    /// Begins a sync, whatever the schedule says.
    pub fn begin_sync(&self, redo: &Redo) {
        redo.syncer.request();
        // What is left of the sync before comes first.
        for _ in 0..3 {
            if self.syncing.lock().is_none() && redo.syncer.next() == Some(Duration::ZERO) {
                self.sync_turn();
            }
        }
    }

    /// A turn of the thread that brings records home, or a round at a moment, and of a size, that its schedule would not
    /// choose.
    pub fn home_turn(&self, odd: bool) {
        let Some(redo) = self.redo() else { return };
        // The thread is one: while it waits for the syncer, it does nothing else.
        if self.going_home.swap(true, Ordering::SeqCst) {
            return;
        }
        let bytes = self.rng.lock().random_range(1..=redo.log.area_bytes());
        let _ = match odd {
            true if self.chance(2) => redo.going_home.round(bytes),
            true => redo.half_home(),
            false => redo.turn_home(),
        };
        self.going_home.store(false, Ordering::SeqCst);
    }
}

impl Clock for Machine {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.load(Ordering::SeqCst))
    }

    fn pass(&self) -> bool {
        self.look();
        self.advance(Duration::from_micros(100));
        if self.chance(2) {
            self.sync_turn();
        } else {
            if let Some(redo) = self.redo() {
                redo.going_home.request();
            }
            self.home_turn(false);
        }
        true
    }
}

/// The machine as the group's host.
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
        if redo.replayed().is_none() {
            // As a new log is: only a part of it is written out.
            let bytes = self.0.rng.lock().random_range(0..=redo.log.area_bytes() / PAGE_BYTES) * PAGE_BYTES;
            redo.log.written_out(bytes);
        }
        *self.0.redo.lock() = Some(Arc::clone(redo));
    }
}

/// The group's log is a medium of the world.
impl Tap for OnMachine {
    fn log(&self, _file: Arc<dyn Medium>) -> io::Result<Arc<dyn Medium>> {
        Ok(medium(&self.0, LOG, None))
    }

    fn home(
        &self,
        _index: afterimage_block::DiskIndex,
        home: Arc<dyn Medium>,
    ) -> io::Result<Arc<dyn Medium>> {
        Ok(home)
    }

    fn lower(&self, _index: afterimage_block::DiskIndex, disk: Arc<dyn Disk>) -> io::Result<Arc<dyn Disk>> {
        Ok(disk)
    }
}

/// A medium whose user dies with the process.
struct Mortal {
    medium: Arc<SimMedium>,
    machine: Arc<Machine>,
    /// Of the image: a failed sync turns it read-only, whoever asked for it.
    health: Option<Health>,
}

fn medium(machine: &Arc<Machine>, index: usize, health: Option<Health>) -> Arc<dyn Medium> {
    Arc::new(Mortal { medium: machine.world.medium(index), machine: Arc::clone(machine), health })
}

impl Mortal {
    fn or_die<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.is_err() && self.machine.world.halted() && !std::thread::panicking() {
            resume_unwind(Box::new(Died));
        }
        result
    }
}

impl Medium for Mortal {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.or_die(self.medium.read_at(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.or_die(self.medium.write_at(buf, offset))
    }

    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.or_die(self.medium.zero_at(offset, len, unmap))
    }

    fn settle(&self) -> io::Result<()> {
        self.told(self.medium.settle())
    }

    fn sync(&self) -> io::Result<()> {
        self.told(self.medium.sync())
    }
}

impl Mortal {
    /// A failed sync is the image's.
    fn told(&self, synced: io::Result<()>) -> io::Result<()> {
        let synced = self.or_die(synced);
        if let (Err(error), Some(health)) = (&synced, &self.health) {
            health.fail(format!("a sync failed: {error}"));
        }
        synced
    }
}

/// An image of which only the name is a file.
pub struct SimImage {
    machine: Arc<Machine>,
    disk: MediumDisk,
    path: PathBuf,
}

impl SimImage {
    pub fn open(machine: &Arc<Machine>, path: &Path) -> Arc<Self> {
        let disk = MediumDisk::new(medium(machine, IMAGE, None));
        Arc::new(Self { machine: Arc::clone(machine), disk, path: path.to_owned() })
    }
}

impl Front for SimImage {
    fn lower(&self) -> &dyn Disk {
        &self.disk
    }

    fn open_front(&self, lane: Box<dyn Lane>) -> Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(SimLane { machine: Arc::clone(&self.machine), lane, held: Vec::new() }))
    }
}

impl Image for SimImage {
    fn path(&self) -> &Path {
        &self.path
    }

    fn is_device(&self) -> bool {
        false
    }

    fn medium(&self) -> Arc<dyn Medium> {
        medium(&self.machine, IMAGE, Some(self.disk.health().clone()))
    }

    fn as_disk(self: Arc<Self>) -> Arc<dyn Disk> {
        self
    }

    fn identity(&self) -> io::Result<FileIdentity> {
        Ok(FileIdentity::at(&self.path)?.0)
    }

    fn set_mark(&self, _mark: &[u8]) -> io::Result<Attributes> {
        Ok(Attributes::Kept)
    }

    fn remove_mark(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A queue of the image, which completes what is in flight when it likes, in any order. A request takes effect then.
struct SimLane {
    machine: Arc<Machine>,
    lane: Box<dyn Lane>,
    held: Vec<Admitted>,
}

impl SimLane {
    fn serve_one(&mut self) {
        let at = self.machine.rng.lock().random_range(0..self.held.len());
        let request = self.held.swap_remove(at);
        self.lane.take(request);
    }
}

impl Lane for SimLane {
    fn geometry(&self) -> Geometry {
        self.lane.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.lane.refuse(refusal);
    }

    fn take(&mut self, request: Admitted) {
        self.held.push(request);
    }

    fn dispatch(&mut self) {}

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        while !self.held.is_empty() && !self.machine.world.halted() && !self.machine.chance(3) {
            self.serve_one();
        }
        self.lane.reap(completions);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.lane.in_flight()
    }

    fn wait(&mut self, _also: &[BorrowedFd<'_>], _timeout: Option<Duration>) -> io::Result<()> {
        if self.machine.world.halted() {
            return Err(io::Error::other("the process is dead"));
        }
        self.machine.look();
        if !self.held.is_empty() {
            self.serve_one();
        }
        Ok(())
    }
}
