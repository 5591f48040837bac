//! The models against the naive simulation of the block layer's tests: the same states, no more and no fewer.

use std::collections::BTreeSet;
use std::sync::Arc;

use afterimage_block::Medium as _;
use afterimage_block_conformance::sim::SimWorld;
use afterimage_explore::enumerate::Enumeration;
use afterimage_explore::model::{cuts, Choice, Cut, Model};
use afterimage_explore::state::{digest, Image};
use afterimage_explore::stream::Stream;
use afterimage_trace::{Event, EventKind, Layer, Op, Recording, Role, Sparse, Target, TargetId};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const BYTES: usize = 6 * 512;

struct Tape {
    recording: Recording,
    world: SimWorld,
    /// Operations of the world that each event had behind it, and what a reader saw then.
    ops: Vec<usize>,
    seen: Vec<Vec<Vec<u8>>>,
}

impl Tape {
    fn new(media: usize) -> Self {
        let base = || {
            let mut sparse = Sparse::new(BYTES as u64);
            sparse.write_at(&[9; 700], 100);
            sparse
        };
        let target = |i: usize| Target {
            layer: Layer::Storage,
            role: Role::Disk(i as u16),
            bytes: BYTES as u64,
            base: Arc::new(base()),
        };
        let mut content = vec![0; BYTES];
        base().read_at(&mut content, 0);
        Self {
            recording: Recording { targets: (0..media).map(target).collect(), ..Recording::default() },
            world: SimWorld::new(vec![content; media]),
            ops: Vec::new(),
            seen: Vec::new(),
        }
    }

    fn cached(&self) -> Vec<Vec<u8>> {
        (0..self.recording.targets.len()).map(|medium| self.world.cached(medium)).collect()
    }

    fn event(&mut self, kind: EventKind) {
        let at_ns = self.recording.events.len() as u64;
        self.recording.events.push(Event { at_ns, kind });
        self.ops.push(self.world.ops());
        self.seen.push(self.cached());
    }

    fn request(&mut self, target: u16, op: Op) {
        let (target, id) = (TargetId(target), self.recording.events.len() as u64);
        let medium = self.world.medium(usize::from(target.0));
        self.event(EventKind::Submit { target, id, op: op.clone() });
        match op {
            Op::Write { offset, data, .. } => medium.write_at(&data, offset).unwrap(),
            Op::Zero { offset, len, unmap, .. } => medium.zero_at(offset, len, unmap).unwrap(),
            Op::Flush => medium.sync().unwrap(),
        }
        self.event(EventKind::Complete { target, id, ok: true });
    }

    fn random(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let media = rng.random_range(1..=2);
        let mut tape = Self::new(media);
        for _ in 0..12 {
            let target = rng.random_range(0..media as u16);
            let offset = rng.random_range(0..BYTES / 2) / 64 * 64;
            let len = rng.random_range(1..=(BYTES - offset).min(1200));
            let op = match rng.random_range(0..8) {
                0..4 => {
                    let data: Vec<u8> = vec![rng.random(); len];
                    Op::Write { offset: offset as u64, data: data.into(), flushed: false }
                }
                4 => Op::Zero { offset: offset as u64, len: len as u64, unmap: true, flushed: false },
                _ => Op::Flush,
            };
            tape.request(target, op);
        }
        tape
    }
}

fn contents(stream: &Stream, cut: &Cut) -> Option<BTreeSet<Vec<Vec<u8>>>> {
    let states = Enumeration::new(stream, cut, 1);
    states.count()?;
    let mut found = BTreeSet::new();
    for choice in (0..).map_while(|n| states.choice(n)) {
        found.insert(content(stream, cut, &choice));
    }
    Some(found)
}

fn content(stream: &Stream, cut: &Cut, choice: &Choice) -> Vec<Vec<u8>> {
    let bytes = |(medium, image): (usize, &Image)| {
        let mut bytes = vec![0; BYTES];
        image.read_at(&mut bytes, 0);
        let mut sparse = Sparse::new(BYTES as u64);
        sparse.write_at(&bytes, 0);
        assert_eq!(digest(medium, &sparse), image.digest(), "the digest follows the content");
        bytes
    };
    cut.state(stream, choice).iter().enumerate().map(bytes).collect()
}

