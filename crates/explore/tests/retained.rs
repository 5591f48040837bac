//! Retained journals under `power-window`: recorded guests' streams through the layer that retains, above the real redo log. No
//! power cut leaves anything but what the guest's own recovery makes of a prefix; and mistakes are found.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Duration;

use afterimage_explore::check::pool::CHECK_TIMEOUT;
use afterimage_explore::fault::{hunt, survey, Fault, Planted, Survey};
use afterimage_explore::layers::{replay_noted, LayersOptions, OpenRetained, Replay, Retain, Schedule};
use afterimage_explore::log_recovery::RecoveryOptions;
use afterimage_explore::retained::{deaths, Census, DeathOptions, Deaths, RetainedOracle};
use afterimage_explore::setup::Level;
use afterimage_explore::ExploreError;
use afterimage_journal::group::JournalOptions;
use afterimage_journal::Mutation;
use afterimage_journal::RetainDisk;
use afterimage_order::Contract;
use afterimage_trace::{Event, EventKind, Layer, Recording};

/// Guests that crates/journal has recorded.
fn recording(name: &str) -> Recording {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../journal/tests/recordings");
    Recording::load(&folder.join(format!("{name}.afrec"))).expect("a recording")
}

/// A guest that finds its disk as a crash would have left it: see `tests/recordings/crashed.sh`.
fn own_recording(name: &str) -> Recording {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
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
const AREAS: [u64; 5] = [2048, 512, 24, 1024, 128];

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
    let options = options(seed, area_pages, Retain::default());
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
    assert!(sum.sets > 400 && sum.applied > 600 && sum.handed_back > 10, "{sum:?}");
}

