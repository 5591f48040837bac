//! Recordings in files: whole, cut, damaged.

use std::sync::Arc;

use afterimage_format::recording::{ChunkHeader, FileHeader, RATIO_MAX};
use afterimage_fuzz_kit::recording::{fuzz_recording, sample_recording};
use afterimage_trace::{
    Ending, Event, EventKind, Layer, Op, Recorder, Recording, Role, Run, Sparse, Tally, Target, TargetId,
    TraceError,
};
use proptest::prelude::*;

fn same(a: &Recording, b: &Recording) {
    assert!(a.events == b.events, "the same events");
    assert_eq!(a.about, b.about);
    assert_eq!(a.targets.len(), b.targets.len());
    for (a, b) in a.targets.iter().zip(&b.targets) {
        assert_eq!((a.layer, a.role, a.bytes), (b.layer, b.role, b.bytes));
        assert!(a.base.same_content(&b.base));
    }
}

const TARGET_BYTES: u64 = 70_000;

fn op() -> impl Strategy<Value = Op> {
    let extent = (0..TARGET_BYTES / 512, 0..17u64).prop_map(|(at, len)| {
        let offset = at * 512;
        (offset, (len * 512).min((TARGET_BYTES - offset) / 512 * 512))
    });
    prop_oneof![
        (extent.clone(), any::<u8>(), any::<bool>()).prop_map(|((offset, len), byte, flushed)| {
            Op::Write { offset, data: Arc::from(vec![byte; len as usize]), flushed }
        }),
        (extent, any::<bool>(), any::<bool>()).prop_map(|((offset, len), unmap, flushed)| Op::Zero {
            offset,
            len,
            unmap,
            flushed
        }),
        Just(Op::Flush),
    ]
}

prop_compose! {
    fn recording()(
        ops in prop::collection::vec((0..3u16, op(), 0..1_000_000u64, any::<Option<bool>>()), 0..200),
        marks in prop::collection::vec(any::<String>(), 0..5),
        pages in prop::collection::vec((0..18u64, any::<u8>()), 0..10),
    ) -> Recording {
        let mut base = Sparse::new(TARGET_BYTES);
        for (page, byte) in pages {
            let at = page * 4096;
            base.write_at(&vec![byte; (TARGET_BYTES - at).min(4096) as usize], at);
        }
        let base = Arc::new(base);
        let target = |layer, role, base: &Arc<Sparse>| {
            Target { layer, role, bytes: TARGET_BYTES, base: Arc::clone(base) }
        };
        let targets = vec![
            target(Layer::Storage, Role::Disk(7), &base),
            target(Layer::Guest, Role::Disk(7), &base),
            target(Layer::Storage, Role::Log, &Arc::new(Sparse::new(TARGET_BYTES))),
        ];
        let mut kinds: Vec<EventKind> =
            marks.iter().map(|text| EventKind::Mark { text: text.as_str().into() }).collect();
        let (mut answers, mut times) = (Vec::new(), vec![0; kinds.len()]);
        for (id, (target, op, after, answer)) in (100..).zip(ops) {
            let target = TargetId(target);
            kinds.push(EventKind::Submit { target, id, op });
            times.push(after);
            match answer {
                Some(ok) if id % 3 == 0 => answers.push(EventKind::Complete { target, id, ok }),
                Some(ok) => {
                    kinds.push(EventKind::Complete { target, id, ok });
                    times.push(1);
                }
                None => {}
            }
        }
        times.extend(answers.iter().map(|_| 2));
        kinds.extend(answers);
        let mut at_ns = 0;
        let events = kinds.into_iter().zip(times).map(|(kind, after)| { at_ns += after; Event { at_ns, kind } });
        let mut about = serde_json::Map::new();
        about.insert("command".to_owned(), "a \"quoted\" command".into());
        about.insert("window_ms".to_owned(), 50.into());
        Recording { about, targets, events: events.collect() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_written_is_read(recording in recording()) {
        let bytes = recording.to_bytes().expect("written");
        let (again, ending) = Recording::from_bytes(&bytes).expect("read");
        assert_eq!(ending, Ending::Finished);
        same(&recording, &again);
        assert!(recording.targets.iter().zip(&again.targets).all(|(a, b)| {
            Arc::ptr_eq(&a.base, &recording.targets[0].base) == Arc::ptr_eq(&b.base, &again.targets[0].base)
        }), "a shared base stays shared");
    }

    #[test]
    fn damage_is_noticed_or_harmless(at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let whole = sample_recording();
        let mut bytes = whole.to_bytes().expect("written");
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // One chunk: its damage is the end of what is usable, never other content.
        match Recording::from_bytes(&bytes) {
            Ok((recording, Ending::Cut { .. })) => assert!(recording.events.is_empty()),
            Ok((_, Ending::Finished)) => panic!("damage at byte {at} was not noticed"),
            Err(_) => {}
        }
        fuzz_recording(&bytes);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        fuzz_recording(&bytes);
    }
}

/// Several chunks of data that does not compress, through the recorder.
fn several_chunks(path: &std::path::Path) -> (Recording, Vec<u8>) {
    let recorder = Recorder::create(path, &serde_json::Map::new()).expect("a recorder");
    let base = afterimage_trace::Base::Own(Arc::new(Sparse::new(1 << 30)));
    let target = recorder.target(Layer::Guest, Role::Disk(0), base);
    let mut state = 1u64;
    for n in 0..40u64 {
        let mut data = vec![0; 128 << 10];
        data.chunks_mut(8).for_each(|word| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&(state ^ state >> 29).to_le_bytes());
        });
        let op = Op::Write { offset: n << 20, data: data.into(), flushed: false };
        let id = recorder.submit(target, op);
        recorder.complete(target, id, true);
    }
    recorder.finish().expect("finished");
    (Recording::load(path).expect("whole"), std::fs::read(path).expect("read"))
}

