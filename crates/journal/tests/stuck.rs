//! Guest memory that blocks whoever touches it stops nobody but its own request: not the disk's other queues, nor its status.
#![allow(unsafe_code)]

mod common;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Blocking, Buffers, Completion, Disk, Geometry, Health, Lane, Operation, Request,
    Sector, Token,
};
use afterimage_journal::arena::{Arena, ArenaIdentity};
use afterimage_journal::log::encode::{Draft, Encoder};
use afterimage_journal::log::LogGeometry;
use afterimage_journal::{AreaBlock, FsBlock, RetainDisk, BLOCK_BYTES};
use afterimage_testing::{skip, StuckMemory};
use common::{at_commit, ext4, journal_superblock, layouts, wait_for_home, Served};

const PATIENCE: Duration = Duration::from_secs(20);

/// Makes a request whose memory is stuck, and does `others` meanwhile.
fn while_stuck(disk: &RetainDisk, operation: Operation, sector: u64, others: impl FnOnce() + Send) {
    let memory = match StuckMemory::new(4096) {
        Ok(memory) => memory,
        Err(why) => return skip(why),
    };
    // SAFETY: the memory lives until the request has completed, and nobody makes references to it.
    let buffers = unsafe { Buffers::from_raw([memory.segment()], None) };
    std::thread::scope(|scope| {
        let stuck = scope.spawn(move || {
            let mut lane = Blocking::new(disk.open_lane().unwrap());
            lane.request(operation, Sector(sector), 8, buffers)
        });
        let touched = memory.wait_until_touched(PATIENCE);
        let (done, told) = channel();
        scope.spawn(move || {
            others();
            done.send(()).unwrap();
        });
        let went_on = told.recv_timeout(PATIENCE).is_ok();
        memory.release();
        stuck.join().unwrap().unwrap();
        assert!(touched, "nobody touched the memory");
        assert!(went_on, "everybody waited for one guest's memory");
    });
}

/// Whatever else is done with a disk at a time.
fn others(disk: &RetainDisk, sector: u64) {
    let mut lane = Blocking::new(disk.open_lane().unwrap());
    lane.write(Sector(sector), &[7; 4096]).unwrap();
    let mut found = [0; 4096];
    lane.read(Sector(sector), &mut found).unwrap();
    assert_eq!(found, [7; 4096]);
    lane.flush(afterimage_block::FlushKind::Order).unwrap();
    disk.status();
    disk.make_room().unwrap();
}

#[test]
fn a_write_from_stuck_memory_stops_nobody_else() {
    let served = Served::new(vec![0; 8 << 20], 4 << 20, wait_for_home());
    // The partition table, which is looked at.
    let disk = served.disk();
    while_stuck(disk, Operation::Write { flushed: false }, 0, || others(disk, 8));
}

#[test]
fn a_read_from_a_retained_journal_into_stuck_memory_stops_nobody_else() {
    let base = ext4();
    let layout = layouts(&base).remove(0);
    let superblock = journal_superblock(&base, &layout).unwrap();
    let at = layout.home_of(AreaBlock(0)).unwrap().sector(layout.start);
    let mut served = Served::new(base, 4 << 20, wait_for_home());
    // A mount: from now on the superblock is the arena's.
    let mounted = superblock.with_tail(superblock.sequence(), Some(AreaBlock(1)));
    served.lane().write(at, mounted.bytes()).unwrap();
    let absorbed = served.disk().status();
    assert!(absorbed.file_systems[0].mode == "retain", "{absorbed:?}");
    let disk = served.disk();
    while_stuck(disk, Operation::Read, at.0, || others(disk, at.0 + 64 * 8));
}

