//! What a commit that a guest hands over costs the daemon's processor, by the size of the commit: VMA's Fig. 13. A measurement, to be run by
//! hand:
//!
//! `cargo test --release -p afterimage-journal --test hand_over_cost -- --ignored --nocapture`
//!
//! The thread's own processor time, from a commit's first command to its last answer: commands and their checks, the copy into the arena, the
//! commit block with the transaction's checksums. The guest's tail, which lets the transaction go, stands apart. Small commits are in the
//! processor's caches when they come, large ones are not.

mod common;

use std::sync::Arc;

use afterimage_block::{
    Blocking, Buffers, Disk, Lane, Medium, MediumDisk, Operation, Request, Sector, Token,
};
use afterimage_format::control_disk::{Answer, Command, OPERATION_INIT, OPERATION_MPROTECT, STATUS_DONE};
use afterimage_journal::arena::{Arena, ArenaIdentity};
use afterimage_journal::log::encode::{Draft, Encoder};
use afterimage_journal::log::LogGeometry;
use afterimage_journal::{AreaBlock, FsBlock, RetainDisk, Tid, BLOCK_BYTES};
use common::control::control_disk;
use common::{ext4_of, journal_superblock, layouts, wait_for_home, Memory};
use rustix::time::{clock_gettime, ClockId};
use zerocopy::IntoBytes as _;

/// As many as one request of a stock guest's driver holds beside the command.
const COMMAND_BLOCKS: usize = 125;
const SLOT: Sector = Sector(7 * 2048);
const ARENA_BYTES: u64 = 128 << 20;
/// Blocks that are written for each size, at least; and commits.
const BLOCKS_LEAST: usize = 20_000;
const COMMITS_LEAST: usize = 7;

fn cpu_us() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

fn write(lane: &mut dyn Lane, sector: Sector, buffers: &Buffers, flushed: bool) {
    let (operation, sectors) = (Operation::Write { flushed }, buffers.len() as u64 / 512);
    lane.submit(Request { token: Token(0), operation, sector, sectors, buffers: buffers.share() });
    let mut completions = Vec::new();
    lane.dispatch();
    lane.reap(&mut completions);
    while completions.is_empty() {
        lane.wait(&[], None).unwrap();
        lane.reap(&mut completions);
    }
    completions[0].result.clone().unwrap();
}