#[test]
fn a_file_that_was_cut_is_read_up_to_its_last_whole_chunk() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("r.afrec");
    let (whole, bytes) = several_chunks(&path);
    assert_eq!(Tally::of(&whole).guest.writes, 40);
    let mut seen = Vec::new();
    for cut in (0..bytes.len()).step_by(64 << 10).chain([bytes.len() - 1]) {
        std::fs::write(&path, &bytes[..cut]).expect("written");
        if cut < size_of::<FileHeader>() {
            assert!(matches!(Recording::load(&path), Err(TraceError::Format { .. })));
            continue;
        }
        let recording = Recording::load(&path).expect("readable");
        assert!(whole.events.starts_with(&recording.events));
        assert!(recording.about_text("cut").is_some_and(|text| text.contains("cut off")), "it is said");
        seen.push(recording.events.len());
        // What a file system may leave after a power cut: zeroes to the end.
        let mut zeroes = bytes[..cut].to_vec();
        zeroes.resize(cut + 5000, 0);
        let (again, ending) = Recording::from_bytes(&zeroes).expect("readable");
        let lost = bytes[cut..].iter().any(|b| *b != 0);
        assert_eq!(matches!(ending, Ending::Cut { .. }), lost, "cut at {cut}");
        assert!(whole.events.starts_with(&again.events));
    }
    seen.dedup();
    assert!(seen.len() > 4 && seen.is_sorted(), "longer files hold more events: {seen:?}");
}

#[test]
fn damage_in_the_middle_is_an_error_and_not_a_shorter_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, mut bytes) = several_chunks(&folder.path().join("r.afrec"));
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    match Recording::from_bytes(&bytes) {
        Err(TraceError::Corrupt { at, .. }) => assert!(at > 32 && at < middle as u64),
        other => panic!("{:?}", other.map(|(_, ending)| ending)),
    }
}

#[test]
fn a_chunk_of_zeroes_is_padded_so_that_a_reader_may_trust_its_size() {
    let mut recording = sample_recording();
    let bytes = 8 << 20;
    recording.targets[0].base = Arc::new(Sparse::new(bytes));
    recording.targets[0].bytes = bytes;
    let op = Op::Write { offset: 0, data: Arc::from(vec![0; bytes as usize]), flushed: false };
    let kind = EventKind::Submit { target: TargetId(0), id: 1000, op };
    recording.events.push(Event { at_ns: u64::MAX, kind });
    let file = recording.to_bytes().expect("written");
    assert!(file.len() as u64 >= bytes / u64::from(RATIO_MAX));
    same(&recording, &Recording::from_bytes(&file).expect("read").0);
    // A chunk that claims more is none.
    let header = ChunkHeader::seal(0, 10, 10 * RATIO_MAX + 1, &[0; 10]);
    assert!(ChunkHeader::parse(zerocopy::IntoBytes::as_bytes(&header), 0).is_none());
}

#[test]
fn what_no_reader_would_take_is_not_written() {
    let mut backwards = sample_recording();
    backwards.events.swap(0, 3);
    assert!(backwards.to_bytes().is_err());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("r.afrec");
    sample_recording().save(&path).expect("saved");
    assert!(backwards.save(&path).is_err());
    same(&Recording::load(&path).expect("the old one"), &sample_recording());
    assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 1);
}

#[test]
fn a_publication_is_read_exactly() {
    let read = |target: u16, runs: &[(u64, usize)]| {
        let mut recording = sample_recording();
        let run = |(offset, len): &(u64, usize)| Run { offset: *offset, data: Arc::from(vec![9; *len]) };
        let runs = runs.iter().map(run).collect();
        let kind = EventKind::Publish { target: TargetId(target), slot: 1, runs };
        recording.events.push(Event { at_ns: 1 << 40, kind });
        let read = Recording::from_bytes(&recording.to_bytes().expect("written"));
        read.map(|(again, _)| assert_eq!(again.events, recording.events)).map_err(|error| error.to_string())
    };
    assert_eq!(read(2, &[(512, 1024), (0, 512)]), Ok(()));
    type Runs<'a> = &'a [(u64, usize)];
    let wrong: [(u16, Runs<'_>, &str); 7] = [
        (1, &[(512, 512)], "for no disk of a guest"),
        (9, &[(512, 512)], "for no disk of a guest"),
        (2, &[], "without an extent"),
        (2, &[(512, 0)], "without content"),
        (2, &[(512, 512), (0, 0)], "without content"),
        (2, &[(16 << 10, 512)], "past the end"),
        (2, &[(512, 511)], "no whole number of sectors"),
    ];
    for (target, runs, why) in wrong {
        let said = read(target, runs).expect_err("it is refused");
        assert!(said.contains(why), "{runs:?}: {said}");
    }
}
