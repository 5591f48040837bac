//! Blocks that say whose they are: what must be read where, and nothing else.
//!
//! ```text
//!   0        8       16        24      32            4096
//!   │ magic  │ owner │ version │ index │ payload ... │
//! ```
//!
//! The payload is a function of the rest, so a block is this block of this owner in this version, whole, or it is foreign:
//! another file's, an older one's, torn. `stamp` fills a file or a whole disk with them, `stamp-verify` reads it back.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};

use afterimage_protocol::report::{Agent, StampVerify};

use crate::args::{invalid, Arguments};
use crate::record::mix;
use crate::report::Report;

/// The unit: a block of the file systems under test.
pub const BLOCK_BYTES: usize = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"aimgstmp");
const HEADER_BYTES: usize = 32;
/// Blocks written or read at once.
const BATCH_BLOCKS: u64 = 64;
/// This many wrong blocks are spelled out; all are counted.
const WRONG_SHOWN_MAX: usize = 8;

/// What a block says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Whose block it is.
    pub owner: u64,
    /// Which content of its owner.
    pub version: u64,
    /// Its place, in blocks.
    pub index: u64,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeroes.
    Empty,
    /// A whole block.
    Whole(Stamp),
    /// Anything else.
    Foreign,
}

impl Stamp {
    /// Fills a block.
    pub fn fill(self, block: &mut [u8]) {
        let words = [MAGIC, self.owner, self.version, self.index];
        let (header, payload) = block.split_at_mut(HEADER_BYTES);
        for (bytes, word) in header.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let seed = self.seed();
        for (at, bytes) in (0u64..).zip(payload.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&mix(seed ^ at).to_le_bytes());
        }
    }

    fn seed(self) -> u64 {
        mix(self.owner ^ mix(self.version ^ mix(self.index)))
    }

    /// Reads a block.
    pub fn read(block: &[u8]) -> Content {
        if block.iter().all(|byte| *byte == 0) {
            return Content::Empty;
        }
        // The last one of a file that was cut short within it.
        if block.len() != BLOCK_BYTES {
            return Content::Foreign;
        }
        let mut words = [0u64; 4];
        for (word, bytes) in words.iter_mut().zip(block.chunks_exact(8)) {
            *word = bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
        }
        let stamp = Stamp { owner: words[1], version: words[2], index: words[3] };
        let seed = stamp.seed();
        let whole = words[0] == MAGIC
            && (0u64..)
                .zip(block[HEADER_BYTES..].chunks_exact(8))
                .all(|(at, bytes)| bytes == mix(seed ^ at).to_le_bytes());
        if whole {
            Content::Whole(stamp)
        } else {
            Content::Foreign
        }
    }
}

struct Plan {
    path: String,
    seed: u64,
    blocks: u64,
}

fn plan(arguments: &mut Arguments) -> io::Result<Plan> {
    let path = arguments.word("the file or disk")?;
    let seed = arguments.number("seed")?.unwrap_or(1);
    let bytes = match arguments.number("bytes")? {
        Some(bytes) => bytes,
        None => disk_bytes(&path)?,
    };
    Ok(Plan { path, seed, blocks: bytes / BLOCK_BYTES as u64 })
}

/// A disk's length is its end. A file's is no measure: one that lost its tail is shorter, and all that is left is right.
fn disk_bytes(path: &str) -> io::Result<u64> {
    let mut disk = File::open(path)?;
    if !disk.metadata()?.file_type().is_block_device() {
        return Err(invalid(format!("{path} is no disk: give --bytes")));
    }
    disk.seek(SeekFrom::End(0))
}

