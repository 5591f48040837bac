//! The replay through the real redo log, the direct streams, the prefixes and the daemon's own recovery, together: whatever
//! the seed, no crash state of an honest run breaks a contract.

use std::collections::HashSet;
use std::time::Duration;

use afterimage_explore::fault::{survey, Planted};
use afterimage_explore::layers::{
    direct, replay_noted, synthetic, LayersOptions, Schedule, Synthetic, Tally,
};
use afterimage_explore::log_recovery::RecoveryOptions;
use afterimage_explore::prefix::{Breach, Prefixes};
use afterimage_explore::stream::Stream;
use afterimage_order::Contract;
use afterimage_trace::{EventKind, Layer, Op, Recording, Sparse};

fn options(seed: u64, area_pages: u64) -> LayersOptions {
    LayersOptions {
        window: Duration::from_millis(10),
        log_area_bytes: area_pages * 4096,
        seed,
        schedule: Schedule {
            early_sync: 30,
            checkpoint: 20,
            death: 8,
            stall: 150,
            batch: 300,
            sync_max: Duration::from_millis(3),
        },
        ..LayersOptions::default()
    }
}

fn shape(seed: u64) -> Synthetic {
    Synthetic {
        disk_sectors: vec![400; 1 + (seed % 3) as usize],
        write_sectors_max: if seed % 2 == 0 { 40 } else { 8 },
        hot_sectors: if seed % 5 == 0 { 24 } else { 256 },
        ..Synthetic::default()
    }
}

