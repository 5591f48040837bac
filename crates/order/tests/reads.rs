//! Reads through the redo log: how scattered a guest made a range decides neither how much they take at once nor whether
//! others are served, and memory that blocks stops only its own request.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use afterimage_block::{
    Admitted, BlockError, Blocking, Buffers, Completion, Disk, FlushKind, Front, Geometry, Lane, Medium,
    MediumDisk, Operation, Request, Sector, SequenceNumber, Token,
};
use afterimage_block_conformance::sim::{Fault, SimWorld};
use afterimage_format::log::{ImageEntry, RECORDS_OFFSET};
use afterimage_order::redo::{create_medium, records_max, Config, Redo, RedoDisk};
use afterimage_order::{LoggedDisk, VirtualClock};
use afterimage_testing::{skip, StuckMemory};

const PATIENCE: Duration = Duration::from_secs(20);
const DISK_BYTES: usize = 8 << 20;
const SECTORS: u64 = DISK_BYTES as u64 / 512;
const AREA_BYTES: usize = 8 << 20;

/// A disk of which a lane answers one request at a time, and which knows how many there were at once.
struct Slow {
    inner: MediumDisk,
    most: Arc<AtomicUsize>,
}

struct SlowLane {
    inner: Box<dyn Lane>,
    held: std::collections::VecDeque<Admitted>,
    most: Arc<AtomicUsize>,
}

impl Front for Slow {
    fn lower(&self) -> &dyn Disk {
        &self.inner
    }

    fn open_front(&self, inner: Box<dyn Lane>) -> Result<Box<dyn Lane>, BlockError> {
        let most = Arc::clone(&self.most);
        Ok(Box::new(SlowLane { inner, held: Default::default(), most }))
    }
}

impl Lane for SlowLane {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.inner.refuse(refusal);
    }

    fn take(&mut self, request: Admitted) {
        self.held.push_back(request);
        self.most.fetch_max(self.held.len(), Ordering::SeqCst);
    }

    fn dispatch(&mut self) {}

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        if let Some(request) = self.held.pop_front() {
            self.inner.take(request);
        }
        self.inner.reap(completions);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.inner.in_flight()
    }

    fn wait(&mut self, _also: &[BorrowedFd<'_>], _timeout: Option<Duration>) -> io::Result<()> {
        assert!(self.in_flight() > 0, "a lane waits for nothing");
        Ok(())
    }
}

/// A log over two images whose bytes tell their place.
fn open() -> (Arc<Redo>, SimWorld) {
    open_over(|log| log)
}

fn open_over(over: impl FnOnce(Arc<dyn Medium>) -> Arc<dyn Medium>) -> (Arc<Redo>, SimWorld) {
    let image: Vec<u8> = (0..SECTORS).flat_map(|s| [s as u8 | 1; 512]).collect();
    let world = SimWorld::new(vec![vec![0; RECORDS_OFFSET as usize + AREA_BYTES], image.clone(), image]);
    let log: Arc<dyn Medium> = world.medium(0);
    let homes = || -> Vec<Arc<dyn Medium>> { vec![world.medium(1), world.medium(2)] };
    let entry = ImageEntry { size_bytes: (DISK_BYTES as u64).into(), ..ImageEntry::default() };
    create_medium(&log, &homes(), &[entry, entry], &[], [1; 16], 1).expect("a log");
    let (window, clock) = (Duration::from_millis(50), Arc::new(VirtualClock::default()));
    let core = Redo::open(Config::new(window, clock, over(log), homes(), 2)).expect("a core");
    (core, world)
}

/// A log whose reads stand still while it is shut.
struct Standing {
    inner: Arc<dyn Medium>,
    shut: Mutex<bool>,
    changed: Condvar,
    reading: AtomicUsize,
    written: AtomicUsize,
}

impl Standing {
    fn set(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.changed.notify_all();
    }
}

