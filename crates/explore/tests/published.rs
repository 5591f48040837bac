//! Commits that a guest has published in memory which it has lent: what is there when the guest dies alone, when its daemon dies with it, and when the power
//! goes. And mistakes that must be seen: of a daemon that forgets, or takes something else.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use afterimage_control_disk::PUBLISHED_US_MAX;
use afterimage_explore::fault::{survey, Planted};
use afterimage_explore::layers::{replay_noted, LayersOptions, Retain};
use afterimage_explore::log_recovery::RecoveryOptions;
use afterimage_explore::model::{cuts, Choice, LostWrite, Model};
use afterimage_explore::published::Publications;
use afterimage_explore::retained::{deaths, DeathOptions, RetainedOracle};
use afterimage_explore::state::Image;
use afterimage_explore::stream::Stream;
use afterimage_order::Contract;
use afterimage_trace::{Event, EventKind, Layer, Op, Recording, Run};

/// A guest with `data=vma,vma_exitless`.
fn guest() -> Recording {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    Recording::load(&folder.join("vma-exitless.afrec")).expect("a recording")
}

fn is_publication(event: &Event) -> bool {
    matches!(event.kind, EventKind::Publish { .. })
}

/// The event with which that publication was taken: its last write's completion.
fn taken(recording: &Recording, publication: usize) -> usize {
    let EventKind::Publish { runs, .. } = &recording.events[publication].kind else { panic!("it is none") };
    let last = &runs[runs.len() - 1];
    let mut name = None;
    for (event, entry) in recording.events.iter().enumerate().skip(publication) {
        match &entry.kind {
            EventKind::Submit { id, op: Op::Write { offset, .. }, .. } if *offset == last.offset => {
                name = name.or(Some(*id));
            }
            EventKind::Complete { id, .. } if Some(*id) == name => return event,
            _ => {}
        }
    }
    panic!("it was not taken")
}

fn publications(recording: &Recording) -> Vec<usize> {
    let all = recording.events.iter().enumerate();
    all.filter(|(_, event)| is_publication(event)).map(|(event, _)| event).collect()
}

fn holds(image: &Image, run: &Run) -> bool {
    let mut found = vec![0; run.data.len()];
    image.read_at(&mut found, run.offset);
    found == run.data[..]
}

/// Rule one: the guest dies, and its daemon looks once more.
#[test]
fn where_a_guest_dies_alone_all_that_it_has_published_is_there() {
    let guest = guest();
    let stream = Stream::new(&guest, Layer::Guest).expect("a stream");
    let cuts = cuts(&stream, Model::Guest);
    let mut between = 0;
    for publication in publications(&guest) {
        let EventKind::Publish { runs, .. } = &guest.events[publication].kind else { unreachable!() };
        let taken = taken(&guest, publication);
        for cut in cuts.iter().filter(|cut| publication < cut.event && cut.event <= taken) {
            let lost = cut.volatile.iter().map(|v| v.write);
            let lost = lost.map(|write| LostWrite { write, sectors: None });
            let least = cut.state(&stream, &Choice { lost: lost.collect() });
            assert!(runs.iter().all(|run| holds(&least[0], run)), "event {}", cut.event);
            between += 1;
        }
        let before = cuts.iter().find(|cut| cut.event == publication);
        let before = before.filter(|cut| cut.event > stream.begin);
        if let Some(cut) = before {
            let most = cut.state(&stream, &Choice::default());
            assert!(
                !runs.iter().all(|run| holds(&most[0], run)),
                "event {publication}: it was not published yet"
            );
        }
    }
    assert!(between > 40, "{between}");
}

/// Rules one and two: what daemons make of it that live, and that die with their guest. And a daemon that does not look once more.
#[test]
fn a_daemon_looks_once_more_and_one_that_does_not_is_seen() {
    let guest = guest();
    for (window, points) in [(None, 40), (Some(Duration::from_millis(5)), 10)] {
        let how = DeathOptions { points, window, ..DeathOptions::default() };
        let mut looked_at = 0;
        deaths(&guest, &how, Duration::MAX, &mut |death| {
            assert_eq!(death.wrong, None);
            looked_at += usize::from(death.looked_at.is_some());
            Ok(true)
        })
        .expect("deaths");
        assert!(looked_at >= points / 4, "{looked_at} of {points}");
        let forgets = DeathOptions { forgets: true, ..how };
        let mut found = None;
        deaths(&guest, &forgets, Duration::MAX, &mut |death| {
            found = death.wrong;
            Ok(found.is_none())
        })
        .expect("deaths");
        let found = found.expect("it has to be seen");
        assert!(found.contains("whose guest alone has died"), "{found}");
        eprintln!("{window:?}: {looked_at} of {points}; {found}");
    }
}

