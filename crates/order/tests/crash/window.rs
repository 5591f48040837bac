//! The window rule on a clock that stands still, and every single state of a small trace.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{
    Blocking, Buffers, Completion, Disk as _, FlushKind, Lane, Medium, MediumDisk, Operation, Request,
    Sector, SequenceNumber, Token,
};
use afterimage_block_conformance::sim::{CrashOptions, Fault, SimWorld};
use afterimage_format::log::{ImageEntry, RECORDS_OFFSET};
use afterimage_order::redo::{create_medium, Config, Redo, RedoDisk, TakeOverError};
use afterimage_order::{Clock, LoggedDisk, VirtualClock};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

const DISK_BYTES: usize = 16 << 10;

struct Setup {
    world: SimWorld,
    clock: Arc<VirtualClock>,
    core: Arc<Redo>,
    lane: Box<dyn Lane>,
    next: u64,
}

type Opened = (Arc<VirtualClock>, Arc<Redo>, RedoDisk);

fn open(world: &SimWorld, incarnation: u64) -> Opened {
    try_open(world, incarnation).expect("a core")
}

fn try_open(world: &SimWorld, incarnation: u64) -> Result<Opened, TakeOverError> {
    let clock = Arc::new(VirtualClock::default());
    let core = Redo::open(Config {
        window: Duration::from_millis(50),
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        log: world.medium(0),
        homes: vec![world.medium(1)],
        incarnation,
        any_content: false,
        mutation: None,
    })?;
    let disk = RedoDisk::new(Arc::clone(&core), LoggedDisk(0), Arc::new(MediumDisk::new(world.medium(1))));
    Ok((clock, core, disk))
}

fn setup(area_pages: usize) -> Setup {
    let world =
        SimWorld::new(vec![vec![0; RECORDS_OFFSET as usize + area_pages * 4096], vec![0; DISK_BYTES]]);
    let log: Arc<dyn Medium> = world.medium(0);
    let image = ImageEntry { size_bytes: (DISK_BYTES as u64).into(), ..ImageEntry::default() };
    create_medium(&log, &[world.medium(1)], &[image], &[], [1; 16], 1).expect("a log");
    // Cuts during the creation of a log leave a file that has not got its name yet.
    let world = SimWorld::new(vec![world.cached(0), world.cached(1)]);
    let (clock, core, disk) = open(&world, 2);
    let lane = disk.open_lane().expect("a lane");
    Setup { world, clock, core, lane, next: 0 }
}

impl Setup {
    /// Submits; whether it completed at once.
    fn submit(&mut self, operation: Operation) -> bool {
        self.next += 1;
        let write = matches!(operation, Operation::Write { .. });
        self.lane.submit(Request {
            token: Token(self.next),
            operation,
            sector: Sector(0),
            sectors: u64::from(write),
            buffers: if write { Buffers::from_bytes(&[self.next as u8; 512]) } else { Buffers::empty() },
        });
        self.lane.dispatch();
        self.completed() == 1
    }

    fn write(&mut self) {
        assert!(self.submit(Operation::Write { flushed: false }));
    }

    fn flush(&mut self) -> bool {
        self.submit(Operation::Flush(FlushKind::Order))
    }

    fn completed(&mut self) -> usize {
        let mut completions: Vec<Completion> = Vec::new();
        self.lane.reap(&mut completions);
        completions.iter().for_each(|c| assert!(c.result.is_ok()));
        completions.len()
    }

    fn pass(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }
}

/// Where a device is slow, a guest may append nothing for long because it waits for the log's sync.
#[test]
fn who_waits_for_a_sync_is_not_idle() {
    let mut s = setup(64);
    s.write();
    assert!(s.flush());
    assert!(s.core.syncer.sync().expect("healthy"));
    s.write();
    assert!(s.flush());
    for _ in 0..3 {
        s.pass(2000);
        assert!(!s.core.turn_home().expect("healthy"));
    }
    assert_eq!(
        s.world.cached(1),
        vec![0; DISK_BYTES],
        "the second flush is not durable, and nothing went home"
    );
    assert!(s.core.syncer.sync().expect("healthy"));
    s.pass(2000);
    assert!(!s.core.turn_home().expect("healthy"), "the log has been sealed");
    assert!(!s.core.turn_home().expect("healthy"), "one look at a time");
    s.pass(2000);
    assert!(s.core.turn_home().expect("healthy"), "all of it");
    assert_eq!(s.world.cached(1)[0], 3, "the newest write");
}

