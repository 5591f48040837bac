//! `afterimage check FILE`

use std::fmt;
use std::path::PathBuf;

use afterimage_journal::offline;
use afterimage_order::offline::CheckReport;
use serde::Serialize;

use crate::failure::Failure;

/// Check an image, its redo log and its retained journals, offline, without changing anything
///
/// Checks that they belong together, that every record of the log is whole, and that retained journals can be recovered.
/// `serve` accepts what passes, the other images of the log included. Exit status 1: not sound. The images must not be
/// served meanwhile.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image, or its redo log
    file: PathBuf,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    log: CheckReport,
    /// Bytes of retained journal content that recovery reads, of all images; 0 where nothing is retained.
    retained_bytes: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.log.path.display();
        if self.log.sound && !self.log.clean && self.log.replay.is_none() {
            return write!(
                f,
                "{path}: sound; {} bytes of retained journals wait in memory for recovery",
                self.retained_bytes
            );
        }
        write!(f, "{}", self.log)
    }
}

/// Runs it.
///
/// # Errors
/// It cannot be read, or something is wrong with it.
pub fn run(args: &Args) -> Result<(), Failure> {
    super::can_say(&args.file, args.json)?;
    let mut log = afterimage_order::offline::check(&args.file).map_err(Failure::failed)?;
    let mut retained_bytes = 0;
    let images = log.images.clone();
    for image in super::images_of(&args.file, images.iter()) {
        let Some(retained) = offline::inspect(image).map_err(Failure::failed)? else { continue };
        // Under `power-window` nothing durable goes with an arena: `serve` goes on without it.
        log.clean &= retained.gone.is_some();
        if let Some(problem) = retained.problem {
            log.sound = false;
            log.problems.push(format!("{}: {problem}", image.display()));
        }
        retained_bytes += retained.retained.map_or(0, |r| r.arena_used_bytes);
    }
    let sound = log.sound;
    super::print_report(&Report { log, retained_bytes }, args.json)?;
    if sound {
        Ok(())
    } else {
        Err(Failure::Status(1))
    }
}
