//! Home writes that have to wait, for room in the redo log, for the end of a pause or for the device, stop whoever makes them and what
//! touches the same blocks, and nobody else: those of a commit under `power-window`, and those that the daemon makes under
//! `guest-crash` when memory is short, when the guest's tail passes a block that is in use, or when all is to be home.

mod common;
#[path = "overtake/mounted.rs"]
mod mounted;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use afterimage_block::{
    Blocking, Buffers, Completion, Disk, FlushKind, Lane, Operation, Quiesced, Request, Sector, Token,
};
use afterimage_journal::arena::VolumeId;
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::layout::Layout;
use afterimage_journal::log::encode::MAGIC_BYTES;
use afterimage_journal::versions::{Places, Room, Tuple, VersionState, Versions};
use afterimage_journal::{AreaBlock, Block, FsBlock, Mutation, Tid, BLOCK_BYTES};
use mounted::{Mounted, COMMITTED};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const PATIENCE: Duration = Duration::from_secs(20);

fn write(token: u64, sector: Sector, bytes: &[u8]) -> Request {
    let operation = Operation::Write { flushed: false };
    let sectors = bytes.len() as u64 / 512;
    Request { token: Token(token), operation, sector, sectors, buffers: Buffers::from_bytes(bytes) }
}

fn block(byte: u8) -> Block {
    [byte; BLOCK_BYTES]
}

/// What has completed after a while.
fn completed(lane: &mut Box<dyn Lane>, wait: Duration) -> Vec<u64> {
    let mut completions: Vec<Completion> = Vec::new();
    let until = Instant::now() + wait;
    while Instant::now() < until && lane.in_flight() > 0 {
        lane.dispatch();
        lane.reap(&mut completions);
        lane.wait(&[], Some(Duration::from_millis(5))).unwrap();
    }
    completions.iter().for_each(|c| c.result.clone().unwrap());
    completions.iter().map(|c| c.token.0).collect()
}

/// What makes a set.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// A commit, under `power-window`.
    Commit,
    /// Somebody who wants everything home, under `guest-crash`.
    Settle,
}

impl By {
    /// Everything of a transaction is in the journal but what makes the set of it, and the gate is shut.
    fn prepare(self, mounted: &Mounted, blocks: &[(Sector, Block)]) {
        let before = blocks.len() - usize::from(self == Self::Commit);
        let mut lane = mounted.lane();
        blocks[..before].iter().for_each(|(sector, block)| lane.write(*sector, block).unwrap());
        mounted.gate.set(true);
    }

    fn act(self, mounted: &Mounted, blocks: &[(Sector, Block)]) {
        match self {
            Self::Commit => {
                let (sector, block) = blocks.last().unwrap();
                mounted.lane().write(*sector, block).unwrap();
            }
            Self::Settle => mounted.disk.settle().unwrap(),
        }
    }
}

#[test]
fn what_a_set_waits_for_stops_nobody_else() {
    [By::Commit, By::Settle].into_iter().for_each(stops_nobody_else);
}

