//! A benchmark as a program.

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::error::{Context, Result};

/// Reads the options and runs; what went wrong is one sentence on stderr. `run` says whether every cell came to a result.
pub fn main<Options: Parser>(name: &str, run: impl FnOnce(&Options) -> Result<bool>) -> ExitCode {
    let filter = EnvFilter::try_from_env("AFTERIMAGE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            afterimage_report::note(&format!("{name}: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Writes to stdout. A reader that has gone is no error: what was measured is in the files.
///
/// # Errors
/// Stdout takes nothing.
pub fn say(text: &str) -> Result<()> {
    afterimage_report::say(text).context(|| "write to stdout".to_owned())
}
