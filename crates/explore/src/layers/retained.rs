//! The layer that retains journals, above the redo log of a replay.
//!
//! ```text
//!   driver ─► RetainDisk's lanes ─► NumberedDisk: a write is in the log when it is submitted, or late ─► redo lanes
//!                │ a transaction commits
//!                └► Home ─► Redo::try_write_set; full: the device goes on
//! ```
//!
//! One thread drives everything, so whoever waits below makes the device go on instead of sleeping. Requests get their
//! numbers in the order of their submission: a write is appended before the next request is looked at, though it may
//! complete much later. What one dispatch would have put together is therefore not varied here. One write of the guest at a time
//! may be late: it is under way while the guest goes on, and appended when somebody waits for it, or some events later.
//!
//! The arenas are files on a tmpfs: a death of the process leaves them, a power cut does not.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Blocking, Completion, Disk, Geometry, Health, Lane, Quiesced, Sector, Token,
};
use afterimage_journal::arena::{Arena, ArenaIdentity};
use afterimage_journal::ext4::Options;
use afterimage_journal::{JournalError, RetainDisk};
use afterimage_order::redo::RedoDisk;
use afterimage_order::{HomeError, HomeWriter, LoggedDisk};
use afterimage_trace::Op;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use tempfile::TempDir;

use super::device::Shared;
use super::{failed, TURNS_MAX};
use crate::retained::read_first;
use crate::{ExploreError, Result};

/// Opens a disk whose journals are retained: [`RetainDisk::open`], or a variant that makes a mistake.
pub type OpenRetained =
    Arc<dyn Fn(Arc<dyn Disk>, Arena, Options) -> std::result::Result<RetainDisk, JournalError> + Send + Sync>;

/// How a replay retains journals. Chances are out of 1000 and drawn at every event of the guest.
#[derive(Clone)]
pub struct Retain {
    /// `--retain-max`, for each disk.
    pub arena_bytes_max: u64,
    /// The guest seems to be gone for a moment: what is committed goes home.
    pub quiesce: u32,
    /// The arena is made to give something up.
    pub make_room: u32,
    /// The image is made complete without the arena, and the guest goes on.
    pub pause: u32,
    /// Drawn at a write that brings home what a journal holds: it is late, as long as a kernel would not wait for it.
    pub late: u32,
    /// A planted fault: the home writes of a transaction are handed down one by one.
    pub split_sets: bool,
    /// A planted fault: the home writes of every fifth transaction are not handed down at all.
    pub forget_sets: bool,
    /// For proofs that mistakes are found; `None`: as a daemon does.
    pub open: Option<OpenRetained>,
}

impl Default for Retain {
    fn default() -> Self {
        Self {
            arena_bytes_max: 64 << 20,
            quiesce: 2,
            make_room: 2,
            pause: 1,
            late: 300,
            split_sets: false,
            forget_sets: false,
            open: None,
        }
    }
}

impl std::fmt::Debug for Retain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Retain")
            .field("arena_bytes_max", &self.arena_bytes_max)
            .field("quiesce", &self.quiesce)
            .field("make_room", &self.make_room)
            .field("pause", &self.pause)
            .field("late", &self.late)
            .field("split_sets", &self.split_sets)
            .field("forget_sets", &self.forget_sets)
            .finish_non_exhaustive()
    }
}

/// The disks of one process, and the arenas that outlive it.
pub(super) struct Retained {
    pub how: Retain,
    folder: TempDir,
    sizes: Vec<u64>,
    disks: Vec<Arc<RetainDisk>>,
    pub late: Late,
}

/// The write that is late, if any: its disk and first sector.
#[derive(Clone, Default)]
pub(super) struct Late(Arc<Mutex<Option<(usize, Sector)>>>);

impl Late {
    pub fn set(&self, write: Option<(usize, Sector)>) {
        *self.0.lock() = write;
    }

