//! `afterimage recover FILE`

use std::path::PathBuf;

use crate::failure::Failure;

/// Bring an image to its last consistent state, offline, and remove its redo log
///
/// Complete records of the log go home, a torn end is dropped. `serve` does the same by itself; this is for using the
/// image with other tools. The image must not be served meanwhile.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image, or its redo log
    file: PathBuf,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let report = afterimage_order::offline::recover(&args.file, args.dry_run).map_err(Failure::failed)?;
    super::print_report(&report, args.json)
}
