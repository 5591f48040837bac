//! `afterimage explore mark NAME`

use std::fs::OpenOptions;
use std::io::Write;

use afterimage_explore::record::mark_line;

use afterimage::failure::Failure;

/// Mark a state of the application, inside a recorded guest
///
/// From here on, a crash must leave the state of this name, or a later one. Call it after the fsync or commit that makes
/// the state durable. It works only in the command of `explore record`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    afterimage explore record --out w.afrec -- 'sqlite3 db < new.sql && afterimage explore mark new'")]
pub struct Args {
    /// Name of the state: up to 100 bytes of printable text without quotes
    name: String,
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let line = mark_line(&args.name).map_err(super::explain)?;
    let channel = std::env::var_os("AFTERIMAGE_REPORT").filter(|path| !path.is_empty()).ok_or_else(|| {
        Failure::usage("AFTERIMAGE_REPORT is not set: call this in the command of `explore record`")
    })?;
    let failed = |e| Failure::failed(format!("cannot report to {}: {e}", channel.to_string_lossy()));
    // Never created: a mistyped name must not become a file that nobody reads. One write, so that lines never mix.
    let mut file = OpenOptions::new().append(true).open(&channel).map_err(failed)?;
    file.write_all(format!("{line}\n").as_bytes()).map_err(failed)
}
