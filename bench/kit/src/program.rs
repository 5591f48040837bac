//! A benchmark as a program.

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::error::{BenchError, Context, Result};

/// Reads the options and runs; what went wrong is one sentence on stderr, and the status is 2 where the command line was it, else 1. `run`
/// says whether every cell came to a result.
pub fn main<Options: Parser>(name: &str, run: impl FnOnce(&Options) -> Result<bool>) -> ExitCode {
    let filter = EnvFilter::try_from_env("AFTERIMAGE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let ended = run(&Options::parse());
    if let Err(error) = &ended {
        afterimage_report::note(&format!("{name}: {error}\n"));
    }
    ExitCode::from(status(&ended))
}

fn status(ended: &Result<bool>) -> u8 {
    match ended {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(BenchError::Usage(_)) => 2,
        Err(_) => 1,
    }
}

/// Writes to stdout. A reader that has gone is no error: what was measured is in the files.
///
/// # Errors
/// Stdout takes nothing.
pub fn say(text: &str) -> Result<()> {
    afterimage_report::say(text).context(|| "write to stdout".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_asked_for_is_told_from_what_failed() {
        let usage = BenchError::Usage("--device disk: only models are there".to_owned());
        let statuses = [Ok(true), Ok(false), Err(usage), Err(BenchError::Workload(String::new()))];
        assert_eq!(statuses.map(|ended| status(&ended)), [0, 1, 2, 1]);
    }
}
