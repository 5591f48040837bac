//! Sets of home writes: all or nothing whatever a crash leaves, and they wait where they have to.

use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Blocking, Disk as _, Medium, MediumDisk, Sector, SequenceNumber};
use afterimage_block_conformance::sim::{Fault, SimWorld};
use afterimage_format::log::{ImageEntry, FEATURE_SETS, RECORDS_OFFSET};
use afterimage_order::redo::{create_medium, read_header, scan, Config, LogReadError, Redo, RedoDisk, Scan};
use afterimage_order::{HomeError, LoggedDisk, VirtualClock};

const DISK_BYTES: usize = 64 << 10;
const SECTORS: usize = DISK_BYTES / 512;

type Blocks<'a> = Vec<(Sector, &'a [u8])>;

fn open(world: &SimWorld, incarnation: u64) -> Arc<Redo> {
    let homes: Vec<Arc<dyn Medium>> = vec![world.medium(1)];
    let clock = Arc::new(VirtualClock::default());
    let window = Duration::from_millis(50);
    Redo::open(Config::new(window, clock, world.medium(0), homes, incarnation)).expect("a core")
}

fn lane(core: &Arc<Redo>, world: &SimWorld) -> Blocking {
    let disk = RedoDisk::new(Arc::clone(core), LoggedDisk(0), Arc::new(MediumDisk::new(world.medium(1))));
    Blocking::new(disk.open_lane().expect("a lane"))
}

fn content(core: &Arc<Redo>, world: &SimWorld) -> Vec<u8> {
    let mut found = vec![0; DISK_BYTES];
    lane(core, world).read(Sector(0), &mut found).expect("a read");
    found
}

/// A new log over one image of zeroes.
fn world(area_pages: usize) -> SimWorld {
    let world =
        SimWorld::new(vec![vec![0; RECORDS_OFFSET as usize + area_pages * 4096], vec![0; DISK_BYTES]]);
    let log: Arc<dyn Medium> = world.medium(0);
    let image = ImageEntry { size_bytes: (DISK_BYTES as u64).into(), ..ImageEntry::default() };
    create_medium(&log, &[world.medium(1)], &[image], &[], [1; 16], 1).expect("a log");
    SimWorld::new(vec![world.cached(0), world.cached(1)])
}

fn scanned(world: &SimWorld) -> Result<Scan, LogReadError> {
    let log: Arc<dyn Medium> = world.medium(0);
    scan(&log)
}

/// Blocks far from each other, so that each is a record of its own.
fn scattered(contents: &[Vec<u8>]) -> Blocks<'_> {
    contents.iter().zip(0u64..).map(|(bytes, n)| (Sector(n * 20), &bytes[..])).collect()
}

fn apply(disk: &mut [u8], blocks: &Blocks<'_>) {
    for (sector, bytes) in blocks {
        disk[sector.0 as usize * 512..][..bytes.len()].copy_from_slice(bytes);
    }
}

#[test]
fn a_set_is_read_counted_and_brought_home() {
    let world = world(64);
    let core = open(&world, 2);
    let features = || read_header(world.medium(0).as_ref()).expect("a header").features_incompat.get();
    let mut one = lane(&core, &world);
    one.write(Sector(3), &[9; 512]).expect("a write");
    assert_eq!(core.write_set(LoggedDisk(0), &[]).expect("nothing to do"), SequenceNumber(1));
    core.syncer.sync().expect("healthy");
    core.going_home.all().expect("healthy");
    let contents: Vec<Vec<u8>> = (1..5u8).map(|n| vec![n; 1024]).collect();
    let mut blocks = scattered(&contents);
    // Neighbours of the second: one record with it.
    blocks.extend([(Sector(22), &[7; 512][..]), (Sector(19), &[8; 512][..])]);
    assert_eq!(core.write_set(LoggedDisk(0), &blocks).expect("room"), SequenceNumber(1 + 4));
    assert_eq!(features(), FEATURE_SETS);
    let mut expected = vec![0; DISK_BYTES];
    expected[3 * 512..4 * 512].fill(9);
    apply(&mut expected, &blocks);
    assert!(content(&core, &world) == expected);
    let more: Vec<bool> = scanned(&world).expect("sound").records.iter().map(|r| r.more).collect();
    assert_eq!(more, [true, true, true, false], "the incarnation went home");
    // Asked for the least, a round home takes the whole set.
    core.syncer.sync().expect("healthy");
    assert_eq!(core.board.sequence.durable.get(), SequenceNumber(5));
    assert!(core.going_home.round(1).expect("healthy"));
    assert_eq!(core.board.sequence.home.get(), SequenceNumber(5));
    assert!(world.cached(1) == expected);
    assert_eq!(features(), FEATURE_SETS, "for the life of the log");
    let core = open(&world, 3);
    core.write_set(LoggedDisk(0), &blocks).expect("room");
}

