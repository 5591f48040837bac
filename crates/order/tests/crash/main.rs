//! The proof of the `power-window` promises: prefix rule, window rule, process rule, on random traces × cut points.
//!
//! `AFTERIMAGE_SEED=n` runs one seed, `AFTERIMAGE_STEPS=n` changes the number of steps of a run, and
//! `AFTERIMAGE_RUNS=n` the number of runs.

mod model;
mod mutations;
mod run;
mod window;

use run::{Run, Tally};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

#[test]
fn every_cut_leaves_an_allowed_prefix() {
    let steps = number("AFTERIMAGE_STEPS").unwrap_or(250) as usize;
    let runs = number("AFTERIMAGE_RUNS").unwrap_or(200);
    let seeds = match number("AFTERIMAGE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..runs + 1,
    };
    let mut tally = Tally::default();
    for seed in seeds.clone() {
        let result = Run::new(seed, None).and_then(|mut run| {
            let result = run.steps(steps);
            tally.add(&run.tally);
            result
        });
        if let Err(broken) = result {
            panic!("AFTERIMAGE_SEED={seed} AFTERIMAGE_STEPS={steps}: {broken}");
        }
    }
    eprintln!("{tally:?}");
    if seeds.end - seeds.start >= 100 {
        // The suite has to have been where things can go wrong.
        assert!(tally.cuts > 1000 && tally.recovery_cuts > 1000, "{tally:?}");
        assert!(tally.deaths > 100 && tally.failures > 20, "{tally:?}");
        assert!(tally.held_flushes > 100 && tally.throttled > 100 && tally.lost_acks > 100, "{tally:?}");
        assert!(tally.sets > 1000 && tally.torn_sets > 50 && tally.waiting_sets > 50, "{tally:?}");
    }
}