    fn is(&self, disk: usize, sector: Sector) -> bool {
        *self.0.lock() == Some((disk, sector))
    }
}

impl Retained {
    /// Arenas for disks of these sizes in bytes.
    pub fn new(how: &Retain, sizes: Vec<u64>) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("afterimage-explore-")
            .tempdir_in(afterimage_journal::group::JournalOptions::ARENA_FOLDER)
            .map_err(ExploreError::io("cannot make a folder for arenas"))?;
        let retained = Self { how: how.clone(), folder, sizes, disks: Vec::new(), late: Late::default() };
        for (disk, size_bytes) in retained.sizes.iter().enumerate() {
            let identity =
                ArenaIdentity { uuid: [disk as u8 + 1; 16], inode: disk as u64 + 1, size_bytes: *size_bytes };
            let made = Arena::create(&retained.path(disk), identity, how.arena_bytes_max);
            made.map_err(|e| failed("making an arena", &e))?;
        }
        Ok(retained)
    }

    fn path(&self, disk: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("{disk}.arena"))
    }

    /// A process begins.
    pub fn start(&mut self, lower: Vec<RedoDisk>, device: &Shared) -> Result<Vec<Box<dyn Lane>>> {
        let mut lanes = Vec::new();
        for (disk, lower) in lower.into_iter().enumerate() {
            let late = self.late.clone();
            let lower = Arc::new(NumberedDisk { lower, device: Arc::clone(device), disk, late });
            let arena = Arena::open(&self.path(disk), None).map_err(|e| failed("opening an arena", &e))?;
            let home = Home {
                device: Arc::clone(device),
                disk,
                split: self.how.split_sets,
                forget: self.how.forget_sets,
                sets: AtomicU64::new(0),
            };
            let options = Options { home: Some(Arc::new(home)), ..Options::default() };
            let opened = match &self.how.open {
                Some(open) => open(lower, arena, options),
                None => RetainDisk::open(lower, arena, options),
            };
            let opened = Arc::new(opened.map_err(|e| failed("opening a retained disk", &e))?);
            lanes.push(opened.open_lane().map_err(|e| failed("opening a lane", &e))?);
            self.disks.push(opened);
        }
        Ok(lanes)
    }

    /// See [`crate::retained::read_first`].
    pub fn read_first(&self, disk: usize, op: &Op) -> Result<()> {
        let lane = self.disks[disk].open_lane().map_err(|e| failed("opening a lane", &e))?;
        read_first(&mut Blocking::new(lane), op).map_err(|e| failed("reading a journal's superblock", &e))
    }

    /// The process dies: what it knew is gone, its arenas are not.
    pub fn stop(&mut self) {
        self.disks.clear();
    }

    /// What the schedule adds. `idle`: no request is in flight.
    pub fn by_chance(&mut self, device: &Shared, idle: bool) -> Result<()> {
        let failed = |e: JournalError| failed("the retained journals", &e);
        let draw = |per_mille| device.lock().draw(per_mille);
        for disk in &self.disks {
            if draw(self.how.quiesce) && idle {
                disk.quiesced(Quiesced::Stopped);
            }
            if draw(self.how.make_room) {
                disk.make_room().map_err(failed)?;
            }
            if draw(self.how.pause) {
                disk.pause().map_err(failed)?;
                disk.resume();
            }
        }
        Ok(())
    }
}

/// Home writes as one set.
struct Home {
    device: Shared,
    disk: usize,
    split: bool,
    forget: bool,
    sets: AtomicU64,
}

impl Home {
    fn write(&self, blocks: &[(Sector, &[u8])]) -> std::result::Result<(), HomeError> {
        for _ in 0..TURNS_MAX {
            let core = self.device.lock().core();
            match core.try_write_set(LoggedDisk(self.disk as u16), blocks) {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => self.device.lock().make_room().map_err(|e| broken(&e))?,
                Err(error) => return Err(error),
            }
        }
        Err(broken(&"the redo log stays full whatever is brought home").into())
    }
}

