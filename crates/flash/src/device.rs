//! What all FTLs share: the flash, the allocator, and static wear levelling.

use crate::counts::Cause;
use crate::ftl::FtlError;
use crate::ids::Block;
use crate::nand::Flash;
use crate::pool::Pool;

/// Flash with its free blocks.
#[derive(Debug, Clone)]
pub struct Device {
    /// The flash.
    pub flash: Flash,
    /// Its free blocks.
    pub pool: Pool,
    /// Static wear levelling starts when erase counts differ by more than this.
    threshold: Option<u32>,
    level_due: bool,
    /// Where the search for the least erased block goes on.
    cursor: u32,
}

impl Device {
    /// A new device. `static_threshold`: see [`crate::config::Config::static_wear`].
    pub fn new(mut flash: Flash, static_threshold: Option<u32>) -> Self {
        let blocks = flash.geometry().blocks;
        let pool = Pool::new(flash.nodes_mut(), blocks);
        Self { flash, pool, threshold: static_threshold, level_due: false, cursor: 0 }
    }

    /// The least erased free block.
    ///
    /// # Errors
    /// None is free.
    #[inline]
    pub fn take(&mut self) -> Result<Block, FtlError> {
        self.pool.take(self.flash.nodes_mut()).ok_or(FtlError::NoSpace)
    }

    #[inline]
    fn put(&mut self, block: Block) {
        let erases = self.flash.erases_of(block);
        self.pool.put(self.flash.nodes_mut(), block, erases);
    }

    /// Erases a block and gives it back.
    #[inline]
    pub fn release(&mut self, block: Block, cause: Cause) {
        self.erase(block, cause);
        self.put(block);
    }

    /// Erases a block that its owner keeps.
    #[inline]
    pub fn erase(&mut self, block: Block, cause: Cause) {
        self.flash.erase(block, cause);
        if let Some(threshold) = self.threshold {
            let (lowest, highest) = self.flash.erases_range();
            // Levelling's own erases ask for no more of it, or one wide spread would move a block with every write.
            self.level_due |= cause != Cause::WearLevel && highest - lowest > threshold;
        }
    }

    /// With static wear levelling, gives a just erased block back and takes the least erased one instead; without it,
    /// the block itself. It costs nothing, and without it a superblock that reuses its own blocks would wear them alone.
    ///
    /// # Errors
    /// As [`Device::take`].
    #[inline]
    pub fn trade(&mut self, block: Block) -> Result<Block, FtlError> {
        if self.threshold.is_none() {
            return Ok(block);
        }
        self.put(block);
        self.take()
    }

    /// After an erase that left the spread too wide: the least erased block, if it holds data and `movable` agrees.
    /// At most one for each erase that is not levelling's own, so levelling costs at most one block for every block erased.
    #[inline]
    pub fn block_to_level(&mut self, movable: impl Fn(&Flash, Block) -> bool) -> Option<Block> {
        if !self.level_due {
            return None;
        }
        self.level_due = false;
        self.coldest(movable)
    }

    #[cold]
    fn coldest(&mut self, movable: impl Fn(&Flash, Block) -> bool) -> Option<Block> {
        let blocks = self.flash.geometry().blocks;
        let (lowest, _) = self.flash.erases_range();
        if self.pool.len() < 2 {
            return None;
        }
        for _ in 0..blocks {
            let block = Block(self.cursor);
            self.cursor = (self.cursor + 1) % blocks;
            let cold = self.flash.erases_of(block) == lowest && self.flash.live_in(block) > 0;
            if cold && movable(&self.flash, block) {
                return Some(block);
            }
        }
        None
    }

    /// The most erased free block: cold data rests there.
    ///
    /// # Errors
    /// None is free.
    pub fn take_most_worn(&mut self) -> Result<Block, FtlError> {
        self.pool.take_most_worn(self.flash.nodes_mut()).ok_or(FtlError::NoSpace)
    }
}
