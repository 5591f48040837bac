//! Where content is: in the arena, at its home, or where its place stands on the disk.

use afterimage_block::{BlockError, Sector};

use super::arena::{Arena, VolumeId};
use super::below::Below;
use crate::ids::{AreaBlock, Block, BLOCK_BYTES};

/// Where places stand on the disk. What is neither in the arena nor served from home is there, or nowhere.
pub trait Places: Send + Sync + std::fmt::Debug {
    /// The first sector of a place; `None` where it is in memory only.
    fn sector_of(&self, at: AreaBlock) -> Option<Sector>;
}

/// Reads places, through the arena.
pub struct Reader<'a> {
    pub(super) arena: &'a Arena,
    pub(super) below: &'a mut Below,
    pub(super) client: VolumeId,
    pub(super) places: &'a dyn Places,
    /// Where the client's home blocks begin.
    pub(super) start: Sector,
}

impl Reader<'_> {
    /// A place's content: a reference into memory, or `scratch` filled. Zeroes where it is nowhere.
    ///
    /// # Errors
    /// The disk below cannot be read.
    pub fn get<'a>(&'a mut self, at: AreaBlock, scratch: &'a mut Block) -> Result<&'a Block, BlockError> {
        if let Some(block) = self.arena.get(self.client, at) {
            return Ok(block);
        }
        let home = self.arena.home_of(self.client, at).map(|home| home.sector(self.start));
        match home.or_else(|| self.places.sector_of(at)) {
            Some(sector) => *scratch = self.below.read_block(sector)?,
            None => *scratch = [0; BLOCK_BYTES],
        }
        Ok(scratch)
    }

    /// Whether a place is in the arena.
    pub fn holds(&self, at: AreaBlock) -> bool {
        self.arena.get(self.client, at).is_some()
    }

    /// See [`Arena::note`]; `None` where the place is not in the arena.
    pub fn note(&self, at: AreaBlock) -> Option<u32> {
        self.arena.note(self.client, at)
    }
}

/// jbd2 zeroes a logged block's first four bytes where they are its own magic, JBD2_MAGIC_NUMBER (JBD2_FLAG_ESCAPE): gives them
/// back.
pub fn unescape(block: &mut Block) {
    block[..4].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
}