#[test]
fn flushes_order_at_once_and_wait_behind_an_overdue_one() {
    let mut s = setup(64);
    assert!(s.flush(), "nothing is new");
    assert_eq!(s.core.syncer.next_at(), None);
    s.write();
    assert!(s.flush());
    let due = s.core.syncer.next_at().expect("a sync is due");
    assert!(due > Duration::ZERO && due < Duration::from_millis(50), "before the window ends: {due:?}");
    s.pass(30);
    s.write();
    assert!(s.flush(), "the first is 30 ms old");
    s.pass(20);
    s.write();
    assert!(s.flush(), "the first is 50 ms old: not older than the window");
    s.pass(1);
    s.write();
    assert!(!s.flush(), "the first is overdue");
    assert_eq!(s.core.syncer.next_at(), Some(Duration::ZERO), "now");
    assert!(!s.submit(Operation::Write { flushed: true }), "so does a write without a cache");
    assert_eq!(s.core.syncer.ages().0, Some(Duration::from_millis(51)));
    assert!(s.core.syncer.sync().expect("healthy"));
    assert_eq!(s.completed(), 2);
    assert_eq!(s.core.board.sequence.durable.get(), SequenceNumber(5));
    assert!(!s.core.syncer.sync().expect("healthy"), "one sync made all of it durable");
    // Durable already, however much time has passed.
    s.pass(500);
    assert!(s.flush());
}

/// The queue's thread was busy, or not running, between a flush's coming and its completion's going.
#[test]
fn a_flush_is_acknowledged_when_its_completion_is_handed_out() {
    let mut s = setup(64);
    s.write();
    assert!(s.flush());
    s.write();
    s.next += 1;
    let operation = Operation::Flush(FlushKind::Order);
    let (token, buffers) = (Token(s.next), Buffers::empty());
    s.lane.submit(Request { token, operation, sector: Sector(0), sectors: 0, buffers });
    s.lane.dispatch();
    s.pass(51);
    assert_eq!(s.completed(), 0, "the first is overdue by now");
    s.core.syncer.sync().expect("healthy");
    assert_eq!(s.completed(), 1);
}

/// The clock counts a suspend of the host; threads that sleep do not hear of it.
#[test]
fn a_suspend_of_the_host_makes_an_acknowledgement_older() {
    let mut s = setup(64);
    s.write();
    assert!(s.flush());
    s.pass(8 * 60 * 60 * 1000);
    assert!(s.core.syncer.next_at().expect("due") <= s.clock.now());
    s.write();
    assert!(!s.flush(), "the first was acknowledged eight hours ago");
    assert_eq!(
        s.core.syncer.next_at(),
        Some(Duration::ZERO),
        "the flush wakes the syncer, which may sleep on"
    );
    s.core.syncer.sync().expect("healthy");
    assert_eq!(s.completed(), 1);
    s.write();
    assert!(s.flush(), "a new window");
}

#[test]
fn a_slow_device_is_synced_earlier() {
    let mut s = setup(64);
    for _ in 0..8 {
        s.write();
        assert!(s.flush());
        let sync = s.core.syncer.begin().expect("healthy").expect("something is new");
        s.core.syncer.run(&sync).expect("healthy");
        s.pass(20);
        s.core.syncer.finish(&sync);
    }
    s.write();
    assert!(s.flush());
    let wait = s.core.syncer.next_at().expect("due") - s.clock.now();
    assert!(wait <= Duration::from_millis(10), "two sync times before the end: {wait:?}");
}

#[test]
fn an_acknowledgement_during_a_sync_belongs_to_the_next() {
    let mut s = setup(64);
    s.write();
    assert!(s.flush());
    let sync = s.core.syncer.begin().expect("healthy").expect("something is new");
    s.pass(10);
    s.write();
    assert!(s.flush());
    s.core.syncer.run(&sync).expect("healthy");
    s.core.syncer.finish(&sync);
    assert_eq!(s.core.board.sequence.durable.get(), SequenceNumber(1));
    s.pass(51);
    s.write();
    assert!(!s.flush(), "the second is overdue");
    s.core.syncer.sync().expect("healthy");
    assert_eq!(s.completed(), 1);
}

#[test]
fn a_durable_flush_waits_for_the_sync() {
    let mut s = setup(64);
    s.write();
    assert!(!s.submit(Operation::Flush(FlushKind::Durable)));
    assert_eq!(s.core.syncer.next_at(), Some(Duration::ZERO), "it wants one now");
    s.core.syncer.sync().expect("healthy");
    assert_eq!(s.completed(), 1);
    assert!(s.submit(Operation::Flush(FlushKind::Durable)));
}

