//! A file system's blocks, and what recovery makes of them: changed in memory only, until all of it is committed at once.

use std::collections::BTreeMap;
use std::time::Duration;

use afterimage_block::{BlockError, Sector, SECTOR_BYTES};
use afterimage_journal::layout::Source;
use afterimage_journal::BLOCK_BYTES;

use crate::error::{corrupt, Error};
use crate::Storage;

pub(crate) type Block = [u8; BLOCK_BYTES];

/// See the module.
pub(crate) struct Image<'a> {
    pub(crate) storage: &'a mut dyn Storage,
    /// Where the file system begins on it, in bytes.
    pub(crate) start: u64,
    /// Its size.
    pub(crate) blocks: u64,
    /// What stands there when all of this is done.
    pub(crate) changed: BTreeMap<u64, Box<Block>>,
}

impl Image<'_> {
    fn offset(&self, block: u64) -> Result<u64, Error> {
        if block >= self.blocks {
            return corrupt(format!("block {block} is asked for in a file system of {}", self.blocks));
        }
        Ok(self.start + block * BLOCK_BYTES as u64)
    }

    /// The block as it will be.
    pub(crate) fn get(&mut self, block: u64) -> Result<Box<Block>, Error> {
        if let Some(changed) = self.changed.get(&block) {
            return Ok(changed.clone());
        }
        let offset = self.offset(block)?;
        let mut content = Box::new([0; BLOCK_BYTES]);
        self.storage
            .read_at(content.as_mut_slice(), offset)
            .map_err(|source| Error::Io { what: format!("reading block {block}"), source })?;
        Ok(content)
    }

    /// The block, to be changed.
    pub(crate) fn edit(&mut self, block: u64) -> Result<&mut Block, Error> {
        if !self.changed.contains_key(&block) {
            let content = self.get(block)?;
            self.changed.insert(block, content);
        }
        match self.changed.get_mut(&block) {
            Some(content) => Ok(content),
            None => corrupt("a block that was just put there is gone"),
        }
    }

    /// The block with other content.
    pub(crate) fn put(&mut self, block: u64, content: Box<Block>) -> Result<(), Error> {
        self.offset(block)?;
        self.changed.insert(block, content);
        Ok(())
    }

    /// Writes to storage, now.
    pub(crate) fn write(&mut self, block: u64, content: &Block) -> Result<(), Error> {
        let offset = self.offset(block)?;
        self.storage
            .write_at(content, offset)
            .map_err(|source| Error::Io { what: format!("writing block {block}"), source })
    }

    /// Waits for other hosts.
    pub(crate) fn wait(&mut self, time: Duration) -> Result<(), Error> {
        self.storage.wait(time).map_err(|source| Error::Io { what: "waiting for other hosts".into(), source })
    }

    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        self.storage.sync().map_err(|source| Error::Io { what: "syncing".into(), source })
    }
}

/// Storage as the search for journals reads it.
pub(crate) struct Whole<'a>(pub(crate) &'a mut dyn Storage);

impl Source for Whole<'_> {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError> {
        let offset = sector.0.saturating_mul(SECTOR_BYTES);
        self.0.read_at(buf, offset).map_err(|e| BlockError::io(format!("reading at byte {offset}"), e))
    }
}