fn stops_nobody_else(by: By) {
    let mut mounted = Mounted::new(by == By::Commit);
    let mut escaped = block(4);
    escaped[..4].copy_from_slice(&MAGIC_BYTES);
    let blocks = mounted.transaction(vec![(FsBlock(3000), block(2)), (FsBlock(3001), escaped)]);
    let following = mounted.transaction(vec![(FsBlock(3002), block(6))]);
    by.prepare(&mounted, &blocks);
    let (mounted, blocks) = (&mounted, &blocks);
    let (mut held, mut journal) = (mounted.disk.open_lane().unwrap(), mounted.disk.open_lane().unwrap());
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| by.act(mounted, blocks));
        mounted.gate.wait_for_somebody();

        let (done, told) = channel();
        scope.spawn(move || {
            let mut lane = mounted.lane();
            let mut found = block(0);
            // The journal, as the guest wrote it, the commit block, and its superblock.
            for (sector, written) in blocks {
                lane.read(*sector, &mut found).unwrap();
                assert!(found == *written);
            }
            lane.read(mounted.sector_of(AreaBlock(0)), &mut found).unwrap();
            // Homes, as they were and as other queues write them.
            lane.read(mounted.home(3000), &mut found).unwrap();
            assert!(found == block(0), "nothing of the set is there yet");
            for round in 1..20 {
                lane.write(mounted.home(2900), &block(round)).unwrap();
                lane.read(mounted.home(2900), &mut found).unwrap();
                assert!(found == block(round));
                lane.flush(FlushKind::Order).unwrap();
            }
            assert_eq!(mounted.disk.status().file_systems[0].versions_pending, 2);
            done.send(()).unwrap();
        });
        let went_on = told.recv_timeout(PATIENCE).is_ok();

        // What is written to a block of the set waits, and so does what the guest logs next; their queues' reads do not.
        held.submit(write(1, mounted.home(3000), &block(3)));
        journal.submit(write(2, following[0].0, &following[0].1));
        for lane in [&mut held, &mut journal] {
            let buffers = Buffers::allocate(BLOCK_BYTES);
            let sector = mounted.home(2900);
            lane.submit(Request { token: Token(9), operation: Operation::Read, sector, sectors: 8, buffers });
        }
        let overtook = [&mut held, &mut journal].map(|lane| completed(lane, Duration::from_millis(100)));
        let waits = !acting.is_finished();
        mounted.gate.set(false);
        acting.join().unwrap();
        assert!(went_on, "everybody waited for one set");
        assert!(waits, "a commit was answered before it was home");
        assert_eq!(overtook, [[9], [9]], "what touches the set or its journal waits, and nothing else");
    });
    assert_eq!(completed(&mut held, PATIENCE), [1]);
    assert_eq!(completed(&mut journal, PATIENCE), [2]);
    let mut lane = mounted.lane();
    following[1..].iter().for_each(|(sector, block)| lane.write(*sector, block).unwrap());
    mounted.disk.settle().unwrap();
    // The guest's own write came behind the set.
    assert!(mounted.on_disk(3000) == block(3));
    assert!(mounted.on_disk(3001) == escaped);
    assert!(mounted.on_disk(3002) == block(6));
    assert!(mounted.on_disk(2900) == block(19));
}

/// `guest-crash`: a flush is answered when what was committed is home, also where the guest was writing it there just then, or something
/// older that is on its way.
#[test]
fn a_flush_waits_for_what_is_on_its_way_home() {
    for older in [false, true] {
        let mut mounted = Mounted::new(false);
        let blocks = mounted.transaction(vec![(FsBlock(3000), block(2))]);
        let commit = |mounted: &Mounted| {
            let mut lane = mounted.lane();
            blocks.iter().for_each(|(sector, block)| lane.write(*sector, block).unwrap());
        };
        if !older {
            commit(&mounted);
        }
        mounted.gate.set(true);
        let mounted = &mounted;
        std::thread::scope(|scope| {
            let content = block(if older { 1 } else { 2 });
            let writing = scope.spawn(move || mounted.lane().write(mounted.home(3000), &content).unwrap());
            mounted.gate.wait_for_somebody();
            if older {
                commit(mounted);
            }
            let flushing = scope.spawn(|| mounted.disk.settle_to_flush().unwrap());
            std::thread::sleep(Duration::from_millis(100));
            let waits = !flushing.is_finished();
            mounted.gate.set(false);
            flushing.join().unwrap();
            assert!(mounted.on_disk(3000) == block(2), "older: {older}");
            writing.join().unwrap();
            assert!(waits, "older: {older}");
        });
        assert_eq!(mounted.disk.status().file_systems[0].mode, "retain");
    }
}

/// And for what has taken the place of that meanwhile, where something is still on its way there.
#[test]
fn a_flush_waits_for_what_took_the_place_of_what_it_waits_for() {
    let mut mounted = Mounted::new(false);
    let [first, second] = [2, 3].map(|byte| mounted.transaction(vec![(FsBlock(3000), block(byte))]));
    let commit = |blocks: &[(Sector, Block)]| {
        let mut lane = mounted.lane();
        blocks.iter().for_each(|(sector, block)| lane.write(*sector, block).unwrap());
    };
    let (mut older, mut newer) = (mounted.disk.open_lane().unwrap(), mounted.disk.open_lane().unwrap());
    older.submit(write(1, mounted.home(3000), &block(1)));
    commit(&first);
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| mounted.disk.settle_to_flush().unwrap());
        std::thread::sleep(Duration::from_millis(50));
        commit(&second);
        newer.submit(write(2, mounted.home(3000), &block(3)));
        assert_eq!(completed(&mut older, PATIENCE), [1]);
        std::thread::sleep(Duration::from_millis(100));
        let waits = !flushing.is_finished();
        assert_eq!(completed(&mut newer, PATIENCE), [2]);
        flushing.join().unwrap();
        assert!(waits, "what was committed neither was home nor in the journal on the disk");
    });
}