/// A lane that has looked at its completions and not gone to sleep yet does not hear a failure's bell.
#[test]
fn a_failure_before_the_sleep_answers_a_held_flush() {
    let mut s = setup(64);
    s.write();
    assert!(!s.submit(Operation::Flush(FlushKind::Durable)));
    s.world.fail(0, Fault::Sync, 0, io::ErrorKind::Other);
    s.core.syncer.sync().expect_err("the log's storage has failed");
    let begun = Instant::now();
    s.lane.wait(&[], Some(Duration::from_secs(5))).expect("a wait");
    assert!(begun.elapsed() < Duration::from_secs(5), "it slept");
    let mut completions: Vec<Completion> = Vec::new();
    s.lane.reap(&mut completions);
    assert!(matches!(&completions[..], [Completion { result: Err(_), .. }]), "{completions:?}");
}

#[test]
fn nothing_becomes_durable_after_a_failure() {
    let mut s = setup(64);
    s.write();
    assert!(s.core.syncer.sync().expect("healthy"));
    s.write();
    let sync = s.core.syncer.begin().expect("healthy").expect("something is new");
    s.world.fail(1, Fault::Write, 0, io::ErrorKind::Other);
    s.core.going_home.round(u64::MAX).expect_err("the image's storage has failed");
    s.core.syncer.run(&sync).expect_err("the group has failed meanwhile");
}

/// Not a sample: every subset of unsynced sectors at every cut of a trace with overwrites, a sync, a round home, a
/// wrap-around and a new process.
#[test]
fn every_state_of_a_small_trace() {
    let mut s = setup(8);
    let mut history = vec![[0u8; 512]];
    let mut floors = vec![(0, 0u64)];
    for round in 0..12 {
        s.write();
        history.push([s.next as u8; 512]);
        if round % 2 == 1 {
            s.core.syncer.sync().expect("healthy");
            floors.push((s.world.ops(), s.core.board.sequence.durable.get().0));
        }
        if round % 4 == 3 {
            s.core.going_home.round(u64::MAX).expect("healthy");
        }
    }
    assert!(s.core.board.sequence.home.get().0 >= 8, "more than a lap");
    let (mut states, mut skipped) = (0, 0);
    for cut in 0..=s.world.ops() {
        let Some(all) = s.world.crash_states(cut, 1 << 13) else {
            skipped += 1;
            continue;
        };
        let floor = floors.iter().filter(|(ops, _)| *ops <= cut).map(|(_, f)| *f).max().unwrap_or(0);
        for world in all {
            states += 1;
            let (_, core, disk) = open(&world, 1000 + states);
            let found = core.board.sequence.acknowledged.get().0;
            assert!(found >= floor, "cut {cut}: {found} < {floor}");
            let mut content = [0; 512];
            Blocking::new(disk.open_lane().expect("a lane")).read(Sector(0), &mut content).expect("a read");
            assert!(content == history[found as usize], "cut {cut}: not the prefix {found}");
        }
    }
    assert!(states > 5000, "{states} states, {skipped} cuts with too many");
}

/// A process dies with a full log, the next one before its first sync, and the third finds no room for its own record: what it
/// brings home first has been in the page cache only.
#[test]
fn a_full_log_that_no_sync_has_covered() {
    let Setup { world, lane, .. } = setup(8);
    let mut lane = Blocking::new(lane);
    let mut history = vec![vec![0; DISK_BYTES]];
    for n in 0..6 {
        let mut content = history[n].clone();
        let written = &mut content[n * 5 * 512..][..7 * 512];
        written.fill(n as u8 + 1);
        lane.write(Sector(n as u64 * 5), written).expect("room");
        history.push(content);
    }
    drop(lane);
    world.halt_after(3);
    assert!(try_open(&world, 3).is_err(), "it dies in the sync behind its record");
    world.revive();
    let (_, core, _) = open(&world, 4);
    assert_eq!(core.board.sequence.home.get(), SequenceNumber(6), "there was no room");
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for cut in 0..=world.ops() {
        for life in 0..32 {
            let world = world.crash(cut, CrashOptions { torn: false }, &mut rng);
            let (_, core, disk) = open(&world, 1000 + life);
            let found = core.board.sequence.acknowledged.get().0;
            let mut content = vec![0; DISK_BYTES];
            Blocking::new(disk.open_lane().expect("a lane")).read(Sector(0), &mut content).expect("a read");
            assert!(content == history[found as usize], "cut {cut}: not the prefix {found}");
        }
    }
}
