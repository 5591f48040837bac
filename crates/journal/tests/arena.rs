//! The arena against a `HashMap`, its bounds, its memory, and damaged files.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use afterimage_journal::arena::{Arena, ArenaIdentity, Budget, Mark, VolumeId, VolumeRecord, VOLUMES_MAX};
use afterimage_journal::{AreaBlock, JournalError, Tid, BLOCK_BYTES};
use proptest::prelude::*;

const IDENTITY: ArenaIdentity = ArenaIdentity { uuid: *b"0123456789abcdef", inode: 7, size_bytes: 1 << 30 };
const SLOT: u64 = BLOCK_BYTES as u64;
const HEAD: u64 = 5 * SLOT;

/// Arenas are made for tmpfs.
fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("arena-test").tempdir_in("/dev/shm").unwrap()
}

fn record(n: u64) -> VolumeRecord {
    VolumeRecord {
        start_sector: 2048 * n,
        fs_uuid: [n as u8; 16],
        tail: (Tid(n as u32), AreaBlock(n as u32 + 1)),
        superblock_read: n % 3 == 1,
        stamped: n % 5 == 1,
        commit_waits: n % 7 == 1,
        from_home: n % 5 == 1,
        absorbing: n % 2 == 0,
    }
}

fn put(arena: &mut Arena, volume: u16, at: u32, value: u64) -> Result<(), JournalError> {
    arena.store(VolumeId(volume), AreaBlock(at), &mut |block| {
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&value.to_le_bytes());
        }
        Some(value as u32)
    })
}

/// The value of a whole block; panics on a mixture.
fn value(arena: &Arena, volume: u16, at: u32) -> Option<u64> {
    let block = arena.get(VolumeId(volume), AreaBlock(at))?;
    if let Some(note) = arena.note(VolumeId(volume), AreaBlock(at)) {
        assert_eq!(note.to_le_bytes(), block[..4], "another content's note");
    }
    let first = &block[..8];
    assert!(block.chunks_exact(8).all(|word| word == first), "a mixture");
    Some(u64::from_le_bytes(first.try_into().unwrap()))
}

fn is_full(result: Result<(), JournalError>) -> bool {
    matches!(result, Err(JournalError::Full { .. }))
}

#[derive(Clone, Debug)]
enum Step {
    Store(u16, u32),
    Remove(u16, u32),
    Overwritten(u16, u32, bool),
    Record(u16, u64),
    Tail(u16, u32, u32),
    Clear(u16),
    Trim(u64),
    Bound(u64),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let volume = 0u16..3;
    let block = 0u32..40;
    prop_oneof![
        30 => (volume.clone(), block.clone()).prop_map(|(v, b)| Step::Store(v, b)),
        10 => (volume.clone(), block.clone()).prop_map(|(v, b)| Step::Remove(v, b)),
        5 => (volume.clone(), block, any::<bool>()).prop_map(|(v, b, o)| Step::Overwritten(v, b, o)),
        3 => (volume.clone(), 0u64..100).prop_map(|(v, n)| Step::Record(v, n)),
        3 => (volume.clone(), any::<u32>(), any::<u32>()).prop_map(|(v, t, b)| Step::Tail(v, t, b)),
        1 => volume.prop_map(Step::Clear),
        1 => (0u64..64).prop_map(|s| Step::Trim(s * SLOT)),
        1 => (1u64..400).prop_map(|s| Step::Bound(s * SLOT)),
        2 => Just(Step::Reopen),
    ]
}

#[derive(Default)]
struct Oracle {
    blocks: HashMap<(u16, u32), (u64, bool)>,
    records: HashMap<u16, VolumeRecord>,
}

