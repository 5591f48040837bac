//! `afterimage explore …`: what a crash may leave.

mod interrupt;
mod mark;
mod progress;
mod record;
mod replay;
mod run;
mod show;
mod suite;

use std::time::Duration;

use clap::Subcommand;

use afterimage::failure::Failure;
use afterimage::units::parse_duration;

/// Enumerate the states that a crash may leave, recover and check them
///
/// `record` runs a workload in a real guest. `run` recovers every state that a crash could leave on storage, and checks
/// it. Recovery is the daemon's own, then e2fsck, then a mount by a real kernel. Without a subcommand a suite runs:
/// built-in workloads under every contract, and planted faults that it must find.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Option<ExploreCommand>,
    #[command(flatten)]
    suite: suite::Args,
}

#[derive(Subcommand, Debug)]
enum ExploreCommand {
    Record(Box<record::Args>),
    Run(Box<run::Args>),
    Show(show::Args),
    Replay(replay::Args),
    Mark(mark::Args),
}

const EXAMPLES: &str = "\
Examples:
  Does a program survive a power cut?
    afterimage explore record --out app.afrec -- sh -c 'my-program /mnt/data'
    afterimage explore run app.afrec --check 'my-program --verify /mnt/data'
    afterimage explore show explore-out/failure

  Do the daemon's own promises hold?
    afterimage explore --quick
    afterimage explore --budget 30m --resume";

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Some(ExploreCommand::Record(args)) => record::run(&args),
        Some(ExploreCommand::Run(args)) => run::run(&args),
        Some(ExploreCommand::Show(args)) => show::run(&args),
        Some(ExploreCommand::Replay(args)) => replay::run(&args),
        Some(ExploreCommand::Mark(args)) => mark::run(&args),
        None => suite::run(&args.suite),
    }
}

/// How many workers: as many as asked for, or one for each processor.
fn workers(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

/// A budget: in no time nothing can be looked at.
fn some_time(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(Duration::ZERO) => Err("states cannot be looked at in no time: name some, as in 30m".to_owned()),
        time => time.map_err(|e| e.to_string()),
    }
}

/// The explorer's error, as a failure with its exit status. A guest's last words keep their lines.
fn explain(error: afterimage_explore::ExploreError) -> Failure {
    match error {
        afterimage_explore::ExploreError::Usage(_) => Failure::usage(error),
        other => Failure::Failed(other.to_string()),
    }
}

/// What becomes of a guest's journal.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum JournalWord {
    Passthrough,
    Retain,
}
