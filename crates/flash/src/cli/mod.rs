//! `afterimage flash run|compare|sweep` and `afterimage trace convert|stat`: arguments and what they do.
//!
//! ```text
//! Args ─► Config + traces ─► scan (first pass) ─► jobs in parallel ─► tables │ JSON │ HTML
//! ```

mod compare;
mod drive;
mod html;
mod jobs;
mod run;
mod sweep;
mod traces;

use std::io::Write;

use clap::Subcommand;

use crate::control::RunError;

pub use drive::{DriveArgs, ReadArgs};

/// How a command ends when it does not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The request itself was wrong: exit status 2.
    #[error("{0}")]
    Usage(String),
    /// It was tried and failed: exit status 1.
    #[error("{0}")]
    Failed(String),
}

impl From<RunError> for CliError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Config(error) => Self::Usage(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl CliError {
    fn output(error: &std::io::Error) -> Self {
        Self::Failed(format!("cannot write the answer: {error}"))
    }
}

/// Simulate block traces on SSDs with different flash translation layers
///
/// Reports erases, garbage-collection overhead, lifetime, write amplification and response times of FAST, Superblock,
/// DFTL and an ideal page map. docs/flash.md describes the model, its parameters and the trace formats.
#[derive(clap::Args, Debug)]
pub struct FlashArgs {
    #[command(subcommand)]
    command: FlashCommand,
}

#[derive(Subcommand, Debug)]
enum FlashCommand {
    Run(Box<run::Args>),
    Compare(Box<compare::Args>),
    Sweep(Box<sweep::Args>),
}

/// Convert and describe block traces
#[derive(clap::Args, Debug)]
pub struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Subcommand, Debug)]
enum TraceCommand {
    Convert(traces::ConvertArgs),
    Stat(traces::StatArgs),
}

/// Runs `afterimage flash`; the answer goes to `out`.
///
/// # Errors
/// One sentence, and whether the request was wrong or failed.
pub fn flash(args: &FlashArgs, out: &mut dyn Write) -> Result<(), CliError> {
    match &args.command {
        FlashCommand::Run(args) => run::run(args, out),
        FlashCommand::Compare(args) => compare::run(args, out),
        FlashCommand::Sweep(args) => sweep::run(args, out),
    }
}

/// Runs `afterimage trace`.
///
/// # Errors
/// As [`flash`].
pub fn trace(args: &TraceArgs, out: &mut dyn Write) -> Result<(), CliError> {
    match &args.command {
        TraceCommand::Convert(args) => traces::convert(args),
        TraceCommand::Stat(args) => traces::stat(args, out),
    }
}

/// A piece of the answer, at once.
fn print(out: &mut dyn Write, text: &str) -> Result<(), CliError> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| CliError::output(&e))
}

/// JSON on one line.
fn print_json<T: serde::Serialize>(out: &mut dyn Write, value: &T) -> Result<(), CliError> {
    let text = serde_json::to_string(value)
        .map_err(|e| CliError::Failed(format!("cannot write the answer as JSON: {e}")))?;
    print(out, &(text + "\n"))
}