/// A guest with `vext4` and `data=vma`: what it hands over is in its stream, and no less is asked of it.
#[test]
fn commits_that_were_handed_over_are_judged_alike() {
    let guest = own_recording("vma");
    let mut sum = Census::default();
    for seed in 1..=4 {
        let options = options(seed, AREAS[seed as usize], Retain::default());
        let replay = replay_noted(&guest, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let oracle = RetainedOracle::of(&replay.recording).expect("an oracle");
        assert_eq!(oracle.first_wrong(), None, "seed {seed}");
        add(&mut sum, oracle.census());
        let survey = surveyed(replay, options.window, seed, 200);
        assert!(survey.broken.is_none(), "seed {seed}: {}", survey.broken.expect("it is").what);
    }
    assert!(sum.sets > 100 && sum.applied > 100 && sum.handed_back > 10, "{sum:?}");
    let how = DeathOptions { points: 30, ..DeathOptions::default() };
    let mut replays = 0;
    deaths(&guest, &how, Duration::MAX, &mut |death| {
        assert_eq!(death.wrong, None);
        replays += usize::from(death.replays);
        Ok(true)
    })
    .expect("deaths");
    assert!(replays > 20, "{replays}");
    for mutation in [Mutation::ForgetEscape, Mutation::KeepOldest] {
        let found = (1..=4).find_map(|seed| shown(mutation, seed, "vma"));
        eprintln!("{mutation:?}: {}", found.unwrap_or_else(|| panic!("{mutation:?} was not found")));
    }
}

/// Guest and daemon die under `power-window`: what is left is in an arena and a log, and the next daemon takes over both.
#[test]
fn a_death_under_power_window_leaves_all_that_had_completed() {
    let died = |guest: &Recording, seed: u64, mutation: Option<Mutation>| {
        let journal = JournalOptions { mutation, ..JournalOptions::passthrough() };
        let window = Some(Duration::from_millis(5));
        let how = DeathOptions { seed, points: 8, window, journal, ..DeathOptions::default() };
        let (mut wrong, mut replays) = (None, 0);
        let walked = deaths(guest, &how, Duration::MAX, &mut |death| {
            replays += usize::from(death.replays);
            wrong = death.wrong;
            Ok(wrong.is_none())
        });
        (wrong.or(walked.err().map(|e| e.to_string())), replays)
    };
    let mut replays = 0;
    for (seed, guest) in (1..).zip([own_recording("vma"), recording("journal"), recording("ordered")]) {
        let (wrong, found) = died(&guest, seed, None);
        assert_eq!(wrong, None, "seed {seed}");
        replays += found;
    }
    assert!(replays > 10, "{replays}");
    for mutation in [Mutation::ForgetEscape, Mutation::KeepOldest] {
        let found = (1..=4).find_map(|seed| died(&own_recording("vma"), seed, Some(mutation)).0);
        eprintln!("{mutation:?}: {}", found.unwrap_or_else(|| panic!("{mutation:?} was not found")));
    }
}

#[test]
fn planted_faults_are_found() {
    for fault in Fault::RETAINED {
        let found = (1..=4).find_map(|seed| {
            let guest = recording(NAMES[seed as usize % NAMES.len()]);
            let options = options(seed, 512, Retain::default());
            let found = hunt(fault, &guest, &options, 2000).expect("it can be planted");
            found.map(|found| (seed, found))
        });
        let (seed, found) = found.unwrap_or_else(|| panic!("{fault} was not found"));
        eprintln!("{fault}: seed {seed}, {} states: {}", found.states_tried, found.what);
    }
}

/// The same guest, from the moment on at which it said something: what it wrote before is on its disk.
fn since(recording: &Recording, mark: &str) -> Recording {
    let said = |kind: &EventKind| matches!(kind, EventKind::Mark { text } if text.contains(mark));
    let from = recording.events.iter().position(|event| said(&event.kind)).expect("it says that");
    let (id, _) = recording.of_layer(Layer::Guest).next().expect("a guest's disk");
    let mut later = recording.clone();
    later.targets[id.0 as usize].base = Arc::new(recording.content_before(id, from));
    later.events.drain(..from);
    later
}

fn mistaken(mutation: Mutation) -> OpenRetained {
    Arc::new(move |lower, arena, options| RetainDisk::open_mutated(lower, arena, options, mutation))
}

/// What a power cut, or a death of guest and daemon, shows of a mistake.
fn shown(mutation: Mutation, seed: u64, name: &str) -> Option<String> {
    let guest = match name {
        "crashed" => since(&own_recording(name), "crashed"),
        "vma" => own_recording(name),
        _ => recording(name),
    };
    let open = Some(mistaken(mutation));
    let area_pages = AREAS[seed as usize % AREAS.len()];
    let options = options(seed, area_pages, Retain { open: open.clone(), ..Retain::default() });
    // A mistake that the daemon itself stumbles over is found, too.
    let replay = match replay_noted(&guest, &options) {
        Ok(replay) => replay,
        Err(error) => return Some(format!("power-window: {error}")),
    };
    let oracle = RetainedOracle::of(&replay.recording).expect("an oracle");
    if let Some(wrong) = oracle.first_wrong() {
        // A step of the log is what some power cut leaves: right after the sync that makes it durable.
        return Some(format!("power-window: {wrong}"));
    }
    let how = DeathOptions { seed, points: 40, open, ..DeathOptions::default() };
    let mut found = None;
    let walked = deaths(&guest, &how, Duration::MAX, &mut |death| {
        found = death.wrong;
        Ok(found.is_none())
    });
    found.or(walked.err().map(|e| e.to_string())).map(|what| format!("guest-crash: {what}"))
}

/// Why none of these guests can show a mistake.
const INVISIBLE: [(Mutation, &str); 2] = [
    (
        Mutation::MatchAnything,
        "a guest writes something else over a version that it may still need only to its superblock, where either counts",
    ),
    (
        Mutation::SkipMarkEmpty,
        "Linux empties its journal itself between a recovery and the first commit (ext4_mark_recovery_complete)",
    ),
];

/// The guests and seeds, the likeliest first.
fn likeliest(mutation: Mutation) -> [(&'static str, u64); 3] {
    match mutation {
        Mutation::IgnoreRevokes => [("ordered", 3), ("journal", 2), ("crashed", 1)],
        Mutation::ReleaseEarly => [("journal", 2), ("ordered", 3), ("crashed", 1)],
        _ => [("crashed", 1), ("journal", 2), ("ordered", 3)],
    }
}

#[test]
fn mistakes_of_the_retaining_layer_are_found() {
    let mut missed = Vec::new();
    for mutation in Mutation::ALL {
        let mut cases = likeliest(mutation).into_iter();
        let found = cases.find_map(|(name, seed)| Some((name, seed, shown(mutation, seed, name)?)));
        match found {
            Some((name, seed, what)) => eprintln!("{mutation:?}: {name}, seed {seed}: {what}"),
            None => missed.push(mutation),
        }
    }
    let invisible: Vec<_> = INVISIBLE.iter().map(|(mutation, _)| *mutation).collect();
    assert_eq!(missed, invisible, "the mistakes that were not found");
}

#[test]
fn a_death_leaves_what_the_guests_own_recovery_makes() {
    let mut replays = 0;
    for (seed, name) in (1..).zip(NAMES) {
        for (arena_bytes_max, guest) in [(64 << 20, recording(name)), (256 << 10, recording(name))] {
            let how = DeathOptions { seed, points: 15, arena_bytes_max, ..DeathOptions::default() };
            deaths(&guest, &how, Duration::MAX, &mut |death| {
                assert_eq!(death.wrong, None, "{name}, seed {seed}, {arena_bytes_max} bytes");
                replays += usize::from(death.replays);
                Ok(true)
            })
            .unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
        }
    }
    assert!(replays > 60, "{replays}");
}

/// The last thing that a guest says before the end stands behind its last request.
#[test]
fn one_death_is_at_the_end_whatever_the_time() {
    let mut guest = recording("journal");
    let end = guest.events.len() / 2;
    guest.events.truncate(end);
    let last = |recording: &Recording, time: Duration| {
        let how = DeathOptions { points: 3, ..DeathOptions::default() };
        let (mut last, mut count) = (None, 0);
        deaths(recording, &how, time, &mut |death| {
            assert_eq!(death.wrong, None);
            (last, count) = (Some((death.event, death.requests, death.required)), count + 1);
            Ok(true)
        })
        .map(|()| (last, count))
    };
    let (disk, _) = guest.of_layer(Layer::Guest).next().expect("a guest's disk");
    let is_request =
        |event: &&Event| matches!(event.kind, EventKind::Submit { target, .. } if target == disk);
    let requests = guest.events.iter().filter(is_request).count();
    let (found, count) = last(&guest, Duration::MAX).expect("deaths");
    assert_eq!(found, Some((end, requests, end)));
    assert!(count > 1, "and others before it");
    assert_eq!(last(&guest, Duration::ZERO).expect("deaths"), (found, 1));
    // Said, and not asked for: that has to be looked at. Nothing at all is nothing to look at.
    let quiet = |marks: &[&str]| {
        let mut quiet = guest.clone();
        quiet.events.retain(|event| !matches!(event.kind, EventKind::Mark { .. }));
        let at_ns = quiet.events.last().expect("an event").at_ns;
        quiet.events.extend(marks.iter().map(|name| {
            let text = format!("{{\"mark\":\"{name}\"}}").into();
            Event { at_ns, kind: EventKind::Mark { text } }
        }));
        quiet
    };
    let promised = quiet(&["begin", "new", "end"]);
    let end = promised.events.len() - 1;
    assert_eq!(last(&promised, Duration::MAX).expect("a death"), (Some((end, requests, end)), 1));
    let why = last(&quiet(&["begin", "end"]), Duration::MAX).expect_err("nothing to look at");
    assert!(matches!(&why, ExploreError::Usage(_)) && why.to_string().contains("no death"), "{why}");
}

/// Deaths keep no failure: what lies where campaigns keep theirs is an earlier one's.
#[test]
fn deaths_that_hold_leave_no_failure_of_an_earlier_campaign() {
    let out = tempfile::tempdir().expect("a folder");
    let failure = out.path().join("failure");
    std::fs::create_dir(&failure).expect("a folder");
    for name in ["failure.json", "recording.afrec", "README"] {
        std::fs::write(failure.join(name), "").expect("written");
    }
    let guest = recording("journal");
    let campaign = Deaths {
        name: "deaths",
        recording: &guest,
        how: DeathOptions { points: 2, ..DeathOptions::default() },
        level: Level::Log,
        check: None,
        first_only: false,
        check_timeout: CHECK_TIMEOUT,
        time: Duration::MAX,
        out: Some(out.path()),
    };
    let report = campaign.run(&AtomicBool::new(false)).expect("a report");
    assert!(report.holds() && report.progress.tally.states() > 0 && !failure.exists(), "{report}");
}
