//! Taps change nothing, and miss nothing.

use std::collections::HashMap;
use std::sync::Arc;

use afterimage_block::{Disk, DiskIndex, Medium, MediumDisk, Tap as _};
use afterimage_block_conformance::sim::SimWorld;
use afterimage_trace::{
    read_disk, read_medium, EventKind, Layer, Op, Recorder, Recording, Role, Sparse, TapDisk, Taps, TargetId,
};

const BYTES: usize = 1 << 20;

/// A disk over a tapped medium, tapped itself, above and below.
fn tapped(recorder: &Arc<Recorder>) -> (Arc<dyn Medium>, Arc<dyn Disk>) {
    let content = (0..BYTES).map(|i| (i / 4096 % 3 * 5) as u8).collect();
    let medium: Arc<dyn Medium> = SimWorld::new(vec![content]).medium(0);
    let taps = Taps::new(Arc::clone(recorder));
    let below = taps.home(DiskIndex(0), Arc::clone(&medium)).expect("a tap");
    let disk: Arc<dyn Disk> = Arc::new(MediumDisk::new(below));
    let disks = [taps.guest(DiskIndex(0), disk).expect("a tap")];
    (medium, Arc::clone(&disks[0]))
}

#[test]
fn a_tapped_disk_conforms_and_the_recording_says_what_it_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    for seed in 1..=4 {
        let path = folder.path().join("r.afrec");
        let recorder = Recorder::create(&path, &serde_json::Map::new()).expect("a recorder");
        let (medium, disk) = tapped(&recorder);
        afterimage_block_conformance::run(seed, 2000, || Arc::clone(&disk)).unwrap_or_else(|e| panic!("{e}"));
        let finished = recorder.finish().expect("a recording");
        let recording = Recording::load(&path).expect("readable");
        assert_eq!(recording.events.len() as u64, finished.tally.events);
        assert_eq!(recording.targets.len(), 2);
        assert!(Arc::ptr_eq(&recording.targets[0].base, &recording.targets[1].base), "one base for both");
        assert_eq!((recording.targets[1].layer, recording.targets[1].role), (Layer::Guest, Role::Disk(0)));
        // This disk serves each request inside its submission, so the order of submissions is that of effects.
        let end = read_medium(medium.as_ref()).expect("read");
        assert!(
            recording.content_before(TargetId(0), recording.events.len()).same_content(&end),
            "seed {seed}: below"
        );
        assert!(
            recording.content_before(TargetId(1), recording.events.len()).same_content(&end),
            "seed {seed}: above"
        );
        assert!(read_disk(&disk).expect("read").same_content(&end));
        assert!(finished.tally.guest.writes > 100 && finished.tally.guest.flushes > 50);
        assert!(finished.tally.storage.writes >= finished.tally.guest.writes * 9 / 10);
    }
}

#[test]
fn lanes_on_several_threads_conform_and_every_answer_follows_its_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("r.afrec");
    let recorder = Recorder::create(&path, &serde_json::Map::new()).expect("a recorder");
    let (_, disk) = tapped(&recorder);
    afterimage_block_conformance::run_threads(3, 1000, 3, || Arc::clone(&disk))
        .unwrap_or_else(|e| panic!("{e}"));
    recorder.finish().expect("a recording");
    let recording = Recording::load(&path).expect("readable");
    let mut waiting = HashMap::new();
    let mut last = 0;
    for event in &recording.events {
        assert!(event.at_ns >= last);
        last = event.at_ns;
        match &event.kind {
            EventKind::Submit { target, id, .. } => assert!(waiting.insert(*id, *target).is_none()),
            EventKind::Complete { target, id, ok } => {
                assert!(*ok, "this disk fails nothing that is admitted");
                assert_eq!(waiting.remove(id), Some(*target));
            }
            EventKind::Publish { .. } | EventKind::Mark { .. } => {}
        }
    }
}

#[test]
fn a_read_only_disk_is_left_alone_and_a_finished_recorder_hears_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("r.afrec");
    let recorder = Recorder::create(&path, &serde_json::Map::new()).expect("a recorder");
    let medium = SimWorld::new(vec![vec![1; BYTES]]).medium(0);
    let read_only: Arc<dyn Disk> = Arc::new(MediumDisk::read_only(medium));
    let taps = Taps::new(Arc::clone(&recorder));
    let disks = [taps.guest(DiskIndex(0), Arc::clone(&read_only)).expect("a tap")];
    assert!(Arc::ptr_eq(&disks[0], &read_only));
    let target = recorder.target(
        Layer::Guest,
        Role::Disk(1),
        afterimage_trace::Base::Own(Arc::new(Sparse::new(BYTES as u64))),
    );
    afterimage_block_conformance::run_read_only(
        1,
        &(Arc::new(TapDisk::new(read_only, Arc::clone(&recorder), target)) as _),
    )
    .unwrap_or_else(|e| panic!("{e}"));
    recorder.mark("x");
    recorder.finish().expect("a recording");
    let (_, disk) = tapped(&recorder);
    afterimage_block_conformance::run(1, 300, || Arc::clone(&disk)).unwrap_or_else(|e| panic!("{e}"));
    let recording = Recording::load(&path).expect("readable");
    let only_flushes_and_the_mark = recording.events.iter().all(|e| match &e.kind {
        EventKind::Submit { op, .. } => *op == Op::Flush,
        EventKind::Complete { .. } => true,
        EventKind::Publish { .. } => false,
        EventKind::Mark { text } => &**text == "x",
    });
    assert!(only_flushes_and_the_mark && recording.targets.len() == 1);
}

#[test]
fn a_full_disk_surfaces_at_the_end_and_harms_no_request() {
    let full = std::path::Path::new("/dev/full");
    // The header alone does not fit, so this says so at once.
    let error = Recorder::create(full, &serde_json::Map::new()).expect_err("no space");
    assert!(error.to_string().contains("/dev/full"), "{error}");
}
