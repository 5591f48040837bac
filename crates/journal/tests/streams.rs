//! Real guests' streams, recorded below their kernels, through a retained journal, in several queues and over a disk that completes
//! them when it likes; at every point of interest the guest dies, the daemon dies, or only seems to, and what is left is
//! compared with what the guest's own recovery makes of the same stream on any disk.
//!
//! The recordings are of User Mode Linux guests (see `tests/recordings/README.md`); `AFTERIMAGE_RECORDING` names another one.

mod common;
#[path = "hostile/below.rs"]
#[allow(dead_code)] // It can do more than is wanted here.
mod disk;
#[path = "streams/queues.rs"]
mod queues;

use std::sync::Arc;

use afterimage_block::{Disk, Quiesced, Sector};
use afterimage_journal::ext4::Options;
use afterimage_journal::Mutation;
use common::stream::{load, read_first, recordings, Plain, Stream};
use common::{at_commit, recovered, wait_for_home, Memory, Served};
use disk::{DelayedDisk, Faults};
use queues::{Journals, Queues};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

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

/// The guest dies at a step, and another one mounts its file system: what it reads outside the journal it reads at any instant before,
/// during and after the daemon's own recovery, whatever else becomes of the daemon, and the journal last. What it has then is of
/// one version, and its own recovery makes of it what it makes of any disk.
fn mount_meanwhile(served: &mut Served, plain: &Plain, step: usize, rng: &mut ChaCha8Rng) {
    /// What is read at once, in bytes.
    const PIECE: usize = 64 << 10;
    // A file system that is shut down and mounted again by the same kernel: nobody is told.
    let told = rng.random_ratio(3, 4);
    if told {
        served.disk().quiesced(Quiesced::Disconnected);
    }
    let mut memory = vec![0; plain.disk.len()];
    let logs = common::journal_ranges(&plain.disk);
    let in_journal = |piece: &usize| logs.iter().any(|log| log.start < piece + PIECE && *piece < log.end);
    let (journal, mut others): (Vec<usize>, Vec<usize>) =
        (0..memory.len()).step_by(PIECE).partition(in_journal);
    others.shuffle(rng);
    let mut acts: Vec<usize> = (0..4).map(|_| rng.random_range(0..others.len())).collect();
    acts.sort_unstable();
    for (i, piece) in others.into_iter().chain(journal).enumerate() {
        for _ in acts.iter().filter(|at| **at == i) {
            match rng.random_range(0..12) {
                0 => served.disk().make_room().unwrap(),
                1 => served.restart(),
                2 => {
                    served.disk().pause().unwrap();
                    served.disk().resume();
                }
                3 => served.disk().settle().unwrap(),
                _ if told => drop(served.disk().settle_after_guest().unwrap()),
                _ => served.disk().settle().unwrap(),
            }
        }
        let end = memory.len().min(piece + PIECE);
        served.lane().read(Sector(piece as u64 / 512), &mut memory[piece..end]).unwrap();
    }
    plain.assert_same(&recovered(memory).disk, "a mount while the daemon recovers", step);
    while served.disk().settle_after_guest().unwrap() {}
}

struct Walk {
    options: fn() -> Options,
    seed: u64,
    bytes_max: u64,
    restarts: bool,
    judged: u32,
    /// Of a thousand steps: another guest mounts.
    mounts: u32,
    mutation: Option<Mutation>,
}

