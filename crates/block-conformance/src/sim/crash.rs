//! Which contents a power cut may leave.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::content::Content;
use super::content::PAGE_BYTES;
use super::world::{Effect, State, SECTOR_BYTES};
use super::SimWorld;

/// A device's smallest atomic unit when sectors tear.
const TEAR_BYTES: usize = 8;

/// How a seeded crash state is chosen.
#[derive(Clone, Copy, Debug)]
pub struct CrashOptions {
    /// Sectors may be torn.
    pub torn: bool,
}

impl SimWorld {
    /// A new world that holds one state that a power cut after the first `cut` operations may leave; which, the
    /// generator decides. Each medium draws how much of its unsynced content survives, nothing and everything included.
    pub fn crash(&self, cut: usize, options: CrashOptions, rng: &mut ChaCha8Rng) -> SimWorld {
        let state = self.state();
        let mut contents = Vec::with_capacity(state.base.len());
        for medium in 0..state.base.len() {
            let (mut content, unsynced) = durable(&state, medium, cut);
            let keep_percent: u32 = *[0, 10, 50, 90, 100, 100].get(rng.random_range(0..6)).unwrap_or(&50);
            // Of each write either all, nothing, or a random part: whole survivors and holes between them matter most.
            let fate: Vec<Option<bool>> = unsynced
                .iter()
                .map(|_| (rng.random_range(0..3) == 0).then(|| rng.random_range(0..100) < keep_percent))
                .collect();
            for (sector, versions) in versions(&unsynced) {
                let keep = |i: &usize, rng: &mut ChaCha8Rng| {
                    fate[*i].unwrap_or_else(|| rng.random_range(0..100) < keep_percent)
                };
                let Some(newest) = versions.iter().rposition(|i| keep(i, rng)) else { continue };
                for (n, i) in versions[..=newest].iter().enumerate() {
                    let tear = n == newest && options.torn && rng.random_range(0..16) == 0;
                    if tear && rng.random_range(0..2) == 0 {
                        let start = sector * SECTOR_BYTES;
                        let end = (start + SECTOR_BYTES).min(content.len());
                        let noise: Vec<u8> = (start..end).map(|_| rng.random()).collect();
                        content.write(start, &noise);
                        continue;
                    }
                    let units = SECTOR_BYTES / TEAR_BYTES;
                    let part = if tear { rng.random_range(1..units) * TEAR_BYTES } else { SECTOR_BYTES };
                    unsynced[*i].apply(&mut content, sector, part);
                }
            }
            contents.push(content);
        }
        SimWorld::of(contents)
    }

    /// Every state that a cut after `cut` operations may leave, where there are at most `states_max`; torn sectors
    /// are left out. `None` where there are more: draw with [`SimWorld::crash`] instead.
    pub fn crash_states(&self, cut: usize, states_max: usize) -> Option<CrashStates> {
        let state = self.state();
        let mut base = Vec::new();
        let mut choices = Vec::new();
        let mut count = 1usize;
        for medium in 0..state.base.len() {
            let (content, unsynced) = durable(&state, medium, cut);
            base.push(content);
            for (sector, versions) in versions(&unsynced) {
                count = count.checked_mul(versions.len() + 1).filter(|n| *n <= states_max)?;
                let pieces = versions.iter().map(|i| unsynced[*i].clone()).collect();
                choices.push(Choice { medium, sector, pieces });
            }
        }
        Some(CrashStates { base, choices, next: 0, count })
    }
}

/// For each touched sector the writes that touched it, oldest first, as indices.
fn versions(unsynced: &[Piece]) -> BTreeMap<usize, Vec<usize>> {
    let mut versions: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, piece) in unsynced.iter().enumerate() {
        for sector in piece.sectors() {
            versions.entry(sector).or_default().push(i);
        }
    }
    versions
}

/// A sector that may be in as many states as there were writes to it, and one more.
struct Choice {
    medium: usize,
    sector: usize,
    pieces: Vec<Piece>,
}

