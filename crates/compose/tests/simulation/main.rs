//! The whole path from one seed: a guest with a journal and files, its virtqueues, the front end's queues, retained journals, order,
//! and a simulated store, on one thread and a clock of its own.
//!
//! ```text
//! guest ─ chains (driver) ─► frontend: ring, chain, in-flight region, queue ─► compose: journal ─► order ─► store (store)
//!    ▲ told, and boots after a crash                                                              log and image: what is
//!    └──────── oracle: what it may find then                                                      volatile, what is durable
//! ```
//!
//! Everything that daemons do in threads is done here in turns (turn), which the seed draws (plan). Daemons are killed between and within
//! operations of storage, guests reset, the power cut, storage fails, the clock jumps. Each guest that boots recovers its journal and judges
//! what it finds. A failing seed is shrunk and printed.
//!
//! `AFTERIMAGE_SEED=n` runs one seed, `AFTERIMAGE_SECONDS=n` says how long to run (10). Not simulated: the session and its
//! messages, the store's rings and files, and two threads of one disk at one moment.

mod disk;
mod driver;
mod guest;
mod oracle;
mod plan;
mod run;
mod shrink;
mod store;
mod turn;

use std::time::{Duration, Instant};

use afterimage_order::redo::Mutation;
use afterimage_order::Contract;

use plan::{draw_steps, Config};
use run::{run, Place, Tally};
use shrink::{shrink, Failure};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

#[test]
fn every_promise_is_kept() {
    let place = Place::new();
    let seconds = number("AFTERIMAGE_SECONDS").unwrap_or(10);
    let one = number("AFTERIMAGE_SEED");
    let (mut tally, mut runs) = (Tally::default(), 0);
    // The file system is made before the clock runs.
    let _ = run(&place, Config::draw(0), &[], false);
    let begun = Instant::now();
    for seed in one.unwrap_or(0)..one.map_or(u64::MAX, |seed| seed + 1) {
        let (config, steps) = (Config::draw(seed), draw_steps(seed));
        match run(&place, config, &steps, false) {
            Ok((_, went)) => tally.add(&went),
            Err(what) => {
                panic!("{}", shrink(&place, Failure { config, steps, what }).report(&place));
            }
        }
        runs += 1;
        if begun.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
    }
    let per_minute = runs as f64 / begun.elapsed().as_secs_f64() * 60.0;
    eprintln!("{runs} runs, {per_minute:.0} a minute: {tally:?}");
    if runs >= 200 {
        // It has to have been where things can go wrong.
        let Tally {
            commits,
            replays,
            cuts,
            kills,
            deaths_within,
            resets,
            failures,
            lost,
            retained,
            from_home,
            saved,
            held,
            full,
        } = tally;
        assert!(commits > runs && cuts > runs && kills > runs / 2 && resets > runs / 4, "{tally:?}");
        assert!(replays > runs / 4 && lost > runs / 10 && deaths_within > runs / 10, "{tally:?}");
        assert!(failures > 0 && retained > runs / 4 && held > 0 && full > 0, "{tally:?}");
        assert!(from_home > 0 && saved > 0, "{tally:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let place = Place::new();
    for seed in 0..60 {
        let (config, steps) = (Config::draw(seed), draw_steps(seed));
        let again = || run(&place, config, &steps, true).map(|(trace, _)| trace.lines.unwrap_or_default());
        let (first, second) = (again(), again());
        let different = match (&first, &second) {
            (Ok(first), Ok(second)) => first.lines().zip(second.lines()).find(|(a, b)| a != b),
            _ => None,
        };
        assert!(first == second, "seed {seed}: {different:?}");
    }
}

/// What the whole path can show of the redo log's mistakes in as many runs. The others are left to the crash suite of `crates/order`,
/// which knows each record.
const SHOWN: [Mutation; 18] = [
    Mutation::AckBeforeAppend,
    Mutation::DropLogSync,
    Mutation::DropHomeSync,
    Mutation::HomeBeforeDurable,
    Mutation::HeaderBeforeHomeSync,
    Mutation::MergeInPlace,
    Mutation::DiscardEarly,
    Mutation::SkipPayloadChecksum,
    Mutation::IgnoreWindow,
    Mutation::OldestVersion,
    Mutation::DropNewerIndex,
    Mutation::SkipOpenSync,
    Mutation::CountAfterSync,
    Mutation::FinishEarly,
    Mutation::OverrunTail,
    Mutation::SetUnmarked,
    Mutation::SetUnannounced,
    Mutation::KeepBrokenSet,
];

/// What it is worth: mistakes are found, and shrunk to a few steps.
#[test]
fn mistakes_are_found_and_shrunk() {
    let place = Place::new();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for mutation in SHOWN {
        let drawn =
            (0..).map(|seed| (Config { mutation: Some(mutation), ..Config::draw(seed) }, draw_steps(seed)));
        let logged = drawn.filter(|(config, _)| matches!(config.contract, Contract::PowerWindow { .. }));
        let found = logged.take(200).find_map(|(config, steps)| {
            run(&place, config, &steps, false).err().map(|what| Failure { config, steps, what })
        });
        let Some(failure) = found else {
            missed.push(mutation);
            continue;
        };
        let before = failure.steps.len();
        let small = shrink(&place, failure);
        let after = small.steps.len();
        eprintln!("{mutation:?}: of {before} steps {after} are left: {}", small.report(&place));
        assert!(after <= 16, "{mutation:?}: {after} steps");
    }
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "not found: {missed:?}");
}
