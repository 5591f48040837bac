//! `afterimage inspect FILE`

use std::path::PathBuf;

use crate::failure::Failure;

/// Describe an image and its redo log without changing anything
///
/// Says what the log holds, and whether the image may be copied as it is.
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
    let report = afterimage_order::offline::inspect(&args.file).map_err(Failure::failed)?;
    super::print_report(&report, args.json)
}