/// `guest-crash`: of what was overwritten since nothing brings the committed content home but the guest's own recovery. A flush leaves it to
/// that, in the journal on the disk.
#[test]
fn a_flush_leaves_what_cannot_go_home_to_the_guests_recovery() {
    let mut mounted = Mounted::new(false);
    let blocks = mounted.transaction(vec![(FsBlock(3000), block(2)), (FsBlock(3001), block(3))]);
    let mut lane = mounted.lane();
    blocks.iter().for_each(|(sector, block)| lane.write(*sector, block).unwrap());
    lane.write(mounted.home(3000), &block(9)).unwrap();
    mounted.disk.settle_to_flush().unwrap();
    assert!(mounted.on_disk(3001) == block(3));
    let image = mounted.image();
    let (homes, transactions) = common::replayed(&image);
    let block_of = mounted.home(3000).0 / 8;
    assert_eq!((transactions, homes.get(&block_of).map(|b| b[0])), (1, Some(2)));
    assert_eq!(mounted.disk.status().file_systems[0].mode, "waiting");
}

/// Another guest mounts while a set is under way: what it reads of it comes too early, and is in the journal that it reads then.
#[test]
fn what_is_read_before_a_set_has_ended_stays_in_the_journal() {
    for by in [By::Commit, By::Settle] {
        assert!(is_served_after_a_set(by, None));
        assert!(!is_served_after_a_set(by, Some(Mutation::ReleaseHome)), "that was not noticed");
    }
}

/// Whether what was read before a set had ended is in the journal behind it.
fn is_served_after_a_set(by: By, mutation: Option<Mutation>) -> bool {
    let mut mounted = Mounted::with(by == By::Commit, mutation);
    let tail = mounted.next;
    let blocks = mounted.transaction(vec![(FsBlock(3000), block(2))]);
    by.prepare(&mounted, &blocks);
    let (mounted, mut lane) = (&mounted, mounted.lane());
    let mut found = block(0);
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| by.act(mounted, &blocks));
        mounted.gate.wait_for_somebody();
        lane.read(mounted.home(3000), &mut found).unwrap();
        mounted.gate.set(false);
        acting.join().unwrap();
    });
    assert!(found == block(0), "it is not home yet");
    mounted.disk.quiesced(Quiesced::Disconnected);
    while mounted.disk.settle_after_guest().unwrap() {}
    lane.read(mounted.sector_of(AreaBlock(0)), &mut found).unwrap();
    let served = JournalSuperblock::parse(&found).unwrap();
    assert!(mounted.on_disk(3000) == block(2), "it is home all the same");
    let mut all_there = (served.sequence(), served.start()) == (tail.0, Some(tail.1));
    for (sector, written) in &blocks {
        lane.read(*sector, &mut found).unwrap();
        all_there &= found == *written;
    }
    all_there
}

/// Why the served tail stays where it is.
#[derive(Clone, Copy, Debug)]
enum Stuck {
    /// Somebody has read the journal's superblock.
    Read,
    /// So it was; meanwhile a block was discarded, and no transaction says so.
    Discarded,
}

/// `power-window`: the daemon dies while the set of a commit waits, of which blocks were evicted while the tail was stuck. The next one
/// answers the commit; then the power is cut.
#[test]
fn a_commit_whose_set_was_not_written_is_whole_after_another_daemon() {
    for stuck in [Stuck::Read, Stuck::Discarded] {
        for evicts in [false, true] {
            commit_over_a_death(stuck, evicts);
        }
    }
}

