//! What is recorded is what happened: over the daemon's layers without a guest, and (ignored: it boots guests) with one.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{Blocking, Disk, DiskIndex, FlushKind, Sector, Tap as _};
use afterimage_explore::campaign::Limits;
use afterimage_explore::check::fsck::Fsck;
use afterimage_explore::check::pool::CHECK_TIMEOUT;
use afterimage_explore::check::{Checker as _, Observation};
use afterimage_explore::record::{record, RecordOptions};
use afterimage_explore::retained::{deaths, DeathOptions, Deaths, RetainedOracle};
use afterimage_explore::runner::{self, Request};
use afterimage_explore::schedule::{Picking, Schedule};
use afterimage_explore::setup::{Level, Setup};
use afterimage_explore::state::Scratch;
use afterimage_order::{Contract, Group, GroupOptions};
use afterimage_store::{create_image, DirectMode, ImageStore, OpenOptions};
use afterimage_trace::{EventKind, Layer, Op, Recorder, Recording, Role, Sparse, Tally, Taps, TargetId};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const IMAGE_BYTES: u64 = 4 << 20;

fn contracts() -> [Contract; 3] {
    let window = Duration::from_millis(50);
    [Contract::Power, Contract::PowerWindow { window }, Contract::GuestCrash]
}

/// A folder in memory: syncs cost nothing.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a folder")
}

/// Checks that times never decrease, that names are unique, and that every answer follows the request that it answers.
fn check_order(recording: &Recording) {
    let (mut waiting, mut seen, mut last) = (HashMap::new(), 0, 0);
    for event in &recording.events {
        assert!(event.at_ns >= last, "time goes on");
        last = event.at_ns;
        match &event.kind {
            EventKind::Submit { target, id, .. } => {
                assert!(*id >= seen, "names go up");
                seen = *id + 1;
                waiting.insert(*id, *target);
            }
            EventKind::Complete { target, id, .. } => {
                assert_eq!(waiting.remove(id), Some(*target), "an answer to a request");
            }
            EventKind::Publish { .. } | EventKind::Mark { .. } => {}
        }
    }
}

fn content(path: &Path) -> Sparse {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut content = Sparse::new(bytes.len() as u64);
    for (page, at) in bytes.chunks(4096).zip((0..).step_by(4096)) {
        if page.iter().any(|b| *b != 0) {
            content.write_at(page, at);
        }
    }
    content
}

/// Compares every target's end with the file that holds what it was then.
fn check_ends(
    contract: Contract,
    recording: &Recording,
    known: impl Fn(Layer) -> bool,
    file_of: impl Fn(Layer, Role) -> std::path::PathBuf,
) {
    let targets = (0..).map(TargetId).zip(&recording.targets);
    for (id, target) in targets.filter(|(_, target)| known(target.layer)) {
        let file = file_of(target.layer, target.role);
        let same = recording.content_before(id, recording.events.len()).same_content(&content(&file));
        assert!(same, "{contract}: {:?} {:?} replayed is {}", target.layer, target.role, file.display());
    }
}

