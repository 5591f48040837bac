//! Real guests' streams, recorded below their kernels, through a retained journal; at every point of interest the
//! guest dies, the daemon dies, or only seems to, and what is left is compared with what the guest's own recovery makes of
//! the same stream on any disk.
//!
//! The recordings are of User Mode Linux guests (see `tests/recordings/README.md`); `AFTERIMAGE_RECORDING` names another one.

mod common;

use std::path::PathBuf;

use afterimage_block::{Operation, Sector};
use afterimage_trace::{EventKind, Layer, Op, Recording, Role};
use common::{differences, layouts, recovered, wait_for_home, Served};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A change or flush that a guest asked for.
struct Step {
    op: Op,
}

struct Stream {
    base: Vec<u8>,
    steps: Vec<Step>,
}

fn load(path: &PathBuf) -> Stream {
    let recording = Recording::load(path).unwrap();
    let (id, target) = recording
        .of_layer(Layer::Guest)
        .find(|(_, t)| t.role == Role::Disk(0))
        .expect("a recording has its guest's disk");
    let mut base = vec![0; target.bytes as usize];
    target.base.read_at(&mut base, 0);
    let steps = recording
        .events
        .iter()
        .filter_map(|e| match &e.kind {
            EventKind::Submit { target, op, .. } if *target == id => Some(Step { op: op.clone() }),
            _ => None,
        })
        .collect();
    Stream { base, steps }
}

fn recordings() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("AFTERIMAGE_RECORDING") {
        return std::env::split_paths(&path).collect();
    }
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "afrec"))
        .collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

fn apply(disk: &mut [u8], op: &Op) {
    match op {
        Op::Write { offset, data, .. } => disk[*offset as usize..][..data.len()].copy_from_slice(data),
        Op::Zero { offset, len, .. } => disk[*offset as usize..][..*len as usize].fill(0),
        Op::Flush => {}
    }
}

fn send(served: &mut Served, op: &Op) {
    match op {
        Op::Write { offset, data, .. } => served.lane().write(Sector(offset / 512), data).unwrap(),
        Op::Zero { offset, len, unmap, .. } => served
            .lane()
            .request(
                Operation::WriteZeroes { unmap: *unmap, flushed: false },
                Sector(offset / 512),
                len / 512,
                afterimage_block::Buffers::empty(),
            )
            .unwrap(),
        Op::Flush => served.flush(),
    }
}

/// The ext4 superblock may differ: the kernel writes it directly, and recovery keeps its record of errors.
fn assert_same(ours: &[u8], theirs: &[u8], what: &str, step: usize) {
    let mut different = differences(ours, theirs);
    for layout in layouts(theirs) {
        let superblock = (layout.start.0 * 512 + 1024) / 4096;
        different.retain(|b| *b != superblock);
    }
    assert!(different.is_empty(), "{what} at step {step}: {} blocks differ: {different:?}", different.len());
}

/// The guest dies at a step: whoever recovers, however, gets what its own recovery gets on any disk.
fn judge(served: &Served, plain: &[u8], step: usize) -> u32 {
    let (expected, transactions) = recovered(plain.to_vec());
    // Its own recovery, on what it is served.
    let mut copy = served.copy();
    copy.disk().settle().unwrap();
    let (theirs, left) = recovered(copy.read_all());
    assert_same(&theirs, &expected, "the guest's own recovery after the daemon's", step);
    assert!(left <= transactions);
    // Ours, offline.
    assert_same(&recovered(copy.finish(false)).0, &expected, "recovery", step);
    // The daemon stopped in order with the guest attached, which then died.
    let image = served.copy().finish(true);
    assert_same(&recovered(image).0, &expected, "the guest's own recovery after an orderly end", step);
    transactions
}

struct Walk {
    seed: u64,
    bytes_max: u64,
    restarts: bool,
    judged: u32,
}

fn walk(stream: &Stream, how: &Walk) -> (u32, afterimage_journal::DiskStatus) {
    let mut rng = ChaCha8Rng::seed_from_u64(how.seed);
    let mut plain = stream.base.clone();
    let mut served = Served::new(stream.base.clone(), how.bytes_max, wait_for_home());
    let mut replayed = 0;
    for (i, step) in stream.steps.iter().enumerate() {
        apply(&mut plain, &step.op);
        send(&mut served, &step.op);
        let dice = rng.random_range(0..1000);
        if how.restarts {
            match dice {
                0..10 => served.disk().settle().unwrap(),
                10..20 => served.restart(),
                20..24 => served.disk().make_room().unwrap(),
                24..28 => {
                    served.disk().pause().unwrap();
                    let (ours, _) = recovered(served.below.bytes());
                    assert_same(&ours, &recovered(plain.clone()).0, "a paused image's own recovery", i);
                    served.disk().resume();
                }
                _ => {}
            }
        }
        if rng.random_ratio(how.judged, 1000) {
            replayed += judge(&served, &plain, i);
        }
    }
    // Unmounted: the same image, but for what stands in the journal.
    let status = served.disk().status();
    let (ours, _) = recovered(served.finish(false));
    assert_same(&ours, &recovered(plain).0, "the end", stream.steps.len());
    (replayed, status)
}

#[test]
fn a_guest_may_die_anywhere() {
    for path in recordings() {
        let stream = load(&path);
        let how = Walk { seed: 1, bytes_max: 64 << 20, restarts: false, judged: 60 };
        let (replayed, status) = walk(&stream, &how);
        assert!(replayed > 0, "{}: nothing was ever in the journal", path.display());
        let classes = status.file_systems[0].classes;
        assert!(classes.journal_commits > 10, "{classes:?}");
        assert!(classes.page_writebacks_matching > 0, "{classes:?}");
        println!("{}: {replayed} transactions replayed by the oracle; {status:#?}", path.display());
    }
}

#[test]
fn daemons_die_and_guests_seem_to() {
    for path in recordings() {
        let stream = load(&path);
        for seed in 0..4 {
            walk(&stream, &Walk { seed, bytes_max: 64 << 20, restarts: true, judged: 20 });
        }
    }
}

#[test]
fn memory_is_short() {
    for path in recordings() {
        let stream = load(&path);
        for (seed, bytes_max) in [(10, 64 << 10), (11, 256 << 10), (12, 1 << 20)] {
            let how = Walk { seed, bytes_max, restarts: true, judged: 20 };
            let (_, status) = walk(&stream, &how);
            assert!(status.arena_used_bytes <= bytes_max);
        }
    }
}