/// `power-window`: a commit waits for a write of one of its blocks that another queue has below, and whose completion that queue
/// does not look at. It alone waits.
#[test]
fn a_commit_that_waits_for_a_stuck_queue_stops_nobody_else() {
    let memory = match StuckMemory::new(4096) {
        Ok(memory) => memory,
        Err(why) => return skip(why),
    };
    let base = ext4();
    let layout = layouts(&base).remove(0);
    let superblock = journal_superblock(&base, &layout).unwrap();
    let sector_of = |at| layout.home_of(at).unwrap().sector(layout.start);
    let mut served = Served::new(base, 4 << 20, at_commit());
    let tid = superblock.sequence();
    let mounted = superblock.with_tail(tid, Some(superblock.first()));
    served.lane().write(sector_of(AreaBlock(0)), mounted.bytes()).unwrap();

    let geometry = LogGeometry::new(&superblock, &layout);
    let home = FsBlock(4000);
    let mut encoder = Encoder::new(&geometry, superblock.first(), tid);
    encoder.transaction(&Draft { logged: vec![(home, Box::new([2; BLOCK_BYTES]))], ..Draft::default() });
    let commit = AreaBlock(encoder.at.0 - 1);
    for (at, block) in encoder.blocks.iter().filter(|(at, _)| **at != commit) {
        served.lane().write(sector_of(*at), &block[..]).unwrap();
    }

    let (disk, beyond) = (served.disk(), sector_of(AreaBlock(500)));
    let write = |token, sector, buffers| {
        let operation = Operation::Write { flushed: false };
        Request { token: Token(token), operation, sector, sectors: 8, buffers }
    };
    let mut committing: Box<dyn Lane> = disk.open_lane().unwrap();
    let mut completions: Vec<Completion> = Vec::new();
    std::thread::scope(|scope| {
        // SAFETY: the memory lives until the request has completed, and nobody makes references to it.
        let stuck = unsafe { Buffers::from_raw([memory.segment()], None) };
        scope.spawn(move || {
            let mut lane: Box<dyn Lane> = disk.open_lane().unwrap();
            lane.submit(write(1, home.sector(layout.start), Buffers::from_bytes(&[1; BLOCK_BYTES])));
            lane.submit(write(2, beyond, stuck));
            // The lane's end waits for what is below.
        });
        let touched = memory.wait_until_touched(PATIENCE);
        committing.submit(write(3, sector_of(commit), Buffers::from_bytes(&encoder.blocks[&commit][..])));
        let (done, told) = channel();
        scope.spawn(move || {
            others(disk, 3900 * 8);
            disk.settle().unwrap();
            disk.pause().unwrap();
            disk.resume();
            done.send(()).unwrap();
        });
        let went_on = told.recv_timeout(PATIENCE).is_ok();
        committing.reap(&mut completions);
        let waited = completions.is_empty();
        memory.release();
        assert!(touched, "nobody touched the memory");
        assert!(went_on, "everybody waited for one guest's memory");
        assert!(waited, "a commit did not wait for a write of its block");
    });
    while completions.is_empty() {
        committing.wait(&[], Some(PATIENCE)).unwrap();
        committing.reap(&mut completions);
    }
    completions[0].result.as_ref().unwrap();
    let found = Arc::clone(&served.below).bytes();
    assert!(found[4000 * BLOCK_BYTES..][..BLOCK_BYTES].iter().all(|b| *b == 2), "the commit is not whole");
}

