//! How many crash states a second: the daemon's log recovery, e2fsck, mounts in the pool, and, on the same states, a mount
//! for each state as the peers do (CrashMonkey, xfstests over dm-log-writes).
//!
//! ```text
//!   a workload in a guest, 64 MiB ext4 ─► recording ─► distinct states, the same for all ways of checking
//!                                             └► through the redo log with a small area ─► states of the log level
//! ```
//!
//! Ways take turns, round by round; ratios are formed within a round.

mod measure;
mod states;

use std::path::PathBuf;
use std::process::ExitCode;

use afterimage_bench_kit::{say, Common, Result};
use afterimage_report::{note, raw};
use clap::Parser;

use measure::{Measured, Way};

/// Measure the explorer: states a second at each level, beside mounting every state
#[derive(Parser, Debug)]
struct Args {
    #[command(flatten)]
    common: Common,
    /// Rounds
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Workers
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    /// Seed of the states
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the recording and the raw results go
    #[arg(long, value_name = "DIR", default_value = "target/bench/explore")]
    out: PathBuf,
}

/// States of each way in one round, as (usual, quick).
const LOG_STATES: (usize, usize) = (40_000, 10_000);
const FSCK_STATES: (usize, usize) = (1_000, 300);
const MOUNT_STATES: (usize, usize) = (400, 100);
const PEER_STATES: (usize, usize) = (100, 30);

fn main() -> ExitCode {
    afterimage_bench_kit::main("bench explore", run)
}

fn run(args: &Args) -> Result<bool> {
    if let Some(path) = &args.common.tables {
        let measured: Vec<Measured> = afterimage_bench_kit::read(path, "explore")?;
        return say(&measure::table(&measured)).map(|()| true);
    }
    let measured = measure(args).map_err(|error| error.to_string())?;
    say(&measure::table(&measured))?;
    let path = args.out.join("explore.json.zst");
    raw::write(&path, "explore", &measured)?;
    note(&format!("raw results: {}\n", path.display()));
    Ok(true)
}

fn measure(args: &Args) -> afterimage_explore::Result<Vec<Measured>> {
    let quick = args.common.quick;
    let pick = |(usual, short): (usize, usize)| if quick { short } else { usual };
    let rounds = args.rounds.unwrap_or(if quick { 2 } else { 5 });
    std::fs::create_dir_all(&args.out)
        .map_err(afterimage_explore::ExploreError::io(format!("cannot make {}", args.out.display())))?;
    note("recording a workload in a guest\n");
    let recording = states::record(&args.out.join("records.afrec"))?;
    let guest = states::of_disk(&recording, args.seed, pick(FSCK_STATES))?;
    let log = states::of_log(&recording, args.seed, pick(LOG_STATES))?;
    note(&format!(
        "{} distinct states of the disk, {} of log and image; {rounds} rounds, {} workers\n",
        guest.states.len(),
        log.states.len(),
        args.jobs
    ));
    let ways = [
        Way::log(&log),
        Way::fsck(&guest),
        Way::pool(&guest, pick(MOUNT_STATES), args.jobs),
        Way::peer(&guest, pick(PEER_STATES)),
    ];
    let mut measured: Vec<Measured> = ways.iter().map(Measured::new).collect();
    for round in 1..=rounds {
        for (way, measured) in ways.iter().zip(&mut measured) {
            note(&format!("round {round} of {rounds}: {}\n", way.name));
            measured.rates.push(way.run(args.jobs)?);
        }
    }
    Ok(measured)
}
