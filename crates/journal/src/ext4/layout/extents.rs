//! An extent tree, walked in logical order (`Documentation/filesystems/ext4/ifork.rst`).
//!
//! ```text
//! i_block (60 bytes, ≤ 4 entries) ─► index blocks (≤ 340 entries each) ─► … ─► leaves: logical ─► physical, length
//! ```
//! Every node must begin where the one before ended, so that each block of the tree is read once at most; depth is bounded
//! besides, and so is what the trees of one disk hold together ([`Limits`]).

use super::checksum::crc32c;
use super::ext4::{corrupt, unsupported, Reader};
use super::group::{u16_at, u32_at};
use super::inode::Inode;
use super::{AreaExtent, Watched};
use crate::error::JournalError;
use crate::ids::{AreaBlock, FsBlock, BLOCK_BYTES};

const MAGIC: u16 = 0xF30A;
const HEADER_BYTES: usize = 12;
const ENTRY_BYTES: usize = 12;
/// `EXT4_MAX_EXTENT_DEPTH`.
const DEPTH_MAX: u16 = 5;
/// `EXT_INIT_MAX_LEN`: a longer length marks blocks that were never written.
const LEN_MAX: u16 = 32768;
/// Pieces that the journals of one disk may lie in, together: 256 MiB in single blocks. Each is remembered several times
/// over, some 200 bytes, and 16 more by every queue.
const EXTENTS_MAX: usize = 1 << 16;
/// Blocks of their trees, of which two copies are kept: [`EXTENTS_MAX`] in full ones need 195.
const NODES_MAX: usize = 256;

/// What the journals of a disk may still take: a guest may make many file systems.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    extents: usize,
    nodes: usize,
}

impl Limits {
    /// Of a disk of which nothing was read yet.
    pub fn of_disk() -> Self {
        Self { extents: EXTENTS_MAX, nodes: NODES_MAX }
    }

    fn take(left: &mut usize) -> Result<(), JournalError> {
        let less = left.checked_sub(1).ok_or_else(|| {
            unsupported(format!(
                "the journals of this disk lie in too many pieces; {EXTENTS_MAX} are handled"
            ))
        })?;
        *left = less;
        Ok(())
    }
}

/// A file's blocks and those that the tree itself takes.
pub struct Mapping {
    /// The file's blocks from 0 on, without holes; neighbours on the disk are merged.
    pub extents: Vec<AreaExtent>,
    /// The tree's own blocks.
    pub nodes: Vec<FsBlock>,
    /// The tree's blocks, up to their last entry.
    pub watched: Vec<Watched>,
}

/// Reads and verifies the tree as far as it maps blocks `0..needed`. `limits`: less what it takes, also where that is an error.
///
/// # Errors
/// *Corrupt* where it is damaged or has holes, *unsupported* where it takes more than is left; I/O errors.
pub fn read(
    reader: &mut Reader<'_>,
    inode: &Inode,
    checksummed: bool,
    needed: u32,
    limits: &mut Limits,
) -> Result<Mapping, JournalError> {
    let mut walk = Walk {
        reader,
        checksum_seed: checksummed.then_some(inode.checksum_seed),
        needed,
        limits,
        next: 0,
        mapping: Mapping { extents: Vec::new(), nodes: Vec::new(), watched: Vec::new() },
    };
    let depth = u16_at(&inode.root, 6);
    if depth > DEPTH_MAX {
        return Err(corrupt(format!("the journal's extent tree is {depth} levels deep")));
    }
    walk.node(&inode.root, depth)?;
    if walk.next < u64::from(needed) {
        return Err(corrupt(format!("the journal's extents end at block {} of {needed}", walk.next)));
    }
    walk.disjoint()?;
    Ok(walk.mapping)
}

struct Walk<'a, 'b> {
    reader: &'a mut Reader<'b>,
    checksum_seed: Option<u32>,
    needed: u32,
    limits: &'a mut Limits,
    /// The logical block that must come next.
    next: u64,
    mapping: Mapping,
}