fn commit_over_a_death(stuck: Stuck, evicts: bool) {
    let mut mounted = Mounted::new(true);
    let tail = mounted.next;
    let older = mounted.transaction(vec![(FsBlock(3000), block(1))]);
    let blocks = mounted.transaction((3001..3005).map(|home| (FsBlock(home), block(2))).collect());
    let mut lane = mounted.lane();
    lane.read(mounted.sector_of(AreaBlock(0)), &mut block(0)).unwrap();
    older.iter().for_each(|(sector, block)| lane.write(*sector, block).unwrap());
    if let Stuck::Discarded = stuck {
        lane.discard(mounted.home(3000), 8).unwrap();
        let next = std::mem::replace(&mut mounted.next, tail);
        mounted.write_tail(&mut lane);
        mounted.next = next;
    }
    let (first, rest) = blocks.split_at(blocks.len() / 2);
    first.iter().for_each(|(sector, block)| lane.write(*sector, block).unwrap());
    if evicts {
        mounted.disk.make_room().unwrap();
    }
    By::Commit.prepare(&mounted, rest);
    let (disk, memory) = std::thread::scope(|scope| {
        scope.spawn(|| By::Commit.act(&mounted, rest));
        mounted.gate.wait_for_somebody();
        let next = mounted.next_daemon();
        mounted.gate.set(false);
        next
    });
    let (commit, content) = blocks.last().unwrap();
    Blocking::new(disk.open_lane().unwrap()).write(*commit, content).unwrap();
    let bytes = memory.bytes();
    let replayed = common::replayed(&bytes).0;
    for home in 3001..3005 {
        let at = mounted.home(home).0 / 8;
        let below: &[u8] = &bytes[at as usize * BLOCK_BYTES..][..BLOCK_BYTES];
        let found = replayed.get(&at).map_or(below, |block| &block[..]);
        assert!(found == block(2), "{stuck:?}, evicts {evicts}: block {home} is not as it was committed");
    }
    let status = disk.status();
    assert_eq!(status.file_systems[0].mode, "retain", "{stuck:?}, evicts {evicts}: {status:?}");
}

/// `power-window`: the only transaction that the next daemon reads was answered long ago, its blocks were evicted while somebody read the
/// journal, and since then the guest has written over one of them.
#[test]
fn what_was_written_over_an_evicted_block_stays_after_another_daemon() {
    let mut mounted = Mounted::new(true);
    let blocks = mounted.transaction(vec![(FsBlock(3000), block(1)), (FsBlock(3001), block(2))]);
    let mut lane = mounted.lane();
    lane.read(mounted.sector_of(AreaBlock(0)), &mut block(0)).unwrap();
    blocks.iter().for_each(|(sector, block)| lane.write(*sector, block).unwrap());
    mounted.disk.make_room().unwrap();
    lane.write(mounted.home(3000), &block(9)).unwrap();
    let (disk, _) = mounted.next_daemon();
    let mut found = block(0);
    Blocking::new(disk.open_lane().unwrap()).read(mounted.home(3000), &mut found).unwrap();
    assert!(found == block(9), "an older content came over what was written last");
}

/// `power-window`: a daemon dies while a commit waits for a write of one of its blocks. Of two queues the commit's is the first to ask the
/// next one again.
#[test]
fn a_commit_that_comes_again_before_what_it_waited_for_is_not_undone_by_that() {
    let mut mounted = Mounted::new(true);
    let blocks = mounted.transaction(vec![(FsBlock(3000), block(2)), (FsBlock(3001), block(2))]);
    let (commit, others) = blocks.split_last().unwrap();
    let mut lane = mounted.lane();
    others.iter().for_each(|(sector, block)| lane.write(*sector, block).unwrap());
    let (mut writing, mut committing) =
        (mounted.disk.open_lane().unwrap(), mounted.disk.open_lane().unwrap());
    writing.submit(write(1, mounted.home(3001), &block(1)));
    committing.submit(write(2, commit.0, &commit.1));
    assert!(completed(&mut committing, Duration::from_millis(20)).is_empty(), "it waits");
    let (disk, memory) = mounted.next_daemon();
    let mut lane = Blocking::new(disk.open_lane().unwrap());
    lane.write(commit.0, &commit.1).unwrap();
    lane.write(mounted.home(3001), &block(1)).unwrap();
    let bytes = memory.bytes();
    let at = mounted.home(3001).0 as usize / 8;
    let below: &[u8] = &bytes[at * BLOCK_BYTES..][..BLOCK_BYTES];
    let replayed = common::replayed(&bytes).0;
    let found = replayed.get(&(at as u64)).map_or(below, |block| &block[..]);
    assert!(found == block(2), "what was committed is neither home nor in the journal");
}

