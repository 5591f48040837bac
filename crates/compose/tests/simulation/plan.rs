//! What a run is made of, all of it drawn from its seed: a configuration, and what happens in it, step by step.

use std::time::Duration;

use afterimage_block_conformance::sim::Fault;
use afterimage_order::redo::Mutation;
use afterimage_order::Contract;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const WINDOW: Duration = Duration::from_millis(20);
/// What is retained at most: enough, or so little that room has to be made.
const RETAIN_BYTES: [u64; 2] = [8 << 20, 64 << 10];
/// Sizes of the log: small, so that it wraps and throttles.
pub const LOG_PAGES: [usize; 3] = [48, 80, 160];

/// What a run is made of.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub seed: u64,
    pub contract: Contract,
    pub retain: bool,
    /// The guest has no write cache: every write completes as if flushed.
    pub flushed: bool,
    /// Which of [`LOG_PAGES`].
    pub log_size: usize,
    pub retain_bytes: u64,
    pub mutation: Option<Mutation>,
}

impl Config {
    pub fn draw(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let window = Contract::PowerWindow { window: WINDOW };
        let (contract, retain) = [
            (window, true),
            (window, true),
            (window, false),
            (Contract::GuestCrash, true),
            (Contract::GuestCrash, false),
            (Contract::Power, false),
        ][rng.random_range(0..6)];
        Self {
            seed,
            contract,
            retain,
            flushed: rng.random_ratio(1, 8),
            log_size: rng.random_range(0..LOG_PAGES.len()),
            retain_bytes: RETAIN_BYTES[rng.random_range(0..2)],
            mutation: None,
        }
    }
}

/// What happens next. The numbers are what it draws from, so that it stays what it is when others are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The guest writes, zeroes or discards blocks of its files, and goes on.
    Data,
    /// The guest reads blocks of its files, and goes on.
    Read,
    /// The guest flushes, and goes on.
    Flush,
    /// Its jbd2 commits a transaction.
    Commit,
    /// Its jbd2 writes committed blocks home and moves its tail.
    Checkpoint,
    /// Time goes by, and everybody takes turns.
    Turns(u8),
    /// The clock jumps: the host was suspended.
    Jump,
    /// The log is synced, and requests come in meanwhile.
    Sync,
    /// Records go home.
    Home,
    /// Somebody asks that everything be durable (`ctl flush`).
    Settle,
    /// Somebody pauses the group, and lets it go on.
    Pause,
    /// An error of storage, to come.
    Fail { image: bool, fault: Fault, skip: u8 },
    /// The guest dies, and another one boots.
    Reset,
    /// The daemon dies here, and another one goes on.
    Kill,
    /// The daemon dies in the operation after so many of storage's.
    KillAfter(u8),
    /// The same, and the next one while it opens.
    KillTwice(u8),
    /// The power fails here.
    Cut,
    /// The power fails in that operation.
    CutAfter(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub op: Op,
    pub seed: u32,
}

pub fn draw_steps(seed: u64) -> Vec<Step> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    let count = rng.random_range(20..80);
    let faults = rng.random_ratio(1, 3);
    (0..count)
        .map(|_| {
            let op = match rng.random_range(0..100) {
                0..28 => Op::Data,
                28..34 => Op::Read,
                34..44 => Op::Flush,
                44..60 => Op::Commit,
                // Where storage fails, it does so often.
                60..63 | 90 if faults => {
                    let fault = [Fault::Write, Fault::Sync, Fault::Read][rng.random_range(0..3)];
                    Op::Fail { image: rng.random(), fault, skip: rng.random_range(0..6) }
                }
                60..66 => Op::Checkpoint,
                66..78 => Op::Turns(rng.random_range(1..30)),
                78..80 => Op::Jump,
                80..84 => Op::Sync,
                84..88 => Op::Home,
                88 => Op::Settle,
                89 => Op::Pause,
                91 => Op::Reset,
                92..94 => Op::Kill,
                94 => Op::KillAfter(rng.random_range(1..40)),
                95 => Op::KillTwice(rng.random_range(1..8)),
                96 => Op::Cut,
                97..99 => Op::CutAfter(rng.random_range(1..40)),
                _ => Op::Turns(3),
            };
            Step { op, seed: rng.random() }
        })
        .collect()
}
