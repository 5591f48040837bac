//! `afterimage explore [--quick | --budget TIME]`: a suite.

use std::path::PathBuf;
use std::time::Duration;

use afterimage_explore::campaign::Progress;
use afterimage_explore::report::Report;
use afterimage_explore::suite::{self, Listener, Planted, SuiteOptions};

use super::{explain, interrupt, progress, workers};
use afterimage::commands::{print_line, to_json};
use afterimage::failure::Failure;

/// The budget of the campaigns of the short suite: with recordings, guests and planted faults a minute or two.
const QUICK_BUDGET: Duration = Duration::from_secs(30);
/// Crash points of each case study in the long suite.
const CASE_STATES: u64 = 10_000;

/// Without a subcommand: a suite.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The short suite: a minute or two
    #[arg(long)]
    quick: bool,
    /// The long suite: every workload under every contract, with this time for all campaigns. Recordings, planted faults
    /// and case studies take additional time
    #[arg(long, value_name = "TIME", conflicts_with = "quick", value_parser = super::some_time)]
    budget: Option<Duration>,
    /// With --budget: vDrive's case studies also in virtual time, on a model of nested journaling. `./x virtual kernel`
    /// builds what it needs, and prints AFTERIMAGE_VIRTUAL_KERNEL
    #[arg(long = "virtual", conflicts_with = "quick")]
    case_on_models: bool,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Workers
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Folder of recordings, progress and failures
    #[arg(long, value_name = "DIR", default_value = "target/explore")]
    out: PathBuf,
    /// Continue the suite in --out
    #[arg(long)]
    resume: bool,
    /// Only campaigns, planted faults and case studies whose name contains this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
}

struct Console {
    json: bool,
    line: Option<progress::Line>,
}

impl Console {
    fn say(&mut self, text: &str) {
        if let Some(mut line) = self.line.take() {
            line.end();
        }
        if self.json {
            eprintln!("{text}");
        } else {
            // A reader that went away is found out at the end.
            drop(print_line(text));
        }
    }
}

impl Listener for Console {
    fn begin(&mut self, what: &str) {
        if let Some(mut line) = self.line.take() {
            line.end();
        }
        tracing::info!(what, "begins");
    }

    fn progress(&mut self, progress: &Progress, budget: Duration, states: Option<u64>) {
        let line = self.line.get_or_insert_with(|| progress::Line::new(Some(budget), states));
        line.show(progress, progress.done);
    }

    fn report(&mut self, report: &Report) {
        self.say(report.to_string().trim_end());
    }

    fn fault(&mut self, fault: &Planted) {
        let text = if fault.found {
            format!("planted fault {}: found after {} states: {}", fault.name, fault.states, fault.how)
        } else {
            format!("planted fault {}: NOT FOUND in {} states", fault.name, fault.states)
        };
        self.say(&text);
    }
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let budget =
        match args.budget {
            None if !args.quick => return Err(Failure::usage(
                "no suite is named: use `explore --quick` or `explore --budget 30m`, or a subcommand (see --help)",
            )),
            None => QUICK_BUDGET,
            Some(budget) => budget,
        };
    let options = SuiteOptions {
        quick: args.quick,
        budget,
        seed: args.seed,
        jobs: workers(args.jobs),
        out: args.out.clone(),
        resume: args.resume,
        only: args.only.clone(),
        case_states: if args.quick { 0 } else { CASE_STATES },
        case_on_models: args.case_on_models,
    };
    let stop = interrupt::flag()?;
    let mut console = Console { json: args.json, line: None };
    let summary = suite::run(&options, &stop, &mut console).map_err(explain)?;
    let markdown = args.out.join("summary.md");
    std::fs::write(&markdown, summary.markdown())
        .map_err(|e| Failure::failed(format!("cannot write {}: {e}", markdown.display())))?;
    let json = to_json(&summary)?;
    let path = args.out.join("summary.json");
    std::fs::write(&path, &json)
        .map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))?;
    if args.json {
        print_line(&json)?;
    } else {
        print_line(&summary.line())?;
        print_line(&format!("tables: {}", markdown.display()))?;
    }
    if summary.passed() && !summary.interrupted {
        Ok(())
    } else {
        Err(Failure::Status(1))
    }
}
