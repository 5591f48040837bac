//! `afterimage guest`, `explore`, `flash` and `trace`: what boots guests, explores crashes and simulates SSDs.
//!
//! ```text
//! afterimage explore … ─► afterimage::tools (finds this program) ─► main ─┬─ explore ─► afterimage_explore
//!                                                                         ├─ guest ───► afterimage_lab
//!                                                                         └─ flash, trace ─► afterimage_flash
//! ```
//!
//! Nobody need call it by its name; it speaks as `afterimage` does, whose command line it continues.

mod explore;
mod flash;
mod guest;

use std::process::ExitCode;

use afterimage::cli::Logging;
use afterimage::commands::man;
use afterimage::logging::{self, Log};
use clap::{CommandFactory, Parser, Subcommand};

/// Real guests, crash states, and simulated SSDs.
#[derive(Parser, Debug)]
#[command(
    name = "afterimage",
    version = afterimage::VERSION,
    max_term_width = 100,
    disable_help_subcommand = true,
    propagate_version = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    logging: Logging,
}

#[derive(Subcommand, Debug)]
enum Command {
    Guest(guest::Args),
    Explore(explore::Args),
    Flash(flash::Args),
    Trace(flash::TraceArgs),
    #[command(hide = true)]
    Man(man::Args),
}

fn main() -> ExitCode {
    if let Err(failure) = afterimage::survive_file_limit() {
        return failure.report();
    }
    // What help calls the program is what people call.
    let args = std::iter::once("afterimage".into()).chain(std::env::args_os().skip(1));
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return afterimage::explain(&error),
    };
    let explores = matches!(cli.command, Command::Explore(_));
    logging::start(&cli.logging, if explores { Log::Quiet } else { Log::Beside });
    let result = match cli.command {
        Command::Guest(args) => guest::run(args),
        Command::Explore(args) => explore::run(args),
        Command::Flash(args) => flash::run(&args),
        Command::Trace(args) => flash::trace(&args),
        Command::Man(args) => man::subcommands(&args, Cli::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed_and_is_what_afterimage_says_of_it() {
        Cli::command().debug_assert();
        let ours = Cli::command();
        let said = afterimage::cli::Cli::command();
        for name in afterimage::tools::NAMES {
            let about = |command: &clap::Command| {
                let found = command.find_subcommand(name).unwrap_or_else(|| panic!("{name}"));
                found.get_about().map(ToString::to_string)
            };
            assert_eq!(about(&ours), about(&said), "{name}");
        }
        assert_eq!(
            ours.get_subcommands().filter(|sub| !sub.is_hide_set()).count(),
            afterimage::tools::NAMES.len()
        );
    }
}
