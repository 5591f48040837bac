//! `afterimage explore show FAILURE`

use std::path::PathBuf;

use afterimage_explore::saved;

use super::explain;
use afterimage::commands::{print_line, to_json};
use afterimage::failure::Failure;

/// Show a saved failure: which requests were lost, by block and time, and which check failed
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The folder that `explore run` saved
    folder: PathBuf,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (saved, _) = saved::load(&args.folder).map_err(explain)?;
    let text = if args.json { to_json(&saved)? } else { saved::show(&saved, &args.folder) };
    print_line(text.trim_end())
}