impl Walk<'_, '_> {
    fn node(&mut self, node: &[u8], depth: u16) -> Result<(), JournalError> {
        let entries = entries_of(node, depth)?;
        for at in (0..entries).map(|i| HEADER_BYTES + i * ENTRY_BYTES) {
            if self.next >= u64::from(self.needed) {
                break;
            }
            let entry = &node[at..at + ENTRY_BYTES];
            let logical = u64::from(u32_at(entry, 0));
            if logical != self.next {
                let why = format!("the journal's extents go on at block {logical} where {} comes", self.next);
                return Err(corrupt(why));
            }
            if depth == 0 {
                self.extent(entry)?;
            } else {
                self.child(entry, depth - 1)?;
            }
        }
        Ok(())
    }

    fn extent(&mut self, entry: &[u8]) -> Result<(), JournalError> {
        let len = u16_at(entry, 4);
        if len == 0 || len > LEN_MAX {
            return Err(corrupt(format!("the journal's block {} was never written", self.next)));
        }
        let home = u64::from(u16_at(entry, 6)) << 32 | u64::from(u32_at(entry, 8));
        if home == 0 || home + u64::from(len) > self.reader.blocks {
            return Err(corrupt(format!(
                "the journal's block {} would be at {home}, outside the file system",
                self.next
            )));
        }
        // Below `needed`, which has 32 bits.
        let at = self.next as u32;
        let blocks = u32::from(len).min(self.needed - at);
        match self.mapping.extents.last_mut() {
            Some(last) if last.home.0 + u64::from(last.blocks) == home => last.blocks += blocks,
            _ => {
                Limits::take(&mut self.limits.extents)?;
                self.mapping.extents.push(AreaExtent { at: AreaBlock(at), home: FsBlock(home), blocks });
            }
        }
        self.next += u64::from(len);
        Ok(())
    }

    fn child(&mut self, entry: &[u8], depth: u16) -> Result<(), JournalError> {
        Limits::take(&mut self.limits.nodes)?;
        let block = FsBlock(u64::from(u16_at(entry, 8)) << 32 | u64::from(u32_at(entry, 4)));
        let content = self.reader.block(block, "a block of the journal's extent tree")?;
        let entries = entries_of(content.as_slice(), depth)?;
        if let Some(seed) = self.checksum_seed {
            // `struct ext4_extent_tail`, behind the room for entries.
            let tail = HEADER_BYTES + usize::from(u16_at(content.as_slice(), 4)) * ENTRY_BYTES;
            if tail + 4 > BLOCK_BYTES || crc32c(seed, &content[..tail]) != u32_at(content.as_slice(), tail) {
                return Err(corrupt(format!(
                    "the extents in block {block} do not agree with their checksum"
                )));
            }
        }
        if entries == 0 {
            return Err(corrupt(format!("block {block} of the journal's extent tree is empty")));
        }
        let used = HEADER_BYTES + entries * ENTRY_BYTES;
        self.mapping.nodes.push(block);
        self.mapping.watched.push(Watched::new(block, 0, &content[..used], "the journal's extent tree"));
        let before = self.next;
        self.node(content.as_slice(), depth)?;
        if self.next == before {
            return Err(corrupt(format!("block {block} of the journal's extent tree maps nothing")));
        }
        Ok(())
    }

    /// No block of the disk twice: not among the journal's, nor of its tree.
    fn disjoint(&self) -> Result<(), JournalError> {
        let mut ranges: Vec<(u64, u64)> =
            self.mapping.extents.iter().map(|e| (e.home.0, e.home.0 + u64::from(e.blocks))).collect();
        ranges.extend(self.mapping.nodes.iter().map(|b| (b.0, b.0 + 1)));
        ranges.sort_unstable();
        match ranges.windows(2).find(|pair| pair[1].0 < pair[0].1) {
            Some(pair) => Err(corrupt(format!("block {} belongs to the journal twice", pair[1].0))),
            None => Ok(()),
        }
    }
}

/// How many entries a node has, after its header was verified.
fn entries_of(node: &[u8], depth: u16) -> Result<usize, JournalError> {
    let room = (node.len() - HEADER_BYTES) / ENTRY_BYTES;
    let (magic, entries, max, says) = (u16_at(node, 0), u16_at(node, 2), u16_at(node, 4), u16_at(node, 6));
    if magic != MAGIC || entries > max || usize::from(max) > room || says != depth {
        return Err(corrupt(format!(
            "a node of the journal's extent tree is damaged (magic {magic:#x}, {entries} of {max} entries, depth {says})"
        )));
    }
    Ok(usize::from(entries))
}
