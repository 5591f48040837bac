//! Progress on stderr: one line that is written over on a terminal, one line every ten seconds elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use afterimage_explore::campaign::Progress;
use afterimage_explore::report::grouped;

/// See the module.
pub struct Line {
    budget: Option<Duration>,
    states: Option<u64>,
    terminal: bool,
    begin: Instant,
    last: Instant,
    shown: bool,
}

impl Line {
    /// With what ends the campaign.
    pub fn new(budget: Option<Duration>, states: Option<u64>) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let now = Instant::now();
        Self { budget, states, terminal, begin: now, last: now, shown: false }
    }

    /// Shows it, if it is time. `done` states are counted by what ends the campaign.
    pub fn show(&mut self, progress: &Progress, done: u64) {
        let pause = if self.terminal { Duration::from_millis(400) } else { Duration::from_secs(10) };
        if self.last.elapsed() < pause {
            return;
        }
        self.last = Instant::now();
        self.shown = true;
        let seconds = progress.elapsed.as_secs_f64();
        let rate = if seconds > 0.0 { progress.tally.states() as f64 / seconds } else { 0.0 };
        let mut text = format!(
            "explore: {} states, {rate:.0}/s, {} broken",
            grouped(progress.tally.states()),
            grouped(progress.tally.different_violations())
        );
        if let Some(states) = self.states {
            text.push_str(&format!(", {} to go", grouped(states.saturating_sub(done))));
        }
        if let Some(budget) = self.budget {
            // Not the campaign's time: one that is resumed has a budget of its own.
            let left = budget.saturating_sub(self.begin.elapsed());
            text.push_str(&format!(", {:.0} s left", left.as_secs_f64()));
        }
        // Nobody may be reading any more: not worth an error.
        let _ = if self.terminal {
            write!(std::io::stderr(), "\r{text}\x1b[K")
        } else {
            writeln!(std::io::stderr(), "{text}")
        };
    }

    /// Leaves the line behind.
    pub fn end(&mut self) {
        if self.terminal && self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