fn compare(arena: &Arena, oracle: &Oracle) {
    assert_eq!(arena.used_bytes(), oracle.blocks.len() as u64 * SLOT);
    assert!(arena.resident_bytes() >= arena.used_bytes());
    for v in 0..3 {
        let mut held: Vec<u32> = arena.blocks(VolumeId(v)).iter().map(|b| b.0).collect();
        let mut wanted: Vec<u32> = oracle.blocks.keys().filter(|k| k.0 == v).map(|k| k.1).collect();
        held.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(held, wanted);
        assert_eq!(arena.records.get(VolumeId(v)), oracle.records.get(&v).copied());
    }
    for ((v, b), (wanted, overwritten)) in &oracle.blocks {
        assert_eq!(value(arena, *v, *b), Some(*wanted));
        assert_eq!(arena.mark(VolumeId(*v), AreaBlock(*b)) == Some(Mark::Overwritten), *overwritten);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn is_a_hash_map_that_survives_reopening(steps in prop::collection::vec(step(), 1..150), bound in 1u64..200) {
        let folder = folder();
        let path = folder.path().join("arena");
        let mut bound = bound * SLOT;
        let mut arena = Arena::create(&path, IDENTITY, bound).unwrap();
        let mut oracle = Oracle::default();
        for (n, step) in (1u64..).zip(steps) {
            match step {
                Step::Store(v, b) => {
                    let full = !oracle.blocks.contains_key(&(v, b))
                        && (oracle.blocks.len() as u64 + 1) * SLOT > bound;
                    let stored = put(&mut arena, v, b, n);
                    prop_assert_eq!(stored.is_err(), full);
                    if full {
                        prop_assert!(is_full(stored));
                    } else {
                        oracle.blocks.insert((v, b), (n, false));
                    }
                }
                Step::Remove(v, b) => {
                    let was = oracle.blocks.remove(&(v, b)).is_some();
                    prop_assert_eq!(arena.remove(VolumeId(v), AreaBlock(b)), was);
                }
                Step::Overwritten(v, b, overwritten) => {
                    arena.set_mark(VolumeId(v), AreaBlock(b), overwritten.then_some(Mark::Overwritten));
                    if let Some(held) = oracle.blocks.get_mut(&(v, b)) {
                        held.1 = overwritten;
                    }
                }
                Step::Record(v, n) => {
                    arena.records.set(VolumeId(v), record(n));
                    oracle.records.insert(v, record(n));
                }
                Step::Tail(v, tid, block) => {
                    if let Some(held) = oracle.records.get_mut(&v) {
                        held.tail = (Tid(tid), AreaBlock(block));
                        arena.records.set(VolumeId(v), *held);
                    }
                }
                Step::Clear(v) => {
                    arena.clear_volume(VolumeId(v));
                    oracle.records.remove(&v);
                    oracle.blocks.retain(|k, _| k.0 != v);
                }
                Step::Trim(spare) => arena.trim(spare),
                Step::Bound(bytes_max) => {
                    arena.set_bytes_max(bytes_max).unwrap();
                    bound = bytes_max;
                }
                Step::Reopen => {
                    drop(arena);
                    arena = Arena::open(&path, Some(IDENTITY)).unwrap();
                    prop_assert_eq!(arena.bytes_max(), bound);
                }
            }
            compare(&arena, &oracle);
        }
        drop(arena);
        compare(&Arena::open(&path, None).unwrap(), &oracle);
    }
}

#[test]
fn a_full_arena_still_replaces_what_it_holds() {
    let folder = folder();
    let mut arena = Arena::create(&folder.path().join("arena"), IDENTITY, 300 * SLOT).unwrap();
    for at in 0..300 {
        put(&mut arena, 0, at, 1).unwrap();
    }
    assert!(is_full(put(&mut arena, 0, 300, 1)));
    for at in 0..300 {
        put(&mut arena, 0, at, 2).unwrap();
    }
    assert!(arena.remove(VolumeId(0), AreaBlock(17)));
    put(&mut arena, 0, 300, 2).unwrap();
    assert!(is_full(put(&mut arena, 0, 17, 2)));
    // A lower bound takes nothing away, and replacing needs no memory that trimming took.
    arena.set_bytes_max(10 * SLOT).unwrap();
    arena.trim(0);
    put(&mut arena, 0, 5, 3).unwrap();
    assert_eq!(value(&arena, 0, 5), Some(3));
    assert_eq!(arena.used_bytes(), 300 * SLOT);
    // The file is bounded too: content, one slot to replace with, tags and head.
    assert!(arena.resident_bytes() <= 301 * SLOT + 3 * SLOT + HEAD);
    assert!(put(&mut arena, VOLUMES_MAX as u16, 0, 1).is_err());
}

#[test]
fn a_budget_bounds_several_arenas_together() {
    let folder = folder();
    let budget = Budget::new(10 * SLOT);
    let mut one = Arena::create(&folder.path().join("one"), IDENTITY, 8 * SLOT).unwrap();
    let mut two = Arena::create(&folder.path().join("two"), IDENTITY, 8 * SLOT).unwrap();
    put(&mut one, 0, 0, 1).unwrap();
    one.set_budget(budget.clone());
    two.set_budget(budget.clone());
    assert_eq!(budget.used_bytes(), SLOT);
    for at in 1..8 {
        put(&mut one, 0, at, 1).unwrap();
    }
    assert!(is_full(put(&mut one, 0, 8, 1)));
    put(&mut two, 0, 0, 1).unwrap();
    put(&mut two, 0, 1, 1).unwrap();
    assert!(is_full(put(&mut two, 0, 2, 1)));
    put(&mut two, 0, 1, 2).unwrap();
    assert_eq!(budget.used_bytes(), 10 * SLOT);
    one.clear_volume(VolumeId(0));
    assert_eq!(budget.used_bytes(), 2 * SLOT);
    // A fill that fails half-way gives back what it took.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        two.store(VolumeId(0), AreaBlock(2), &mut |_| panic!("the guest's memory went away"))
    }));
    assert!(panicked.is_err());
    assert_eq!(budget.used_bytes(), 2 * SLOT);
    assert_eq!(value(&two, 0, 2), None);
    put(&mut two, 0, 2, 3).unwrap();
    assert_eq!(value(&two, 0, 2), Some(3));
    drop(two);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn trimming_gives_memory_back() {
    let folder = folder();
    let path = folder.path().join("arena");
    let blocks = || fs::metadata(&path).unwrap().blocks() * 512;
    let mut arena = Arena::create(&path, IDENTITY, 64 << 20).unwrap();
    assert!(blocks() <= HEAD, "sparse until used");
    for at in 0..4096 {
        put(&mut arena, 0, at, 1).unwrap();
    }
    let full = blocks();
    assert!(full >= 4096 * SLOT);
    assert_eq!(arena.resident_bytes(), full);
    for at in (0..4096).filter(|at| at % 4 != 0) {
        arena.remove(VolumeId(0), AreaBlock(at));
    }
    assert_eq!(blocks(), full, "freed slots stay hot");
    arena.trim(100 * SLOT);
    let tags = 36 * SLOT;
    assert!(blocks() <= HEAD + tags + (1024 + 100) * SLOT, "{} bytes", blocks());
    assert!(blocks() >= (1024 + 100) * SLOT);
    arena.trim(0);
    assert!(blocks() <= HEAD + tags + 1024 * SLOT, "{} bytes", blocks());
    for at in (0..4096).step_by(4) {
        assert_eq!(value(&arena, 0, at), Some(1));
    }
    // What was given back can be had again, and an opener gives spare memory back.
    for at in 0..4096 {
        put(&mut arena, 0, at, 2).unwrap();
    }
    arena.clear_volume(VolumeId(0));
    assert!(blocks() >= 4096 * SLOT);
    put(&mut arena, 0, 9, 3).unwrap();
    drop(arena);
    let mut arena = Arena::open(&path, Some(IDENTITY)).unwrap();
    assert!(blocks() <= HEAD + tags + SLOT, "{} bytes", blocks());
    assert_eq!(value(&arena, 0, 9), Some(3));
    put(&mut arena, 0, 10, 4).unwrap();
    assert_eq!(value(&arena, 0, 10), Some(4));
    arena.remove_file().unwrap();
    assert!(!path.exists());
}

