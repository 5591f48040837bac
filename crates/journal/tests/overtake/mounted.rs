//! A mounted file system with a retained journal, whose writes home wait at a gate.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Blocking, Completion, Disk, Front, Geometry, Lane, Medium, MediumDisk, Operation,
    Sector,
};
use afterimage_journal::arena::{Arena, ArenaIdentity};
use afterimage_journal::ext4::Options;
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::layout::Layout;
use afterimage_journal::log::encode::{Draft, Encoder};
use afterimage_journal::log::LogGeometry;
use afterimage_journal::{AreaBlock, Block, FsBlock, Mutation, RetainDisk, Tid, BLOCK_BYTES};
use afterimage_order::{HomeError, HomeWriter};

use crate::common::{ext4, journal_superblock, layouts, wait_for_home, Memory};
use crate::PATIENCE;

/// Blocks that transactions are made of: the gate is before their places.
pub const COMMITTED: std::ops::Range<u64> = 3000..3040;

/// Home writes that wait as long as somebody likes.
pub struct Gate {
    memory: Arc<Memory>,
    /// Whether it is shut, and who waits there.
    state: Mutex<(bool, u32)>,
    changed: Condvar,
}

impl Gate {
    pub fn set(&self, shut: bool) {
        self.state.lock().unwrap().0 = shut;
        self.changed.notify_all();
    }

    pub fn wait_for_somebody(&self) {
        let state = self.state.lock().unwrap();
        let (state, _) =
            self.changed.wait_timeout_while(state, PATIENCE, |(_, waiting)| *waiting == 0).unwrap();
        assert_eq!(state.1, 1, "one set at a time");
    }

    /// Does something when it is open.
    fn pass<T>(&self, act: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |(shut, _)| *shut).unwrap();
        let done = act();
        state.1 -= 1;
        done
    }
}

impl HomeWriter for Gate {
    fn write_home(&self, blocks: &[(Sector, &[u8])]) -> Result<(), HomeError> {
        self.pass(|| {
            for (sector, bytes) in blocks {
                self.memory.write_at(bytes, sector.0 * 512).unwrap();
            }
        });
        Ok(())
    }

    fn atomic_bytes_max(&self) -> Option<u64> {
        Some(u64::MAX)
    }
}

/// `guest-crash`: a disk whose writes of what is committed go through the gate.
struct Gated {
    gate: Arc<Gate>,
    homes: std::ops::Range<u64>,
}

impl Medium for Gated {
    fn len(&self) -> u64 {
        self.gate.memory.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.gate.memory.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        match self.homes.contains(&offset) {
            true => self.gate.pass(|| self.gate.memory.write_at(buf, offset)),
            false => self.gate.memory.write_at(buf, offset),
        }
    }

    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.gate.memory.zero_at(offset, len, unmap)
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.memory.sync()
    }
}

/// A disk below, of which what has completed is reaped late, all of it together.
#[derive(Default)]
pub struct Late {
    pub is_late: AtomicBool,
    pub flushes: AtomicU32,
}

struct LateDisk(MediumDisk, Arc<Late>);

struct LateLane(Box<dyn Lane>, Arc<Late>);

impl Front for LateDisk {
    fn lower(&self) -> &dyn Disk {
        &self.0
    }

    fn open_front(&self, inner: Box<dyn Lane>) -> Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(LateLane(inner, Arc::clone(&self.1))))
    }
}

impl Lane for LateLane {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.0.refuse(refusal);
    }

    fn take(&mut self, request: Admitted) {
        let is_flush = matches!(request.operation, Operation::Flush(_));
        self.1.flushes.fetch_add(u32::from(is_flush), Ordering::SeqCst);
        self.0.take(request);
    }

    fn dispatch(&mut self) {
        self.0.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        if !self.1.is_late.load(Ordering::SeqCst) {
            self.0.reap(completions);
        }
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        self.0.wait(also, timeout)
    }
}

/// A mounted file system whose journal is retained.
pub struct Mounted {
    pub disk: Arc<RetainDisk>,
    pub late: Arc<Late>,
    memory: Arc<Memory>,
    pub gate: Arc<Gate>,
    pub layout: Layout,
    geometry: LogGeometry,
    superblock: JournalSuperblock,
    pub next: (Tid, AreaBlock),
    folder: tempfile::TempDir,
}

impl Mounted {
    pub fn new(applies: bool) -> Self {
        Self::with(applies, None)
    }

