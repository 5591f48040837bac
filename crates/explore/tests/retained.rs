//! Retained journals under `power-window`: recorded guests' streams through the layer that retains, above the real redo log. No
//! power cut leaves anything but what the guest's own recovery makes of a prefix; and mistakes are found.

use std::path::PathBuf;
use std::time::Duration;

use afterimage_explore::fault::{hunt, survey, Fault, Planted, Survey};
use afterimage_explore::layers::{replay_noted, LayersOptions, Replay, Retain, Schedule};
use afterimage_explore::log_recovery::RecoveryOptions;
use afterimage_explore::retained::{Census, RetainedOracle};
use afterimage_order::Contract;
use afterimage_trace::Recording;

/// Guests that crates/journal has recorded.
fn recording(name: &str) -> Recording {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../journal/tests/recordings");
    Recording::load(&folder.join(format!("{name}.afrec"))).expect("a recording")
}

const NAMES: [&str; 5] = ["journal", "journal-plain", "journal-async", "journal-async-plain", "ordered"];

fn options(seed: u64, area_pages: u64, retain: Retain) -> LayersOptions {
    LayersOptions {
        window: Duration::from_millis(10),
        log_area_bytes: area_pages * 4096,
        seed,
        schedule: Schedule {
            early_sync: 20,
            checkpoint: 10,
            death: 4,
            stall: 60,
            batch: 400,
            sync_max: Duration::from_millis(3),
        },
        retain: Some(retain),
        ..LayersOptions::default()
    }
}

/// Sizes of the log in pages: from one that takes all transactions to one that some do not fit into.
const AREAS: [u64; 5] = [2048, 512, 4096, 1024, 128];

fn surveyed(replay: Replay, window: Duration, seed: u64, states: u64) -> Survey {
    let planted = Planted {
        recording: replay.recording,
        contract: Contract::PowerWindow { window },
        recovery: RecoveryOptions::default(),
        floors: replay.floors,
    };
    survey(&planted, seed, states).expect("a sound recording")
}

fn add(sum: &mut Census, census: Census) {
    sum.steps += census.steps;
    sum.sets += census.sets;
    sum.applied += census.applied;
    sum.handed_back += census.handed_back;
}

/// Sequences of everything that a schedule can do, judged step by step, and states of them.
fn walk(seed: u64, name: &str, states: u64) -> Census {
    let guest = recording(name);
    let area_pages = AREAS[seed as usize % AREAS.len()];
    let options = options(seed, area_pages, Retain { pause: 0, ..Retain::default() });
    let replay = replay_noted(&guest, &options).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
    let oracle = RetainedOracle::of(&replay.recording).expect("an oracle");
    let census = oracle.census();
    eprintln!("{name}, seed {seed}: {area_pages} pages, {:?}, {census:?}", replay.tally);
    assert_eq!(oracle.first_wrong(), None, "{name}, seed {seed}");
    let survey = surveyed(replay, options.window, seed, states);
    eprintln!(
        "    {} states, {} distinct, {} prefixes, {} stale",
        survey.states, survey.distinct, survey.prefixes, survey.stale
    );
    if let Some(broken) = survey.broken {
        panic!("{name}, cut before event {}: {}, lost {:?}", broken.event, broken.what, broken.choice);
    }
    census
}

#[test]
fn a_power_cut_leaves_a_recovered_prefix() {
    let mut sum = Census::default();
    for (seed, name) in (1..).zip(NAMES) {
        add(&mut sum, walk(seed, name, 600));
    }
    // It has to have been where things can go wrong.
    assert!(sum.sets > 400 && sum.applied > 600, "{sum:?}");
}

#[test]
fn planted_faults_are_found() {
    for fault in Fault::RETAINED {
        let found = (1..=4).find_map(|seed| {
            let guest = recording(NAMES[seed as usize % NAMES.len()]);
            let options = options(seed, 512, Retain { pause: 0, ..Retain::default() });
            let found = hunt(fault, &guest, &options, 2000).expect("it can be planted");
            found.map(|found| (seed, found))
        });
        let (seed, found) = found.unwrap_or_else(|| panic!("{fault} was not found"));
        eprintln!("{fault}: seed {seed}, {} states: {}", found.states_tried, found.what);
    }
}
