//! Multi-mount protection (`fs/ext4/mmp.c`): a block in which whoever has the file system writes another number every few seconds.
//!
//! Recovery claims it as a mount does, and gives it back. One that dies leaves a number that nobody changes: the next waits, and sees that.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use crate::bytes::{crc32c, put32, u16_at, u32_at};
use crate::error::{corrupt, Error};
use crate::image::{Block, Image};
use crate::superblock::Protection;

const MAGIC: u32 = 0x004D_4D50;
const SEQUENCE: usize = 0x4;
const NODE: std::ops::Range<usize> = 0x10..0x50;
const INTERVAL: usize = 0x70;
const CHECKSUM: usize = 0x3FC;

const CLEAN: u32 = 0xFF4D_4D50;
const FSCK: u32 = 0xE24D_4D50;
/// The largest number of one that is mounted.
const SEQUENCE_MAX: u32 = 0xE24D_4D4F;
/// EXT4_MMP_MIN_CHECK_INTERVAL, in seconds.
const INTERVAL_MIN: u16 = 5;

/// What is given back in the end.
pub(crate) struct Claim {
    protection: Protection,
    block: Box<Block>,
}

fn read(image: &mut Image<'_>, protection: &Protection) -> Result<Box<Block>, Error> {
    let block = image.get(protection.block)?;
    let sum = |seed| crc32c(seed, &block[..CHECKSUM]);
    if u32_at(&*block, 0) != MAGIC
        || protection.seed.is_some_and(|seed| u32_at(&*block, CHECKSUM) != sum(seed))
    {
        return corrupt("the block of its multi-mount protection is no such block, or its checksum is wrong");
    }
    Ok(block)
}

fn in_use(block: &Block) -> Error {
    let node: Vec<u8> = block[NODE].iter().copied().take_while(|&byte| byte != 0).collect();
    Error::InUse(format!(
        "another host has it (multi-mount protection: node {:?}): unmount it there first",
        String::from_utf8_lossy(&node)
    ))
}

/// Makes it ours.
///
/// # Errors
/// Another host has it, or it cannot be read or written.
pub(crate) fn claim(image: &mut Image<'_>, protection: Protection) -> Result<Claim, Error> {
    let mut block = read(image, &protection)?;
    let sequence = u32_at(&*block, SEQUENCE);
    let interval = u16_at(&*block, INTERVAL).max(protection.interval).max(INTERVAL_MIN);
    let wait = Duration::from_secs(u64::from(interval) + u64::from(interval + 1).min(60));
    if sequence == FSCK {
        return Err(Error::InUse(
            "e2fsck has it, or died while it did (multi-mount protection): if none runs, tune2fs -f -E clear_mmp".into(),
        ));
    }
    if sequence != CLEAN {
        image.wait(wait)?;
        block = read(image, &protection)?;
        if u32_at(&*block, SEQUENCE) != sequence {
            return Err(in_use(&block));
        }
    }
    let ours = RandomState::new().hash_one(std::process::id()) as u32 % SEQUENCE_MAX + 1;
    let mut claim = Claim { protection, block };
    claim.write(image, ours)?;
    if sequence != CLEAN {
        image.wait(wait)?;
    }
    let block = read(image, &claim.protection)?;
    if u32_at(&*block, SEQUENCE) != ours {
        return Err(in_use(&block));
    }
    Ok(claim)
}

impl Claim {
    fn write(&mut self, image: &mut Image<'_>, sequence: u32) -> Result<(), Error> {
        put32(&mut self.block[..], SEQUENCE, sequence);
        if let Some(seed) = self.protection.seed {
            let sum = crc32c(seed, &self.block[..CHECKSUM]);
            put32(&mut self.block[..], CHECKSUM, sum);
        }
        image.write(self.protection.block, &self.block)?;
        image.sync()
    }

    /// Whoever comes next need not wait.
    pub(crate) fn give_back(mut self, image: &mut Image<'_>) -> Result<(), Error> {
        self.write(image, CLEAN)
    }
}
