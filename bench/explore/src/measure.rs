//! One way of checking, on its states, in parallel.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Instant;

use afterimage_explore::check::fsck::Fsck;
use afterimage_explore::check::mount_per_state::MountPerState;
use afterimage_explore::check::pool::{Pool, PoolCheck, PoolOptions};
use afterimage_explore::check::{Checker, Observation};
use afterimage_explore::state::Scratch;
use afterimage_explore::{ExploreError, Result};
use afterimage_report::{or_dash, Spread, Table};
use serde::{Deserialize, Serialize};

use crate::states::States;

/// How states are checked.
enum Kind {
    Log,
    Checker(Box<dyn Fn() -> Result<Box<dyn Checker>> + Sync>),
}

/// A way and its states.
pub struct Way<'a> {
    /// What it is called.
    pub name: &'static str,
    /// States a second that the project wants; `None`: no target.
    target: Option<f64>,
    states: &'a States,
    count: usize,
    kind: Kind,
}

/// What was measured.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    name: String,
    states: usize,
    target: Option<f64>,
    /// States a second, round by round.
    pub rates: Vec<f64>,
}

impl Measured {
    /// Nothing yet.
    pub fn new(way: &Way<'_>) -> Self {
        Self { name: way.name.to_owned(), states: way.count, target: way.target, rates: Vec::new() }
    }
}

impl<'a> Way<'a> {
    /// The daemon's own recovery, and the comparison with all prefixes.
    pub fn log(states: &'a States) -> Self {
        let count = states.states.len();
        Self { name: "log recovery", target: Some(20_000.0), states, count, kind: Kind::Log }
    }

    /// e2fsck, twice for each state.
    pub fn fsck(states: &'a States) -> Self {
        let make = || Fsck::new().map(|fsck| Box::new(fsck) as Box<dyn Checker>);
        let count = states.states.len();
        Self { name: "e2fsck", target: Some(200.0), states, count, kind: Kind::Checker(Box::new(make)) }
    }

    /// Mounts in long-lived guests, with the application's check, each state looked at.
    pub fn pool(states: &'a States, count: usize, jobs: usize) -> Self {
        let options = PoolOptions {
            guests: jobs,
            memo: false,
            ..PoolOptions::new(PoolCheck::Records("/mnt/records".to_owned()))
        };
        let pool = Pool::new(options);
        let make = move || Ok(Box::new(pool.checker()) as Box<dyn Checker>);
        let count = count.min(states.states.len());
        Self { name: "mount in the pool", target: None, states, count, kind: Kind::Checker(Box::new(make)) }
    }

    /// The peers' way: an image file, a loop device and a mount for each state.
    pub fn peer(states: &'a States, count: usize) -> Self {
        let make = || MountPerState::new("").map(|peer| Box::new(peer) as Box<dyn Checker>);
        let count = count.min(states.states.len());
        Self {
            name: "a mount per state (peers)",
            target: None,
            states,
            count,
            kind: Kind::Checker(Box::new(make)),
        }
    }

    /// One round: states a second. What a state costs before it can be checked (a guest's boot, the file of a worker) is
    /// spent on a first state that is not counted.
    pub fn run(&self, jobs: usize) -> Result<f64> {
        let next = AtomicUsize::new(0);
        let ready = std::sync::Barrier::new(jobs + 1);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs)
                .map(|_| {
                    let (next, ready) = (&next, &ready);
                    scope.spawn(move || self.work(next, ready))
                })
                .collect();
            ready.wait();
            let start = Instant::now();
            for worker in workers {
                match worker.join() {
                    Ok(result) => result?,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok(self.count as f64 / start.elapsed().as_secs_f64())
        })
    }

    fn work(&self, next: &AtomicUsize, ready: &std::sync::Barrier) -> Result<()> {
        let checker = match &self.kind {
            Kind::Log => Ok(None),
            Kind::Checker(make) => make().map(Some),
        };
        let first = checker.and_then(|mut checker| {
            self.check(0, checker.as_mut())?;
            Ok(checker)
        });
        // Also after a failure, or the others would wait for ever.
        ready.wait();
        let mut checker = first?;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= self.count {
                return Ok(());
            }
            self.check(index, checker.as_mut())?;
        }
    }

    fn check(&self, index: usize, checker: Option<&mut Box<dyn Checker>>) -> Result<()> {
        let subject = &self.states.subject;
        let item = &self.states.states[index];
        let images = subject.cuts[item.cut].state_at(&subject.stream, &item.choice, item.crash.crash);
        let broken = match (checker, &subject.own) {
            (Some(checker), _) => {
                let disks: Vec<_> = images.into_iter().map(|image| Arc::new(Scratch::new(image))).collect();
                match checker.check(&disks)? {
                    Observation::Inconsistent { what, .. } => Some(what),
                    _ => None,
                }
            }
            (None, Some(own)) => own.recover(images).err(),
            (None, None) => None,
        };
        match broken {
            Some(what) => Err(ExploreError::Checker(format!("{}, state {index}: {what}", self.name))),
            None => Ok(()),
        }
    }
}

/// The table.
pub fn table(measured: &[Measured]) -> String {
    let mut table =
        Table::new(["way", "states a second (spread)", "over a mount per state (spread)", "target"]);
    let peer = measured.last().map_or(&[][..], |way| &way.rates);
    for way in measured {
        let ratio = Spread::of_pairs(&way.rates, peer, |ours, peer| ours / peer);
        table.row([
            format!("{}, {} distinct states", way.name, way.states),
            or_dash(Spread::of(way.rates.iter().copied()), |rate| rate.show(|r| format!("{r:.0}"))),
            or_dash(ratio, |ratio| ratio.show(|r| format!("{r:.1}"))),
            or_dash(way.target, |target| format!("{target:.0}")),
        ]);
    }
    table.markdown()
}