/// A thousand seeded requests, each answered before the next is made.
fn one_at_a_time(disks: &[Arc<dyn Disk>], seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut lanes: Vec<_> = disks.iter().map(|d| Blocking::new(d.open_lane().expect("a lane"))).collect();
    for n in 0..1000u32 {
        let lane = &mut lanes[random.random_range(0..disks.len())];
        let sectors = random.random_range(1..=40);
        let sector = Sector(random.random_range(0..IMAGE_BYTES / 512 - sectors));
        let data = vec![n as u8 | 1; sectors as usize * 512];
        let served = match random.random_range(0..10) {
            0 => lane.discard(sector, sectors),
            1 => lane.write_zeroes(sector, sectors, random.random()),
            2..4 => lane.flush(FlushKind::Order),
            4 => lane.write_flushed(sector, &data),
            _ => lane.write(sector, &data),
        };
        served.unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn tapped_groups_conform_and_their_recordings_replay_to_what_the_files_hold() {
    let runs = [false, true].into_iter().flat_map(|calm| contracts().map(|contract| (contract, calm)));
    for ((contract, calm), seed) in runs.zip(1..) {
        let folder = folder();
        let images: Vec<_> = (0..2)
            .map(|index| {
                let path = folder.path().join(format!("image-{index}.img"));
                create_image(&path, IMAGE_BYTES).expect("an image");
                let mut bytes = vec![0; IMAGE_BYTES as usize];
                bytes[5000..9000].fill(index + 1);
                std::fs::write(&path, bytes).expect("content");
                let open =
                    OpenOptions { direct: DirectMode::Off, any_content: true, ..OpenOptions::new(&path) };
                ImageStore::open(&open).expect("an image")
            })
            .collect();
        let out = folder.path().join("r.afrec");
        let recorder = Recorder::create(&out, &serde_json::Map::new()).expect("a recorder");
        let taps = Taps::new(Arc::clone(&recorder));
        let options = GroupOptions {
            log_max_bytes: GroupOptions::LOG_MIN_BYTES,
            tap: Some(Arc::clone(&taps) as _),
            ..GroupOptions::new(contract)
        };
        let group = Group::open(images, options).expect("a group");
        let disks: Vec<_> = (0..)
            .zip(group.disks())
            .map(|(index, disk)| taps.guest(DiskIndex(index), disk).expect("a disk"))
            .collect();
        if calm {
            one_at_a_time(&disks, seed);
        } else {
            afterimage_block_conformance::run(seed, 4000, || Arc::clone(&disks[1]))
                .unwrap_or_else(|e| panic!("{contract}: {e}"));
            afterimage_block_conformance::run(seed, 1000, || Arc::clone(&disks[0]))
                .unwrap_or_else(|e| panic!("{contract}: {e}"));
        }
        group.pause(None).expect("everything home");
        recorder.finish().expect("a recording");
        for (index, disk) in group.disks().iter().enumerate() {
            let seen = afterimage_trace::read_disk(disk).expect("readable");
            let mut bytes = vec![0; IMAGE_BYTES as usize];
            seen.read_at(&mut bytes, 0);
            std::fs::write(folder.path().join(format!("guest-{index}.img")), bytes).expect("written");
        }
        let recording = Recording::load(&out).expect("readable");
        let redo = matches!(contract, Contract::PowerWindow { .. });
        assert_eq!(recording.targets.len(), if redo { 5 } else { 4 });
        let bases: Vec<_> = recording.targets.iter().map(|t| Arc::as_ptr(&t.base)).collect();
        assert_eq!(
            bases[bases.len() - 2..],
            bases[bases.len() - 4..bases.len() - 2],
            "guests begin with what the images hold"
        );
        check_order(&recording);
        // Requests in flight together have no order above the layer that gives them one, which only the redo log does.
        let known = |layer| calm || (redo && layer == Layer::Storage);
        check_ends(contract, &recording, known, |layer, role| match (layer, role) {
            (Layer::Guest, Role::Disk(index)) => folder.path().join(format!("guest-{index}.img")),
            (_, Role::Disk(index)) => folder.path().join(format!("image-{index}.img")),
            (_, Role::Log) => folder.path().join("image-0.img.aflog"),
        });
        let tally = Tally::of(&recording);
        assert!(tally.guest.flushes > 100 && tally.storage.writes > 100, "{contract}: {tally:?}");
        // The closing is heard by nobody, and harmed by nobody.
        group.close().expect("an orderly end");
    }
}

#[test]
fn a_group_without_a_tap_and_one_with_it_write_the_same() {
    let ends: Vec<Vec<u8>> = [false, true]
        .into_iter()
        .map(|tapped| {
            let folder = folder();
            let path = folder.path().join("image.img");
            create_image(&path, IMAGE_BYTES).expect("an image");
            let image = ImageStore::open(&OpenOptions { direct: DirectMode::Off, ..OpenOptions::new(&path) });
            let out = folder.path().join("r.afrec");
            let recorder = Recorder::create(&out, &serde_json::Map::new()).expect("a recorder");
            let taps = Taps::new(Arc::clone(&recorder));
            let options = GroupOptions {
                tap: tapped.then(|| Arc::clone(&taps) as _),
                log_max_bytes: GroupOptions::LOG_MIN_BYTES,
                ..GroupOptions::new(contracts()[1])
            };
            let group = Group::open(vec![image.expect("an image")], options).expect("a group");
            one_at_a_time(&group.disks(), 9);
            group.close().expect("an orderly end");
            assert_eq!(recorder.finish().expect("finished").tally.events > 0, tapped);
            std::fs::read(&path).expect("readable")
        })
        .collect();
    assert!(ends[0] == ends[1]);
}

#[test]
#[ignore = "boots guests: run by the guests' suite, or with --ignored"]
fn a_guests_workload_is_recorded_whole() {
    for contract in contracts() {
        let folder = folder();
        let out = folder.path().join("r.afrec");
        let command = "set -e\n\"$AFTERIMAGE_AGENT\" ack-write acks --records 100 --threads 2\n\
                       echo hello > file; sync file; afterimage explore mark 'file is there'\n\
                       dd if=/dev/zero of=big bs=64k count=64 conv=fsync 2> /dev/null; rm big; sync";
        let options = RecordOptions {
            snapshot: Some(folder.path().to_owned()),
            setup: "mkdir acks".to_owned(),
            mount_options: "discard".to_owned(),
            check: Some("test -e file".to_owned()),
            ..RecordOptions::new(out.clone(), contract, command.to_owned())
        };
        let summary = record(&options).unwrap_or_else(|e| panic!("{contract}: {e}"));
        let recording = Recording::load(&out).expect("readable");
        let tally = Tally::of(&recording);
        assert_eq!(
            (tally.events, tally.guest, tally.storage),
            (summary.events, summary.guest, summary.storage)
        );
        assert_eq!(summary.states, ["file is there"]);
        assert_eq!(recording.about_text("contract"), Some(contract.to_string().as_str()));
        assert_eq!(recording.about_text("check"), Some("test -e file"));
        check_order(&recording);
        check_ends(
            contract,
            &recording,
            |_| true,
            |layer, role| {
                folder.path().join(match (layer, role) {
                    (Layer::Guest, Role::Disk(index)) => format!("guest-{index}.img"),
                    (_, Role::Disk(index)) => format!("image-{index}.img"),
                    (_, Role::Log) => "log.img".to_owned(),
                })
            },
        );
        let marks: Vec<_> = recording
            .events
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::Mark { text } => Some(&**text),
                _ => None,
            })
            .collect();
        assert_eq!(marks.first(), Some(&"{\"mark\":\"begin\"}"));
        assert_eq!(marks.last(), Some(&"{\"mark\":\"end\"}"));
        let acknowledged = marks.iter().filter(|text| text.contains("\"agent\":\"ack\",")).count();
        assert_eq!(acknowledged, 100, "{contract}: every record");
        assert!(tally.guest.flushes >= 100 && tally.guest.zeroes > 0, "{contract}: {tally:?}");
        match contract {
            // When the setup is done, and for the snapshot.
            Contract::GuestCrash => assert_eq!(tally.storage.flushes, 2, "the pauses'"),
            Contract::Power => assert!(tally.storage.flushes >= tally.guest.flushes),
            Contract::PowerWindow { .. } => assert!((2..100).contains(&tally.storage.flushes), "{tally:?}"),
        }
    }
}