#[test]
fn no_crash_of_an_honest_run_breaks_the_contract() {
    let mut sum = Tally::default();
    let (mut states, mut stale, mut prefixes) = (0, 0, 0);
    for seed in 1..=24 {
        let guest = synthetic(&shape(seed), seed);
        let area_pages = [8, 12, 16, 32, 64][seed as usize % 5];
        let options = options(seed, area_pages);
        let replay = replay_noted(&guest, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let tally = replay.tally;
        sum.syncs += tally.syncs;
        sum.checkpoints += tally.checkpoints;
        sum.deaths += tally.deaths;
        sum.held_flushes += tally.held_flushes;
        sum.throttled += tally.throttled;
        let planted = Planted {
            recording: replay.recording,
            contract: Contract::PowerWindow { window: options.window },
            recovery: RecoveryOptions::default(),
            floors: replay.floors,
        };
        let survey = survey(&planted, seed, 3000).expect("a sound recording");
        if let Some(broken) = survey.broken {
            panic!(
                "seed {seed}, cut before event {}: {}, lost {:?}",
                broken.event, broken.what, broken.choice
            );
        }
        states += survey.states;
        stale += survey.stale;
        prefixes += survey.prefixes;
    }
    eprintln!("{states} states, {stale} stale, {prefixes} prefixes, {sum:?}");
    // The suite has to have been where things can go wrong.
    assert!(states > 50_000 && stale > 1000 && prefixes > 1000);
    assert!(sum.syncs > 200 && sum.checkpoints > 200 && sum.deaths > 20, "{sum:?}");
    assert!(sum.held_flushes > 20 && sum.throttled > 50, "{sum:?}");
}

#[test]
fn no_crash_of_an_honest_pass_through_breaks_power() {
    for seed in 1..=6 {
        let guest = synthetic(&shape(seed), seed);
        let recording = direct(&guest, Contract::Power).expect("a stream");
        let planted = Planted {
            recording,
            contract: Contract::Power,
            recovery: RecoveryOptions::default(),
            floors: Vec::new(),
        };
        let survey = survey(&planted, seed, 1500).expect("a sound recording");
        assert!(survey.broken.is_none(), "seed {seed}: {:?}", survey.broken);
        assert!(survey.distinct > 100, "{survey:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_recording() {
    let guest = synthetic(&shape(3), 3);
    let one = replay_noted(&guest, &options(3, 16)).expect("a replay");
    let two = replay_noted(&guest, &options(3, 16)).expect("a replay");
    let other = replay_noted(&guest, &options(4, 16)).expect("a replay");
    assert!(one.recording.events == two.recording.events);
    assert_eq!(one.floors, two.floors);
    assert!(one.recording.events != other.recording.events);
}

/// What had completed before an event is what the guest could have learnt.
fn known_before(recording: &Recording) -> Vec<(String, HashSet<u64>)> {
    let guests: HashSet<_> = recording.of_layer(Layer::Guest).map(|(id, _)| id).collect();
    let mut completed = HashSet::new();
    let mut known = Vec::new();
    for event in &recording.events {
        match &event.kind {
            EventKind::Complete { target, id, .. } if guests.contains(target) => {
                completed.insert(*id);
            }
            EventKind::Submit { target, id, .. } if guests.contains(target) => {
                known.push((id.to_string(), completed.clone()));
            }
            EventKind::Mark { text } => known.push((text.to_string(), completed.clone())),
            _ => {}
        }
    }
    known
}

#[test]
fn what_was_known_in_the_source_is_known_in_the_replay() {
    let guest = synthetic(&shape(5), 5);
    let source = known_before(&guest);
    for recording in [
        replay_noted(&guest, &options(5, 8)).expect("a replay").recording,
        direct(&guest, Contract::Power).expect("a stream"),
        direct(&guest, Contract::GuestCrash).expect("a stream"),
    ] {
        let found = known_before(&recording);
        assert_eq!(source.len(), found.len());
        for ((what, before), (same, now)) in source.iter().zip(&found) {
            assert_eq!(what, same);
            assert!(before.is_subset(now), "{what}: {before:?} {now:?}");
        }
        let times: Vec<u64> = recording.events.iter().map(|event| event.at_ns).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}

#[test]
fn power_has_synced_what_a_flush_covers_and_guest_crash_has_not() {
    let guest = synthetic(&shape(2), 2);
    let syncs = |contract| {
        let recording = direct(&guest, contract).expect("a stream");
        let asked = Stream::new(&recording, Layer::Guest).expect("a guest layer");
        let below = Stream::new(&recording, Layer::Storage).expect("a storage layer");
        assert_eq!(asked.writes.len(), below.writes.len());
        let kept = asked.writes.iter().zip(&below.writes).all(|(asked, below)| {
            asked.durable.is_none() || below.durable.is_some_and(|at| Some(at) < asked.durable)
        });
        (kept, below.flushes.len())
    };
    let (kept, count) = syncs(Contract::Power);
    assert!(kept && count > 10);
    assert_eq!(syncs(Contract::GuestCrash), (false, 0));
    let window = Contract::PowerWindow { window: Duration::from_millis(1) };
    assert!(direct(&guest, window).is_err());
}

/// The naive oracle: arrays.
fn naive(recording: &Recording, part_bytes: usize) -> Vec<Vec<Vec<u8>>> {
    let bytes = |sparse: &Sparse| {
        let mut bytes = vec![0; sparse.len() as usize];
        sparse.read_at(&mut bytes, 0);
        bytes
    };
    let guests: Vec<_> = recording.of_layer(Layer::Guest).collect();
    let mut disks: Vec<Vec<u8>> = guests.iter().map(|(_, target)| bytes(&target.base)).collect();
    let mut states = vec![disks.clone()];
    for event in &recording.events {
        let EventKind::Submit { target, op, .. } = &event.kind else { continue };
        let Some(disk) = guests.iter().position(|(id, _)| id == target) else { continue };
        match op {
            Op::Write { offset, data, .. } => {
                for (i, part) in data.chunks(part_bytes).enumerate() {
                    let at = *offset as usize + i * part_bytes;
                    disks[disk][at..at + part.len()].copy_from_slice(part);
                    states.push(disks.clone());
                }
            }
            Op::Zero { offset, len, .. } => {
                disks[disk][*offset as usize..(*offset + *len) as usize].fill(0);
                states.push(disks.clone());
            }
            Op::Flush => {}
        }
    }
    states
}

#[test]
fn prefixes_are_those_of_a_naive_oracle() {
    let guest = synthetic(&shape(4), 4);
    let replay = replay_noted(&guest, &options(4, 8)).expect("a replay");
    let prefixes = Prefixes::of(&replay.recording).expect("prefixes");
    let states = naive(&replay.recording, 4096);
    assert_eq!(states.len(), prefixes.last() + 1);
    assert!(Prefixes::of(&guest).expect("prefixes").last() < prefixes.last(), "large writes are split");
    for (k, disks) in states.iter().enumerate() {
        let digest = disks.iter().enumerate().fold(0, |digest, (index, bytes)| {
            let mut sparse = Sparse::new(bytes.len() as u64);
            sparse.write_at(bytes, 0);
            digest ^ afterimage_explore::state::digest(index, &sparse)
        });
        assert_eq!(digest, prefixes.prefix(k).digest, "prefix {k}");
        let same: Vec<usize> = (0..states.len()).filter(|other| states[*other] == *disks).collect();
        assert_eq!(prefixes.find(digest).collect::<Vec<_>>(), same);
    }
}

#[test]
fn prefixes_know_what_is_lost() {
    let guest = synthetic(&shape(7), 7);
    let prefixes = Prefixes::of(&guest).expect("prefixes");
    let end = guest.events.len();
    let last = prefixes.last();
    assert_eq!((prefixes.submitted(0), prefixes.submitted(end), prefixes.covered(last)), (0, last, end));
    assert!(prefixes.lost(last, end).is_none());
    let digest = |k: usize| prefixes.prefix(k).digest;
    assert_eq!(prefixes.judge(digest(last), end..=end, last, 0), Ok(last));
    assert_eq!(prefixes.judge(digest(last) ^ 1, end..=end, 0, 0), Err(Breach::NoPrefix));
    let lost = prefixes.lost(0, end).expect("every flush that covers something");
    let covering: Vec<usize> =
        (0..prefixes.flushes().len()).filter(|i| prefixes.flushes()[*i].covers > 0).collect();
    assert_eq!((lost.count, lost.first), (covering.len(), covering[0]));
    assert!(matches!(prefixes.judge(digest(0), end..=end, 0, 1_000_000), Err(Breach::Window { .. })));
    assert!(matches!(
        prefixes.judge(digest(0), end..=end, 1, u64::MAX),
        Err(Breach::Durable { k: 0, floor: 1 })
    ));
    assert_eq!(prefixes.judge(digest(0), end..=end, 0, u64::MAX), Ok(0));
    // Before anything was asked for, only the beginning can be there.
    assert!(matches!(prefixes.judge(digest(last), 1..=1, 0, 0), Err(Breach::Future { .. })));
    // At the end it could be there, but it was there before the guest asked for it.
    assert!(matches!(prefixes.judge(digest(last), 1..=end, 0, 0), Err(Breach::Future { .. })));
    for k in 0..last {
        let event = prefixes.covered(k);
        let EventKind::Submit { .. } = guest.events[event].kind else { panic!("not a submission") };
        assert!(prefixes.prefix(k + 1).event.is_some_and(|e| e >= event));
    }
}