impl Medium for Standing {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.reading.fetch_add(1, Ordering::SeqCst);
        drop(self.changed.wait_while(self.shut.lock().unwrap(), |shut| *shut).unwrap());
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_at(buf, offset)?;
        self.written.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.inner.zero_at(offset, len, unmap)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

fn wait_for(count: &AtomicUsize, more_than: usize) {
    let until = Instant::now() + PATIENCE;
    while count.load(Ordering::SeqCst) <= more_than {
        assert!(Instant::now() < until, "nobody came");
        std::thread::yield_now();
    }
}

/// Who appends to the place that is read waits. The end of a sync, and with it every flush of the group, does not.
#[test]
fn a_read_that_stands_still_in_the_log_holds_up_no_flush() {
    let mut standing = None;
    let (core, world) = open_over(|inner| {
        let log = Standing {
            inner,
            shut: Mutex::default(),
            changed: Condvar::new(),
            reading: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
        };
        Arc::clone(standing.insert(Arc::new(log))) as Arc<dyn Medium>
    });
    let log = standing.expect("it was opened");
    let lane = |index| Blocking::new(disk(&core, &world, index).open_lane().expect("a lane"));
    let [mut reader, mut writer, mut other] = [lane(0), lane(0), lane(1)];
    writer.write(Sector(0), &[1; 512]).expect("a write");
    let sync = core.syncer.begin().expect("healthy").expect("something was written");
    core.syncer.run(&sync).expect("healthy");
    let (reads, writes) = (log.reading.load(Ordering::SeqCst), log.written.load(Ordering::SeqCst));
    log.set(true);
    let flushed = std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut found = [0; 512];
            reader.read(Sector(0), &mut found).expect("a read");
            assert_eq!(found, [1; 512]);
        });
        wait_for(&log.reading, reads);
        scope.spawn(move || writer.write(Sector(8), &[2; 512]).expect("a write"));
        wait_for(&log.written, writes);
        // Where it waits for the reader cannot be seen.
        std::thread::sleep(Duration::from_millis(50));
        let (done, told) = channel();
        let core = &core;
        scope.spawn(move || {
            core.syncer.finish(&sync);
            other.flush(FlushKind::Order).expect("a flush");
            let _ = done.send(());
        });
        let flushed = told.recv_timeout(PATIENCE).is_ok();
        log.set(false);
        flushed
    });
    assert!(flushed, "a flush of another disk waited for a read");
    assert_eq!(core.board.sequence.durable.get(), SequenceNumber(1));
}

fn disk(core: &Arc<Redo>, world: &SimWorld, index: u16) -> RedoDisk {
    RedoDisk::new(
        Arc::clone(core),
        LoggedDisk(index),
        Arc::new(MediumDisk::new(world.medium(usize::from(index) + 1))),
    )
}

#[test]
fn a_scattered_range_is_read_in_turns() {
    let (core, world) = open();
    let mut lane = Blocking::new(disk(&core, &world, 0).open_lane().expect("a lane"));
    let mut expected: Vec<u8> = (0..SECTORS).flat_map(|s| [s as u8 | 1; 512]).collect();
    // Every other sector of a part, and a run that is longer than what is read from the log at once.
    for sector in (0..6000).step_by(2) {
        lane.write(Sector(sector), &[0xee; 512]).expect("a write");
        expected[sector as usize * 512..][..512].fill(0xee);
    }
    let long = 700 << 10;
    lane.write(Sector(7001), &vec![0xdd; long]).expect("a write");
    expected[7001 * 512..][..long].fill(0xdd);
    lane.discard(Sector(9000), 3).expect("a discard");
    expected[9000 * 512..9003 * 512].fill(0);

    let most = Arc::new(AtomicUsize::new(0));
    let slow = Slow { inner: MediumDisk::new(world.medium(1)), most: Arc::clone(&most) };
    let mut lane =
        RedoDisk::new(Arc::clone(&core), LoggedDisk(0), Arc::new(slow)).open_lane().expect("a lane");
    let memory: Vec<Buffers> = (0..4).map(|_| Buffers::allocate(DISK_BYTES)).collect();
    let small = Buffers::allocate(1024);
    let read = |token, sector, buffers: &Buffers| Request {
        token: Token(token),
        operation: Operation::Read,
        sector: Sector(sector),
        sectors: buffers.len() as u64 / 512,
        buffers: buffers.share(),
    };
    for (token, buffers) in (0..).zip(&memory) {
        lane.submit(read(token, 0, buffers));
    }
    lane.submit(read(99, 5, &small));
    let mut completions: Vec<Completion> = Vec::new();
    while lane.in_flight() > 0 {
        lane.dispatch();
        lane.reap(&mut completions);
        if lane.in_flight() > 0 {
            lane.wait(&[], Some(PATIENCE)).expect("a wait");
        }
    }
    assert!(completions.iter().all(|c| c.result.is_ok()));
    assert_eq!(completions.len(), memory.len() + 1);
    assert_eq!(completions[0].token, Token(99), "a small read waits for no large one as a whole");
    assert_eq!(small.to_vec(), expected[5 * 512..7 * 512]);
    assert!(memory.iter().all(|found| found.to_vec() == expected));
    let most = most.load(Ordering::SeqCst);
    assert!(most > 100 && most <= 1024 + 64, "{most} parts at once");
}

