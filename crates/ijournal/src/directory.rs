//! Directories (`Documentation/filesystems/ext4/directory.rst`): names looked up, and entries added. Nothing is ever removed.

use std::collections::{BTreeMap, BTreeSet};

use afterimage_journal::BLOCK_BYTES;

use crate::bytes::{crc32c, put16, put32, u16_at, u32_at};
use crate::error::{corrupt, unsupported, Error};
use crate::groups::Groups;
use crate::image::{Block, Image};
use crate::inode::{Inode, Kind};
use crate::superblock::Geometry;
use crate::tree;

/// Inode number, length of the record, of the name, type.
const HEAD: usize = 8;
/// `struct ext4_dir_entry_tail`.
const TAIL: usize = 12;
const TAIL_TYPE: u8 = 0xDE;

/// An entry to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Added {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: u32,
    pub(crate) file_type: u8,
}

/// A directory that entries are added to.
pub(crate) struct Directory {
    pub(crate) inode: Inode,
    /// Where its blocks lie.
    pub(crate) blocks: Vec<u64>,
    /// Blocks of its tree.
    nodes: Vec<u64>,
    pub(crate) seed: Option<u32>,
}

/// An entry of a block.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) ino: u32,
    pub(crate) name: &'a [u8],
    pub(crate) file_type: u8,
}

/// What an entry with a name of that length takes.
pub(crate) fn room(name: usize) -> usize {
    (HEAD + name).next_multiple_of(4)
}

/// A block's entries up to `end`.
pub(crate) fn slots(block: &Block, end: usize) -> Result<Vec<Slot<'_>>, Error> {
    let (mut slots, mut at) = (Vec::new(), 0);
    while at < end {
        let bytes = &block[at..end];
        if bytes.len() < HEAD {
            return corrupt("a directory's block is cut short");
        }
        let (ino, len, name) = (u32_at(bytes, 0), usize::from(u16_at(bytes, 4)), usize::from(bytes[6]));
        if len < room(1) || len % 4 != 0 || len > bytes.len() || HEAD + name > len {
            return corrupt(format!("a directory's entry has a length of {len}"));
        }
        slots.push(Slot { at, len, ino, name: &bytes[HEAD..HEAD + name], file_type: bytes[7] });
        at += len;
    }
    Ok(slots)
}

/// Puts an entry where there is room; whether there was.
pub(crate) fn insert(block: &mut Block, end: usize, added: &Added) -> Result<bool, Error> {
    let found = slots(block, end)?.iter().find_map(|slot| {
        let used = if slot.ino == 0 { 0 } else { room(slot.name.len()) };
        (slot.len >= used + room(added.name.len())).then_some((slot.at, used, slot.len))
    });
    let Some((at, used, len)) = found else { return Ok(false) };
    if used > 0 {
        put16(block, at + 4, used as u16);
    }
    put_entry(block, at + used, len - used, added);
    Ok(true)
}

/// Writes an entry of that length.
pub(crate) fn put_entry(block: &mut Block, at: usize, len: usize, added: &Added) {
    put32(block, at, added.ino);
    put16(block, at + 4, len as u16);
    block[at + 6] = added.name.len() as u8;
    block[at + 7] = added.file_type;
    block[at + HEAD..][..added.name.len()].copy_from_slice(&added.name);
}

/// A record that names nothing.
pub(crate) fn put_free(block: &mut Block, at: usize, len: usize) {
    block[at..at + len].fill(0);
    put16(block, at + 4, len as u16);
}

impl Directory {
    /// One of the file system's.
    ///
    /// # Errors
    /// *Corrupt*, and *unsupported* for one that is laid out in a way that is not handled.
    pub(crate) fn load(image: &mut Image<'_>, geometry: &Geometry, inode: Inode) -> Result<Self, Error> {
        if inode.kind() != Kind::Directory || !inode.is_plain() {
            return unsupported(format!("inode {} is no directory that is mapped by extents", inode.ino));
        }
        let tree = inode.tree(image, geometry)?;
        let wanted = inode.size().div_ceil(BLOCK_BYTES as u64);
        let blocks = tree.mapped().filter(|blocks| blocks.len() as u64 >= wanted && wanted > 0);
        let Some(mut blocks) = blocks else {
            return corrupt(format!("directory {} has holes", inode.ino));
        };
        // Blocks behind the end were allocated ahead; they stay what they are.
        if blocks.len() as u64 != wanted {
            return unsupported(format!("directory {} has blocks behind its end", inode.ino));
        }
        blocks.truncate(wanted as usize);
        let seed = inode.seed(geometry);
        Ok(Self { inode, blocks, nodes: tree.nodes, seed })
    }