/// `stamp`: fills and syncs.
pub fn write(mut arguments: Arguments) -> io::Result<()> {
    let plan = plan(&mut arguments)?;
    arguments.finish()?;
    // In /dev a mistyped name must not become a file that nobody reads.
    let fresh = !plan.path.starts_with("/dev/");
    let file = OpenOptions::new().write(true).create(fresh).truncate(false).open(&plan.path)?;
    let mut batch = vec![0; BATCH_BLOCKS as usize * BLOCK_BYTES];
    let mut at = 0;
    while at < plan.blocks {
        let count = BATCH_BLOCKS.min(plan.blocks - at);
        for (index, block) in (at..at + count).zip(batch.chunks_exact_mut(BLOCK_BYTES)) {
            Stamp { owner: plan.seed, version: 1, index }.fill(block);
        }
        file.write_all_at(&batch[..count as usize * BLOCK_BYTES], at * BLOCK_BYTES as u64)?;
        at += count;
    }
    file.sync_all()
}

/// `stamp-verify`: reads back what `stamp` wrote, and fails where anything else is.
pub fn verify(mut arguments: Arguments) -> io::Result<()> {
    let plan = plan(&mut arguments)?;
    let report = Report::open(&mut arguments)?;
    arguments.finish()?;
    let file = File::open(&plan.path)?;
    let mut batch = vec![0; BATCH_BLOCKS as usize * BLOCK_BYTES];
    let (mut at, mut wrong, mut first) = (0, 0u64, Vec::new());
    while at < plan.blocks {
        let count = BATCH_BLOCKS.min(plan.blocks - at);
        let read = &mut batch[..count as usize * BLOCK_BYTES];
        file.read_exact_at(read, at * BLOCK_BYTES as u64).map_err(|error| {
            io::Error::new(error.kind(), format!("{}, blocks from {at} on: {error}", plan.path))
        })?;
        for (index, block) in (at..at + count).zip(read.chunks_exact(BLOCK_BYTES)) {
            let wanted = Content::Whole(Stamp { owner: plan.seed, version: 1, index });
            let found = Stamp::read(block);
            if found != wanted {
                wrong += 1;
                if first.len() < WRONG_SHOWN_MAX {
                    first.push(format!("block {index}: {found:?}"));
                }
            }
        }
        at += count;
    }
    report.say(&Agent::StampVerify(StampVerify { blocks: plan.blocks, wrong, first: first.clone() }))?;
    if wrong == 0 {
        return Ok(());
    }
    Err(invalid(format!(
        "{}: {wrong} of {} blocks are not what was written: {first:?}",
        plan.path, plan.blocks
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_its_own_or_foreign() {
        let stamp = Stamp { owner: 7, version: 2, index: 9 };
        let mut block = vec![0; BLOCK_BYTES];
        assert_eq!(Stamp::read(&block), Content::Empty);
        stamp.fill(&mut block);
        assert_eq!(Stamp::read(&block), Content::Whole(stamp));
        let mut older = vec![0; BLOCK_BYTES];
        Stamp { version: 1, ..stamp }.fill(&mut older);
        for sector in 0..8 {
            let mut torn = block.clone();
            torn[sector * 512..][..512].copy_from_slice(&older[sector * 512..][..512]);
            assert_eq!(Stamp::read(&torn), Content::Foreign, "sector {sector}");
        }
        for bytes in [1, 31, 32, 2048, BLOCK_BYTES - 1] {
            assert_eq!(Stamp::read(&block[..bytes]), Content::Foreign, "{bytes} bytes");
        }
    }

    #[test]
    fn a_file_that_lost_its_tail_is_not_what_was_written() {
        let path = std::env::temp_dir().join(format!("afterimage-stamp-{}", std::process::id()));
        let name = path.to_str().unwrap();
        let typed = |words: &[&str]| Arguments::new(words.iter().map(Into::into)).unwrap();
        let verified = |size: &[&str]| verify(typed(&[&[name, "--report", "/dev/null"], size].concat()));
        let size = ["--bytes", "409600"];
        write(typed(&[name, size[0], size[1]])).unwrap();
        verified(&size).unwrap();
        for left in [409_599, 4096, 0] {
            OpenOptions::new().write(true).open(&path).unwrap().set_len(left).unwrap();
            assert!(verified(&size).is_err(), "{left} bytes are left");
            assert!(verified(&[]).is_err(), "{left} bytes are left, and nobody says how many there were");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