/// Iterates over every state; see [`SimWorld::crash_states`]. Some may be equal.
pub struct CrashStates {
    base: Vec<Content>,
    choices: Vec<Choice>,
    next: usize,
    count: usize,
}

impl Iterator for CrashStates {
    type Item = SimWorld;

    fn next(&mut self) -> Option<SimWorld> {
        if self.next == self.count {
            return None;
        }
        let mut contents = self.base.clone();
        let mut rest = self.next;
        for choice in &self.choices {
            let newest = rest % (choice.pieces.len() + 1);
            rest /= choice.pieces.len() + 1;
            for piece in &choice.pieces[..newest] {
                piece.apply(&mut contents[choice.medium], choice.sector, SECTOR_BYTES);
            }
        }
        self.next += 1;
        Some(SimWorld::of(contents))
    }
}

/// One unsynced write or zeroing.
#[derive(Clone)]
struct Piece {
    offset: usize,
    len: usize,
    /// `None`: zeroes.
    data: Option<std::sync::Arc<[u8]>>,
}

impl Piece {
    /// The medium's sectors that it touches.
    fn sectors(&self) -> Range<usize> {
        self.offset / SECTOR_BYTES..(self.offset + self.len).div_ceil(SECTOR_BYTES)
    }

    /// What is left of it where those pages do not reach storage.
    fn without(&self, pages: &BTreeSet<usize>) -> Vec<Self> {
        let end = self.offset + self.len;
        let parts = (self.offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).filter(|page| !pages.contains(page));
        parts
            .map(|page| (self.offset.max(page * PAGE_BYTES), end.min((page + 1) * PAGE_BYTES)))
            .map(|(from, to)| Self {
                offset: from,
                len: to - from,
                data: self.data.as_ref().map(|data| data[from - self.offset..to - self.offset].into()),
            })
            .collect()
    }

    /// Applies what it does to one of them, up to `part` bytes of that sector.
    fn apply(&self, content: &mut Content, sector: usize, part: usize) {
        let start = sector * SECTOR_BYTES;
        let from = start.max(self.offset);
        let to = (start + part).min(self.offset + self.len);
        if from >= to {
            return;
        }
        match &self.data {
            Some(data) => content.write(from, &data[from - self.offset..to - self.offset]),
            None => content.zero(from, to - from),
        }
    }
}

