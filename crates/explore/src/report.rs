//! What a campaign found, for people and for programs.

use std::fmt;
use std::path::PathBuf;

pub use afterimage_report::number::thousands as grouped;
use serde::{Deserialize, Serialize};

use crate::campaign::{Failure, Progress, FAILURES_MAX};
use crate::check::pool::PoolStats;
use crate::judge::{Class, Problem};
use crate::setup::Setup;

/// At most this many of the application's states are shown by name.
const STATES_SHOWN_MAX: usize = 8;

/// A fault of the guest's own, and how it shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// What it is.
    pub why: String,
    /// The check that finds it.
    pub check: String,
    /// How the check's sentence begins then.
    pub what: String,
}

impl Known {
    /// Whether this is what was found.
    pub fn is(&self, problem: &Problem) -> bool {
        problem.above_the_daemon && problem.check == self.check && problem.what.starts_with(&self.what)
    }
}

/// One campaign.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What it is called.
    pub name: String,
    /// How it was explored.
    pub setup: Setup,
    /// Crash points: moments before which something becomes durable.
    pub cuts: usize,
    /// All states there are, where they are few enough to look at each.
    pub all_states: Option<u64>,
    /// Workers.
    pub jobs: usize,
    /// What was counted.
    pub progress: Progress,
    /// What the guests have done in this run, where states were mounted.
    #[serde(default)]
    pub guests: Option<PoolStats>,
    /// A fault of the guest's own that is known to show here; only in suites.
    #[serde(default)]
    pub known: Option<Known>,
    /// Where the first failure was saved.
    pub saved: Option<PathBuf>,
    /// The first failure with the fewest lost requests.
    pub minimised: Option<Failure>,
}

impl Report {
    /// Whether every state was as promised, and there was one.
    pub fn holds(&self) -> bool {
        let tally = &self.progress.tally;
        tally.states() > 0 && tally.violations() == 0 && tally.not_judged == 0
    }

    /// Whether the daemon kept its promise: nothing broken, but for what is known of the guest and proved to be its own. With as many kinds
    /// of failures as are kept there may be others, which nobody knows.
    pub fn is_accepted(&self) -> bool {
        let tally = &self.progress.tally;
        let failures = &self.progress.failures;
        let is_known = |failure: &Failure| {
            let problem = failure.verdict.problem.as_ref();
            self.known.as_ref().zip(problem).is_some_and(|(known, problem)| known.is(problem))
        };
        self.holds()
            || tally.states() > 0
                && tally.violations_of_the_daemon() == 0
                && tally.not_judged == 0
                && failures.len() < FAILURES_MAX
                && failures.iter().all(is_known)
    }

    /// States a second.
    pub fn rate(&self) -> f64 {
        let seconds = self.progress.elapsed.as_secs_f64();
        if seconds > 0.0 {
            self.progress.tally.states() as f64 / seconds
        } else {
            0.0
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (setup, tally, work) = (&self.setup, &self.progress.tally, &self.progress.tally.work);
        writeln!(
            f,
            "{}: {}, {} layer, model {}, {} crash points",
            self.name,
            setup.contract,
            setup.layer_name(),
            setup.model.name(),
            grouped(self.cuts as u64)
        )?;
        let all = match (self.progress.exhausted, self.all_states) {
            (true, _) => ", all there are".to_owned(),
            (false, Some(all)) => format!(" of {}", grouped(all)),
            (false, None) => String::new(),
        };
        writeln!(
            f,
            "  {} crashes{all} in {:.1} s ({:.0}/s, {} workers, seed {}), which leave {} different states",
            grouped(tally.states()),
            self.progress.elapsed.as_secs_f64(),
            self.rate(),
            self.jobs,
            setup.seed,
            grouped(tally.different.values().sum())
        )?;
        let different = |class: Class| grouped(tally.different(class));
        write!(f, "  fresh {} · stale {}", different(Class::Fresh), different(Class::Stale))?;
        if tally.stale > 0 {
            write!(
                f,
                " (p50 {} ms, p99 {} ms, at most {:.1} ms)",
                tally.stale_ms_at(500),
                tally.stale_ms_at(990),
                tally.stale_ms_max
            )?;
        }
        write!(f, " · lost {} · inconsistent {}", different(Class::Lost), different(Class::Inconsistent))?;
        if tally.not_judged > 0 {
            write!(f, " · not judged {}", different(Class::NotJudged))?;
        }
        writeln!(f)?;
        if let Some(problem) = &self.progress.not_judged {
            writeln!(f, "  NOT JUDGED: {}: {}", problem.check, problem.what)?;
        }
        write!(f, "  pruned: {} crashes that leave equal bytes", grouped(work.equal_bytes))?;
        if work.recovered > 0 {
            write!(
                f,
                "; {} recovered by the daemon, {} of them to disks seen before",
                grouped(work.recovered),
                grouped(work.equal_disks)
            )?;
        }
        if work.checks > 0 {
            write!(
                f,
                "; {} went to the guest's recovery ({} checks)",
                grouped(work.checked),
                grouped(work.checks)
            )?;
        }
        if let Some(guests) = &self.guests {
            write!(
                f,
                "; {} of them agreed with an earlier one on all that was read, {} were mounted",
                grouped(guests.known),
                grouped(guests.looked)
            )?;
        }
        writeln!(f)?;
        if tally.states() == 0 {
            writeln!(
                f,
                "  no state was looked at to the end, which proves nothing: allow more with --budget"
            )?;
        }
        if !tally.by_state.is_empty() {
            let shown: Vec<String> = tally
                .by_state
                .iter()
                .take(STATES_SHOWN_MAX)
                .map(|(state, count)| format!("{state} {}", grouped(*count)))
                .collect();
            let more = tally.by_state.len().saturating_sub(STATES_SHOWN_MAX);
            let more = if more > 0 { format!(", {more} more") } else { String::new() };
            writeln!(f, "  the application's state: {}{more}", shown.join(", "))?;
        }
        for failure in &self.progress.failures {
            if let Some(problem) = &failure.verdict.problem {
                writeln!(f, "  BROKEN: {}: {}", problem.check, problem.what)?;
                if problem.above_the_daemon {
                    writeln!(
                        f,
                        "    above the daemon: the disks hold exactly a prefix of the guest's own requests, and the guest does not \
                         survive it"
                    )?;
                }
                if let Some(known) = self.known.as_ref().filter(|known| known.is(problem)) {
                    writeln!(f, "    known: {}", known.why)?;
                }
            }
        }
        if let (Some(saved), Some(failure)) = (&self.saved, &self.minimised) {
            writeln!(
                f,
                "  first failure, minimised to {} lost requests: afterimage explore show {}",
                failure.choice.lost.len(),
                saved.display()
            )?;
        }
        Ok(())
    }
}
