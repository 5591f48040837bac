//! Every planted fault, and every mistake in the redo log's code that can show at this level, is found within the quick
//! budget; and the same hunt finds nothing where there is nothing.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Duration;

use afterimage_explore::campaign::{self, Limits, Progress};
use afterimage_explore::fault::{hunt, survey, Fault, Planted};
use afterimage_explore::layers::{
    direct, replay_noted, synthetic, Configure, LayersOptions, Schedule, Synthetic,
};
use afterimage_explore::log_recovery::RecoveryOptions;
use afterimage_explore::setup::Setup;
use afterimage_order::redo::Mutation;
use afterimage_order::Contract;
use afterimage_trace::{Event, EventKind, Layer, Op, Recording, TargetId};

/// States that one hunt may look at.
const BUDGET_STATES: u64 = 4000;

fn options(seed: u64) -> LayersOptions {
    LayersOptions {
        window: Duration::from_millis(10),
        log_area_bytes: [8, 12, 16, 24][seed as usize % 4] * 4096,
        seed,
        schedule: Schedule {
            early_sync: 30,
            checkpoint: 30,
            death: 20,
            stall: 150,
            batch: 300,
            sync_max: Duration::from_millis(3),
        },
        ..LayersOptions::default()
    }
}

fn shape(seed: u64) -> Synthetic {
    // Few places and sizes: then a stale record of an earlier life is where a new one could be.
    let same = seed % 3 == 0;
    Synthetic {
        disk_sectors: vec![256; 1 + (seed % 2) as usize],
        hot_sectors: if same { 32 } else { 128 },
        write_sectors_max: if same { 7 } else { 24 },
        rounds: 50,
        ..Synthetic::default()
    }
}

#[test]
fn every_planted_fault_is_found() {
    for fault in Fault::ALL {
        let found = (1..=10).find_map(|seed| {
            let guest = synthetic(&shape(seed), seed);
            let found = hunt(fault, &guest, &options(seed), BUDGET_STATES).expect("it can be planted");
            found.map(|found| (seed, found))
        });
        let (seed, found) = found.unwrap_or_else(|| panic!("{fault} was not found"));
        assert!(fault.is_shown_by(&found.what), "{fault}: {}", found.what);
        eprintln!("{fault}: seed {seed}, {} states: {}", found.states_tried, found.what);
    }
}

/// As a suite hunts: by campaigns. Nobody looks into the disks here.
fn campaign(recording: &Recording) -> Progress {
    let setup = Setup { seed: 1, ..Setup::of(recording).expect("a contract") };
    let subject = setup.subject(recording).expect("something to look at");
    let limits = Limits {
        time: Duration::from_secs(3600),
        states: Some(BUDGET_STATES),
        jobs: 1,
        in_all: true,
        first_only: true,
    };
    let nobody = |_worker: usize| Ok(Vec::new());
    campaign::run(&subject, &limits, &nobody, Progress::default(), &AtomicBool::new(false), &mut |_| ())
        .expect("a result")
}

/// Without a log the disks themselves are held against the window: where only order is missing, that is what is found.
#[test]
fn without_a_log_order_is_missed_where_it_is_missing() {
    let guest = synthetic(&shape(1), 1);
    let planted = Fault::NoOrder.plant(&guest, &options(1)).expect("it can be planted");
    let found = campaign(&planted.recording);
    let problem = found.failures.first().and_then(|failure| failure.verdict.problem.as_ref());
    let what = problem.map_or("nothing", |problem| &problem.what);
    assert!(Fault::NoOrder.is_shown_by(what), "{what}");

    // Serial requests of a sector each: what a disk takes one after the other, each with its sync, is in order.
    let shape =
        Synthetic { in_flight: 1, write_sectors_max: 1, align_sectors: 1, think_us_max: 900, ..shape(1) };
    let guest = synthetic(&shape, 1);
    let found = campaign(&in_order(&guest, Duration::from_millis(4)));
    assert!(found.failures.is_empty() && found.tally.stale > 100, "{:?} {:?}", found.tally, found.failures);
}

