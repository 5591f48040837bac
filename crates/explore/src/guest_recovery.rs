//! What a guest's initramfs does before it mounts: iJournaling's recovery (`docs/ijournaling.md`) of each ext4 that asks for it by its journal's
//! incompatible feature. Neither a stock kernel nor e2fsck takes such a file system before.

use std::io;

use afterimage_block::Medium as _;
use afterimage_ijournal::{recover_disk, Error, Report, Storage};

use crate::check::Observation;
use crate::state::{Image, Scratch};
use crate::{ExploreError, Result};

/// What the check is called.
pub const NAME: &str = "i-transactions";

struct Disk<'a>(&'a Scratch);

impl Storage for Disk<'_> {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&mut self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(buf, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The disks as they are then; or why no crash may leave them so.
///
/// # Errors
/// A disk cannot be read.
pub fn recover(images: &[Image]) -> Result<std::result::Result<Vec<Image>, Observation>> {
    let mut recovered = Vec::new();
    for image in images {
        let scratch = Scratch::new(image.clone());
        let broken = |what: String, evidence: String| Ok(Err(Observation::Inconsistent { what, evidence }));
        let each = |disk: Vec<(u64, std::result::Result<Report, Error>)>| {
            disk.into_iter()
                .map(|(start, report)| Ok((start, report?)))
                .collect::<std::result::Result<Vec<_>, Error>>()
        };
        match recover_disk(&mut Disk(&scratch)).and_then(each) {
            Ok(reports) => {
                // A kernel that keeps the rules writes no run that breaks one.
                if let Some((_, report)) = reports.iter().find(|(_, report)| !report.refused.is_empty()) {
                    return broken("an i-transaction breaks a rule".to_owned(), report.to_string());
                }
                recovered.push(if reports.is_empty() { image.clone() } else { scratch.snapshot() });
            }
            Err(Error::Io { what, source }) => return Err(ExploreError::Io { what, source }),
            Err(why) => return broken(format!("i-transactions are not recovered: {why}"), String::new()),
        }
    }
    Ok(Ok(recovered))
}