#[test]
fn a_read_that_fails_in_the_middle_is_answered_once() {
    let (core, world) = open();
    let mut lane = Blocking::new(disk(&core, &world, 0).open_lane().expect("a lane"));
    for sector in (0..4000).step_by(2) {
        lane.write(Sector(sector), &[0xee; 512]).expect("a write");
    }
    world.fail(1, Fault::Read, 500, io::ErrorKind::Other);
    let mut found = vec![0; DISK_BYTES];
    assert!(lane.read(Sector(0), &mut found).is_err());
    assert!(lane.read(Sector(0), &mut found).is_ok());
}

/// Records are bounded as well as bytes, and a lane that meets the bound goes on when going home has made room.
#[test]
fn records_without_content_fill_the_log_as_well() {
    let (core, world) = open();
    let mut lane = disk(&core, &world, 0).open_lane().expect("a lane");
    let most = records_max(AREA_BYTES as u64) as u64;
    for n in 0..most + 1000 {
        lane.submit(Request {
            token: Token(n),
            operation: Operation::Discard { flushed: false },
            sector: Sector(n % SECTORS),
            sectors: 1,
            buffers: Buffers::empty(),
        });
    }
    let mut completions: Vec<Completion> = Vec::new();
    lane.dispatch();
    lane.reap(&mut completions);
    assert!(completions.len() as u64 <= most && completions.len() as u64 > most / 2);
    assert!(core.log.bytes_used() < AREA_BYTES as u64 / 4, "bytes are not what is short");
    core.syncer.sync().expect("healthy");
    assert!(core.going_home.round(AREA_BYTES as u64 / 2).expect("healthy"));
    lane.reap(&mut completions);
    assert_eq!(completions.len() as u64, most + 1000);
    assert!(completions.iter().all(|c| c.result.is_ok()));
}

/// Makes a request of disk 0 whose memory is stuck; meanwhile another disk, and another queue, write, flush and go home.
fn while_stuck(core: &Arc<Redo>, world: &SimWorld, operation: Operation, sector: u64) {
    let memory = match StuckMemory::new(4096) {
        Ok(memory) => memory,
        Err(why) => return skip(why),
    };
    // SAFETY: the memory lives until the request has completed, and nobody makes references to it.
    let buffers = unsafe { Buffers::from_raw([memory.segment()], None) };
    let disks = [disk(core, world, 0), disk(core, world, 1)];
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| {
            let mut lane = Blocking::new(disks[0].open_lane().expect("a lane"));
            lane.request(operation, Sector(sector), 8, buffers)
        });
        let touched = memory.wait_until_touched(PATIENCE);
        let (done, told) = channel();
        let others = &disks;
        scope.spawn(move || {
            for disk in others {
                let mut lane = Blocking::new(disk.open_lane().expect("a lane"));
                lane.write(Sector(sector + 8), &[3; 512]).expect("a write");
                lane.flush(FlushKind::Order).expect("a flush");
            }
            core.syncer.sync().expect("healthy");
            core.going_home.all().expect("healthy");
            done.send(core.board.sequence.home.get() == core.board.sequence.acknowledged.get())
                .expect("a listener");
        });
        let went_on = told.recv_timeout(PATIENCE);
        memory.release();
        stuck.join().expect("no panic").expect("a request");
        assert!(touched, "nobody touched the memory");
        assert_eq!(went_on, Ok(true), "everybody waited for one guest's memory");
    });
}

#[test]
fn memory_that_blocks_stops_only_its_own_request() {
    let (core, world) = open();
    let mut lane = Blocking::new(disk(&core, &world, 0).open_lane().expect("a lane"));
    lane.write(Sector(64), &[9; 4096]).expect("a write");
    while_stuck(&core, &world, Operation::Read, 64);
    lane.discard(Sector(128), 8).expect("a discard");
    while_stuck(&core, &world, Operation::Read, 128);
    while_stuck(&core, &world, Operation::Write { flushed: true }, 192);
}
