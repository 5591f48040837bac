//! `afterimage create FILE SIZE`

use std::path::PathBuf;

use serde::Serialize;

use crate::failure::Failure;
use crate::units::{parse_disk_size, show_bytes};

/// Create an empty disk image
///
/// The image is raw and sparse. An existing file is never overwritten.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  afterimage create disk.img 10G\n  afterimage create small.img 512M --json"
)]
pub struct Args {
    /// The image to create
    file: PathBuf,
    /// Size in bytes, or with k, M, G, T, P or E for powers of 1024
    #[arg(value_parser = parse_disk_size)]
    size: u64,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Created {
    file: PathBuf,
    bytes: u64,
}

impl std::fmt::Display for Created {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "created {}: {} ({} bytes, sparse)",
            self.file.display(),
            show_bytes(self.bytes),
            self.bytes
        )
    }
}

/// Runs it.
///
/// # Errors
/// It cannot be created; nothing is left behind.
pub fn run(args: &Args) -> Result<(), Failure> {
    super::can_say(&args.file, args.json)?;
    afterimage_store::create_image(&args.file, args.size).map_err(Failure::failed)?;
    super::print_report(&Created { file: args.file.clone(), bytes: args.size }, args.json)
}