/// The content as of the last completed sync before the cut, and what came after.
fn durable(state: &State, medium: usize, cut: usize) -> (Content, Vec<Piece>) {
    let mut content = state.base[medium].clone();
    let mut unsynced: Vec<Piece> = Vec::new();
    for op in state.trace.iter().take(cut).filter(|op| op.medium == medium) {
        match &op.effect {
            Effect::Write { offset, data } => {
                unsynced.push(Piece { offset: *offset, len: data.len(), data: Some(data.clone()) });
            }
            Effect::Zero { offset, len } => {
                unsynced.push(Piece { offset: *offset, len: *len, data: None });
            }
            Effect::Sync => {
                for piece in unsynced.drain(..) {
                    for sector in piece.sectors() {
                        piece.apply(&mut content, sector, SECTOR_BYTES);
                    }
                }
            }
            Effect::Lose { pages } => {
                unsynced = unsynced.iter().flat_map(|piece| piece.without(pages)).collect()
            }
        }
    }
    (content, unsynced)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;
    use afterimage_block::Medium;

    #[test]
    fn what_was_synced_stays_and_the_rest_is_any_subset() {
        let world = SimWorld::new(vec![vec![0; 2048], vec![0; 512]]);
        let (a, b) = (world.medium(0), world.medium(1));
        a.write_at(&[1; 512], 0).expect("write");
        a.sync().expect("sync");
        a.write_at(&[2; 1024], 512).expect("write");
        b.write_at(&[3; 512], 0).expect("write");
        b.sync().expect("sync");
        let states: Vec<_> = world.crash_states(world.ops(), 16).expect("few").map(|w| w.cached(0)).collect();
        assert_eq!(states.len(), 4, "two unsynced sectors");
        assert!(states.iter().all(|s| s[..512] == [1; 512]), "the synced sector stays");
        assert!(states.iter().any(|s| s[512] == 0 && s[1024] == 2), "a later sector without an earlier one");
        let before_sync = world.crash_states(1, 16).expect("few").map(|w| w.cached(0)[0]).collect::<Vec<_>>();
        assert_eq!(before_sync, [0, 1]);
        assert!(world.crash_states(3, 3).is_none(), "four states are more than three");
    }

    #[test]
    fn a_sync_covers_its_own_medium_only() {
        let world = SimWorld::new(vec![vec![0; 512], vec![0; 512]]);
        world.medium(0).write_at(&[1; 512], 0).expect("write");
        world.medium(1).sync().expect("sync");
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let lost = (0..64)
            .any(|_| world.crash(world.ops(), CrashOptions { torn: false }, &mut rng).cached(0) == [0; 512]);
        assert!(lost);
    }

    #[test]
    fn sectors_tear_when_asked_to() {
        let world = SimWorld::new(vec![vec![0; 512]]);
        world.medium(0).write_at(&[1; 512], 0).expect("write");
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let torn = |content: Vec<u8>| content.contains(&0) && content.contains(&1);
        assert!((0..999).any(|_| torn(world.crash(1, CrashOptions { torn: true }, &mut rng).cached(0))));
        assert!(!(0..999).any(|_| torn(world.crash(1, CrashOptions { torn: false }, &mut rng).cached(0))));
    }

    #[test]
    fn a_dead_process_does_nothing_more() {
        let world = SimWorld::new(vec![vec![0; 8192]]);
        let medium = world.medium(0);
        world.halt_after(1);
        assert!(medium.write_at(&[1; 8192], 0).is_err());
        assert!(medium.sync().is_err() && world.halted());
        let kept = world.cached(0).iter().filter(|b| **b == 1).count();
        assert!(kept % 4096 == 0 && kept < 8192 + 1);
        world.revive();
        medium.sync().expect("a new process");
    }

    #[test]
    fn what_a_failed_sync_has_lost_is_in_the_cache_only() {
        let world = SimWorld::new(vec![vec![0; 5 * 4096]]);
        let medium = world.medium(0);
        medium.write_at(&[1; 5 * 4096], 0).expect("write");
        world.fail(0, crate::sim::Fault::Sync, 0, std::io::ErrorKind::Other);
        assert!(medium.sync().is_err());
        medium.sync().expect("the error was told");
        let stored = |world: &SimWorld| world.crash_states(world.ops(), 1).expect("all is synced").next();
        let state = stored(&world).expect("one").cached(0);
        assert_eq!(world.cached(0), [1; 5 * 4096], "the cache shows all");
        let kept: Vec<u8> = state.chunks(4096).map(|page| page[0]).collect();
        assert!(kept.contains(&0) && kept.contains(&1), "and storage has some of it: {kept:?}");
        // One sector makes its whole page dirty again.
        let lost = kept.iter().position(|byte| *byte == 0).expect("some") as u64;
        medium.write_at(&[2; 512], lost * 4096).expect("write");
        medium.sync().expect("healthy");
        let state = stored(&world).expect("one").cached(0);
        assert_eq!((state[lost as usize * 4096], state[lost as usize * 4096 + 512]), (2, 1));
        medium.settle().expect("healthy");
        assert_eq!(stored(&world).expect("one").cached(0), world.cached(0));
        let ops = world.ops();
        medium.settle().expect("healthy");
        assert_eq!(world.ops(), ops, "nothing is looked at");
    }

    #[test]
    fn faults_hit_once() {
        let world = SimWorld::new(vec![vec![0; 512]]);
        world.fail(0, crate::sim::Fault::Sync, 1, std::io::ErrorKind::Other);
        let medium = world.medium(0);
        medium.sync().expect("skipped");
        assert!(medium.sync().is_err());
        medium.sync().expect("once");
    }
}
