//! The entry point of recordings for fuzzing, and a recording to start from.

use std::io::Read as _;
use std::sync::Arc;

use afterimage_format::recording::{ChunkHeader, FileHeader};
use afterimage_trace::{Event, EventKind, Layer, Op, Recording, Role, Run, Sparse, Target, TargetId};
use zerocopy::IntoBytes as _;

/// Treats bytes as a recording: as they are, with the checksums mended, and as what a recording decodes to. Must never
/// panic. What can be read can be written, and is then the same.
///
/// # Panics
/// Where what was written is not what was read.
pub fn fuzz_recording(bytes: &[u8]) {
    check(bytes);
    check(&mended(bytes));
    check(&recorded(bytes));
}

fn check(bytes: &[u8]) {
    let Ok((recording, _)) = Recording::from_bytes(bytes) else { return };
    let bytes = recording.to_bytes().expect("what was read can be written");
    let (again, _) = Recording::from_bytes(&bytes).expect("what was written can be read");
    assert!(recording.events == again.events && recording.about == again.about, "the same events");
    let same = |(a, b): (&Target, &Target)| a.base.same_content(&b.base) && a.role == b.role;
    assert!(recording.targets.iter().zip(&again.targets).all(same), "the same targets");
}

/// A fuzzer cannot guess checksums.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let mut mended = FileHeader::sealed().to_vec();
    let mut rest = bytes.get(mended.len()..).unwrap_or_default();
    for number in 0.. {
        let Some((header, after)) = rest.split_at_checked(size_of::<ChunkHeader>()) else { break };
        let field =
            |at: usize| header.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        let stored = after.get(..field(16) as usize).unwrap_or(after);
        mended.extend_from_slice(ChunkHeader::seal(number, field(20), field(24), stored).as_bytes());
        mended.extend_from_slice(stored);
        rest = &after[stored.len()..];
    }
    mended
}

/// The file of one chunk that decodes to these records.
fn recorded(records: &[u8]) -> Vec<u8> {
    let mut stored = zstd::encode_all(records, 1).expect("compressed");
    let (compressed_bytes, raw_bytes) = (stored.len() as u32, records.len() as u32);
    stored.resize(stored.len().max(ChunkHeader::stored_bytes_min(raw_bytes) as usize), 0);
    let header = ChunkHeader::seal(0, compressed_bytes, raw_bytes, &stored);
    [&FileHeader::sealed()[..], header.as_bytes(), &stored].concat()
}

/// The records of [`sample_recording`], not compressed: what a fuzzer can change with effect.
///
/// # Panics
/// Never, or the writer is broken.
pub fn sample_records() -> Vec<u8> {
    let file = sample_recording().to_bytes().expect("a recording");
    let (head, stored) = file[size_of::<FileHeader>()..].split_at(size_of::<ChunkHeader>());
    let header = ChunkHeader::parse(head, 0).expect("a chunk");
    let mut records = Vec::new();
    zstd::Decoder::new(stored)
        .and_then(|decoder| decoder.take(header.raw_bytes.get().into()).read_to_end(&mut records))
        .expect("records");
    records
}

/// A recording with something of everything, for fuzzing and for tests.
pub fn sample_recording() -> Recording {
    let mut base = Sparse::new(16 << 10);
    base.write_at(&[7; 600], 4000);
    let base = Arc::new(base);
    let mut about = Recording::default().about;
    about.insert("command".to_owned(), "true".into());
    let target =
        |layer, role, base: &Arc<Sparse>| Target { layer, role, bytes: base.len(), base: Arc::clone(base) };
    let targets = vec![
        target(Layer::Storage, Role::Log, &Arc::new(Sparse::new(5000))),
        target(Layer::Storage, Role::Disk(0), &base),
        target(Layer::Guest, Role::Disk(0), &base),
    ];
    let data: Arc<[u8]> = Arc::from(vec![3; 1024]);
    let ops = [
        (2, Op::Write { offset: 512, data: Arc::clone(&data), flushed: true }),
        (0, Op::Write { offset: 33, data, flushed: false }),
        (0, Op::Flush),
        (2, Op::Zero { offset: 1024, len: 512, unmap: true, flushed: false }),
        (1, Op::Zero { offset: 1, len: 9, unmap: false, flushed: true }),
    ];
    let mut kinds = vec![EventKind::Mark { text: "{\"mark\":\"begin\"}".into() }];
    for (id, (target, op)) in (5..).zip(ops) {
        let target = TargetId(target);
        kinds.push(EventKind::Submit { target, id, op });
        kinds.push(EventKind::Complete { target, id, ok: id % 2 == 1 });
    }
    kinds.swap(2, 3);
    let run = |offset| Run { offset, data: Arc::from(vec![offset as u8; 512]) };
    kinds.push(EventKind::Publish { target: TargetId(2), slot: 57, runs: Arc::new([run(1024), run(512)]) });
    kinds.push(EventKind::Submit { target: TargetId(2), id: 1, op: Op::Flush });
    let events = (0..).map(|n| n * 1000).zip(kinds).map(|(at_ns, kind)| Event { at_ns, kind }).collect();
    Recording { about, targets, events }
}
