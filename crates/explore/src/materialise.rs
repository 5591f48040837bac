//! A crash state as a file, for other tools.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use afterimage_trace::PAGE_BYTES;

use crate::campaign::Subject;
use crate::state::Image;
use crate::{ExploreError, Result};

/// Writes the guest's first disk, after the daemon's own recovery where there is one, as a sparse file that did not exist.
///
/// # Errors
/// The file exists or cannot be written; the daemon's recovery refuses the state.
pub fn write(subject: &Subject, media: Vec<Image>, path: &Path) -> Result<()> {
    let disk = match &subject.own {
        None => media.into_iter().next(),
        Some(own) => {
            let recovered = own.recover(media).map_err(|refused| {
                ExploreError::Checker(format!(
                    "there is no disk to write: the daemon's own recovery refuses the state: {refused}"
                ))
            })?;
            recovered.disks.first().map(|disk| disk.snapshot())
        }
    };
    let disk = disk.ok_or_else(|| ExploreError::Corrupt("the recording has no disk".to_owned()))?;
    let io = || ExploreError::io(format!("cannot write {}", path.display()));
    let file = File::create_new(path).map_err(io())?;
    file.set_len(disk.len()).map_err(io())?;
    let mut page = [0; PAGE_BYTES];
    let mut offset = 0;
    while offset < disk.len() {
        let len = (disk.len() - offset).min(PAGE_BYTES as u64) as usize;
        disk.read_at(&mut page[..len], offset);
        if page[..len].iter().any(|byte| *byte != 0) {
            file.write_all_at(&page[..len], offset).map_err(io())?;
        }
        offset += len as u64;
    }
    Ok(())
}
