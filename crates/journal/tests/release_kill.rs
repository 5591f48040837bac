//! A daemon that is killed while it gives transactions up: after the served tail has moved, and before the last of their
//! blocks is forgotten.
//!
//! The arena is memory, so a kill leaves it between two of its stores. A step of a recorded guest is made whole; then every
//! state in between is put together from the arena before it and the arena after it, in the order in which the module
//! promises its stores: what is new and what is marked home, the tail, and then the freed slots and the entries of what is served
//! from home, of which any may be cleared already. A state that breaks that order has to show: it is the proof that these tests can fail.

mod common;

use afterimage_journal::ext4::Options;
use common::stream::{load, moves_tail, recordings, send, Plain};
use common::{at_commit, recovered, wait_for_home, Served};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

// As `crates/journal/src/versions/arena/map.rs` lays an arena out.
const PAGE: usize = 4096;
const HEAD: usize = 5 * PAGE;
const GROUP: usize = 129 * PAGE;
const TAG: usize = 32;
const RECORD_WORDS: usize = 16;

/// What a step did to an arena.
struct Changes {
    /// The word of the served tail, where that has not moved long before, as it has where a commit brings everything home.
    tail: Option<usize>,
    /// Entries of blocks that were served from home and are not wanted any more.
    left: Vec<usize>,
    /// First words of the tags of slots that it freed.
    freed: Vec<usize>,
    /// The same of one that holds the journal's newer superblock now, which is stored last; then the older one's slot is freed.
    reused: Option<usize>,
}

/// Where the tag at that place says that its slot has the journal's superblock.
fn is_superblock(arena: &[u8], tag: usize) -> bool {
    arena[tag + 8..tag + 12] == [0; 4]
}

/// The slot of a tag.
fn slot(tag: usize) -> usize {
    let (group, within) = ((tag - HEAD) / GROUP, (tag - HEAD) % GROUP);
    HEAD + group * GROUP + (1 + within / TAG) * PAGE
}

fn words(arena: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let head = (0..HEAD).step_by(8);
    let tags = (HEAD..arena.len()).step_by(GROUP).flat_map(|group| (group..group + PAGE).step_by(TAG));
    head.chain(tags).map(|at| (at, &arena[at..at + 8]))
}

/// As `crates/journal/src/versions/arena/marks.rs` has it: pages of entries, and the home in one of what is served from there.
const PAGES: std::ops::Range<u32> = 11 << 28..12 << 28;

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn home(entry: u64) -> Option<usize> {
    (entry != u64::MAX && entry & 1 << 8 != 0).then_some((entry >> 16) as usize)
}

fn entries(arena: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let tags = words(arena).map(|(at, _)| at).filter(|at| *at >= HEAD);
    let pages = tags.filter(|at| word(arena, *at) > 0 && PAGES.contains(&(word(arena, at + 8) as u32)));
    pages.flat_map(|tag| (slot(tag)..slot(tag) + PAGE).step_by(8))
}

/// An arena, and the disk below.
type State = (Vec<u8>, Vec<u8>);

/// What lies between two states, where that is a release and nothing that hides its order.
fn changes((before, disk): &State, (after, disk_after): &State) -> Option<Changes> {
    let changed: Vec<(usize, bool, bool)> = words(before)
        .zip(words(after))
        .filter(|(a, b)| a != b)
        .map(|((at, a), (_, b))| (at, a == [0; 8], b == [0; 8]))
        .collect();
    let (head, tags): (Vec<_>, Vec<_>) = changed.into_iter().partition(|(at, _, _)| *at < HEAD);
    // A slot that was freed and taken again by one step tells nothing about the time between.
    let reused: Vec<usize> =
        tags.iter().filter(|(_, was_free, is_free)| !was_free && !is_free).map(|(at, _, _)| *at).collect();
    let freed: Vec<usize> = tags.iter().filter(|(_, _, is_free)| *is_free).map(|(at, _, _)| *at).collect();
    let tail = head.first().map(|(at, _, _)| *at);
    // Of a record's two copies the first words. A volume that is forgotten as a whole is another matter: what the guest writes to
    // its journal's own place comes after that.
    let is_tail = |at: usize| at >= PAGE && [1, 6].contains(&((at - PAGE) / 8 % RECORD_WORDS));
    let tells = match reused[..] {
        [] => true,
        [at] => tail.is_some() && is_superblock(after, at),
        _ => false,
    };
    let mut left: Vec<usize> =
        entries(before).filter(|at| before[*at..at + 8] != after[*at..at + 8]).collect();
    left.retain(|at| home(word(before, *at)).is_some());
    // What was saved first, and then let go, tells nothing either.
    let mut homes = left.iter().filter_map(|at| home(word(before, *at))).map(|home| home * PAGE);
    let tells = tells && homes.all(|at| disk[at..at + PAGE] == disk_after[at..at + PAGE]);
    (head.len() <= 1 && tail.is_none_or(is_tail) && tells && !freed.is_empty()).then_some(Changes {
        tail,
        left,
        freed,
        reused: reused.first().copied(),
    })
}