#[test]
fn one_process_at_a_time_and_only_its_own_image() {
    let folder = folder();
    let path = folder.path().join("arena");
    let arena = Arena::create(&path, IDENTITY, 8 * SLOT).unwrap();
    let refused = Arena::open(&path, Some(IDENTITY)).unwrap_err().to_string();
    assert!(refused.contains("in use by this very process"), "{refused}");
    assert!(Arena::create(&path, IDENTITY, 8 * SLOT).is_err(), "nothing is written over");
    drop(arena);
    for other in
        [ArenaIdentity { uuid: [1; 16], ..IDENTITY }, ArenaIdentity { size_bytes: 1 << 31, ..IDENTITY }]
    {
        assert!(matches!(Arena::open(&path, Some(other)), Err(JournalError::Unsupported(_))));
    }
    // The image may have been moved since.
    drop(Arena::open(&path, Some(ArenaIdentity { inode: 8, ..IDENTITY })).unwrap());
    assert_eq!(Arena::open(&path, Some(IDENTITY)).unwrap().identity(), IDENTITY);
    assert!(Arena::create(&folder.path().join("huge"), IDENTITY, u64::MAX).is_err());
    assert!(!folder.path().join("huge").exists());
}

/// An arena with content in several groups, volumes and records.
fn sample(folder: &Path) -> PathBuf {
    let path = folder.join("arena");
    let mut arena = Arena::create(&path, IDENTITY, 400 * SLOT).unwrap();
    for at in 0..200 {
        put(&mut arena, (at % 3) as u16, at, u64::from(at)).unwrap();
    }
    arena.records.set(VolumeId(0), record(2));
    arena.records.set(VolumeId(1), record(3));
    path
}

