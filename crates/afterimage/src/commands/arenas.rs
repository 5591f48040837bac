//! `afterimage arenas [FOLDER]`

use std::fmt;
use std::path::PathBuf;

use afterimage_journal::offline::{self, ArenaReport};
use serde::Serialize;

use crate::failure::Failure;

/// List the memory of retained journals, and remove unused arenas
///
/// Each arena is the memory of one image's retained journals. A daemon killed during shutdown, or a deleted image, leaves
/// an arena that nothing names. It takes memory until the host restarts.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folder of the arenas, as in `serve --arena`
    #[arg(default_value = "/dev/shm")]
    folder: PathBuf,
    /// Remove this arena. Refused while a daemon has it open, and while its image is not complete without it
    #[arg(long, value_name = "FILE")]
    remove: Vec<PathBuf>,
    /// With --remove: also if the image was moved or deleted. Blocks that were not written back are lost
    #[arg(long, requires = "remove")]
    accept_loss: bool,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    /// Listed, or removed.
    arenas: Vec<ArenaReport>,
    removed: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.arenas.is_empty() {
            return write!(f, "no arenas");
        }
        for arena in &self.arenas {
            if self.removed {
                writeln!(f, "removed {}: {} bytes of memory", arena.path.display(), arena.resident_bytes)?;
            } else {
                writeln!(f, "{arena}")?;
            }
        }
        Ok(())
    }
}

/// Runs it.
///
/// # Errors
/// No arena can be listed or removed as asked.
pub fn run(args: &Args) -> Result<(), Failure> {
    let removed = !args.remove.is_empty();
    let arenas = if removed {
        args.remove.iter().map(|path| offline::remove_arena(path, args.accept_loss)).collect()
    } else {
        offline::arenas(&args.folder)
    };
    super::print_report(&Report { arenas: arenas.map_err(Failure::failed)?, removed }, args.json)
}
