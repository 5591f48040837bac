//! What a flush covers, and what is there before a crash is first looked at: by hand, one sentence a case.

use std::sync::Arc;

use afterimage_explore::enumerate::Enumeration;
use afterimage_explore::model::{cuts, Choice, LostWrite, Model};
use afterimage_explore::prefix::Prefixes;
use afterimage_explore::stream::Stream;
use afterimage_explore::ExploreError;
use afterimage_trace::{Event, EventKind, Layer, Op, Recording, Role, Sparse, Target, TargetId};

const BYTES: u64 = 64 << 10;

/// `wN S` submits a write of byte N to sector S under the name N, `fN` a flush, `dN` answers, `eN` answers with an error,
/// `W` as `w` but completing as if flushed; `|` is the mark `begin`. Names from 100 on are the second disk's.
fn recording(script: &str) -> Recording {
    let target = |index| Target {
        layer: Layer::Storage,
        role: Role::Disk(index),
        bytes: BYTES,
        base: Arc::new(Sparse::new(BYTES)),
    };
    let mut recording = Recording { targets: vec![target(0), target(1)], ..Recording::default() };
    let mut words = script.split_whitespace();
    while let Some(word) = words.next() {
        let (kind, name) = word.split_at(1);
        let id: u64 = name.parse().unwrap_or_default();
        let target = TargetId((id / 100) as u16);
        let mut write = |flushed| {
            let sector: u64 = words.next().and_then(|word| word.parse().ok()).expect("a sector");
            let op = Op::Write { offset: sector * 512, data: vec![id as u8; 512].into(), flushed };
            EventKind::Submit { target, id, op }
        };
        let kind = match kind {
            "w" => write(false),
            "W" => write(true),
            "f" => EventKind::Submit { target, id, op: Op::Flush },
            "d" => EventKind::Complete { target, id, ok: true },
            "e" => EventKind::Complete { target, id, ok: false },
            _ => EventKind::Mark { text: r#"{"mark":"begin"}"#.into() },
        };
        recording.events.push(Event { at_ns: recording.events.len() as u64, kind });
    }
    recording
}

/// The names of writes that are durable at the end, and of those that are not.
fn durable(script: &str) -> (Vec<u8>, Vec<u8>) {
    let stream = Stream::new(&recording(script), Layer::Storage).expect("a stream");
    let name = |write: &afterimage_explore::stream::Write| write.sectors[0].bytes().expect("data")[0];
    let (yes, no): (Vec<_>, Vec<_>) = stream.writes.iter().partition(|write| write.durable.is_some());
    (yes.into_iter().map(name).collect(), no.into_iter().map(name).collect())
}

#[test]
fn a_flush_covers_what_had_completed_when_it_was_submitted() {
    for (script, covered, open) in [
        ("w1 0 d1 f2 d2", &[1][..], &[][..]),
        ("w1 0 f2 d1 d2", &[], &[1]),
        ("w1 0 d1 f2", &[], &[1]),
        ("w1 0 d1 f2 e2", &[], &[1]),
        ("w1 0 e1 f2 d2", &[], &[1]),
        ("w1 0 d1 f2 w3 1 d3 d2", &[1], &[3]),
        ("w1 0 d1 f2 w3 1 d3 f4 d4 d2", &[1, 3], &[]),
        ("w1 0 d1 f102 d102", &[], &[1]),
        ("w1 0 d1 W2 1 d2", &[1, 2], &[]),
        ("w1 0 W2 1 d2 d1", &[2], &[1]),
    ] {
        assert_eq!(durable(script), (covered.to_vec(), open.to_vec()), "{script}");
    }
}

#[test]
fn what_is_durable_before_the_begin_is_in_the_base_and_hides_what_is_older() {
    let stream = Stream::new(&recording("w1 0 d1 w2 0 w3 1 d3 d2 f4 d4 | w5 0 d5"), Layer::Storage).unwrap();
    let mut byte = [0];
    stream.media[0].base.read_at(&mut byte, 0);
    assert_eq!((byte, stream.writes.len()), ([2], 1), "1 lies below 2, which is in the base with 3");
    let stream = Stream::new(&recording("w1 0 w2 0 d2 f3 d3 | d1 f4 d4"), Layer::Storage).unwrap();
    stream.media[0].base.read_at(&mut byte, 0);
    assert_eq!((byte, stream.writes.len()), ([2], 0), "1 was late, and lies below 2 all the same");
    // A write that had not been synced may still be lost after the begin.
    let stream = Stream::new(&recording("w1 0 d1 | w2 1 d2 f3 d3"), Layer::Storage).unwrap();
    let cut = &cuts(&stream, Model::Disk)[0];
    assert_eq!(cut.volatile.iter().map(|v| v.write).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn no_older_version_comes_back() {
    // 1 and 2 are written to the same sector, and only 2's flush has been answered: 1 does not matter any more.
    let stream = Stream::new(&recording("| w1 0 w2 0 d2 f3 d3 w4 7 d4"), Layer::Storage).unwrap();
    let last = cuts(&stream, Model::Disk).pop().expect("a cut at the end");
    assert_eq!(last.volatile.iter().map(|v| v.write).collect::<Vec<_>>(), [2]);
}

#[test]
fn what_contradicts_itself_is_refused() {
    assert!(matches!(Stream::new(&recording("d1"), Layer::Storage), Err(ExploreError::Corrupt(_))));
    assert!(matches!(Stream::new(&recording("w1 128 d1"), Layer::Storage), Err(ExploreError::Corrupt(_))));
    assert!(matches!(Stream::new(&recording("w1 0 d1"), Layer::Guest), Err(ExploreError::Usage(_))));
}

/// A disk of 1 TiB: something in `pages` from the third on at first, written to in its fifth, and zeroed as a whole.
fn discarded(pages: usize, zeroes: u64) -> Recording {
    const DISK_BYTES: u64 = 1 << 40;
    let mut base = Sparse::new(DISK_BYTES);
    base.write_at(&vec![7; pages * 4096], 2 * 4096);
    let target =
        |layer| Target { layer, role: Role::Disk(0), bytes: DISK_BYTES, base: Arc::new(base.clone()) };
    let mut recording =
        Recording { targets: vec![target(Layer::Storage), target(Layer::Guest)], ..Recording::default() };
    let write = Op::Write { offset: 4 * 4096 + 512, data: vec![9; 512].into(), flushed: false };
    let zero = Op::Zero { offset: 0, len: DISK_BYTES, unmap: true, flushed: false };
    for op in std::iter::once(write).chain((0..zeroes).map(|_| zero.clone())) {
        for target in [TargetId(1), TargetId(0)] {
            let (id, at_ns) = (recording.events.len() as u64, recording.events.len() as u64);
            let submit = EventKind::Submit { target, id, op: op.clone() };
            recording.events.push(Event { at_ns, kind: submit });
            recording.events.push(Event { at_ns, kind: EventKind::Complete { target, id, ok: true } });
        }
    }
    recording
}

#[test]
fn zeroes_cost_what_had_been_written() {
    let recording = discarded(1, 1);
    let stream = Stream::new(&recording, Layer::Storage).expect("a stream");
    let zero = &stream.writes[1];
    let places: Vec<u32> = zero.places().collect();
    assert_eq!(places, (16..24).chain(32..40).collect::<Vec<_>>());
    assert_eq!((zero.first, zero.count), (0, 1 << 31));
    let cut = cuts(&stream, Model::Disk).pop().expect("a cut at the end");
    let bytes = |lost: &[usize]| {
        let lost = lost.iter().map(|write| LostWrite { write: *write, sectors: None }).collect();
        let image = &cut.state(&stream, &Choice { lost })[0];
        let mut bytes = [0; 2];
        image.read_at(&mut bytes[..1], 2 * 4096);
        image.read_at(&mut bytes[1..], 4 * 4096 + 512);
        bytes
    };
    assert_eq!([bytes(&[]), bytes(&[1]), bytes(&[0]), bytes(&[0, 1])], [[0, 0], [7, 9], [0, 0], [7, 0]]);
    // Two versions of each of eight sectors, and of seven, and three of the one that was written to.
    assert_eq!(Enumeration::new(&stream, &cut, 1).count(), None, "2^15 * 3");
    let torn =
        (0..200).filter_map(|n| Enumeration::new(&stream, &cut, 1).choice(n)).flat_map(|choice| choice.lost);
    assert!(torn.clone().any(|lost| lost.write == 1 && lost.sectors.is_some()), "it is torn, too");
    // A stream of the guest's, request by request.
    let prefixes = Prefixes::of(&recording).expect("prefixes");
    assert_eq!((prefixes.last(), prefixes.prefix(2).digest), (2, 0), "nothing is left");
    assert_ne!(prefixes.prefix(1).digest, prefixes.prefix(0).digest);
}

#[test]
fn zeroes_that_do_not_fit_into_memory_are_refused() {
    let refused =
        Stream::new(&discarded(4096, 513), Layer::Storage).expect_err("16 MiB, more than 512 times");
    assert!(matches!(refused, ExploreError::Usage(_)) && refused.to_string().contains("8 GiB"), "{refused}");
}