fn is_corrupt(path: &Path) -> bool {
    matches!(Arena::open(path, None), Err(JournalError::Corrupt(_)))
}

#[test]
fn damage_is_reported() {
    let folder = folder();
    let path = sample(folder.path());
    let original = fs::read(&path).unwrap();
    let damaged = |at: u64, bytes: &[u8]| {
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(bytes, at).unwrap();
        let corrupt = is_corrupt(&path);
        file.write_all_at(&original[at as usize..at as usize + bytes.len()], at).unwrap();
        corrupt
    };
    for at in [0, 16, 24, 32, 40] {
        assert!(damaged(at, &[0xee]), "header byte {at}");
    }
    assert!(damaged(48, &u64::MAX.to_ne_bytes()), "a bound that the file has no room for");
    // The second copy is the valid one of a record that was set once. Its tail is anything a guest's log can be at.
    let record_at = SLOT;
    for at in [record_at, record_at + 8 + 40 + 8, record_at + 8 + 40 + 16, record_at + 8 + 40 + 32] {
        assert!(damaged(at, &[0xee]), "record byte {at}");
    }
    // The first slots are in use: sequence, block, volume, generation, check.
    for at in [0, 8, 12, 16, 24] {
        assert!(damaged(HEAD + at, &[0xee]), "tag byte {at}");
    }
    let tag = &original[HEAD as usize..HEAD as usize + 32];
    assert!(damaged(HEAD + 32, tag), "a tag in another's place");
    let other = folder.path().join("other");
    drop(Arena::create(&other, ArenaIdentity { uuid: [9; 16], ..IDENTITY }, 400 * SLOT).unwrap());
    let file = File::options().write(true).open(&other).unwrap();
    file.write_all_at(tag, HEAD).unwrap();
    assert!(is_corrupt(&other), "a tag of another arena");
    file.write_all_at(&2u32.to_ne_bytes(), 8).unwrap();
    assert!(matches!(Arena::open(&other, None), Err(JournalError::Unsupported(_))), "another version");
    assert!(!is_corrupt(&path), "all put back");
    for bytes in [0, 1, 4096, HEAD, original.len() as u64 - 1, original.len() as u64 + 4096] {
        File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
        assert!(is_corrupt(&path), "{bytes} bytes long");
        fs::write(&path, &original).unwrap();
    }
    // A hole where content should be.
    let file = File::options().write(true).open(&path).unwrap();
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, HEAD + SLOT, SLOT).unwrap();
    assert!(is_corrupt(&path));
    assert!(Arena::open(folder.path(), None).is_err(), "a directory");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever stands in head and tags: an error or an arena that works.
    #[test]
    fn damaged_files_do_not_panic(hits in prop::collection::vec((0usize..1100, 0usize..64, any::<u64>()), 1..6)) {
        let folder = folder();
        let path = sample(folder.path());
        let file = File::options().write(true).open(&path).unwrap();
        for (word, bit, random) in hits {
            // Header, the first records, tags of both groups.
            let at = match word {
                0..=9 => word as u64 * 8,
                10..=99 => SLOT + (word as u64 - 10) * 8,
                100..=599 => HEAD + (word as u64 - 100) * 8,
                _ => HEAD + 129 * SLOT + (word as u64 - 600) * 8,
            };
            let value = if bit < 40 { 1 << bit } else { random };
            file.write_all_at(&value.to_ne_bytes(), at).unwrap();
        }
        if let Ok(mut arena) = Arena::open(&path, None) {
            for (volume, _) in arena.records.iter() {
                for at in arena.blocks(volume) {
                    prop_assert!(arena.get(volume, at).is_some());
                }
            }
            arena.set_bytes_max(400 * SLOT).unwrap();
            put(&mut arena, 0, 1, 1).unwrap();
            prop_assert_eq!(value(&arena, 0, 1), Some(1));
        }
    }
}

