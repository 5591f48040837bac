//! Which of a cut's states are looked at, and in which order.
//!
//! Few enough: all of them. Otherwise first what is known to hurt (everything lost, nothing lost, every subset of the
//! few, each write alone lost or alone kept), then draws from a seed. Drawing the same state twice costs little: equal
//! bytes are pruned.

use std::collections::BTreeMap;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::hash::mix;
use crate::model::{Choice, Cut, LostWrite};
use crate::stream::{Stream, Write};

/// Up to this many states of a cut are all looked at.
const ALL_STATES_MAX: u64 = 1 << 10;
/// Up to this many volatile writes: every subset of whole writes.
const ALL_SUBSETS_WRITES_MAX: usize = 8;
/// With more of them, at most this many are lost alone and kept alone, the interesting ones first.
const ALONE_MAX: usize = 64;

/// The order of one cut's states.
#[derive(Debug)]
pub struct Enumeration<'a> {
    stream: &'a Stream,
    cut: &'a Cut,
    seed: u64,
    plan: Plan,
}

#[derive(Debug)]
enum Plan {
    /// Every sector in every version: the touched sectors with the volatile writes to each, oldest first.
    All { sectors: Vec<Vec<(usize, u32)>>, count: u64 },
    /// Subsets of whole writes, then draws.
    Subsets { count: u64 },
    /// These writes alone (positions in the cut's volatile writes), then draws.
    Alone { writes: Vec<usize> },
}

impl<'a> Enumeration<'a> {
    /// Prepares a cut.
    pub fn new(stream: &'a Stream, cut: &'a Cut, seed: u64) -> Self {
        let seed = mix(seed ^ mix(cut.event as u64));
        Self { stream, cut, seed, plan: plan(stream, cut) }
    }

    /// How many states the cut has, where they are few enough to look at all.
    pub fn count(&self) -> Option<u64> {
        match &self.plan {
            Plan::All { count, .. } => Some(*count),
            _ => None,
        }
    }

    /// The state of that number; `None`: there are no more.
    pub fn choice(&self, n: u64) -> Option<Choice> {
        match &self.plan {
            Plan::All { sectors, count } => {
                (n < *count).then(|| self.version(sectors, plain_first(n, *count)))
            }
            Plan::Subsets { count } if n < *count => Some(self.subset(plain_first(n, *count))),
            // Both halves of the time: what hurts alone, and draws.
            Plan::Alone { .. } if n < 2 => Some(self.all_or_nothing(n == 0)),
            Plan::Alone { writes } if n < 4 * writes.len() as u64 + 4 && n % 2 == 0 => {
                Some(self.alone(writes, n / 2 - 1))
            }
            _ => Some(self.draw(n)),
        }
    }

    fn whole(&self, position: usize) -> LostWrite {
        LostWrite { write: self.cut.volatile[position].write, sectors: None }
    }

    fn version(&self, sectors: &[Vec<(usize, u32)>], mut n: u64) -> Choice {
        let mut lost: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for versions in sectors {
            let kept = (n % (versions.len() as u64 + 1)) as usize;
            n /= versions.len() as u64 + 1;
            for (position, sector) in &versions[kept..] {
                lost.entry(*position).or_default().push(*sector);
            }
        }
        Choice { lost: lost.into_iter().map(|(position, sectors)| self.part(position, sectors)).collect() }
    }

    fn part(&self, position: usize, mut sectors: Vec<u32>) -> LostWrite {
        let write = self.cut.volatile[position].write;
        self.keep_units_whole(write, &mut sectors);
        sectors.sort_unstable();
        if sectors.len() == self.stream.writes[write].sectors.len() {
            return LostWrite { write, sectors: None };
        }
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for sector in sectors {
            match ranges.last_mut() {
                Some((_, to)) if *to == sector => *to += 1,
                _ => ranges.push((sector, sector + 1)),
            }
        }
        LostWrite { write, sectors: Some(ranges) }
    }

    /// Where a sector is lost, all of its write in the same unit is, too.
    fn keep_units_whole(&self, write: usize, lost: &mut Vec<u32>) {
        let (found, unit) = (&self.stream.writes[write], self.stream.atomic_sectors);
        if unit <= 1 && !found.whole {
            return;
        }
        let unit_of = found.unit_of(unit);
        let units: Vec<u64> = lost.iter().map(|sector| unit_of(*sector)).collect();
        *lost = found.places().filter(|sector| units.contains(&unit_of(*sector))).collect();
    }

    /// Bit i of `n`: the i-th volatile write is lost.
    fn subset(&self, n: u64) -> Choice {
        let positions = (0..self.cut.volatile.len()).filter(|i| n >> i & 1 == 1);
        Choice { lost: positions.map(|i| self.whole(i)).collect() }
    }

    fn alone(&self, writes: &[usize], n: u64) -> Choice {
        let position = writes[(n / 2) as usize % writes.len()];
        if n % 2 == 0 {
            Choice { lost: vec![self.whole(position)] }
        } else {
            let others = (0..self.cut.volatile.len()).filter(|i| *i != position);
            Choice { lost: others.map(|i| self.whole(i)).collect() }
        }
    }