/// How a write of a block ends that a commit takes the place of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    /// It had landed before the commit came.
    Before,
    /// The commit waited for it.
    Meanwhile,
    /// It carries what is home already, and is not handed down.
    Elided,
}

/// `power-window`: a write has ended, and its guest has not been told when the daemon dies: the next one is asked for it again.
#[test]
fn what_comes_again_does_not_undo_a_commit() {
    for ends in [Ends::Before, Ends::Meanwhile, Ends::Elided] {
        for evicts in [false, true] {
            over_what_was_not_posted(ends, evicts);
        }
    }
}

fn over_what_was_not_posted(ends: Ends, evicts: bool) {
    let mut mounted = Mounted::new(true);
    let mut lane = mounted.lane();
    if ends == Ends::Elided {
        let older = mounted.transaction(vec![(FsBlock(3001), block(1))]);
        older.iter().for_each(|(sector, block)| lane.write(*sector, block).unwrap());
    }
    let blocks = mounted.transaction(vec![(FsBlock(3000), block(2)), (FsBlock(3001), block(2))]);
    let ((commit, content), others) = blocks.split_last().unwrap();
    others.iter().for_each(|(sector, block)| lane.write(*sector, block).unwrap());
    if evicts {
        mounted.disk.make_room().unwrap();
    }
    let (mut writing, mut committing) =
        (mounted.disk.open_lane().unwrap(), mounted.disk.open_lane().unwrap());
    writing.submit(write(1, mounted.home(3001), &block(1)));
    if ends == Ends::Meanwhile {
        committing.submit(write(2, *commit, content));
    }
    let mut handed_out: Vec<Completion> = Vec::new();
    writing.dispatch();
    while handed_out.is_empty() {
        writing.reap(&mut handed_out);
    }
    if ends != Ends::Meanwhile {
        committing.submit(write(2, *commit, content));
    }
    let committed = completed(&mut committing, Duration::from_millis(20));
    let (disk, memory) = mounted.next_daemon();
    let mut lane = Blocking::new(disk.open_lane().unwrap());
    if committed.is_empty() {
        lane.write(*commit, content).unwrap();
    }
    lane.write(mounted.home(3001), &block(1)).unwrap();
    let bytes = memory.bytes();
    let at = mounted.home(3001).0 as usize / 8;
    let below: &[u8] = &bytes[at * BLOCK_BYTES..][..BLOCK_BYTES];
    let replayed = common::replayed(&bytes).0;
    let found = replayed.get(&(at as u64)).map_or(below, |block| &block[..]);
    assert!(
        found == block(2),
        "{ends:?}, evicts {evicts}: what was committed is neither home nor in the journal"
    );

    // Who comes to a lane again has posted what it was handed.
    drop((lane, disk));
    writing.reap(&mut handed_out);
    assert_eq!(completed(&mut committing, PATIENCE), [2]);
    assert!(mounted.on_disk(3001) == block(2));
    let (disk, _) = mounted.next_daemon();
    assert_eq!(disk.status().file_systems[0].mode, "retain");
}

/// `guest-crash`: a guest that only looked gone has committed once more before anybody looks after what it left. Then the daemon dies, and
/// the next one is asked for that again.
#[test]
fn what_comes_again_of_a_guest_that_came_back_is_known() {
    let mut mounted = Mounted::new(false);
    let blocks = mounted.transaction(vec![(FsBlock(3000), block(1))]);
    let mut lane = mounted.lane();
    mounted.disk.quiesced(Quiesced::Stopped);
    blocks.iter().for_each(|(sector, block)| lane.write(*sector, block).unwrap());
    while mounted.disk.settle_after_guest().unwrap() {}
    assert!(mounted.on_disk(3000) == block(1), "it is home");
    let (disk, _) = mounted.next_daemon();
    let (commit, content) = blocks.last().unwrap();
    Blocking::new(disk.open_lane().unwrap()).write(*commit, content).unwrap();
    assert_eq!(disk.status().file_systems[0].mode, "retain");
}