#[test]
#[ignore = "boots guests: run by the guests' suite, or with --ignored"]
fn a_retained_journal_is_recorded_and_judged() {
    for contract in [contracts()[1], Contract::GuestCrash] {
        let folder = folder();
        let out = folder.path().join("r.afrec");
        // Two fsyncs at a time, and what was committed is written home.
        let command = "for j in 1 2; do (for i in $(seq 12); do head -c 9000 /dev/urandom > $j.$i; sync $j.$i; done) & done; \
                       wait; afterimage explore mark all; sync";
        let options = RecordOptions {
            retain: true,
            mount_options: "data=journal".to_owned(),
            ..RecordOptions::new(out.clone(), contract, command.to_owned())
        };
        let summary = record(&options).unwrap_or_else(|e| panic!("{contract}: {e}"));
        let recording = Recording::load(&out).expect("readable");
        // But for the zeroes that a new log is written out with.
        let stored: usize = recording
            .events
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::Submit { target, op: Op::Write { data, .. }, .. } => Some((target, data)),
                _ => None,
            })
            .filter(|(target, _)| recording.targets[usize::from(target.0)].layer == Layer::Storage)
            .filter(|(_, data)| data.iter().any(|byte| *byte != 0))
            .map(|(_, data)| data.len())
            .sum();
        assert!(
            (stored as u64) < 2 * summary.guest.write_bytes,
            "{contract}: {stored} bytes stored; {summary}"
        );
        assert_eq!(recording.about_text("journal"), Some("retain"));
        check_order(&recording);
        assert_eq!(Deaths::suit(&recording, None), contract == Contract::GuestCrash);
        if contract == Contract::GuestCrash {
            let how = DeathOptions { points: 15, ..DeathOptions::default() };
            deaths(&recording, &how, Duration::MAX, &mut |death| {
                assert_eq!(death.wrong, None);
                Ok(true)
            })
            .unwrap_or_else(|e| panic!("{e}"));
            continue;
        }
        let oracle = RetainedOracle::of(&recording).expect("an oracle");
        assert_eq!(oracle.first_wrong(), None, "{:?}", oracle.census());
        // There has to have been something to see.
        let census = oracle.census();
        assert!(census.sets > 5 && census.applied > 5, "{census:?}");
    }
}