    /// With a daemon that makes a mistake.
    pub fn with(applies: bool, mutation: Option<Mutation>) -> Self {
        let base = ext4();
        let layout = layouts(&base).remove(0);
        let superblock = journal_superblock(&base, &layout).unwrap();
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let identity = ArenaIdentity { uuid: [9; 16], inode: 1, size_bytes: base.len() as u64 };
        let arena = Arena::create(&folder.path().join("a.arena"), identity, 8 << 20).unwrap();
        let memory = Memory::new(base);
        let gate =
            Arc::new(Gate { memory: Arc::clone(&memory), state: Mutex::default(), changed: Condvar::new() });
        let home: Arc<dyn HomeWriter> = Arc::clone(&gate) as Arc<_>;
        let options = Options { home: applies.then_some(home), ..wait_for_home() };
        let at = |home: u64| FsBlock(home).sector(layout.start).0 * 512;
        let gated = Gated { gate: Arc::clone(&gate), homes: at(COMMITTED.start)..at(COMMITTED.end) };
        let medium: Arc<dyn Medium> = match applies {
            true => Arc::clone(&memory) as Arc<_>,
            false => Arc::new(gated),
        };
        let late = Arc::new(Late::default());
        let below = Arc::new(LateDisk(MediumDisk::new(medium), Arc::clone(&late)));
        let disk = match mutation {
            Some(mutation) => RetainDisk::open_mutated(below, arena, options, mutation),
            None => RetainDisk::open(below, arena, options),
        };
        let disk = Arc::new(disk.unwrap());
        let next = (superblock.sequence(), superblock.first());
        let geometry = LogGeometry::new(&superblock, &layout);
        let mounted = Self { disk, late, memory, gate, layout, geometry, superblock, next, folder };
        mounted.write_tail(&mut mounted.lane());
        assert_eq!(mounted.disk.status().file_systems[0].mode, "retain");
        mounted
    }

    /// `power-window`: the daemon dies now, and this is what the next one makes of the disk; and the disk.
    pub fn next_daemon(&self) -> (RetainDisk, Arc<Memory>) {
        let arena = self.folder.path().join("b.arena");
        std::fs::copy(self.folder.path().join("a.arena"), &arena).unwrap();
        let memory = Memory::new(self.memory.bytes());
        let open = Gate { memory: Arc::clone(&memory), state: Mutex::default(), changed: Condvar::new() };
        let options = Options { home: Some(Arc::new(open)), ..wait_for_home() };
        let below = Arc::new(MediumDisk::new(Arc::clone(&memory) as Arc<dyn Medium>));
        let disk = RetainDisk::open(below, Arena::open(&arena, None).unwrap(), options).unwrap();
        (disk, memory)
    }

    pub fn lane(&self) -> Blocking {
        Blocking::new(self.disk.open_lane().unwrap())
    }

    pub fn sector_of(&self, at: AreaBlock) -> Sector {
        self.layout.home_of(at).unwrap().sector(self.layout.start)
    }

    /// The guest's tail moves to where it writes next.
    pub fn write_tail(&self, lane: &mut Blocking) {
        let tail = self.superblock.with_tail(self.next.0, Some(self.next.1));
        // As a mount does.
        lane.read(self.sector_of(AreaBlock(0)), &mut [0; BLOCK_BYTES]).unwrap();
        lane.write(self.sector_of(AreaBlock(0)), tail.bytes()).unwrap();
    }

    /// A transaction's journal writes, the commit block last.
    pub fn transaction(&mut self, logged: Vec<(FsBlock, Block)>) -> Vec<(Sector, Block)> {
        let logged = logged.into_iter().map(|(home, content)| (home, Box::new(content))).collect();
        let mut encoder = Encoder::new(&self.geometry, self.next.1, self.next.0);
        let start = encoder.at;
        encoder.transaction(&Draft { logged, ..Draft::default() });
        self.next = (self.next.0.next(), encoder.at);
        let mut blocks: Vec<(AreaBlock, &Box<Block>)> =
            encoder.blocks.iter().map(|(at, b)| (*at, b)).collect();
        blocks.sort_by_key(|(at, _)| self.geometry.distance(start, *at));
        blocks.into_iter().map(|(at, block)| (self.sector_of(at), **block)).collect()
    }

    pub fn home(&self, home: u64) -> Sector {
        FsBlock(home).sector(self.layout.start)
    }

    pub fn image(&self) -> Vec<u8> {
        self.memory.bytes()
    }

    pub fn on_disk(&self, home: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        self.memory.read_at(&mut bytes, self.home(home).0 * 512).unwrap();
        bytes
    }
}