/// Rule three: what was not taken is not there, and nobody counts on it; what was is the window's.
#[test]
fn a_power_cut_leaves_a_recovered_prefix_whatever_was_published() {
    let guest = guest();
    for seed in 1..=3 {
        let window = Duration::from_millis(10);
        let options = LayersOptions {
            window,
            log_area_bytes: [512, 1024, 128][seed as usize - 1] * 4096,
            seed,
            retain: Some(Retain::default()),
            ..LayersOptions::default()
        };
        let replay = replay_noted(&guest, &options).expect("a replay");
        assert_eq!(publications(&replay.recording).len(), publications(&guest).len());
        let oracle = RetainedOracle::of(&replay.recording).expect("an oracle");
        assert_eq!(oracle.first_wrong(), None, "seed {seed}");
        let planted = Planted {
            recording: replay.recording,
            contract: Contract::PowerWindow { window },
            recovery: RecoveryOptions::default(),
            floors: replay.floors,
        };
        let survey = survey(&planted, seed, 200).expect("a sound recording");
        assert!(survey.broken.is_none(), "seed {seed}: {}", survey.broken.expect("it is").what);
    }
}

/// The bound: until it is taken a mark behind a publication may be missing, and for no longer.
#[test]
fn a_mark_may_be_missing_until_the_publication_is_taken_and_no_older_than_the_bound() {
    let mut guest = guest();
    let marked = |guest: &Recording, at: usize| matches!(guest.events[at].kind, EventKind::Mark { .. });
    let (publication, taken) = publications(&guest)
        .into_iter()
        .map(|publication| (publication, taken(&guest, publication)))
        .find(|(publication, taken)| (*publication..*taken).any(|at| marked(&guest, at)))
        .expect("a sync returned before its commit was taken");
    let required = |guest: &Recording, crash| Publications::of(guest).expect("sound").required(crash);
    assert_eq!(required(&guest, publication), publication);
    assert_eq!(required(&guest, taken), publication);
    assert_eq!(required(&guest, taken + 1), taken + 1);
    // The daemon stands still, for as long as it may, and longer.
    for (after_us, missing) in [(PUBLISHED_US_MAX, true), (PUBLISHED_US_MAX + 1, false)] {
        let late_ns = u64::from(after_us) * 1000;
        let mut late = guest.clone();
        let from = (publication..taken).rfind(|at| marked(&late, *at)).expect("a mark");
        let at_ns = late.events[from].at_ns;
        for event in &mut late.events[from + 1..] {
            event.at_ns = event.at_ns.max(at_ns + late_ns);
        }
        assert_eq!(required(&late, taken) <= from, missing, "{after_us} µs");
    }
    // In a replay the daemon's times are others.
    guest.about.insert("layers".to_owned(), 1.into());
    for event in &mut guest.events[taken..] {
        event.at_ns += 1 << 40;
    }
    assert_eq!(required(&guest, taken), publication);
}

/// What a daemon may not do with it.
#[test]
fn a_daemon_that_takes_something_else_or_too_late_is_seen() {
    let guest = guest();
    let all = publications(&guest);
    let (second, third) = (all[1], all[2]);
    let why = |recording: &Recording| Publications::of(recording).expect_err("it has to be seen").to_string();
    let forgotten = format!("the daemon had not taken what was published at event {second}");
    // It says that it has taken it, and has not: the next one comes.
    let mut early = guest.clone();
    let said = early.events.remove(taken(&early, second));
    early.events.insert(third, said);
    assert!(why(&early).contains(&forgotten), "{}", why(&early));
    // It writes other bytes.
    let mut other = guest.clone();
    let write = other.events[second..].iter_mut().find_map(|event| match &mut event.kind {
        EventKind::Submit { op: Op::Write { data, flushed: true, .. }, .. } => Some(data),
        _ => None,
    });
    Arc::make_mut(write.expect("a write"))[5] ^= 1;
    assert!(why(&other).contains(&forgotten), "{}", why(&other));
    // Its guest is dead, and it has not looked again.
    let mut end = guest.clone();
    end.events.truncate(second + 1);
    assert!(why(&end).contains("when the recording ended"), "{}", why(&end));
    end.about.insert("cut".to_owned(), 1.into());
    assert!(Publications::of(&end).is_ok(), "what was cut off may have it");
}