/// A pause leaves the log on the disk. The guest's tail passes it, and its next transaction is still to come when the power is cut.
#[test]
fn no_recovery_begins_before_a_tail_that_moved_after_a_pause() {
    let mut mounted = Mounted::new(true);
    let blocks = mounted.transaction(vec![(FsBlock(3000), block(1))]);
    let mut lane = mounted.lane();
    lane.read(mounted.sector_of(AreaBlock(0)), &mut block(0)).unwrap();
    blocks.iter().for_each(|(sector, block)| lane.write(*sector, block).unwrap());
    mounted.disk.pause().unwrap();
    mounted.disk.resume();
    mounted.write_tail(&mut lane);
    lane.write(mounted.home(3000), &block(9)).unwrap();
    assert!(mounted.on_disk(3000) == block(9));
    let (homes, _) = common::replayed(&mounted.image());
    assert!(homes.is_empty(), "what its tail has passed would be replayed");
}

/// Memory only.
#[derive(Debug)]
struct Slots;

impl Places for Slots {
    fn sector_of(&self, _at: AreaBlock) -> Option<Sector> {
        None
    }
}

/// A client that has no journal, beside the guest's file system on the same disk, sends a block home.
fn another_client(mounted: &Mounted, versions: &mut Versions) {
    let Layout { start, room_blocks: blocks, .. } = mounted.layout;
    versions.init(CLIENT, Room { start, blocks, places: Arc::new(Slots) }).unwrap();
    let tuple = Tuple { home: FsBlock(3000), at: AreaBlock(7), tid: Tid(1), escaped: false };
    versions
        .store(CLIENT, tuple.at, &mut |slot| {
            *slot = block(2);
            None
        })
        .unwrap();
    versions.mprotect(CLIENT, &[tuple], &[], false).unwrap();
    versions.send_home(CLIENT, &[tuple]).unwrap();
}

const CLIENT: VolumeId = VolumeId(9);

#[test]
fn another_clients_set_is_waited_for_too() {
    let mounted = &Mounted::new(true);
    let commit = |versions: &mut Versions| another_client(mounted, versions);
    let (mut held, mut other) = (mounted.disk.open_lane().unwrap(), mounted.disk.open_lane().unwrap());
    mounted.gate.set(true);
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| mounted.disk.act_on_versions(commit).unwrap());
        mounted.gate.wait_for_somebody();
        held.submit(write(1, mounted.home(3000), &block(3)));
        other.submit(write(2, mounted.home(2900), &block(5)));
        let overtook = [&mut held, &mut other].map(|lane| completed(lane, Duration::from_millis(100)));
        mounted.gate.set(false);
        acting.join().unwrap();
        assert_eq!(overtook, [vec![], vec![2]]);
    });
    assert_eq!(completed(&mut held, PATIENCE), [1]);
    assert!(mounted.on_disk(3000) == block(3), "the guest's own write came behind the set");
    let state = |versions: &mut Versions| versions.area().version(CLIENT, FsBlock(3000)).unwrap().state;
    assert_eq!(mounted.disk.act_on_versions(state).unwrap(), VersionState::Rewritten);
}

/// What the next reap of a lane hands out, if it does not wait for the gate, which is open afterwards.
fn reaped_at_a_gate(mounted: &Mounted, lane: &mut Box<dyn Lane>) -> Option<Vec<u64>> {
    mounted.late.is_late.store(false, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let (done, told) = channel();
        scope.spawn(move || {
            let mut completions: Vec<Completion> = Vec::new();
            lane.reap(&mut completions);
            let _ = done.send(completions.iter().map(|c| c.token.0).collect());
        });
        let reaped = told.recv_timeout(PATIENCE).ok();
        mounted.gate.set(false);
        reaped
    })
}

fn flush(token: u64) -> Request {
    let operation = Operation::Flush(FlushKind::Order);
    Request { token: Token(token), operation, sector: Sector(0), sectors: 0, buffers: Buffers::empty() }
}

