//! Kills a process that works in an arena, at any instant, again and again: what is there afterwards is exactly what it
//! had acknowledged and the steps that followed up to some step, each of them whole.
//!
//! Blocks are also given up to homes on a disk, and saved from there before those are written: they read the same all the time.
//!
//! It acknowledges every [`BATCH`] steps only: where it told of each, most kills would meet it in that system call.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use afterimage_journal::arena::{Arena, ArenaIdentity, Mark, VolumeId, VolumeRecord};
use afterimage_journal::{AreaBlock, Block, FsBlock, Tid, BLOCK_BYTES};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const IDENTITY: ArenaIdentity = ArenaIdentity { uuid: [5; 16], inode: 1, size_bytes: 4096 };
const BYTES_MAX: u64 = 300 * 4096;
const ROUNDS: u64 = 300;
const BATCH: u64 = 256;

/// What an arena should hold: blocks with value and mark, records.
#[derive(Clone, Default, Debug, PartialEq)]
struct Held {
    blocks: BTreeMap<(u16, u32), (u64, bool)>,
    records: BTreeMap<u16, (u64, u32)>,
}

enum Step {
    Store(u16, u32),
    Remove(u16, u32),
    Overwritten(u16, u32, bool),
    /// It is written home, and served from there.
    Home(u16, u32),
    /// Its home is written with something else.
    WriteHome(u16, u32),
    Record(u16),
    Tail(u16),
    Clear(u16),
    Trim(u64),
}

/// The step of that number: the same in the child and in the parent.
fn step(seed: u64, number: u64) -> Step {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let volume = rng.random_range(0..2);
    let block = rng.random_range(0..140);
    match rng.random_range(0..1000) {
        0..=399 => Step::Store(volume, block),
        400..=699 => Step::Home(volume, block),
        700..=799 => Step::WriteHome(volume, block),
        800..=859 => Step::Remove(volume, block),
        860..=899 => Step::Overwritten(volume, block, rng.random_bool(0.5)),
        900..=929 => Step::Record(volume),
        930..=959 => Step::Tail(volume),
        960..=998 => Step::Clear(volume),
        _ => Step::Trim(rng.random_range(0..50) * 4096),
    }
}

fn record(value: u64, tail: u32) -> VolumeRecord {
    VolumeRecord {
        start_sector: value,
        fs_uuid: u128::from(value).to_le_bytes(),
        tail: (Tid(tail), AreaBlock(!tail)),
        superblock_read: value % 3 == 1,
        stamped: value % 5 == 1,
        commit_waits: value % 7 == 1,
        from_home: value % 5 == 1,
        absorbing: value % 2 == 1,
    }
}

impl Held {
    fn apply(&mut self, seed: u64, number: u64) {
        match step(seed, number) {
            Step::Store(v, b) => {
                self.blocks.insert((v, b), (number, false));
            }
            Step::Remove(v, b) => {
                self.blocks.remove(&(v, b));
            }
            Step::Overwritten(v, b, overwritten) => {
                if let Some(held) = self.blocks.get_mut(&(v, b)) {
                    held.1 = overwritten;
                }
            }
            Step::Home(v, b) => {
                if let Some(held) = self.blocks.get_mut(&(v, b)) {
                    held.1 = false;
                }
            }
            Step::Record(v) => {
                self.records.insert(v, (number, number as u32));
            }
            Step::Tail(v) => {
                if let Some(held) = self.records.get_mut(&v) {
                    held.1 = number as u32;
                }
            }
            Step::Clear(v) => {
                self.blocks.retain(|k, _| k.0 != v);
                self.records.remove(&v);
            }
            Step::WriteHome(..) | Step::Trim(_) => {}
        }
    }

    fn read(arena: &Arena, disk: &File) -> Self {
        let mut held = Self::default();
        for v in 0..2 {
            let here = arena.blocks(VolumeId(v)).into_iter().filter(|at| at.0 < PAGES);
            let at_home = arena.served_from(VolumeId(v), FsBlock(0), FsBlock(u64::MAX)).map(|(_, at)| at);
            for at in here.chain(at_home) {
                let block = content(arena, disk, v, at).unwrap();
                assert!(block.chunks_exact(8).all(|word| word == &block[..8]), "a mixture of two contents");
                let value = u64::from_le_bytes(block[..8].try_into().unwrap());
                held.blocks
                    .insert((v, at.0), (value, arena.mark(VolumeId(v), at) == Some(Mark::Overwritten)));
            }
        }
        for (v, found) in arena.records.iter() {
            let tail = found.tail.0 .0;
            assert_eq!(found, record(found.start_sector, tail), "a mixture of two records");
            held.records.insert(v.0, (found.start_sector, tail));
        }
        held
    }
}

/// Journals have fewer blocks.
const PAGES: u32 = 1 << 31;

fn home(v: u16, at: AreaBlock) -> FsBlock {
    FsBlock(u64::from(v) * 256 + u64::from(at.0))
}

fn content(arena: &Arena, disk: &File, v: u16, at: AreaBlock) -> Option<Block> {
    let Some(home) = arena.home_of(VolumeId(v), at) else { return arena.get(VolumeId(v), at).copied() };
    let mut block = [0; BLOCK_BYTES];
    disk.read_exact_at(&mut block, home.0 * BLOCK_BYTES as u64).unwrap();
    Some(block)
}

