//! The areas: found by their name, read run by run.

use std::collections::BTreeSet;

use afterimage_format::ijournal::{Areas, Header, Run, FILE_NAME};
use afterimage_format::FormatError;
use afterimage_journal::{Tid, BLOCK_BYTES};

use crate::directory::Directory;
use crate::error::{corrupt, unsupported, Error};
use crate::groups::Groups;
use crate::image::Image;
use crate::inode::{Inode, Kind};
use crate::mutation::Mistake;
use crate::plan::Plan;
use crate::superblock::Geometry;

const ROOT_INO: u32 = 2;

/// The areas' file.
pub(crate) struct Found {
    areas: Areas,
    blocks: Vec<u64>,
}

/// Finds the areas, which are the file system's own from then on; `None` where there is no such file.
pub(crate) fn find(image: &mut Image<'_>, geometry: &mut Geometry) -> Result<Option<Found>, Error> {
    let groups = Groups::new(geometry);
    let root = Inode::load(image, &groups, ROOT_INO)?;
    let root = Directory::load(image, geometry, root)?;
    let name = FILE_NAME.as_bytes();
    let Some(&ino) = root.lookup(image, &BTreeSet::from([name]))?.get(name) else { return Ok(None) };
    let inode = Inode::load(image, &groups, ino)?;
    if inode.kind() != Kind::File || !inode.is_plain() {
        return corrupt(format!("{FILE_NAME} is not a regular file mapped by extents"));
    }
    let tree = inode.tree(image, geometry)?;
    let Some(first) = tree.mapped(1) else {
        return corrupt(format!("{FILE_NAME} has no header"));
    };
    // The header bounds what is mapped: a tree of a few blocks may name as many as the file system has.
    let areas = Areas::parse(&image.get(first[0])?[..]).map_err(|e| format_error(&e))?;
    let Some(blocks) = tree.mapped(areas.blocks()) else {
        let says = areas.blocks();
        return corrupt(format!("{FILE_NAME} says that it has {says} blocks, and is shorter or not written"));
    };
    geometry.own.push(ino);
    for range in tree.ranges() {
        geometry.room.take(range, "the areas of i-transactions")?;
    }
    Ok(Some(Found { areas, blocks }))
}

fn format_error(error: &FormatError) -> Error {
    match error {
        FormatError::Version { .. } | FormatError::Features(_) => {
            Error::Unsupported(format!("{FILE_NAME}: {error}"))
        }
        _ => Error::Corrupt(format!("{FILE_NAME}: {error}")),
    }
}

/// How many runs there are of which kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scanned {
    pub(crate) valid: u64,
    pub(crate) committed: u64,
    pub(crate) torn: u64,
}

impl Found {
    /// Reads all runs of the epoch; those that the journal's last transaction does not hold become part of the plan.
    pub(crate) fn scan(
        &self,
        image: &mut Image<'_>,
        committed: Tid,
        mistake: Mistake,
        plan: &mut Plan,
    ) -> Result<Scanned, Error> {
        let mut scanned = Scanned::default();
        if self.areas.epoch == [0; 16] {
            return Ok(scanned);
        }
        let first = Tid(self.areas.first_tid.get());
        for area in 0..self.areas.areas.get() {
            let start = self.areas.area_start(area);
            let mut at = 0;
            while at < self.areas.area_blocks.get() {
                let home = |at: u32| self.blocks[(start + u64::from(at)) as usize];
                let block = image.get(home(at))?;
                let Some(header) = Header::sniff(&block[..], &self.areas, area, at) else {
                    at += 1;
                    continue;
                };
                let blocks = header.blocks.get();
                let mut bytes = Vec::with_capacity(blocks as usize * BLOCK_BYTES);
                bytes.extend_from_slice(&block[..]);
                for next in at + 1..at + blocks {
                    bytes.extend_from_slice(&image.get(home(next))?[..]);
                }
                if mistake == Mistake::ChecksumIgnored {
                    reseal(&mut bytes);
                }
                let run = match Run::parse(&bytes) {
                    Ok(run) => run,
                    Err(FormatError::Version { .. }) => {
                        return unsupported("an i-transaction of a later version")
                    }
                    Err(_) => {
                        scanned.torn += 1;
                        at += 1;
                        continue;
                    }
                };
                at += blocks;
                let tid = Tid(header.tid.get());
                if !tid.is_after(committed) || first.is_after(tid) {
                    scanned.committed += 1;
                    continue;
                }
                scanned.valid += 1;
                plan.take(&run, mistake);
            }
        }
        Ok(scanned)
    }
}

/// What ignores a checksum would see.
fn reseal(bytes: &mut [u8]) {
    use afterimage_format::{checksum, ijournal::COMMIT_MAGIC};
    let (at, sub_id) = (bytes.len() - 32, bytes[32..40].to_vec());
    bytes[at..at + 8].copy_from_slice(&COMMIT_MAGIC);
    bytes[at + 8..at + 16].copy_from_slice(&sub_id);
    let end = bytes.len() - 4;
    let crc = checksum(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
}
