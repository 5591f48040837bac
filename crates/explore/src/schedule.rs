//! In which order states are looked at: a function of stream, cuts, seed and number, so that a campaign can be
//! repeated, shared between workers and taken up again.
//!
//! Work comes in rounds: in the first each cut's two plainest states. Each later round visits every cut that has states left, in an order drawn from the seed, and takes a batch
//! from it: cuts around commits, superblocks, log headers and wraps give more. So a budget that ends early has been
//! spread over the whole history.

use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::enumerate::Enumeration;
use crate::hash::mix;
use crate::judge::Expectation;
use crate::model::{Choice, Cut};
use crate::stream::Stream;

/// States of each cut in the first round: everything lost, nothing lost.
const FIRST: u64 = 2;
/// States of a cut of weight 1 in each later round.
const BATCH: u64 = 8;

/// The number of a cut's first state in a round.
fn first(round: u64, weight: u32) -> u64 {
    match round {
        0 => 0,
        _ => FIRST + (round - 1) * BATCH * u64::from(weight),
    }
}

/// How states are picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Picking {
    /// In rounds over all cuts.
    Rounds,
    /// As crashes happen: at moments drawn evenly from the run, one state each (vDrive § 6.3's crash points).
    Moments,
}

/// One state to look at.
#[derive(Clone, Debug)]
pub struct Item {
    /// Index of the cut.
    pub cut: usize,
    /// What is lost.
    pub choice: Choice,
    /// What is known of the crash.
    pub crash: Expectation,
}

/// See the module.
pub struct Schedule<'a> {
    stream: &'a Stream,
    cuts: &'a [Cut],
    states: Vec<Enumeration<'a>>,
    picking: Picking,
    seed: u64,
    next: u64,
    round: u64,
    /// The rest of this round: cut and number.
    batch: Vec<(usize, u64)>,
    /// Cuts that have states left.
    live: Vec<usize>,
}

impl<'a> Schedule<'a> {
    /// From the beginning.
    pub fn new(stream: &'a Stream, cuts: &'a [Cut], picking: Picking, seed: u64) -> Self {
        let states = cuts.iter().map(|cut| Enumeration::new(stream, cut, seed)).collect();
        let live = (0..cuts.len()).collect();
        Self { stream, cuts, states, picking, seed, next: 0, round: 0, batch: Vec::new(), live }
    }

    /// How many states there are, where all of them are few enough to be looked at.
    pub fn all_states(&self) -> Option<u64> {
        match self.picking {
            Picking::Rounds => self.states.iter().map(Enumeration::count).sum(),
            Picking::Moments => None,
        }
    }

    /// Leaves out the next `n` states: they were looked at before.
    pub fn leave_out(&mut self, n: u64) {
        for _ in 0..n {
            if self.next().is_none() {
                break;
            }
        }
    }

    fn next_in_rounds(&mut self) -> Option<Item> {
        loop {
            while let Some((cut, n)) = self.batch.pop() {
                if let Some(choice) = self.states[cut].choice(n) {
                    let crash = Expectation::at(self.stream, &self.cuts[cut], &choice, self.cuts[cut].event);
                    return Some(Item { cut, choice, crash });
                }
            }
            let round = self.round;
            self.round += 1;
            let first = |round: u64, cut: usize| first(round, self.cuts[cut].weight);
            self.live.retain(|cut| self.states[*cut].count().is_none_or(|count| first(round, *cut) < count));
            if self.live.is_empty() {
                return None;
            }
            let mut order = self.live.clone();
            order.shuffle(&mut ChaCha8Rng::seed_from_u64(mix(self.seed ^ mix(round))));
            for cut in order {
                let (from, to) = (first(round, cut), first(round + 1, cut));
                let to = self.states[cut].count().map_or(to, |all| all.min(to));
                self.batch.extend((from..to).map(|n| (cut, n)));
            }
            // Taken from the end.
            self.batch.reverse();
        }
    }

    fn next_moment(&mut self) -> Option<Item> {
        let mut rng = ChaCha8Rng::seed_from_u64(mix(self.seed ^ mix(self.next) ^ 0x6d6f_6d65_6e74));
        let last = self.cuts.last()?.event;
        let moment = rng.random_range(self.stream.at_ns(self.stream.begin)..=self.stream.at_ns(last));
        let event =
            self.stream.times_ns.partition_point(|at| *at < moment).clamp(self.stream.begin + 1, last);
        let cut = self.cuts.partition_point(|cut| cut.event < event);
        // Numbers far out are draws, also where a cut begins with what hurts.
        let n = rng.random_range(1 << 20..1 << 40);
        let n = self.states[cut].count().map_or(n, |count| n % count.max(1));
        let mut choice = self.states[cut].choice(n)?;
        // What comes later is not there anyhow: see `Cut::state_at`.
        choice.lost.retain(|lost| self.stream.writes[lost.write].submitted < event);
        let crash = Expectation::at(self.stream, &self.cuts[cut], &choice, event);
        Some(Item { cut, choice, crash })
    }
}

impl Iterator for Schedule<'_> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        let item = match self.picking {
            Picking::Rounds => self.next_in_rounds(),
            Picking::Moments => self.next_moment(),
        };
        self.next += 1;
        item
    }
}