#[test]
fn a_log_without_sets_is_what_it_was() {
    let world = world(64);
    let core = open(&world, 2);
    lane(&core, &world).write(Sector(0), &[1; 4096]).expect("a write");
    core.syncer.sync().expect("healthy");
    core.going_home.all().expect("healthy");
    assert_eq!(read_header(world.medium(0).as_ref()).expect("a header").features_incompat.get(), 0);
}

/// The log of a set behind a write, torn at every one of its sectors in three ways; and every recovery cut again at every
/// operation, with everything it left unsynced there or gone.
#[test]
fn torn_at_every_sector() {
    let base = world(32);
    let core = open(&base, 2);
    let mut one = lane(&core, &base);
    one.write(Sector(100), &[0xaa; 512]).expect("a write");
    let mut before = vec![0; DISK_BYTES];
    before[100 * 512..101 * 512].fill(0xaa);
    let from = scanned(&base).expect("sound").end.0;
    // The first is complete on the page on which a later process begins its records, or before it.
    let contents: Vec<Vec<u8>> =
        [1, 1, 3, 8, 8, 2].iter().zip(1u8..).map(|(n, b)| vec![b; n * 512]).collect();
    let blocks = scattered(&contents);
    core.write_set(LoggedDisk(0), &blocks).expect("room");
    let mut after = before.clone();
    apply(&mut after, &blocks);
    let whole = scanned(&base).expect("sound");
    assert_eq!((whole.sequence.0, whole.torn_tail), (7, false));
    let log = base.cached(0);
    let area = |position: u64| (RECORDS_OFFSET + position) as usize;
    let mut states = 0;
    for sector in area(from) / 512..area(whole.end.0).div_ceil(512) {
        let start = (sector * 512).max(area(from));
        let end = ((sector + 1) * 512).min(area(whole.end.0));
        for way in 0..3 {
            let mut torn = log.clone();
            match way {
                0 => torn[start..end].fill(0),
                1 => torn[start..area(whole.end.0)].fill(0),
                _ => torn[(start + end) / 2..end].fill(0x5a),
            }
            let world = SimWorld::new(vec![torn, base.cached(1)]);
            let found = scanned(&world).expect("a torn tail, not damage");
            // Only where the torn bytes were what they are now.
            let (sequence, expected) = if found.sequence.0 == 7 { (7, &after) } else { (1, &before) };
            assert_eq!(found.sequence.0, sequence, "sector {sector}, way {way}");
            assert!(sequence == 1 || world.cached(0) == log, "sector {sector}, way {way}: torn, and taken");
            assert!(found.records.last().is_some_and(|r| !r.more));
            let core = open(&world, 1000);
            assert!(content(&core, &world) == *expected, "sector {sector}, way {way}");
            for cut in 0..=world.ops() {
                for crashed in world.crash_states(cut, 1 << 9).into_iter().flatten() {
                    states += 1;
                    let core = open(&crashed, 2000 + states);
                    assert_eq!(
                        core.board.sequence.acknowledged.get().0,
                        sequence,
                        "sector {sector}, way {way}, cut {cut}"
                    );
                    assert!(content(&core, &crashed) == *expected);
                    // Life goes on behind it, and is found behind it.
                    lane(&core, &crashed).write(Sector(101), &[1; 512]).expect("a write");
                    core.write_set(LoggedDisk(0), &blocks).expect("room");
                    let core = open(&crashed, 1 << 40);
                    assert_eq!(core.board.sequence.acknowledged.get().0, sequence + 1 + 6);
                }
            }
        }
    }
    assert!(states > 300, "{states}");
}