fn put(into: &mut [u8], from: &[u8], at: usize) {
    into[at..at + 8].copy_from_slice(&from[at..at + 8]);
}

#[derive(Default)]
struct Seen {
    /// The guest's tail has passed something.
    releases: u32,
    /// Memory was short.
    evictions: u32,
    /// Something was not served from home any more.
    left: u32,
    states: u32,
    /// States of another order that were found out.
    caught: u32,
}

fn judge(served: &Served, plain: &Plain, step: usize, before: &State, rng: &mut ChaCha8Rng, seen: &mut Seen) {
    let now = state(served);
    let Some(changes) = changes(before, &now) else { return };
    let ((before, _), (after, below)) = (before, now);
    match changes.tail {
        Some(_) => seen.releases += 1,
        None => seen.evictions += 1,
    }
    seen.left += u32::from(!changes.left.is_empty());
    let end = |arena: &[u8]| recovered(served.after(below.clone(), arena).finish(false)).disk;
    // All of it but the tail, and nothing freed yet.
    let mut begun = after.clone();
    changes.tail.iter().for_each(|at| put(&mut begun, before, *at));
    changes.freed.iter().chain(&changes.left).for_each(|at| put(&mut begun, before, *at));
    if let Some(at) = changes.reused {
        begun[at..at + TAG].copy_from_slice(&before[at..at + TAG]);
        let slot = slot(at)..slot(at) + PAGE;
        begun[slot.clone()].copy_from_slice(&before[slot]);
    }
    let free = |arena: &mut [u8], at: usize| arena[at..at + 8].fill(0);
    let of_log: Vec<usize> = match changes.reused {
        Some(reused) => {
            let freed = changes.freed.iter().filter(|at| !is_superblock(before, **at));
            freed.copied().chain([reused]).collect()
        }
        None => changes.freed.clone(),
    };
    plain.assert_same(&end(&begun), "killed before the tail moved", step);
    let mut moved = begun.clone();
    changes.tail.iter().for_each(|at| put(&mut moved, &after, *at));
    plain.assert_same(&end(&moved), "killed before a block was forgotten", step);
    seen.states += 2;
    for _ in 0..2 {
        let mut some = moved.clone();
        for at in &of_log {
            if rng.random_ratio(1, 2) {
                free(&mut some, *at);
            }
        }
        changes.left.iter().filter(|_| rng.random_ratio(1, 2)).for_each(|at| put(&mut some, &after, *at));
        plain.assert_same(&end(&some), "killed while blocks were forgotten", step);
        seen.states += 1;
    }
    if changes.tail.is_none() {
        return;
    }
    // The other way round: blocks gone that the tail still names.
    let mut wrong = begun;
    of_log.iter().for_each(|at| free(&mut wrong, *at));
    changes.left.iter().for_each(|at| put(&mut wrong, &after, *at));
    seen.caught += u32::from(!plain.different(&end(&wrong)).is_empty());
}

fn state(served: &Served) -> State {
    (served.arena(), served.below.bytes())
}

/// `pressed`: of so many steps, memory is short after one.
fn walk(options: fn() -> Options, seed: u64, bytes_max: u64, pressed: u32, seen: &mut Seen) {
    for path in recordings() {
        let stream = load(&path);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut plain = Plain::new(&stream);
        let mut served = Served::new(stream.base.clone(), bytes_max, options());
        for (i, step) in stream.steps.iter().enumerate() {
            let looked_at = moves_tail(&step.op) || rng.random_ratio(1, 50);
            let before = if looked_at { state(&served) } else { State::default() };
            plain.apply(&step.op);
            send(&mut served, &step.op);
            if looked_at {
                judge(&served, &plain, i, &before, &mut rng, seen);
            }
            if rng.random_ratio(1, pressed) {
                let before = state(&served);
                served.disk().make_room().unwrap();
                judge(&served, &plain, i, &before, &mut rng, seen);
            }
        }
    }
}

#[test]
fn a_release_that_is_cut_short_loses_nothing() {
    // Of what was evicted nothing is left to give up: memory is short in one of them only.
    let mut seen = Seen::default();
    walk(wait_for_home, 1, 8 << 20, 60, &mut seen);
    walk(wait_for_home, 3, 8 << 20, u32::MAX, &mut seen);
    println!(
        "{} releases, {} evictions, {} of what was at home, {} states between; {} of another order caught",
        seen.releases, seen.evictions, seen.left, seen.states, seen.caught
    );
    assert!(seen.releases > 20, "{} releases only", seen.releases);
    assert!(seen.caught > 0, "a tail that moves last would not have been noticed");
}

#[test]
fn nor_does_one_of_what_went_home_at_its_commit() {
    let mut seen = Seen::default();
    walk(at_commit, 2, 1 << 20, 24, &mut seen);
    println!(
        "{} releases, {} evictions, {} of what was at home, {} states between; {} of another order caught",
        seen.releases, seen.evictions, seen.left, seen.states, seen.caught
    );
    assert!(seen.releases > 5, "{} releases only", seen.releases);
    assert!(seen.left > 0, "nothing was served from home");
}