impl HomeWriter for Home {
    fn write_home(&self, blocks: &[(Sector, &[u8])]) -> std::result::Result<(), HomeError> {
        let number = self.sets.fetch_add(1, Ordering::Relaxed);
        match self.split {
            _ if self.forget && number % 5 == 4 => Ok(()),
            true => blocks.chunks(1).try_for_each(|block| self.write(block)),
            false => self.write(blocks),
        }
    }

    fn atomic_bytes_max(&self) -> Option<u64> {
        Some(u64::MAX)
    }
}

fn broken(error: &dyn std::fmt::Display) -> BlockError {
    BlockError::Failed { reason: error.to_string().into() }
}

/// A disk of the redo log whose writes have their numbers when they are submitted, but for the one that is late.
struct NumberedDisk {
    lower: RedoDisk,
    device: Shared,
    disk: usize,
    late: Late,
}

impl Disk for NumberedDisk {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn serial(&self) -> &str {
        self.lower.serial()
    }

    fn health(&self) -> &Health {
        self.lower.health()
    }

    fn open_lane(&self) -> std::result::Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(NumberedLane {
            lower: self.lower.open_lane()?,
            device: Arc::clone(&self.device),
            disk: self.disk,
            late: self.late.clone(),
            held: Vec::new(),
            writes: FxHashSet::default(),
            done: Vec::new(),
        }))
    }
}

struct NumberedLane {
    lower: Box<dyn Lane>,
    device: Shared,
    disk: usize,
    late: Late,
    /// Writes that are late.
    held: Vec<Admitted>,
    /// Writes that were handed down and are not in the log.
    writes: FxHashSet<Token>,
    done: Vec<Completion>,
}

impl NumberedLane {
    fn look(&mut self) {
        let before = self.done.len();
        self.lower.dispatch();
        self.lower.reap(&mut self.done);
        for completion in &self.done[before..] {
            self.writes.remove(&completion.token);
        }
    }

    fn fail_all(&mut self, error: &BlockError) {
        let failed = self.writes.drain().map(|token| Completion { token, result: Err(error.clone()) });
        self.done.extend(failed);
    }
}

impl NumberedLane {
    /// Hands down what is not late any more.
    fn append_held(&mut self) {
        let is_late = |request: &Admitted| self.late.is(self.disk, request.sector);
        let (late, due): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held).into_iter().partition(is_late);
        self.held = late;
        due.into_iter().for_each(|request| self.append(request));
    }

    fn append(&mut self, request: Admitted) {
        let is_write = request.operation.is_write();
        if is_write {
            self.writes.insert(request.token);
        }
        self.lower.take(request);
        if !is_write {
            return;
        }
        self.look();
        for _ in 0..TURNS_MAX {
            if self.writes.is_empty() {
                return;
            }
            let made_room = self.device.lock().make_room();
            if let Err(error) = made_room {
                self.fail_all(&broken(&error));
            }
            self.look();
        }
        self.fail_all(&broken(&"the redo log stays full whatever is brought home"));
    }
}

impl Lane for NumberedLane {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.done.push(refusal);
    }

    fn take(&mut self, request: Admitted) {
        self.append_held();
        if request.operation.is_write() && self.late.is(self.disk, request.sector) {
            self.held.push(request);
        } else {
            self.append(request);
        }
    }

    fn dispatch(&mut self) {
        self.lower.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.append_held();
        self.look();
        completions.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.lower.in_flight() + self.done.len()
    }

    /// Whoever waits does not wait for what is late.
    fn wait(&mut self, _also: &[BorrowedFd<'_>], _timeout: Option<Duration>) -> io::Result<()> {
        for request in std::mem::take(&mut self.held) {
            self.append(request);
        }
        self.look();
        if self.done.is_empty() {
            self.device.lock().go_on().map_err(io::Error::other)?;
        }
        Ok(())
    }
}