    fn all_or_nothing(&self, all: bool) -> Choice {
        let lost = if all { 0..self.cut.volatile.len() } else { 0..0 };
        Choice { lost: lost.map(|i| self.whole(i)).collect() }
    }

    fn draw(&self, n: u64) -> Choice {
        let mut rng = ChaCha8Rng::seed_from_u64(mix(self.seed ^ mix(n)));
        let count = self.cut.volatile.len();
        let lost_percent: u32 = [2, 10, 50, 90][rng.random_range(0..4)];
        let style = rng.random_range(0..6);
        let pivot = rng.random_range(0..count.max(1));
        let late = self.interesting(&mut rng).unwrap_or(pivot);
        let mut lost = Vec::new();
        for position in 0..count {
            let whole = match style {
                // Whole writes, in any order.
                0 => Some(rng.random_range(0..100) < lost_percent),
                // A prefix, and a few of what comes after it.
                1 => Some(position > pivot && rng.random_range(0..8) > 0),
                // A suffix: the late without the early.
                2 => Some(position < pivot && rng.random_range(0..8) > 0),
                // One that others must not be without is there, and some before it are not.
                3 => Some(position != late && (position > late || rng.random_range(0..100) < lost_percent)),
                // Some whole, some sector by sector.
                4 => (rng.random_range(0..3) > 0).then(|| rng.random_range(0..100) < lost_percent),
                // Everything sector by sector.
                _ => None,
            };
            match whole {
                Some(true) => lost.push(self.whole(position)),
                Some(false) => {}
                None => lost.extend(self.torn(position, lost_percent, &mut rng)),
            }
        }
        Choice { lost }
    }

    /// One of the interesting volatile writes.
    fn interesting(&self, rng: &mut ChaCha8Rng) -> Option<usize> {
        let found: Vec<usize> = interesting(self.stream, self.cut).collect();
        (!found.is_empty()).then(|| found[rng.random_range(0..found.len())])
    }

    fn torn(&self, position: usize, lost_percent: u32, rng: &mut ChaCha8Rng) -> Option<LostWrite> {
        let write = &self.stream.writes[self.cut.volatile[position].write];
        let sectors = write.sectors.len() as u32;
        let at = rng.random_range(0..=sectors) as usize;
        let lost: Vec<u32> = match rng.random_range(0..3) {
            0 => write.places().skip(at).collect(),
            1 => write.places().take(at).collect(),
            _ => write.places().filter(|_| rng.random_range(0..100) < lost_percent).collect(),
        };
        (!lost.is_empty()).then(|| self.part(position, lost))
    }
}

/// 0 and 1 for the two ends, everything lost and nothing lost: what they find, they find first.
fn plain_first(n: u64, count: u64) -> u64 {
    match n {
        1 => count - 1,
        n if n + 1 == count && n > 1 => 1,
        n => n,
    }
}

fn interesting<'a>(stream: &'a Stream, cut: &'a Cut) -> impl Iterator<Item = usize> + 'a {
    (0..cut.volatile.len()).filter(|i| stream.writes[cut.volatile[*i].write].tag.is_interesting())
}

/// Whether a write covers the whole of an atomic unit.
fn covers(write: &Write, at: u64, unit: u64) -> bool {
    unit == 1 || (write.first <= at * unit && write.first + write.count >= (at + 1) * unit)
}

fn plan(stream: &Stream, cut: &Cut) -> Plan {
    let mut sectors: BTreeMap<(usize, u64), Vec<(usize, u32)>> = BTreeMap::new();
    let unit = stream.atomic_sectors.max(1);
    let (mut count, mut partial) = (1u64, false);
    'count: for (position, volatile) in cut.volatile.iter().enumerate() {
        let write = &stream.writes[volatile.write];
        partial |= write.whole;
        for n in write.places().filter(|n| volatile.dead.binary_search(n).is_err()) {
            let at = (write.first + u64::from(n)) / unit;
            // Two writes to different parts of a unit: what is there of it is not one version of it.
            partial |= !covers(write, at, unit);
            let versions = sectors.entry((write.medium, at)).or_default();
            // The same write again: the unit has no version more.
            if versions.last().is_some_and(|(last, _)| *last == position) {
                continue;
            }
            // One version more: (v + 2) / (v + 1) times as many states.
            count = count / (versions.len() as u64 + 1) * (versions.len() as u64 + 2);
            versions.push((position, n));
            if count > ALL_STATES_MAX {
                break 'count;
            }
        }
    }
    if count <= ALL_STATES_MAX && !partial {
        return Plan::All { sectors: sectors.into_values().collect(), count };
    }
    if cut.volatile.len() <= ALL_SUBSETS_WRITES_MAX {
        return Plan::Subsets { count: 1 << cut.volatile.len() };
    }
    let mut writes: Vec<usize> = interesting(stream, cut).collect();
    // The newest first: they are what earlier ones must have been ordered before.
    writes.extend((0..cut.volatile.len()).rev().filter(|i| !writes.contains(i)).collect::<Vec<_>>());
    writes.truncate(ALONE_MAX);
    Plan::Alone { writes }
}