#[test]
fn the_disk_model_leaves_what_the_simulation_leaves() {
    let mut compared = 0;
    for seed in 0..400 {
        let tape = Tape::random(seed);
        let stream = Stream::new(&tape.recording, Layer::Storage).unwrap();
        for cut in cuts(&stream, Model::Disk) {
            let ops = tape.ops.get(cut.event - 1).copied().unwrap_or_default();
            // A cut during a sync is one before it: the simulation's operation that has not completed does not count.
            let at_completion = matches!(
                tape.recording.events.get(cut.event).map(|e| &e.kind),
                Some(EventKind::Complete { .. })
            );
            let expected =
                tape.world.crash_states(if at_completion { ops } else { tape.world.ops() }, 1 << 10);
            let (Some(found), Some(expected)) = (contents(&stream, &cut), expected) else { continue };
            let expected: BTreeSet<Vec<Vec<u8>>> = expected
                .map(|world| (0..stream.media.len()).map(|medium| world.cached(medium)).collect())
                .collect();
            assert_eq!(found, expected, "seed {seed}, cut before event {}", cut.event);
            compared += 1;
        }
    }
    assert!(compared > 500, "only {compared} cuts were small enough to compare");
}

/// A crash right before [`Cut::since`] leaves the same, and mostly none before that does.
#[test]
fn the_first_crash_that_leaves_a_state_leaves_it() {
    let (mut states, mut first) = (0, 0);
    for seed in 0..100 {
        let tape = Tape::random(seed);
        let stream = Stream::new(&tape.recording, Layer::Storage).unwrap();
        // Before an event everything up to it has been submitted, and may be there.
        let leaves = |event: usize, content: &Vec<Vec<u8>>| {
            let ops = tape.ops.get(event).copied().unwrap_or_else(|| tape.world.ops());
            let worlds = tape.world.crash_states(ops, 1 << 10)?;
            Some(worlds.into_iter().any(|world| {
                content.iter().enumerate().all(|(medium, bytes)| world.cached(medium) == *bytes)
            }))
        };
        for cut in cuts(&stream, Model::Disk) {
            let drawn = Enumeration::new(&stream, &cut, 1);
            for choice in (0..20).map_while(|n| drawn.choice(n)) {
                let (since, content) =
                    (cut.since(&stream, &choice, cut.event), content(&stream, &cut, &choice));
                let Some(left) = leaves(since, &content) else { continue };
                assert!(
                    left,
                    "seed {seed}, {choice:?} of the cut before event {}: not at {since}",
                    cut.event
                );
                states += 1;
                first += usize::from(since > 0 && leaves(since - 1, &content) == Some(false));
            }
        }
    }
    assert!(states > 1000 && first * 3 > states * 2, "{first} of {states}");
}

#[test]
fn the_prefix_model_leaves_prefixes_and_the_guest_model_what_was_in_flight() {
    for seed in 0..50 {
        let tape = Tape::random(seed);
        let stream = Stream::new(&tape.recording, Layer::Storage).unwrap();
        let prefixes = cuts(&stream, Model::Prefix);
        assert_eq!(prefixes.len(), stream.writes.iter().filter(|w| w.submitted > 0).count() + 1);
        for cut in prefixes {
            let found = contents(&stream, &cut).expect("one state");
            // Right before a submission a reader sees exactly the requests before it.
            let expected = tape.seen.get(cut.event).cloned().unwrap_or_else(|| tape.cached());
            assert_eq!(found.into_iter().collect::<Vec<_>>(), [expected], "seed {seed}, event {}", cut.event);
        }
        // Requests complete at once here: before a completion exactly that one request may be missing.
        for cut in cuts(&stream, Model::Guest) {
            assert!(cut.volatile.len() <= 1);
        }
    }
}

#[test]
fn many_states_are_drawn_the_same_way_from_the_same_seed() {
    let mut tape = Tape::new(1);
    for i in 0..40u64 {
        let data: Arc<[u8]> = vec![i as u8; 1024].into();
        tape.request(0, Op::Write { offset: i % 5 * 512, data, flushed: false });
    }
    tape.request(0, Op::Flush);
    let stream = Stream::new(&tape.recording, Layer::Storage).unwrap();
    let cuts = cuts(&stream, Model::Disk);
    let draw = |seed| -> Vec<_> {
        let states = Enumeration::new(&stream, &cuts[0], seed);
        assert!(states.count().is_none());
        (0..300).map(|n| states.choice(n).unwrap()).collect()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    let distinct: BTreeSet<u128> = draw(1)
        .iter()
        .map(|choice| afterimage_explore::model::state_digest(&cuts[0].state(&stream, choice)))
        .collect();
    assert!(distinct.len() > 100, "{}", distinct.len());
}