/// A flush that was answered below is the guest's before anything is waited for, as the window counts from then on: here a commit that can
/// be taken in since what was answered together with it has landed.
#[test]
fn a_flush_that_was_answered_does_not_wait_for_a_commit() {
    let mut mounted = Mounted::new(true);
    let blocks = mounted.transaction(vec![(FsBlock(3000), block(2))]);
    By::Commit.prepare(&mounted, &blocks);
    mounted.late.is_late.store(true, Ordering::SeqCst);
    let mut lane = mounted.disk.open_lane().unwrap();
    let (commit, content) = blocks.last().unwrap();
    lane.submit(write(1, mounted.home(3000), &block(1)));
    lane.submit(write(2, *commit, content));
    lane.submit(flush(3));
    assert!(
        completed(&mut lane, Duration::from_millis(20)).is_empty(),
        "the commit waits for the write before it"
    );
    assert_eq!(reaped_at_a_gate(&mounted, &mut lane), Some(vec![1, 3]));
    assert_eq!(completed(&mut lane, PATIENCE), [2]);
    assert!(mounted.on_disk(3000) == block(2));
}

/// And a write whose end waits for a set. Where it was to complete as if flushed, that is asked for again: the first answer is old by then.
#[test]
fn a_flush_that_was_answered_does_not_wait_for_a_write_that_waits_for_a_set() {
    for flushed in [false, true] {
        let mounted = &Mounted::new(true);
        mounted.late.is_late.store(true, Ordering::SeqCst);
        let mut lane = mounted.disk.open_lane().unwrap();
        // What may be a partition table is looked at when it has been written.
        let operation = Operation::Write { flushed };
        lane.submit(Request { operation, ..write(1, Sector(0), &[0x11; 512]) });
        lane.submit(flush(2));
        let flushes = || mounted.late.flushes.load(Ordering::SeqCst);
        let before = flushes();
        mounted.gate.set(true);
        std::thread::scope(|scope| {
            let acting =
                scope.spawn(|| mounted.disk.act_on_versions(|v| another_client(mounted, v)).unwrap());
            mounted.gate.wait_for_somebody();
            assert_eq!(reaped_at_a_gate(mounted, &mut lane), Some(vec![2]), "flushed: {flushed}");
            acting.join().unwrap();
        });
        assert_eq!(completed(&mut lane, PATIENCE), [1]);
        assert_eq!(flushes() - before, u32::from(flushed));
    }
}

/// Whoever wants everything home, or made complete, waits for the set that is under way, and finds it there.
#[test]
fn a_pause_waits_for_what_is_under_way() {
    [By::Commit, By::Settle].into_iter().for_each(a_pause_waits);
}

fn a_pause_waits(by: By) {
    let mut mounted = Mounted::new(by == By::Commit);
    let blocks = mounted.transaction(vec![(FsBlock(3000), block(2))]);
    by.prepare(&mounted, &blocks);
    let mounted = &mounted;
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| by.act(mounted, &blocks));
        mounted.gate.wait_for_somebody();
        let pausing = scope.spawn(|| {
            mounted.disk.settle().unwrap();
            mounted.disk.pause().unwrap();
            mounted.on_disk(3000)
        });
        std::thread::sleep(Duration::from_millis(50));
        let waited = !pausing.is_finished();
        mounted.gate.set(false);
        acting.join().unwrap();
        assert!(pausing.join().unwrap() == block(2));
        assert!(waited, "a pause did not wait for the set");
    });
    mounted.disk.resume();
}

const ATTACKED: std::ops::Range<u64> = 3020..3040;