/// Commits of so many logged blocks; in µs a logged block, each: the hand-over, and the tail's move.
fn measure(base: &[u8], logged: usize) -> Vec<[f64; 2]> {
    let layout = layouts(base).remove(0);
    let superblock = journal_superblock(base, &layout).unwrap();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let identity = ArenaIdentity { uuid: [9; 16], inode: 1, size_bytes: base.len() as u64 };
    let arena = Arena::create(&folder.path().join("a.arena"), identity, ARENA_BYTES).unwrap();
    let below = Arc::new(MediumDisk::new(Memory::new(base.to_vec()) as Arc<dyn Medium>));
    let disk = Arc::new(RetainDisk::open(below, arena, wait_for_home()).unwrap());
    let (control, mut hand) = control_disk(vec![Arc::clone(&disk)]);
    let mut lane = disk.open_lane().unwrap();
    let about = Command { file_system: layout.uuid, ..Command::new(OPERATION_INIT, 1) };
    let geometry = LogGeometry::new(&superblock, &layout);
    let home = |at| layout.home_of(at).unwrap();
    let tail = |lane: &mut dyn Lane, tid, at| {
        let buffers = Buffers::from_bytes(superblock.with_tail(tid, Some(at)).bytes());
        let begun = cpu_us();
        write(lane, home(AreaBlock(0)).sector(layout.start), &buffers, false);
        cpu_us() - begun
    };
    let (mut tid, mut at): (Tid, AreaBlock) = (superblock.sequence(), superblock.first());
    // As a mount does.
    let superblock = home(AreaBlock(0)).sector(layout.start);
    Blocking::new(disk.open_lane().unwrap()).read(superblock, &mut [0; BLOCK_BYTES]).unwrap();
    tail(&mut *lane, tid, at);
    write(&mut *hand, SLOT, &Buffers::from_bytes(about.seal().as_bytes()), true);
    let mut sector = [0; 512];
    Blocking::new(control.open_lane().unwrap()).read(SLOT, &mut sector).unwrap();
    let answer = Answer::parse(&sector).unwrap();
    assert_eq!(answer.status.get(), STATUS_DONE, "{}", answer.text());
    // Blocks that are neither the journal's nor at the front, where the layout's are.
    let journal = |block: u64| {
        layout.journal.iter().any(|e| (e.home.0..e.home.0 + u64::from(e.blocks)).contains(&block))
    };
    let free: Vec<FsBlock> =
        (6000..base.len() as u64 / 4096).filter(|block| !journal(*block)).map(FsBlock).collect();
    let rounds = COMMITS_LEAST.max(BLOCKS_LEAST.div_ceil(logged));
    let mut times = Vec::new();
    for round in 0..rounds {
        let content = |n: usize| Box::new([(n + round) as u8; BLOCK_BYTES]);
        let logged_blocks = (0..logged).map(|n| (free[n % free.len()], content(n))).collect();
        let mut encoder = Encoder::new(&geometry, at, tid);
        encoder.transaction(&Draft { logged: logged_blocks, ..Draft::default() });
        let mut blocks: Vec<(FsBlock, &[u8])> =
            encoder.blocks.iter().map(|(at, block)| (home(*at), &block[..])).collect();
        let start = home(at);
        blocks.sort_by_key(|(block, _)| (*block < start, *block));
        let last = blocks.len() - 1;
        let mut runs: Vec<(FsBlock, Vec<&[u8]>)> = Vec::new();
        for (n, (block, content)) in blocks.into_iter().enumerate() {
            match runs.last_mut() {
                Some((first, run))
                    if n != last && first.0 + run.len() as u64 == block.0 && run.len() < COMMAND_BLOCKS =>
                {
                    run.push(content);
                }
                _ => runs.push((block, vec![content])),
            }
        }
        let command = |(tag, (first, run)): (usize, (FsBlock, Vec<&[u8]>))| {
            let mut command =
                Command { file_system: layout.uuid, ..Command::new(OPERATION_MPROTECT, tag as u64 + 2) };
            (command.instance, command.sequence) = (answer.instance, answer.sequence);
            (command.block, command.blocks) = (first.0.into(), (run.len() as u32).into());
            Buffers::from_bytes(&[command.seal().as_bytes(), &run.concat()].concat())
        };
        let commands: Vec<Buffers> = runs.into_iter().enumerate().map(command).collect();
        let begun = cpu_us();
        commands.iter().for_each(|command| write(&mut *hand, SLOT, command, true));
        let handed_over = cpu_us() - begun;
        (tid, at) = (tid.next(), encoder.at);
        times.push([handed_over, tail(&mut *lane, tid, at)].map(|us| us / logged as f64));
    }
    let classes = disk.status().file_systems[0].classes;
    assert_eq!((classes.journal_commits, classes.checkpoint_blocks), (rounds as u64, 0), "{classes:?}");
    times
}

#[test]
#[ignore = "a measurement"]
fn what_a_handed_over_block_costs() {
    // Its journal takes several commits of 40 MiB.
    let base = ext4_of(512, 192);
    println!("logged blocks   commits   µs a block: handed over, median (least–most)   and let go");
    for logged in [1, 8, 32, 125, 256, 1024, 2560, 10240] {
        let times = measure(&base, logged);
        let sorted = |part: usize| {
            let mut all: Vec<f64> = times.iter().map(|time| time[part]).collect();
            all.sort_by(f64::total_cmp);
            all
        };
        let (over, gone) = (sorted(0), sorted(1));
        println!(
            "{logged:13}   {:7}   {:.2} ({:.2}–{:.2})   {:.2}",
            times.len(),
            over[over.len() / 2],
            over[0],
            over[over.len() - 1],
            gone[gone.len() / 2]
        );
    }
}
