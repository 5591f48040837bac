//! A failing run made small: steps are left out as long as it still fails (delta debugging, Zeller and Hildebrandt 2002).

use std::fmt::Write as _;

use crate::run::{run, Config, Op, Place, Step};

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
                if !attempt(steps, &mut failure) {
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
