//! What a person sees while the demo runs: one line a step on standard error, with the time since the start.
//! Whole lines only, so that a log file reads like a terminal.

use std::io::Write;
use std::time::{Duration, Instant};

/// Says what is going on.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    total: usize,
    done: usize,
}

impl Progress {
    /// Starts the clock; `total` scenarios are planned.
    pub fn new(total: usize) -> Progress {
        Progress { start: Instant::now(), total, done: 0 }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The next scenario begins.
    pub fn scenario(&mut self, title: &str) {
        self.done += 1;
        self.line(&format!("({}/{}) {title}", self.done, self.total));
    }

    /// Something was done within a scenario.
    pub fn step(&self, text: &str) {
        self.line(&format!("        {text}"));
    }

    fn line(&self, text: &str) {
        let seconds = self.start.elapsed().as_secs_f64();
        // A reader that went away does not change what was asked for.
        let _ = writeln!(std::io::stderr().lock(), "[{seconds:6.1} s] {text}");
    }
}