    /// A new one with `.` and `..` in a block of its own.
    pub(crate) fn create(
        image: &mut Image<'_>,
        geometry: &Geometry,
        groups: &mut Groups<'_>,
        mut inode: Inode,
        parent: u32,
    ) -> Result<Self, Error> {
        inode.drop_index();
        let goal = groups.goal(inode.ino);
        let (ino, seed) = (inode.ino, inode.seed(geometry));
        let mut directory = Self { inode, blocks: Vec::new(), nodes: Vec::new(), seed };
        let home = directory.append(image, groups, goal)?;
        let (end, block) = (directory.end(), image.edit(home)?);
        let file_type = if geometry.filetype { 2 } else { 0 };
        put_entry(block, 0, room(1), &Added { name: b".".to_vec(), ino, file_type });
        put_entry(block, room(1), end - room(1), &Added { name: b"..".to_vec(), ino: parent, file_type });
        directory.seal_leaf(image, home)?;
        Ok(directory)
    }

    /// Where a block's entries end.
    pub(crate) fn end(&self) -> usize {
        BLOCK_BYTES - if self.seed.is_some() { TAIL } else { 0 }
    }

    /// What of these names it has.
    pub(crate) fn lookup(
        &self,
        image: &mut Image<'_>,
        names: &BTreeSet<&[u8]>,
    ) -> Result<BTreeMap<Vec<u8>, u32>, Error> {
        let mut found = BTreeMap::new();
        for &home in &self.blocks {
            let block = image.get(home)?;
            // An index's blocks look like ones without entries; their own structure reaches to the end.
            let end = if self.has_tail(&block) { self.end() } else { BLOCK_BYTES };
            for slot in slots(&block, end)?.iter().filter(|slot| slot.ino != 0 && names.contains(slot.name)) {
                found.insert(slot.name.to_vec(), slot.ino);
            }
        }
        Ok(found)
    }

    fn has_tail(&self, block: &Block) -> bool {
        let tail = &block[BLOCK_BYTES - TAIL..];
        self.seed.is_some()
            && u32_at(tail, 0) == 0
            && usize::from(u16_at(tail, 4)) == TAIL
            && tail[7] == TAIL_TYPE
    }

    /// Writes a leaf's tail and checksum.
    pub(crate) fn seal_leaf(&self, image: &mut Image<'_>, home: u64) -> Result<(), Error> {
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
        let home = groups.allocate(image, self.blocks.last().map_or(goal, |last| last + 1))?;
        let mut block = Box::new([0; BLOCK_BYTES]);
        put_free(&mut block, 0, self.end());
        image.put(home, block)?;
        self.seal_leaf(image, home)?;
        self.blocks.push(home);
        Ok(home)
    }

    /// Adds an entry whose name is not there.
    pub(crate) fn add(
        &mut self,
        image: &mut Image<'_>,
        geometry: &Geometry,
        groups: &mut Groups<'_>,
        added: &Added,
    ) -> Result<(), Error> {
        if self.inode.is_indexed() {
            if crate::htree::add(self, image, geometry, groups, added)? {
                return Ok(());
            }
            crate::htree::flatten(self, image)?;
            self.inode.drop_index();
        }
        let end = self.end();
        for home in self.blocks.clone().into_iter().rev() {
            let mut block = image.get(home)?;
            if insert(&mut block, end, added)? {
                image.put(home, block)?;
                return self.seal_leaf(image, home);
            }
        }
        let goal = groups.goal(self.inode.ino);
        let home = self.append(image, groups, goal)?;
        if !insert(image.edit(home)?, end, added)? {
            return corrupt("a name is longer than a block");
        }
        self.seal_leaf(image, home)
    }

    /// Its inode and tree, for the blocks that it has now; and blocks of the tree that are not needed any more.
    pub(crate) fn finish(
        mut self,
        image: &mut Image<'_>,
        geometry: &Geometry,
        groups: &mut Groups<'_>,
    ) -> Result<(Inode, Vec<u64>), Error> {
        let extents = tree::extents_of(&self.blocks);
        let Some(needed) = tree::nodes_needed(extents.len()) else {
            return unsupported(format!("directory {} has {} extents", self.inode.ino, extents.len()));
        };
        while self.nodes.len() < needed {
            let goal = groups.goal(self.inode.ino);
            self.nodes.push(groups.allocate(image, goal)?);
        }
        let spare = self.nodes.split_off(needed);
        let (root, nodes) = tree::build(&extents, &self.nodes);
        for (home, mut block) in nodes {
            if let Some(seed) = self.seed {
                let sum = crc32c(seed, &block[..tree::NODE_SUM]);
                put32(block.as_mut_slice(), tree::NODE_SUM, sum);
            }
            image.put(home, block)?;
        }
        self.inode.set_root(&root);
        self.inode.set_size((self.blocks.len() * BLOCK_BYTES) as u64);
        let acl = u64::from(self.inode.file_acl() != 0);
        self.inode.set_blocks(self.blocks.len() as u64 + needed as u64 + acl, geometry)?;
        Ok((self.inode, spare))
    }
}