fn walk(stream: &Stream, how: &Walk) -> (u32, afterimage_journal::DiskStatus) {
    let mut rng = ChaCha8Rng::seed_from_u64(how.seed);
    let mut plain = Plain::new(stream);
    let journals = Journals::of(stream);
    let faults: Arc<Faults> = Arc::default();
    let (slow, seed) = (Arc::clone(&faults), how.seed);
    let over = move |memory: Arc<Memory>| -> Arc<dyn Disk> {
        Arc::new(DelayedDisk::new(memory, seed, Arc::clone(&faults)))
    };
    let (base, options) = (stream.base.clone(), (how.options)());
    let mut served = Served::over(base, how.bytes_max, options, Arc::new(over), how.mutation);
    let mut queues = Queues::new(served.disk());
    let mut replayed = 0;
    // A pause left the log in its own place, and nothing came to the journal since.
    let mut is_copied = false;
    for (i, step) in stream.steps.iter().enumerate() {
        plain.apply(&step.op);
        read_first(&mut served, &step.op);
        queues.submit(i, step, &journals, &slow.slow, &mut rng);
        is_copied &= !journals.touch(&step.range());
        let dice = rng.random_range(0..1000);
        if how.restarts {
            match dice {
                0..10 => served.disk().settle().unwrap(),
                10..20 => {
                    queues.detach();
                    served.restart();
                    queues.attach(served.disk());
                }
                20..24 => served.disk().make_room().unwrap(),
                24..28 => {
                    queues.drain();
                    served.disk().pause().unwrap();
                    let ours = recovered(served.below.bytes()).disk;
                    plain.assert_same(&ours, "a paused image's own recovery", i);
                    served.disk().resume();
                    is_copied = true;
                }
                _ => {}
            }
        }
        if rng.random_ratio(how.mounts, 1000) {
            queues.detach();
            mount_meanwhile(&mut served, &plain, i, &mut rng);
            // It only looked dead, too.
            queues.attach(served.disk());
        }
        if rng.random_ratio(how.judged, 1000) {
            queues.drain();
            replayed += judge(&served, &plain, i);
            if served.applies() {
                // What is below is recovery(prefix) at any instant, without the arena.
                let below = recovered(served.below.bytes());
                assert!(below.transactions == 0 || is_copied, "step {i}: the journal below is not empty");
                plain.assert_same(&below.disk, "what is below", i);
            }
        }
    }
    queues.detach();
    assert!(queues.overtaking > 20, "a guest that waits for everything shows nothing");
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
        let how = Walk {
            options: wait_for_home,
            seed: 1,
            bytes_max: 64 << 20,
            restarts: false,
            judged: 60,
            mounts: 0,
            mutation: None,
        };
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
                &Walk {
                    options: wait_for_home,
                    seed,
                    bytes_max: 64 << 20,
                    restarts: true,
                    judged: 20,
                    mounts: 0,
                    mutation: None,
                },
            );
        }
    }
}

#[test]
fn memory_is_short() {
    for path in recordings() {
        let stream = load(&path);
        for (seed, bytes_max) in [(10, 64 << 10), (11, 256 << 10), (12, 1 << 20)] {
            let how = Walk {
                options: wait_for_home,
                seed,
                bytes_max,
                restarts: true,
                judged: 20,
                mounts: 0,
                mutation: None,
            };
            let (_, status) = walk(&stream, &how);
            assert!(status.arena_used_bytes <= bytes_max);
        }
    }
}

type Promise = fn() -> Options;

/// Guests that mount while the daemon recovers: the seed, the contract, memory.
const MOUNTS: [(u64, Promise, u64); 3] =
    [(30, wait_for_home, 64 << 20), (31, wait_for_home, 256 << 10), (32, at_commit, 64 << 20)];

fn mounts(stream: &Stream, mutation: Option<Mutation>) {
    for (seed, options, bytes_max) in MOUNTS {
        walk(stream, &Walk { options, seed, bytes_max, restarts: false, judged: 0, mounts: 20, mutation });
    }
}

#[test]
fn another_guest_mounts_while_the_daemon_recovers() {
    recordings().iter().for_each(|path| mounts(&load(path), None));
    let found = |path| std::panic::catch_unwind(|| mounts(&load(path), Some(Mutation::ReleaseEarly)));
    let missed = recordings().iter().filter(|path| found(path).is_ok()).count();
    assert!(
        missed < recordings().len(),
        "a daemon that gives up what its guest believes in was not found out"
    );
}

/// Seeds, whether daemons die and pause, and memory, under `power-window`.
const APPLIED: [(u64, bool, u64); 3] = [(20, false, 64 << 20), (21, true, 64 << 20), (22, true, 128 << 10)];

#[test]
fn what_is_committed_goes_home_at_once() {
    for path in recordings() {
        let stream = load(&path);
        for (seed, restarts, bytes_max) in APPLIED {
            let how =
                Walk { options: at_commit, seed, bytes_max, restarts, judged: 20, mounts: 0, mutation: None };
            let (_, status) = walk(&stream, &how);
            let classes = status.file_systems[0].classes;
            assert!(restarts || classes.page_writeback_elided_bytes > 0, "{classes:?}");
        }
    }
}
