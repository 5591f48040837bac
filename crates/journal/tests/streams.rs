//! Real guests' streams, recorded below their kernels, through a retained journal; at every point of interest the
//! guest dies, the daemon dies, or only seems to, and what is left is compared with what the guest's own recovery makes of
//! the same stream on any disk.
//!
//! The recordings are of User Mode Linux guests (see `tests/recordings/README.md`); `AFTERIMAGE_RECORDING` names another one.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use afterimage_block::{Operation, Sector};
use afterimage_journal::layout::Layout;
use afterimage_journal::retain::Options;
use afterimage_journal::Block;
use afterimage_trace::{EventKind, Layer, Op, Recording, Role};
use common::{at_commit, differences, layouts, recovered, replayed, wait_for_home, Served};
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

fn load(path: &Path) -> Stream {
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

/// The same stream on any disk.
struct Plain {
    disk: Vec<u8>,
    /// Versions by block of the disk, committed since that block was last written, in a log that still holds them.
    logged: BTreeMap<u64, Box<Block>>,
    /// The same, whether or not the log still holds them. Once the guest has let go of a version without writing it home,
    /// nobody needs that block: it may hold any of them, or what it held before.
    floating: BTreeMap<u64, Vec<Box<Block>>>,
}

impl Plain {
    fn apply(&mut self, op: &Op) {
        let range = match op {
            Op::Write { offset, data, .. } => {
                self.disk[*offset as usize..][..data.len()].copy_from_slice(data);
                *offset..offset + data.len() as u64
            }
            Op::Zero { offset, len, .. } => {
                self.disk[*offset as usize..][..*len as usize].fill(0);
                *offset..offset + len
            }
            Op::Flush => return,
        };
        for block in range.start / 4096..range.end.div_ceil(4096) {
            self.floating.remove(&block);
        }
        let in_journal = |l: &Layout| {
            l.journal.iter().any(|e| {
                let from = e.home.sector(l.start).0 * 512;
                from < range.end && range.start < from + u64::from(e.blocks) * 4096
            })
        };
        if layouts(&self.disk).iter().any(in_journal) {
            let (homes, _) = replayed(&self.disk);
            for (block, content) in &homes {
                if self.logged.get(block) != Some(content) {
                    self.floating.entry(*block).or_default().push(content.clone());
                }
            }
            self.logged = homes;
        }
    }

    /// `ours` is as good as what the guest's own recovery makes of this disk. The ext4 superblock may differ: the kernel writes
    /// it directly, and recovery keeps its record of errors.
    fn assert_same(&self, ours: &[u8], what: &str, step: usize) {
        let expected = recovered(self.disk.clone());
        let superblocks: Vec<u64> =
            layouts(&expected.disk).iter().map(|l| (l.start.0 * 512 + 1024) / 4096).collect();
        let mut different = differences(ours, &expected.disk);
        different.retain(|b| {
            let floats = || !expected.homes.contains_key(b) && self.floating.contains_key(b);
            let version = || self.floating[b].iter().any(|v| ours[*b as usize * 4096..][..4096] == v[..]);
            !(superblocks.contains(b) || floats() && version())
        });
        assert!(
            different.is_empty(),
            "{what} at step {step}: {} blocks differ: {different:?}",
            different.len()
        );
    }
}

/// The guest dies at a step: whoever recovers, however, gets what its own recovery gets on any disk.
fn judge(served: &Served, plain: &Plain, step: usize) -> u32 {
    let transactions = recovered(plain.disk.clone()).transactions;
    // Its own recovery, on what it is served.
    let mut copy = served.copy();
    copy.disk().settle().unwrap();
    let theirs = recovered(copy.read_all());
    plain.assert_same(&theirs.disk, "the guest's own recovery after the daemon's", step);
    assert!(theirs.transactions <= transactions);
    // Ours, offline.
    plain.assert_same(&recovered(copy.finish(false)).disk, "recovery", step);
    // The daemon stopped in order with the guest attached, which then died.
    let image = served.copy().finish(true);
    plain.assert_same(&recovered(image).disk, "the guest's own recovery after an orderly end", step);
    transactions
}

struct Walk {
    options: fn() -> Options,
    seed: u64,
    bytes_max: u64,
    restarts: bool,
    judged: u32,
}

fn walk(stream: &Stream, how: &Walk) -> (u32, afterimage_journal::DiskStatus) {
    let mut rng = ChaCha8Rng::seed_from_u64(how.seed);
    let mut plain = Plain { disk: stream.base.clone(), logged: BTreeMap::new(), floating: BTreeMap::new() };
    let mut served = Served::new(stream.base.clone(), how.bytes_max, (how.options)());
    let mut replayed = 0;
    for (i, step) in stream.steps.iter().enumerate() {
        plain.apply(&step.op);
        send(&mut served, &step.op);
        let dice = rng.random_range(0..1000);
        if how.restarts {
            match dice {
                0..10 => served.disk().settle().unwrap(),
                10..20 => served.restart(),
                20..24 => served.disk().make_room().unwrap(),
                24..28 => {
                    served.disk().pause().unwrap();
                    let ours = recovered(served.below.bytes()).disk;
                    plain.assert_same(&ours, "a paused image's own recovery", i);
                    served.disk().resume();
                }
                _ => {}
            }
        }
        if rng.random_ratio(how.judged, 1000) {
            replayed += judge(&served, &plain, i);
            if served.applies() {
                // What is below is recovery(prefix) at any instant, without the arena.
                let below = recovered(served.below.bytes());
                assert_eq!(below.transactions, 0, "step {i}: the journal below is empty");
                plain.assert_same(&below.disk, "what is below", i);
            }
        }
    }
    // Unmounted: the same image, but for what stands in the journal.
    let status = served.disk().status();
    let ours = recovered(served.finish(false)).disk;
    plain.assert_same(&ours, "the end", stream.steps.len());
    (replayed, status)
}

#[test]
fn a_guest_may_die_anywhere() {
    for path in recordings() {
        let stream = load(&path);
        let how = Walk { options: wait_for_home, seed: 1, bytes_max: 64 << 20, restarts: false, judged: 60 };
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
        for seed in 0..2 {
            walk(
                &stream,
                &Walk { options: wait_for_home, seed, bytes_max: 64 << 20, restarts: true, judged: 20 },
            );
        }
    }
}

#[test]
fn memory_is_short() {
    for path in recordings() {
        let stream = load(&path);
        for (seed, bytes_max) in [(10, 64 << 10), (11, 256 << 10), (12, 1 << 20)] {
            let how = Walk { options: wait_for_home, seed, bytes_max, restarts: true, judged: 20 };
            let (_, status) = walk(&stream, &how);
            assert!(status.arena_used_bytes <= bytes_max);
        }
    }
}

#[test]
fn what_is_committed_goes_home_at_once() {
    for path in recordings() {
        let stream = load(&path);
        for (seed, restarts, bytes_max) in
            [(20, false, 64 << 20), (21, true, 64 << 20), (22, true, 128 << 10)]
        {
            let how = Walk { options: at_commit, seed, bytes_max, restarts, judged: 20 };
            let (_, status) = walk(&stream, &how);
            let classes = status.file_systems[0].classes;
            assert!(restarts || classes.page_writeback_elided_bytes > 0, "{classes:?}");
        }
    }
}
