//! `afterimage check FILE`

use std::path::PathBuf;

use crate::failure::Failure;

/// Check an image and its redo log, offline, without changing anything
///
/// Says whether they belong together and whether every record of the log is whole. The image must not be served
/// meanwhile.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image, or its redo log
    file: PathBuf,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let report = afterimage_order::offline::check(&args.file).map_err(Failure::failed)?;
    super::print_report(&report, args.json)
}