/// A daemon that answers at once, and passes everything on in order, each with a sync, so much later.
fn in_order(guest: &Recording, later: Duration) -> Recording {
    let mut recording = direct(guest, Contract::GuestCrash).expect("a stream");
    let window = Contract::PowerWindow { window: Duration::from_millis(10) };
    recording.about.insert("contract".to_owned(), window.to_string().into());
    let storage: Vec<TargetId> = recording.of_layer(Layer::Storage).map(|(id, _)| id).collect();
    let mut waiting: VecDeque<(u64, TargetId, Op)> = VecDeque::new();
    let mut events = Vec::new();
    let mut next_id = 1 << 32;
    for event in std::mem::take(&mut recording.events) {
        let due = waiting.iter().take_while(|(due_ns, ..)| *due_ns <= event.at_ns).count();
        for (at_ns, target, op) in waiting.drain(..due) {
            for op in [op, Op::Flush] {
                let id = next_id;
                next_id += 1;
                events.push(Event { at_ns, kind: EventKind::Submit { target, id, op } });
                events.push(Event { at_ns, kind: EventKind::Complete { target, id, ok: true } });
            }
        }
        match event.kind {
            EventKind::Submit { target, op, .. } if storage.contains(&target) => {
                waiting.push_back((event.at_ns + later.as_nanos() as u64, target, op));
            }
            EventKind::Complete { target, .. } if storage.contains(&target) => {}
            _ => events.push(event),
        }
    }
    Recording { events, ..recording }
}

#[test]
fn names_are_unique_and_understood() {
    for fault in Fault::ALL {
        assert_eq!(fault.name().parse(), Ok(fault));
        assert!(fault.describe().ends_with('.'));
    }
    assert!("nothing".parse::<Fault>().is_err());
}

const NO_SETS: &str = "no guest of this level writes sets";

/// Why this level cannot see a mistake: crash states of one life are judged, not what readers saw in between. The crash
/// suite of `afterimage_order` catches these, too.
const INVISIBLE: [(Mutation, &str); 9] = [
    (Mutation::OpenPageAfterSync, "needs a sector torn within, which the model `disk` excludes"),
    (Mutation::SkipIncarnation, "needs a new life in a log in which a power cut has left a gap"),
    (Mutation::DropIndexEarly, "a reader would see an old version for a moment; storage never does"),
    (Mutation::DropNewerIndex, "a reader would see an old version until the checkpoint; storage never does"),
    (Mutation::TrustCache, "needs a sync that fails, and no sync of a recording does"),
    (Mutation::SetUnmarked, NO_SETS),
    (Mutation::SetUnannounced, NO_SETS),
    (Mutation::KeepBrokenSet, NO_SETS),
    (Mutation::ForgetBehindSet, NO_SETS),
];

fn mistaken(mutation: Option<Mutation>, seed: u64) -> Result<u64, (u64, String)> {
    let configure: Option<Configure> = mutation.map(|mutation| {
        let configure: Configure = Arc::new(move |mut config| {
            config.mutation = Some(mutation);
            config
        });
        configure
    });
    let guest = synthetic(&shape(seed), seed);
    let options = LayersOptions { configure: configure.clone(), ..options(seed) };
    // A mistake that the daemon itself stumbles over is found, too.
    let replay = replay_noted(&guest, &options).map_err(|e| (0, e.to_string()))?;
    let planted = Planted {
        recording: replay.recording,
        contract: Contract::PowerWindow { window: options.window },
        recovery: RecoveryOptions { configure, ..RecoveryOptions::default() },
        floors: replay.floors,
    };
    let survey = survey(&planted, seed, BUDGET_STATES).map_err(|e| (0, e.to_string()))?;
    match survey.broken {
        Some(broken) => Err((survey.states, broken.what)),
        None => Ok(survey.states),
    }
}

#[test]
fn every_mistake_that_can_show_is_found() {
    let mut missed = Vec::new();
    for mutation in Mutation::ALL {
        let found = (1..=10).find_map(|seed| mistaken(Some(mutation), seed).err().map(|found| (seed, found)));
        match found {
            Some((seed, (states, what))) => eprintln!("{mutation:?}: seed {seed}, {states} states: {what}"),
            None => missed.push(mutation),
        }
    }
    let invisible: Vec<_> = INVISIBLE.iter().map(|(mutation, _)| *mutation).collect();
    assert_eq!(missed, invisible, "the mistakes that were not found");
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    for seed in 1..=16 {
        let found = mistaken(None, seed);
        assert!(matches!(found, Ok(states) if states > 1000), "seed {seed}: {found:?}");
    }
}