/// A guest in several queues, none of which knows what the others do: one commits over home writes that take their time, one writes over
/// what is committed, discards it and writes to the journal's superblock, others mind their own blocks. Their blocks are their own all the
/// time; what is only committed is as it was committed last; what is written over is somebody's, whole. Under `guest-crash` somebody wants
/// everything home, or memory, all the time.
#[test]
fn queues_that_know_nothing_of_each_other_keep_what_is_theirs() {
    for seed in 0..8 {
        let applies = seed % 2 == 0;
        let mut mounted = Mounted::new(applies);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let stop = AtomicBool::new(false);
        let shared = Mutex::new(&mut mounted);
        let progress: Vec<AtomicU32> = (0..3).map(|_| AtomicU32::new(0)).collect();
        let mut newest = vec![0; COMMITTED.end as usize];
        std::thread::scope(|scope| {
            let (stop, shared, progress) = (&stop, &shared, &progress);
            let lane = || shared.lock().unwrap().lane();
            let at = |home: u64| shared.lock().unwrap().home(home);
            let gate = Arc::clone(&shared.lock().unwrap().gate);
            scope.spawn(move || {
                let mut shut = false;
                while !stop.load(Ordering::SeqCst) {
                    shut = !shut;
                    gate.set(shut);
                    std::thread::sleep(Duration::from_micros(700));
                }
                gate.set(false);
            });
            if !applies {
                let disk = Arc::clone(&shared.lock().unwrap().disk);
                let mut chance = ChaCha8Rng::seed_from_u64(9 * seed + 2);
                scope.spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        match chance.random_ratio(1, 2) {
                            true => disk.settle().unwrap(),
                            false => disk.make_room().unwrap(),
                        }
                        std::thread::sleep(Duration::from_micros(300));
                    }
                });
            }
            for (owner, progress) in (0..3u64).zip(progress) {
                let (mut lane, first) = (lane(), at(2000 + owner * 8));
                let mut rng = ChaCha8Rng::seed_from_u64(100 * seed + owner);
                scope.spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        let (mut written, mut found) = (vec![0; 8 * BLOCK_BYTES], vec![0; 8 * BLOCK_BYTES]);
                        rng.fill_bytes(&mut written);
                        lane.write(first, &written).unwrap();
                        lane.read(first, &mut found).unwrap();
                        assert!(found == written, "owner {owner} of {seed}");
                        progress.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let mut hostile = lane();
            let attacked: Vec<Sector> = ATTACKED.map(at).collect();
            let mut chance = ChaCha8Rng::seed_from_u64(7 * seed + 1);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let sector = attacked[chance.random_range(0..attacked.len())];
                    match chance.random_range(0..8) {
                        0 => {
                            let operation = Operation::Discard { flushed: false };
                            drop(hostile.request(operation, sector, 8, Buffers::empty()));
                        }
                        1..3 => {
                            let mut found = block(0);
                            hostile.read(sector, &mut found).unwrap();
                            assert!(found.iter().all(|b| *b == found[0]), "a torn block");
                        }
                        _ => hostile.write(sector, &block(200 + chance.random_range(0..50))).unwrap(),
                    }
                }
            });
            let mut committing = lane();
            for round in 0..60u8 {
                let mut homes: Vec<u64> = COMMITTED.filter(|_| rng.random_ratio(1, 6)).collect();
                homes.push(COMMITTED.start);
                let byte = round + 1;
                let logged = homes.iter().map(|home| (FsBlock(*home), block(byte))).collect();
                let (blocks, tail) = {
                    let mut mounted = shared.lock().unwrap();
                    (mounted.transaction(logged), round % 7 == 6)
                };
                blocks.iter().for_each(|(sector, block)| committing.write(*sector, block).unwrap());
                homes.iter().for_each(|home| newest[*home as usize] = byte);
                if tail {
                    // Free blocks, of which nothing is needed when the tail has passed: their guest writes them home itself.
                    let own = COMMITTED.filter(|home| !applies && !ATTACKED.contains(home));
                    own.filter(|home| newest[*home as usize] > 0)
                        .for_each(|home| committing.write(at(home), &block(newest[home as usize])).unwrap());
                    shared.lock().unwrap().write_tail(&mut committing);
                }
            }
            let deadline = Instant::now() + PATIENCE;
            let goes_on = |p: &AtomicU32| p.load(Ordering::SeqCst) > 3;
            while !progress.iter().all(goes_on) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Ordering::SeqCst);
            assert!(progress.iter().all(goes_on), "somebody waited for ever");
        });
        let status = mounted.disk.status();
        assert_eq!(status.file_systems[0].mode, "retain", "{status:?}");
        mounted.disk.finish(false).unwrap();
        for home in COMMITTED {
            let found = mounted.on_disk(home);
            assert!(found.iter().all(|b| *b == found[0]), "block {home} of {seed} is torn");
            if !ATTACKED.contains(&home) {
                assert_eq!(found[0], newest[home as usize], "block {home} of {seed}");
            }
        }
    }
}
