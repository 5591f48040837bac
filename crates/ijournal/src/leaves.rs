//! A directory's blocks, as leaves: where they lie, and the checksum that each ends with.

use afterimage_journal::BLOCK_BYTES;

use crate::bytes::{crc32c, put16, put32};
use crate::entries::put_free;
use crate::error::{corrupt, Error};
use crate::groups::Groups;
use crate::image::Image;

/// `struct ext4_dir_entry_tail`.
const TAIL: usize = 12;
const TAIL_TYPE: u8 = 0xDE;

/// See the module.
pub(crate) struct Leaves {
    /// The directory.
    pub(crate) ino: u32,
    /// Where its blocks lie.
    pub(crate) homes: Vec<u64>,
    /// What its checksums begin with, where it has any.
    pub(crate) seed: Option<u32>,
}

impl Leaves {
    /// Where a logical block lies that an index leads to.
    pub(crate) fn home(&self, logical: usize) -> Result<u64, Error> {
        match self.homes.get(logical) {
            Some(&home) => Ok(home),
            None => corrupt(format!("directory {}'s index leads to block {logical}", self.ino)),
        }
    }

    /// Where a block's entries end.
    pub(crate) fn end(&self) -> usize {
        BLOCK_BYTES - if self.seed.is_some() { TAIL } else { 0 }
    }

    /// Writes a block's tail and checksum.
    pub(crate) fn seal(&self, image: &mut Image<'_>, home: u64) -> Result<(), Error> {
        if let Some(seed) = self.seed {
            let block = image.edit(home)?;
            let at = BLOCK_BYTES - TAIL;
            block[at..].fill(0);
            put16(block, at + 4, TAIL as u16);
            block[at + 7] = TAIL_TYPE;
            let sum = crc32c(seed, &block[..at]);
            put32(block, at + 8, sum);
        }
        Ok(())
    }

    /// Another block, empty.
    pub(crate) fn append(
        &mut self,
        image: &mut Image<'_>,
        groups: &mut Groups<'_>,
        goal: u64,
    ) -> Result<u64, Error> {
        let home = groups.allocate(image, self.homes.last().map_or(goal, |last| last + 1))?;
        let mut block = Box::new([0; BLOCK_BYTES]);
        put_free(&mut block, 0, self.end());
        image.put(home, block)?;
        self.seal(image, home)?;
        self.homes.push(home);
        Ok(home)
    }
}