/// What a sync had covered is no torn tail: the set's loss is damage, and refused.
#[test]
fn a_durable_set_that_is_damaged_is_refused() {
    let world = world(32);
    let core = open(&world, 2);
    let contents: Vec<Vec<u8>> = (1..4u8).map(|n| vec![n; 512]).collect();
    core.write_set(LoggedDisk(0), &scattered(&contents)).expect("room");
    let set = scanned(&world).expect("sound").records;
    core.syncer.sync().expect("healthy");
    lane(&core, &world).write(Sector(100), &[0xaa; 512]).expect("a write that says what was durable");
    for record in set.iter().filter(|r| r.sequence.0 > 0) {
        let mut log = world.cached(0);
        log[(RECORDS_OFFSET + record.payload().0) as usize] ^= 1;
        let damaged = SimWorld::new(vec![log, world.cached(1)]);
        assert!(matches!(scanned(&damaged), Err(LogReadError::Corrupt(_))), "{record:?}");
    }
}

/// Not a sample: every subset of unsynced sectors at every cut of a trace of sets and writes, syncs, rounds home and
/// wrap-arounds.
#[test]
fn every_state_of_a_small_trace_of_sets() {
    let world = world(8);
    let core = open(&world, 2);
    let mut one = lane(&core, &world);
    let mut disk = vec![0; DISK_BYTES];
    let mut history = vec![(0, disk.clone())];
    let mut floors = vec![(0, 0u64)];
    for round in 0..10u8 {
        let contents = vec![vec![2 * round + 1; 512]; 2 + usize::from(round) % 2];
        let blocks = scattered(&contents);
        let last = core.try_write_set(LoggedDisk(0), &blocks).expect("healthy").expect("room");
        apply(&mut disk, &blocks);
        history.push((last.0, disk.clone()));
        if round % 3 == 0 {
            one.write(Sector(20), &[2 * round + 2; 512]).expect("a write");
            disk[20 * 512..21 * 512].fill(2 * round + 2);
            history.push((last.0 + 1, disk.clone()));
        }
        if round % 2 == 1 {
            core.syncer.sync().expect("healthy");
            floors.push((world.ops(), core.board.sequence.durable.get().0));
        }
        if round % 4 == 3 {
            core.going_home.round(u64::MAX).expect("healthy");
        }
    }
    let (mut states, mut skipped) = (0, 0);
    for cut in 0..=world.ops() {
        let Some(all) = world.crash_states(cut, 1 << 13) else {
            skipped += 1;
            continue;
        };
        let floor = floors.iter().filter(|(ops, _)| *ops <= cut).map(|(_, f)| *f).max().unwrap_or(0);
        for world in all {
            states += 1;
            let core = open(&world, 1000 + states);
            let found = core.board.sequence.acknowledged.get().0;
            assert!(found >= floor, "cut {cut}: {found} < {floor}");
            let expected = history.iter().find(|(sequence, _)| *sequence == found);
            let (_, expected) = expected.unwrap_or_else(|| panic!("cut {cut}: {found} lies within a set"));
            assert!(content(&core, &world) == *expected, "cut {cut}: not the prefix {found}");
        }
    }
    assert!(states > 5000, "{states} states, {skipped} cuts with too many");
}

#[test]
fn what_cannot_be_written_is_refused_before_anything_is() {
    let world = world(64);
    let core = open(&world, 2);
    let max = core.set_bytes_max() as usize;
    assert!(max > 32 * 4096 * 3 / 4, "{max} of an area of {}", 64 * 4096);
    let refused = |blocks: &Blocks<'_>| core.write_set(LoggedDisk(0), blocks).expect_err("refused");
    let large = vec![1; max / 512 * 512 + 512];
    assert!(matches!(refused(&vec![(Sector(0), &large[..])]), HomeError::Block(_)), "past the disk's end");
    let mut many: Blocks<'_> = vec![(Sector(0), &large[..512]); max / 512];
    many.push((Sector(1), &large[..512]));
    assert!(matches!(refused(&many), HomeError::TooLarge { bytes, max_bytes }
        if bytes == max as u64 + 512 && max_bytes == max as u64));
    assert!(matches!(refused(&vec![(Sector(SECTORS as u64), &large[..512])]), HomeError::Block(_)));
    assert!(matches!(refused(&vec![(Sector(u64::MAX), &large[..512])]), HomeError::Block(_)));
    assert!(matches!(refused(&vec![(Sector(0), &large[..100])]), HomeError::Block(_)));
    assert_eq!(
        (core.board.sequence.acknowledged.get(), core.board.health.failure()),
        (SequenceNumber(0), None)
    );
}