/// What a mount replays: e2fsck 1.47.0 cannot, and has to look at what the kernel leaves.
#[test]
#[ignore = "boots guests: run by the guests' suite, or with --ignored"]
fn fast_commits_are_recovered_by_the_kernel_and_a_slow_check_accuses_nobody() {
    let folder = folder();
    let out = folder.path().join("r.afrec");
    // A file that is unlinked, and space that is allocated: what e2fsck makes of these it calls damage. The area of fast commits has room.
    let command =
        "for i in 1 2; do echo $i > d/a$i; sync d/a$i; echo x > d/n; sync d/n; [ $i = 1 ] || rm d/a1; \
         fallocate -o 8192 -l 8192 d/b; sync d/b; echo $i > f; sync f; afterimage explore mark $i; done";
    let options = RecordOptions {
        mkfs: "mkfs.ext4 -q -F -b 4096 -O fast_commit".to_owned(),
        setup: "mkdir d; echo 0 > f; sync".to_owned(),
        ..RecordOptions::new(out.clone(), Contract::Power, command.to_owned())
    };
    record(&options).unwrap_or_else(|e| panic!("{e}"));
    let recording = Recording::load(&out).expect("readable");
    let explore = |setup: &Setup, time: Duration| {
        let tools = setup.tools(&recording, 1).unwrap_or_else(|e| panic!("{e}"));
        let limits = Limits { time, states: Some(40), in_all: false, jobs: 1, first_only: false };
        let request = Request { name: "f", recording: &recording, setup, limits, out: None, resume: false };
        let checkers = |_worker: usize| tools.checkers();
        runner::explore(&request, &checkers, &AtomicBool::new(false), &mut |_| ())
            .unwrap_or_else(|e| panic!("{e}"))
    };
    let minutes = Duration::from_secs(300);
    let setup = Setup::of(&recording).expect("a contract");
    for level in [Level::Fsck, Level::Mount] {
        let setup = Setup { level, check: Some("cat /mnt/f".to_owned()), ..setup.clone() };
        let report = explore(&setup, minutes);
        assert!(report.holds() && report.progress.tally.states() > 10, "{level:?}: {report}");
    }
    // It is e2fsck alone that cannot: else there would be nothing to mend here.
    let state = setup.subject(&recording).expect("states");
    let mut states = Schedule::new(&state.stream, &state.cuts, Picking::Rounds, 1).take(40);
    let accused = states.any(|item| {
        let images = state.cuts[item.cut].state_at(&state.stream, &item.choice, item.crash.crash);
        let disks: Vec<_> = images.into_iter().map(|image| Arc::new(Scratch::new(image))).collect();
        matches!(Fsck::new().expect("e2fsck").check(&disks), Ok(Observation::Inconsistent { .. }))
    });
    assert!(accused, "e2fsck replays fast commits: it can recover states again");
    let slow = |check_timeout: u64| Setup {
        check: Some("sleep 3; cat /mnt/f".to_owned()),
        check_timeout: Duration::from_secs(check_timeout),
        ..setup.clone()
    };
    let begun = Instant::now();
    let report = explore(&slow(1), Duration::from_secs(10));
    let tally = &report.progress.tally;
    assert!(tally.not_judged > 0 && tally.violations() == 0 && !report.holds(), "{report}");
    let report = explore(&slow(60), Duration::from_secs(10));
    let tally = &report.progress.tally;
    assert!(tally.states() > 0 && tally.violations() == 0 && report.holds(), "{report}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[test]
#[ignore = "boots guests: run by the guests' suite, or with --ignored"]
fn a_death_loses_nothing_that_was_acknowledged_and_a_guest_that_does_not_sync_is_found_out() {
    for sync in ["sync .;", ""] {
        let folder = folder();
        let out = folder.path().join("r.afrec");
        let command = format!(
            "for i in 1 2 3 4 5 6; do echo $i > f.tmp; mv f.tmp f; {sync} afterimage explore mark $i; done; sync"
        );
        let options = RecordOptions {
            retain: true,
            mount_options: "data=journal".to_owned(),
            ..RecordOptions::new(out.clone(), Contract::GuestCrash, command)
        };
        record(&options).unwrap_or_else(|e| panic!("{e}"));
        let recording = Recording::load(&out).expect("readable");
        let deaths = Deaths {
            name: "deaths",
            recording: &recording,
            how: DeathOptions { points: 10, ..DeathOptions::default() },
            level: Level::Mount,
            check: Some("cat /mnt/f 2> /dev/null || echo none".to_owned()),
            first_only: true,
            check_timeout: CHECK_TIMEOUT,
            time: Duration::from_secs(120),
            out: None,
        };
        let report = deaths.run(&AtomicBool::new(false)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(report.holds(), !sync.is_empty(), "{report}");
        assert!(sync.is_empty() || report.progress.tally.states() > 3, "{report}");
        assert_eq!(report.progress.tally.violations_of_the_daemon(), 0, "{report}");
    }
}

#[test]
#[ignore = "boots a guest: run by the guests' suite, or with --ignored"]
fn a_failing_command_says_so_and_leaves_a_readable_recording() {
    let folder = folder();
    let out = folder.path().join("r.afrec");
    let command = "echo words of its own; exit 7".to_owned();
    let error = record(&RecordOptions::new(out.clone(), Contract::Power, command)).expect_err("it failed");
    let text = error.to_string();
    assert!(text.contains("status 7") && text.contains("words of its own"), "{text}");
    let recording = Recording::load(&out).expect("readable");
    assert!(recording
        .events
        .iter()
        .any(|e| matches!(&e.kind, EventKind::Mark { text } if text.contains("begin"))));
    assert!(recording.about_text("cut").is_none());
}