fn filled(number: u64) -> Block {
    let mut block = [0; BLOCK_BYTES];
    block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
    block
}

fn put(arena: &mut Arena, v: u16, at: AreaBlock, content: &Block) {
    let mut fill = |block: &mut Block| {
        *block = *content;
        None
    };
    arena.store(VolumeId(v), at, &mut fill).unwrap();
}

/// Saves what is served from a home, and writes that.
fn write_home(arena: &mut Arena, disk: &File, v: u16, at: AreaBlock, new: &Block) {
    if arena.home_of(VolumeId(v), at).is_some() {
        let old = content(arena, disk, v, at).unwrap();
        put(arena, v, at, &old);
    }
    disk.write_all_at(new, home(v, at).0 * BLOCK_BYTES as u64).unwrap();
}

fn run(arena: &mut Arena, disk: &File, seed: u64, number: u64) {
    match step(seed, number) {
        Step::Store(v, b) => put(arena, v, AreaBlock(b), &filled(number)),
        Step::Home(v, b) => {
            let at = AreaBlock(b);
            if let Some(block) = arena.get(VolumeId(v), at).copied() {
                write_home(arena, disk, v, at, &block);
                arena.set_mark(VolumeId(v), at, Some(Mark::Home));
                assert!(arena.give_up_to(VolumeId(v), at, home(v, at)));
            }
        }
        Step::WriteHome(v, b) => write_home(arena, disk, v, AreaBlock(b), &filled(!number)),
        Step::Remove(v, b) => {
            arena.remove(VolumeId(v), AreaBlock(b));
        }
        Step::Overwritten(v, b, overwritten) => {
            arena.set_mark(VolumeId(v), AreaBlock(b), overwritten.then_some(Mark::Overwritten));
        }
        Step::Record(v) => arena.records.set(VolumeId(v), record(number, number as u32)),
        Step::Tail(v) => {
            if let Some(old) = arena.records.get(VolumeId(v)) {
                arena.records.set(VolumeId(v), record(old.start_sector, number as u32));
            }
        }
        Step::Clear(v) => {
            arena.clear_volume(VolumeId(v));
            arena.reserve_marks(VolumeId(v), 140);
        }
        Step::Trim(spare_bytes) => arena.trim(spare_bytes),
    }
}

/// Where blocks have their homes.
fn disk(arena: &Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(arena.with_extension("disk"))
        .unwrap()
}

/// Not a test by itself: the process that is killed.
#[test]
#[ignore = "the process that a_kill_leaves_every_step_whole kills"]
fn child() {
    let path = env::var("ARENA_KILL_PATH").expect("started by the test that kills it");
    let number = |name| env::var(name).unwrap().parse::<u64>().unwrap();
    let (seed, first) = (number("ARENA_KILL_SEED"), number("ARENA_KILL_FIRST"));
    let mut arena = Arena::open(Path::new(&path), Some(IDENTITY)).unwrap();
    let disk = disk(Path::new(&path));
    // Killed before it had room again.
    for v in (0..2).map(VolumeId) {
        if !arena.blocks(v).iter().any(|at| at.0 >= PAGES) {
            arena.reserve_marks(v, 140);
        }
    }
    let mut acknowledge = std::io::stderr().lock();
    for number in first.. {
        run(&mut arena, &disk, seed, number);
        if (number + 1) % BATCH > 0 {
            continue;
        }
        acknowledge.write_all(&number.to_le_bytes()).unwrap();
    }
}

#[test]
fn a_kill_leaves_every_step_whole() {
    let folder = tempfile::Builder::new().prefix("arena-kill").tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("arena");
    drop(Arena::create(&path, IDENTITY, BYTES_MAX).unwrap());
    let seed = 0x5eed;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut held, mut next, mut within) = (Held::default(), 0u64, 0);
    for round in 0..ROUNDS {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
            .env("ARENA_KILL_PATH", &path)
            .env("ARENA_KILL_SEED", seed.to_string())
            .env("ARENA_KILL_FIRST", next.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = child.stderr.take().unwrap();
        let mut acknowledged = vec![0; 8 * rng.random_range(1..4)];
        pipe.read_exact(&mut acknowledged).unwrap();
        std::thread::sleep(Duration::from_micros(rng.random_range(0..600)));
        child.kill().unwrap();
        child.wait().unwrap();
        pipe.read_to_end(&mut acknowledged).unwrap();
        for bytes in acknowledged.chunks_exact(8) {
            let number = u64::from_le_bytes(bytes.try_into().unwrap());
            while next <= number {
                held.apply(seed, next);
                next += 1;
            }
        }
        let found = Held::read(&Arena::open(&path, Some(IDENTITY)).unwrap(), &disk(&path));
        let acknowledged = next;
        while found != held {
            assert!(
                next < acknowledged + BATCH,
                "round {round}: what is there is no state after step {acknowledged}"
            );
            held.apply(seed, next);
            next += 1;
        }
        within += u64::from(next > acknowledged);
    }
    println!("{next} steps, {within} of {ROUNDS} kills came between two acknowledgements");
    assert!(within > ROUNDS / 10, "the kills miss what they are for");
}
