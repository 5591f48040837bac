//! What fsyncs wrote under iJournaling, recovered offline.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_ijournal::{recover_disk, DiskStorage, DryRun};
use afterimage_order::{Contract, Group, GroupOptions, OpenError};
use afterimage_store::{DirectMode, ImageStore, OpenOptions};
use serde::Serialize;

use crate::failure::Failure;

/// One file system.
#[derive(Serialize)]
pub(super) struct Recovered {
    image: PathBuf,
    /// Where it begins, in bytes.
    start: u64,
    #[serde(flatten)]
    report: afterimage_ijournal::Report,
}

/// What became of the file systems of an image that need it.
#[derive(Default)]
pub(super) struct Done {
    pub(super) recovered: Vec<Recovered>,
    /// Those that cannot be recovered, which are as a crash left them, and why.
    pub(super) left: Vec<String>,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, file system at byte {}: {}", self.image.display(), self.start, self.report)
    }
}

/// Recovers the file systems of an image that need it. A redo log and retained journals went home before. In a dry run they have not:
/// what is said is of the image without what is retained, and with a log that holds newer content nothing can be said (`None`).
///
/// # Errors
/// The image cannot be opened or looked at.
pub(super) fn recover(image: &Path, dry_run: bool) -> Result<Option<Done>, Failure> {
    let failed = |e: &dyn fmt::Display| Failure::failed(format!("{}: {e}", image.display()));
    let options = OpenOptions {
        read_only: dry_run,
        direct: DirectMode::Off,
        any_content: true,
        ..OpenOptions::new(image)
    };
    let store: Arc<ImageStore> = ImageStore::open(&options).map_err(Failure::failed)?;
    let group = match Group::open(vec![store], GroupOptions::new(Contract::GuestCrash)) {
        Ok(group) => group,
        Err(OpenError::ReadOnlyWithLog { .. }) if dry_run => return Ok(None),
        Err(error) => return Err(Failure::failed(error)),
    };
    let done = {
        let mut storage = DiskStorage::open(&*group.disks()[0]).map_err(|e| failed(&e))?;
        let done =
            if dry_run { recover_disk(&mut DryRun::new(&mut storage)) } else { recover_disk(&mut storage) };
        done.map_err(|e| failed(&e))?
    };
    group.close().map_err(|e| failed(&e))?;
    let mut all = Done::default();
    for (start, report) in done {
        match report {
            Ok(report) => all.recovered.push(Recovered { image: image.to_owned(), start, report }),
            Err(why) => all.left.push(format!("{}, file system at byte {start}: {why}", image.display())),
        }
    }
    Ok(Some(all))
}