/// The largest set, every sector a record, fits when half of the log is in use, and the writers of single blocks do not
/// keep it out.
#[test]
fn the_largest_set_gets_its_room() {
    let world = world(24);
    let core = open(&world, 2);
    let max = core.set_bytes_max() as usize;
    // The same two sectors in turn: no neighbours, so no joining.
    let block = [7u8; 512];
    let blocks: Blocks<'_> = (0..max / 512).map(|n| (Sector((n as u64 % 2) * 2), &block[..])).collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let stop_steps = std::sync::atomic::AtomicBool::new(false);
    let (stop, stop_steps) = (&stop, &stop_steps);
    std::thread::scope(|scope| {
        let background = Arc::clone(&core);
        let steps = scope.spawn(move || {
            while !stop_steps.load(std::sync::atomic::Ordering::SeqCst) {
                background.syncer.sync().expect("healthy");
                background.going_home.round(background.log.area_bytes() / 2).expect("healthy");
                std::thread::yield_now();
            }
        });
        let writers: Vec<_> = (0..2u64)
            .map(|n| {
                let mut lane = lane(&core, &world);
                scope.spawn(move || {
                    let mut written = 0u64;
                    while !stop.load(std::sync::atomic::Ordering::SeqCst) || written == 0 {
                        lane.write(Sector(64 + n * 8), &[n as u8; 4096]).expect("a write");
                        written += 1;
                    }
                    written
                })
            })
            .collect();
        for _ in 0..40 {
            core.write_set(LoggedDisk(0), &blocks).expect("written");
        }
        // Blocked lanes are let go after the last set, too.
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        for writer in writers {
            assert!(writer.join().expect("the writer") > 0);
        }
        // Not before: a writer may be waiting for room that only going home makes.
        stop_steps.store(true, std::sync::atomic::Ordering::SeqCst);
        steps.join().expect("the background");
    });
    let core_again = open(&world, 3);
    assert_eq!(core_again.board.sequence.acknowledged.get(), core.board.sequence.acknowledged.get());
    assert!(scanned(&world).is_ok());
}

/// Fills the log until a set has to wait.
fn full(core: &Arc<Redo>, blocks: &Blocks<'_>) -> u64 {
    let mut sets = 0;
    while core.try_write_set(LoggedDisk(0), blocks).expect("healthy").is_some() {
        sets += 1;
    }
    assert!(sets > 0);
    sets
}

#[test]
fn a_full_log_holds_a_set_back_until_there_is_room_and_a_failure_ends_the_wait() {
    for round in 0..60 {
        let world = world(16);
        let core = open(&world, 2);
        let contents: Vec<Vec<u8>> = (1..4u8).map(|n| vec![n; 4096]).collect();
        let blocks = scattered(&contents);
        full(&core, &blocks);
        let (done, result) = channel();
        std::thread::scope(|scope| {
            let (core, blocks) = (&core, &blocks);
            scope.spawn(move || done.send(core.write_set(LoggedDisk(0), blocks)).expect("the test waits"));
            match round % 3 {
                0 => {
                    core.syncer.sync().expect("healthy");
                    assert!(core.going_home.round(u64::MAX).expect("healthy"));
                    assert!(result.recv().expect("an answer").is_ok());
                }
                1 => {
                    world.fail(0, Fault::Sync, 0, std::io::ErrorKind::Other);
                    // The header's sync of an announcement would take the fault.
                    assert!(core.syncer.sync().is_err());
                    assert!(matches!(result.recv().expect("an answer"), Err(HomeError::Block(_))));
                }
                _ => {
                    core.close().expect("an orderly end");
                    // Either it found the room that the end had made too late, or the end came first.
                    assert!(matches!(result.recv().expect("an answer"), Err(HomeError::Block(_))));
                }
            }
        });
        assert!(core.board.health.failure().is_some() == (round % 3 == 1));
    }
}