/// Two disks of one process, one after the other: free slots of the first are not memory beside the second's.
#[test]
fn disks_of_one_budget_hold_no_more_memory_than_it_has() {
    const BLOCKS: u32 = 2048;
    let folder = folder();
    let bytes_max = u64::from(BLOCKS) * SLOT;
    let budget = Budget::new(bytes_max);
    let mut arenas: Vec<Arena> = ["a", "b", "c"]
        .iter()
        .map(|name| {
            let mut arena = Arena::create(&folder.path().join(name), IDENTITY, bytes_max).unwrap();
            arena.set_budget(budget.clone());
            arena
        })
        .collect();
    // Of each: its head, a page of tags for every 128 slots begun, and the page that lets a block be replaced.
    let constant = arenas.len() as u64 * (HEAD + bytes_max / 128 + 2 * SLOT);
    for round in 0..6u64 {
        let arena = &mut arenas[round as usize % 3];
        for block in 0..BLOCKS {
            put(arena, 0, block, round).unwrap();
            // A block that is replaced needs no more than that.
            put(arena, 0, block, round + 1).unwrap();
        }
        assert!(is_full(put(&mut arenas[(round as usize + 1) % 3], 0, 0, 1)));
        let resident: u64 = arenas.iter().map(Arena::resident_bytes).sum();
        assert!(resident <= bytes_max + constant, "round {round}: {resident} bytes resident");
        assert_eq!(budget.used_bytes(), bytes_max);
        assert!(budget.memory_bytes() <= bytes_max + arenas.len() as u64 * SLOT);
        assert_eq!(value(&arenas[round as usize % 3], 0, BLOCKS - 1), Some(round + 1));
        let arena = &mut arenas[round as usize % 3];
        (0..BLOCKS).for_each(|block| assert!(arena.remove(VolumeId(0), AreaBlock(block))));
    }
    // Both at once, in threads of their own: each needs what the other has just freed.
    std::thread::scope(|scope| {
        for arena in &mut arenas {
            scope.spawn(move || {
                for round in 0..4u64 {
                    for block in 0..BLOCKS / 3 {
                        put(arena, 0, block, round).unwrap();
                    }
                    assert_eq!(value(arena, 0, 5), Some(round));
                    arena.clear_volume(VolumeId(0));
                }
            });
        }
    });
    assert_eq!(budget.used_bytes(), 0);
    drop(arenas);
    assert_eq!(budget.memory_bytes(), 0);
}