/// Writes that need to be copied wait for the memory of others, in order, and all of them come through.
#[test]
fn more_changes_than_a_lane_copies_at_once_all_complete() {
    let served = Served::new(vec![0; 16 << 20], 4 << 20, wait_for_home());
    let mut lane: Box<dyn Lane> = served.disk().open_lane().unwrap();
    // Each covers the partition table, in pieces; one is larger than all there is to lend.
    let lengths = [6 << 20, 1 << 20, 512, 5 << 20, 4096, 12 << 20];
    for (n, bytes) in (0..).zip(lengths) {
        let buffers = Buffers::from_bytes(&vec![n as u8 + 1; bytes]);
        let (operation, sectors) = (Operation::Write { flushed: n % 2 == 0 }, bytes as u64 / 512);
        lane.submit(Request { token: Token(n), operation, sector: Sector(0), sectors, buffers });
    }
    let mut completions: Vec<Completion> = Vec::new();
    while lane.in_flight() > 0 {
        lane.dispatch();
        lane.reap(&mut completions);
        if lane.in_flight() > 0 && completions.is_empty() {
            lane.wait(&[], Some(PATIENCE)).unwrap();
        }
    }
    let failed: Vec<&BlockError> = completions.iter().filter_map(|c| c.result.as_ref().err()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(completions.len(), lengths.len());
    let found = Arc::clone(&served.below).bytes();
    assert!(found[..12 << 20].iter().all(|b| *b == 6) && found[12 << 20..].iter().all(|b| *b == 0));
}

/// A disk that a guest's writes go nowhere in, and wait there until they may complete.
struct Parking {
    /// What its beginning and its end hold.
    ends: [Vec<u8>; 2],
    bytes: u64,
    health: Health,
    shut: AtomicBool,
    /// The most writes that were ever here at once.
    most: AtomicUsize,
}

struct ParkingLane {
    disk: Arc<Parking>,
    parked: Vec<Completion>,
    done: Vec<Completion>,
}

impl Parking {
    fn geometry(&self) -> Geometry {
        Geometry {
            sectors: self.bytes / 512,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            discard_granularity_bytes: 4096,
            read_only: false,
        }
    }

    fn read(&self, offset: u64, buffers: &Buffers) {
        let mut found = vec![0; buffers.len()];
        let [first, last] = &self.ends;
        for (start, bytes) in [(0, first), (self.bytes - last.len() as u64, last)] {
            let (from, to) =
                (start.max(offset), (start + bytes.len() as u64).min(offset + found.len() as u64));
            if from < to {
                let part = &bytes[(from - start) as usize..(to - start) as usize];
                found[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
            }
        }
        buffers.copy_from(0, &found);
    }
}

struct ParkingDisk(Arc<Parking>);

impl Disk for ParkingDisk {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn serial(&self) -> &str {
        "parking"
    }

    fn health(&self) -> &Health {
        &self.0.health
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(ParkingLane { disk: Arc::clone(&self.0), parked: Vec::new(), done: Vec::new() }))
    }
}

impl Lane for ParkingLane {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.done.push(refusal);
    }

    fn take(&mut self, request: Admitted) {
        let completion = Completion { token: request.token, result: Ok(()) };
        match request.operation {
            Operation::Read => self.disk.read(request.sector.0 * 512, &request.buffers),
            Operation::Flush(_) => {}
            _ => {
                self.parked.push(completion);
                self.disk.most.fetch_max(self.parked.len(), Ordering::SeqCst);
                return;
            }
        }
        self.done.push(completion);
    }

    fn dispatch(&mut self) {}

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
        if !self.disk.shut.load(Ordering::SeqCst) {
            completions.append(&mut self.parked);
        }
    }

    fn in_flight(&self) -> usize {
        self.parked.len() + self.done.len()
    }

    fn wait(&mut self, _also: &[BorrowedFd<'_>], _timeout: Option<Duration>) -> std::io::Result<()> {
        std::thread::yield_now();
        Ok(())
    }
}

/// A guest may ask for gigabytes at once, of which the end is of interest: it is handed down in pieces, and not in all of them at once.
#[test]
fn a_large_write_is_below_in_no_more_parts_than_any_other() {
    let (bytes, file_system) = (1600 << 20, ext4());
    // A partition table that says where the file system is.
    let (start, sectors) = ((bytes - file_system.len() as u64) / 512, file_system.len() as u64 / 512);
    let mut table = vec![0; 512];
    table[446 + 4] = 0x83;
    table[446 + 8..446 + 12].copy_from_slice(&(start as u32).to_le_bytes());
    table[446 + 12..446 + 16].copy_from_slice(&(sectors as u32).to_le_bytes());
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    let parking = Arc::new(Parking {
        ends: [table, file_system],
        bytes,
        health: Health::default(),
        shut: AtomicBool::new(true),
        most: AtomicUsize::new(0),
    });
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let identity = ArenaIdentity { uuid: [9; 16], inode: 1, size_bytes: bytes };
    let arena = Arena::create(&folder.path().join("a.arena"), identity, 4 << 20).unwrap();
    let lower = Arc::new(ParkingDisk(Arc::clone(&parking)));
    let disk = RetainDisk::open(lower, arena, wait_for_home()).unwrap();
    assert_eq!(disk.status().file_systems.len(), 1);

    let mut lane = disk.open_lane().unwrap();
    let operation = Operation::Write { flushed: false };
    let buffers = Buffers::allocate(bytes as usize);
    lane.submit(Request { token: Token(1), operation, sector: Sector(0), sectors: bytes / 512, buffers });
    let mut completions: Vec<Completion> = Vec::new();
    for _ in 0..10 {
        lane.dispatch();
        lane.reap(&mut completions);
    }
    let (parked, waits) = (parking.most.load(Ordering::SeqCst), completions.is_empty());
    parking.shut.store(false, Ordering::SeqCst);
    assert!((1000..=1024).contains(&parked) && waits, "{parked} parts");
    while completions.is_empty() {
        lane.dispatch();
        lane.reap(&mut completions);
        lane.wait(&[], Some(PATIENCE)).unwrap();
    }
    completions[0].result.as_ref().unwrap();
    assert!(parking.most.load(Ordering::SeqCst) <= 1024);
}
