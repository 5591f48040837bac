//! The rules against a naive history: random commands, requests, flushes and time, in every order.

use std::collections::BTreeMap;
use std::time::Duration;

use afterimage_block::{SequenceNumber, Token};
use afterimage_control_disk::desk::{Desk, Place, Reached, Verdict};
use afterimage_control_disk::flights::Flights;
use afterimage_format::control_disk::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const INSTANCE: u64 = 5;

/// What really happened, without any rule.
struct World {
    now: Duration,
    acknowledged: u64,
    durable: u64,
    failure: bool,
    /// What had completed when the flush that is under way began.
    flushing: Option<u64>,
}

impl World {
    fn reached(&self) -> Reached {
        Reached {
            acknowledged: SequenceNumber(self.acknowledged),
            durable: SequenceNumber(self.durable),
            failure: self.failure.then(|| "broken".into()),
        }
    }
}

/// A command as it was asked.
struct Asked {
    command: Command,
    /// What had completed then.
    acknowledged: u64,
    at: Duration,
}

/// What is wrong with an answer, judged by the history alone.
fn judge(world: &World, in_order: bool, asked: &Asked, verdict: &Verdict) -> Result<(), String> {
    let operation = asked.command.operation.get();
    let waits = operation == OPERATION_WAIT;
    let (instance, point) = (asked.command.instance.get(), asked.command.sequence.get());
    let limit = Duration::from_millis(asked.command.timeout_ms.get().into());
    let promised = match verdict.status {
        STATUS_FAILED if world.failure => return Ok(()),
        STATUS_NOT_YET if waits && in_order && world.now >= asked.at + limit => return Ok(()),
        STATUS_DONE => verdict.sequence.0,
        status => return Err(format!("status {status} of operation {operation}")),
    };
    // What the point of the answer has to cover, and whether it has to be durable by now.
    let covers = match (waits, instance) {
        (true, INSTANCE) if in_order => point,
        _ => asked.acknowledged,
    };
    if promised < covers {
        return Err(format!("operation {operation}: {promised} does not cover {covers}"));
    }
    let is_durable = world.durable >= covers;
    if !(is_durable || in_order && operation == OPERATION_VORDER) {
        return Err(format!("operation {operation}: {covers} is not durable, {} is", world.durable));
    }
    Ok(())
}

/// `early`: a flush that begins before it should, as a canary.
fn play(seed: u64, in_order: bool, early: bool) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut world =
        World { now: Duration::ZERO, acknowledged: 0, durable: 0, failure: false, flushing: None };
    let (mut desk, mut flights) = (Desk::new(in_order, INSTANCE), Flights::default());
    let mut open: BTreeMap<u64, Asked> = BTreeMap::new();
    let (mut token, mut before) = (0, 0);
    for step in 0..400 {
        let drains = step >= 300;
        match rng.random_range(0..if drains { 6 } else { 12 }) {
            0 => world.now += Duration::from_millis(rng.random_range(0..300)),
            1 if in_order => world.durable = rng.random_range(world.durable..=world.acknowledged),
            2 | 3 if world.flushing.is_none() && flights.begin() => {
                world.flushing = Some(if early { before } else { world.acknowledged });
            }
            4 | 5 => {
                if let Some(covers) = world.flushing.take() {
                    if world.failure {
                        flights.end(Err("broken".into()));
                    } else {
                        world.durable = world.durable.max(covers);
                        flights.end(Ok(SequenceNumber(covers)));
                    }
                }
            }
            6 if seed % 4 == 0 && rng.random_bool(0.02) => world.failure = true,
            6..=8 => {
                before = world.acknowledged;
                world.acknowledged += rng.random_range(1..5);
            }
            9.. => {
                let mut command = Command::new(rng.random_range(1..=3), token);
                if command.operation.get() == OPERATION_WAIT {
                    command.timeout_ms = rng.random_range(0..=WAIT_MS_MAX).into();
                    command.instance = [0, INSTANCE, 7][rng.random_range(0..3)].into();
                    if command.instance.get() != 0 {
                        command.sequence = rng.random_range(0..=world.acknowledged).into();
                    }
                }
                let asked = Asked { command, acknowledged: world.acknowledged, at: world.now };
                let place = Place { token: Token(token), slot: 1 };
                match desk.ask(world.now, place, command, &world.reached(), &mut flights) {
                    Some(verdict) => judge(&world, in_order, &asked, &verdict)?,
                    None => drop(open.insert(token, asked)),
                }
                token += 1;
            }
            _ => {}
        }
        let mut verdicts = Vec::new();
        desk.answer(world.now, &world.reached(), &flights, |place, command, verdict| {
            verdicts.push((place.token.0, command, verdict));
        });
        for (token, command, verdict) in verdicts {
            let asked = open.remove(&token).ok_or("answered twice, or never asked")?;
            assert_eq!(asked.command, command);
            judge(&world, in_order, &asked, &verdict)?;
        }
        assert_eq!(desk.pending(), open.len());
        assert!(desk.deadline().is_none_or(|until| until > world.now), "somebody's time was over");
    }
    match open.is_empty() {
        true => Ok(()),
        false => Err(format!("{} were never answered", open.len())),
    }
}

#[test]
fn answers_are_true_in_every_history() {
    for seed in 0..4000 {
        for in_order in [false, true] {
            play(seed, in_order, false).unwrap_or_else(|why| panic!("seed {seed}, {in_order}: {why}"));
        }
    }
}

/// The oracle can fail: a flush that began before the command came is noticed.
#[test]
fn a_flush_that_covers_too_little_is_noticed() {
    for in_order in [false, true] {
        assert!((0..100).any(|seed| play(seed, in_order, true).is_err()));
    }
}
