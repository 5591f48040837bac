//! A failing run made small: steps are left out as long as it still fails (delta debugging, Zeller and Hildebrandt 2002).

use std::fmt::Write as _;

use crate::plan::{Config, Op, Step};
use crate::run::{run, Place};

/// As many operations of storage as a step makes, roughly.
const OPERATIONS_EARLIER_MAX: u8 = 12;

/// A run that breaks a promise.
pub struct Failure {
    pub config: Config,
    pub steps: Vec<Step>,
    pub what: String,
}

/// Leaves out of a failing run what is not needed for it, and makes its numbers smaller.
pub fn shrink(place: &Place, mut failure: Failure) -> Failure {
    let attempt = |steps: Vec<Step>, failure: &mut Failure| match run(place, failure.config, &steps, false) {
        Ok(_) => false,
        Err(what) => {
            (failure.steps, failure.what) = (steps, what);
            true
        }
    };
    loop {
        let before = failure.steps.clone();
        let mut size = failure.steps.len().next_power_of_two() / 2;
        while size > 0 {
            let mut at = 0;
            while at < failure.steps.len() {
                let mut steps = failure.steps.clone();
                steps.drain(at..(at + size).min(steps.len()));
                // What is left out takes operations of storage with it: the death comes as many earlier.
                let earlier = if size == 1 { earlier(&steps) } else { Vec::new() };
                if ![steps].into_iter().chain(earlier).any(|steps| attempt(steps, &mut failure)) {
                    at += size;
                }
            }
            size /= 2;
        }
        for at in 0..failure.steps.len() {
            for smaller in smaller(failure.steps[at]) {
                let mut steps = failure.steps.clone();
                steps[at] = smaller;
                attempt(steps, &mut failure);
            }
        }
        if failure.steps == before {
            return failure;
        }
    }
}

/// The same steps with each death within storage's operations up to so many operations earlier.
fn earlier(steps: &[Step]) -> Vec<Vec<Step>> {
    let with = |at: usize, op: Op| {
        let mut steps = steps.to_vec();
        steps[at].op = op;
        steps
    };
    let deaths = steps.iter().enumerate().flat_map(|(at, step)| {
        (1..=OPERATIONS_EARLIER_MAX).filter_map(move |by| match step.op {
            Op::KillAfter(n) => Some((at, Op::KillAfter(n.checked_sub(by)?))),
            Op::KillTwice(n) => Some((at, Op::KillTwice(n.checked_sub(by)?))),
            Op::CutAfter(n) => Some((at, Op::CutAfter(n.checked_sub(by)?))),
            _ => None,
        })
    });
    deaths.map(|(at, op)| with(at, op)).collect()
}

fn smaller(step: Step) -> Vec<Step> {
    let with = |op| Step { op, ..step };
    match step.op {
        Op::Turns(count) => (0..count).map(|count| with(Op::Turns(count))).take(4).collect(),
        Op::KillAfter(_) | Op::KillTwice(_) => vec![with(Op::Kill)],
        Op::CutAfter(_) => vec![with(Op::Cut)],
        _ => Vec::new(),
    }
}

impl Failure {
    /// For a person: what to run again, what broke, and by which steps.
    pub fn report(&self, place: &Place) -> String {
        let Config { seed, mutation, .. } = self.config;
        let mut text = format!("AFTERIMAGE_SEED={seed}: {}\n{:?}\n", self.what, self.config);
        for Step { op, seed } in &self.steps {
            let _ = writeln!(text, "    Step {{ op: Op::{op:?}, seed: {seed} }},");
        }
        if mutation.is_none() {
            if let Err(trace) = run(place, self.config, &self.steps, true) {
                let _ = writeln!(text, "{trace}");
            }
        }
        text
    }
}
