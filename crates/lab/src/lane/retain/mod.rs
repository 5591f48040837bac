//! Real guests prove that a retained journal loses nothing: `serve --journal retain`.
//!
//! ```text
//!   kills     guests killed at seeded instants, and two independent oracles of what recovery has to make of it
//! ```

mod format;
mod kills;
mod oracles;
mod rig;
mod tree;

use super::{Case, Run};
use format::{Format, FORMATS};
use kills::{many, Plan, ONE_OF_EACH};
use rig::Setup;

/// Kills of each format in the full lane.
const KILLS: usize = 30;

/// The lane's cases.
pub(super) fn cases(seed: u64, quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, quick: bool, run: Run| cases.push(Case { name, quick, run });
    for (at, format) in (0u64..).zip(FORMATS) {
        let seed = seed.wrapping_mul(1000) + at;
        let deaths = if quick { ONE_OF_EACH.to_vec() } else { many(KILLS, seed) };
        let plan = Plan { setup: Setup::new(format), deaths, seed, churn: true, acknowledged_max: 250 };
        let name = format!("retain-kill-{}", format.name);
        add(name, format.quick, Box::new(move |evidence| kills::run(evidence, &plan)));
    }
    // The same kills on any disk: what the guest's kernel loses by itself (data=journal in Linux 6.1 does) shows here.
    if let Some(format) = Format::named("journal-small") {
        let plan = Plan {
            setup: Setup { journal: "passthrough", ..Setup::new(format) },
            deaths: vec![kills::Death::Killed; KILLS],
            seed,
            churn: true,
            acknowledged_max: 250,
        };
        add("retain-control-passthrough".to_owned(), false, Box::new(move |e| kills::run(e, &plan)));
    }
    add("canary-retain-dropped".to_owned(), true, Box::new(move |e| kills::canary(e, seed)));
    cases
}
