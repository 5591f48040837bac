//! What absorbing costs: processor time a journal block of 4 KiB, apart for the blocks of a transaction, for its commit block (which
//! reads the transaction again and checks it), and for the tail that lets it go. A measurement, to be run by hand on a quiet machine:
//!
//! `cargo test --release -p afterimage-journal --test absorb_cost -- --ignored --nocapture`

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{
    Blocking, Buffers, Disk, Lane, Medium, MediumDisk, Operation, Request, Sector, Token,
};
use afterimage_journal::arena::{Arena, ArenaIdentity, VolumeId};
use afterimage_journal::log::encode::{Draft, Encoder};
use afterimage_journal::log::LogGeometry;
use afterimage_journal::{AreaBlock, Block, FsBlock, RetainDisk, Tid, BLOCK_BYTES};
use common::{ext4, journal_superblock, layouts, wait_for_home, Memory};

const ROUNDS: usize = 400;

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_nanos() as f64
}

/// Writes one request and waits for it.
fn write(lane: &mut dyn Lane, sector: Sector, buffers: &Buffers) {
    let (operation, sectors) = (Operation::Write { flushed: false }, buffers.len() as u64 / 512);
    lane.submit(Request { token: Token(0), operation, sector, sectors, buffers: buffers.share() });
    let mut completions = Vec::new();
    while completions.is_empty() {
        lane.dispatch();
        lane.reap(&mut completions);
    }
    completions[0].result.clone().unwrap();
}

/// Transactions of so many blocks, in requests of at most so many; the medians of a block, a commit and a tail, in ns a logged block.
fn measure(logged: u64, request_blocks: usize) -> [f64; 3] {
    let base = ext4();
    let layout = layouts(&base).remove(0);
    let superblock = journal_superblock(&base, &layout).unwrap();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let identity = ArenaIdentity { uuid: [9; 16], inode: 1, size_bytes: base.len() as u64 };
    let arena = Arena::create(&folder.path().join("a.arena"), identity, 32 << 20).unwrap();
    let below = Arc::new(MediumDisk::new(Memory::new(base) as Arc<dyn Medium>));
    let disk = RetainDisk::open(below, arena, wait_for_home()).unwrap();
    let mut lane = disk.open_lane().unwrap();
    let geometry = LogGeometry::new(&superblock, &layout);
    let sector_of = |at| layout.home_of(at).unwrap().sector(layout.start);
    let (mut tid, mut at): (Tid, AreaBlock) = (superblock.sequence(), superblock.first());
    let tail = |lane: &mut dyn Lane, tid, at| {
        let buffers = Buffers::from_bytes(superblock.with_tail(tid, Some(at)).bytes());
        let begun = Instant::now();
        write(lane, sector_of(AreaBlock(0)), &buffers);
        begun.elapsed()
    };
    // As a mount does.
    Blocking::new(disk.open_lane().unwrap()).read(sector_of(AreaBlock(0)), &mut [0; BLOCK_BYTES]).unwrap();
    tail(&mut *lane, tid, at);
    assert_eq!(disk.status().file_systems[0].mode, "retain");
    let mut times: [Vec<Duration>; 3] = Default::default();
    for round in 0..ROUNDS as u64 {
        let content = |n: u64| Box::new([(n + round) as u8; BLOCK_BYTES]);
        let logged = (0..logged).map(|n| (FsBlock(3000 + n * 7 % 900), content(n))).collect();
        let mut encoder = Encoder::new(&geometry, at, tid);
        encoder.transaction(&Draft { logged, ..Draft::default() });
        let mut blocks: Vec<(Sector, &Block)> =
            encoder.blocks.iter().map(|(at, block)| (sector_of(*at), &**block)).collect();
        let start = sector_of(at);
        blocks.sort_by_key(|(sector, _)| (*sector < start, *sector));
        let (commit, rest) = blocks.split_last().unwrap();
        let mut requests: Vec<(Sector, Vec<u8>)> = Vec::new();
        for (sector, block) in rest {
            match requests.last_mut() {
                Some((first, bytes))
                    if first.0 + bytes.len() as u64 / 512 == sector.0
                        && bytes.len() < request_blocks * BLOCK_BYTES =>
                {
                    bytes.extend_from_slice(&block[..]);
                }
                _ => requests.push((*sector, block.to_vec())),
            }
        }
        let requests: Vec<(Sector, Buffers)> =
            requests.iter().map(|(sector, bytes)| (*sector, Buffers::from_bytes(bytes))).collect();
        let buffers = Buffers::from_bytes(commit.1);
        let begun = Instant::now();
        requests.iter().for_each(|(sector, buffers)| write(&mut *lane, *sector, buffers));
        times[0].push(begun.elapsed() / rest.len() as u32);
        let begun = Instant::now();
        write(&mut *lane, commit.0, &buffers);
        times[1].push(begun.elapsed());
        (tid, at) = (tid.next(), encoder.at);
        times[2].push(tail(&mut *lane, tid, at));
    }
    let classes = disk.status().file_systems[0].classes;
    assert_eq!((classes.journal_commits, classes.checkpoint_blocks), (ROUNDS as u64, 0), "{classes:?}");
    let [block, commit, tail] = times.map(median);
    [block, commit / logged as f64, tail / logged as f64]
}

#[test]
#[ignore = "a measurement"]
fn what_a_journal_block_costs() {
    let mut from = vec![1u8; 256 * BLOCK_BYTES];
    let mut to = vec![2u8; 256 * BLOCK_BYTES];
    let mut copies = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        to.copy_from_slice(&from);
        copies.push(begun.elapsed() / 256);
        std::mem::swap(&mut from, &mut to);
    }
    println!("a copy of 4 KiB: {:.0} ns", median(copies));
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut arena =
        Arena::create(&folder.path().join("a.arena"), ArenaIdentity::default(), 32 << 20).unwrap();
    let (id, block) = (VolumeId(0), [3; BLOCK_BYTES]);
    let mut stores = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for at in (0..256).map(AreaBlock) {
            arena
                .store(id, at, &mut |slot| {
                    slot.copy_from_slice(&block);
                    None
                })
                .unwrap();
        }
        stores.push(begun.elapsed() / 256);
        assert!((0..256).all(|at| arena.remove(id, AreaBlock(at))));
    }
    println!("a store into the arena: {:.0} ns", median(stores));
    println!("ns a logged block   absorbed   commit   tail   together");
    for (logged, request_blocks) in [(1, 1), (8, 1), (8, 128), (64, 1), (64, 128), (200, 128)] {
        let [block, commit, tail] = measure(logged, request_blocks);
        println!(
            "{logged:4} in requests of {:4} KiB: {block:6.0} {commit:8.0} {tail:6.0} {:8.0}",
            request_blocks * 4,
            block + commit + tail
        );
    }
}
