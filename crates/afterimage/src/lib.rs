//! The `afterimage` program.
//!
//! ```text
//! main ─ run ─┬─ commands::create, check, recover, inspect, arenas  offline, on a file
//!             ├─ commands::serve ─► serve::Daemon              one guest's disks, until told to stop
//!             │      settings ─► sockets ─► images ─► group ─► servers ─► sandbox ─► control, metrics
//!             ├─ commands::ctl ─► control::client              talks to a running daemon
//!             ├─ commands::keep                                holds sockets across a daemon's restart
//!             ├─ commands::guest_user                          makes the user that serves a guest's disks
//!             └─ tools ─► the program afterimage-tools         guest, explore, flash, trace
//! ```
//!
//! What a crash of the daemon may leave at each step of `serve`: until the group is open, nothing was touched but a
//! stale socket file; from then on, what the order layer's contract says. An orderly end (SIGTERM, SIGINT, SIGHUP,
//! `ctl stop`) goes backwards: no request in flight, everything home and synced, log removed, sockets removed.
//!
//! Exit status: 0 done; 1 it was tried and failed; 2 the request itself was wrong and nothing was touched.
//!
//! Stderr may be a pipe whose reader is gone, or a file on the file system that has just become full. A message that cannot be
//! written is lost; nobody who is served is.

// `println!` and `eprintln!` panic where the write fails, and a panic ends a daemon.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod commands;
pub mod control;
pub mod failure;
pub mod logging;
pub mod sandbox;
pub mod serve;
pub mod tools;
pub mod units;
mod unread;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use cli::{Cli, Command};
use failure::Failure;
use logging::Log;
use signal_hook::consts::SIGXFSZ;

/// The version, and what is compiled in that only tests want: `--version`, `status` and the metrics say it. The lab tests no
/// program that says more than its number.
pub const VERSION: &str = match (afterimage_order::HAS_MUTATIONS, afterimage_journal::HAS_MUTATIONS) {
    (false, false) => env!("CARGO_PKG_VERSION"),
    (true, false) => concat!(env!("CARGO_PKG_VERSION"), " with test features: order/mutations"),
    (false, true) => concat!(env!("CARGO_PKG_VERSION"), " with test features: journal/mutations"),
    (true, true) => {
        concat!(env!("CARGO_PKG_VERSION"), " with test features: order/mutations, journal/mutations")
    }
};

/// Runs the program with its arguments, the program's name first.
pub fn run(args: Vec<OsString>) -> ExitCode {
    if let Err(failure) = survive_file_limit() {
        return failure.report();
    }
    let args = cli::with_implied_serve(args);
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    let serves = matches!(cli.command, Command::Serve(_) | Command::Keep(_));
    logging::start(&cli.logging, if serves { Log::Unread } else { Log::Beside });
    let result = match cli.command {
        Command::Create(args) => commands::create::run(&args),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Recover(args) => commands::recover::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Arenas(args) => commands::arenas::run(&args),
        Command::Ctl(args) => commands::ctl::run(&args),
        Command::Keep(mut args) => {
            cli.logging.pass_on(&mut args.command);
            commands::keep::run(&args)
        }
        Command::Guest(_) | Command::Explore(_) | Command::Flash(_) | Command::Trace(_) => {
            Err(tools::run(&args))
        }
        Command::GuestUser(args) => commands::guest_user::run(&args),
        Command::Man(args) => commands::man::run(&args, Cli::command()),
        Command::Completions(args) => commands::man::completions(&args, Cli::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// A write beyond RLIMIT_FSIZE is an error like any other, not the end of the process. A handler does that, which a program that
/// is started from this one does not inherit; it would inherit an ignored signal.
///
/// # Errors
/// The handler cannot be installed.
pub fn survive_file_limit() -> Result<(), Failure> {
    signal_hook::flag::register(SIGXFSZ, Arc::default())
        .map_err(|e| Failure::failed(format!("cannot watch for signals: {e}")))?;
    Ok(())
}

/// Help and version go out as they are; a mistake becomes one sentence.
pub fn explain(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let status = error.exit_code();
            // A reader that went away does not change what was asked for.
            drop(error.print());
            ExitCode::from(u8::try_from(status).unwrap_or(2))
        }
        _ => {
            let text = error.render().to_string();
            let end =
                text.find("\nUsage:").or_else(|| text.find("\nFor more information")).unwrap_or(text.len());
            let sentence = text[..end].trim().trim_start_matches("error: ").replace("\n\n  tip:", "; tip:");
            Failure::usage(format!("{sentence} (see --help)")).report()
        }
    }
}
