//! Reads of the disk fail now and then, and guests ask again: the error was told, and leaves no other trace.
//!
//! Real guests' streams, as in `streams.rs`. A guest that gives up instead is one that dies there, and that is judged at any step.

mod common;

use std::sync::atomic::Ordering;

use afterimage_journal::ext4::Options;
use common::stream::{load, recordings, try_to_send, Plain, Stream};
use common::{at_commit, reads, recovered, wait_for_home, NEVER};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How many requests failed.
fn walk(stream: &Stream, seed: u64, options: fn() -> Options, bytes_max: u64) -> u64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut served, left) = reads(&stream.base, bytes_max, options());
    let mut plain = Plain::new(stream);
    let mut told = 0;
    for (i, step) in stream.steps.iter().enumerate() {
        plain.apply(&step.op);
        if rng.random_ratio(1, 4) {
            left.store(rng.random_range(0..4), Ordering::SeqCst);
        }
        while let Err(error) = try_to_send(&mut served, &step.op) {
            assert!(left.swap(NEVER, Ordering::SeqCst) > NEVER, "step {i}: {error}");
            told += 1;
        }
        left.store(NEVER, Ordering::SeqCst);
        match rng.random_range(0..1000) {
            0..10 => served.restart(),
            10..20 => served.disk().settle().unwrap(),
            20..30 => {
                let mut copy = served.copy();
                copy.disk().settle().unwrap();
                plain.assert_same(&recovered(copy.read_all()).disk, "the guest's own recovery", i);
                plain.assert_same(&recovered(copy.finish(false)).disk, "recovery", i);
            }
            _ => {}
        }
    }
    plain.assert_same(&recovered(served.finish(false)).disk, "the end", stream.steps.len());
    told
}

#[test]
fn a_read_that_fails_leaves_no_trace() {
    let mut told = 0;
    for path in recordings() {
        let stream = load(&path);
        for (seed, options, bytes_max) in [
            (1, wait_for_home as fn() -> Options, 64 << 20),
            (2, wait_for_home, 256 << 10),
            (3, at_commit, 64 << 20),
            (4, at_commit, 256 << 10),
        ] {
            told += walk(&stream, seed, options, bytes_max);
        }
    }
    println!("{told} requests failed");
    assert!(told > 100, "only {told} requests failed");
}
