//! Directories (`Documentation/filesystems/ext4/directory.rst`): names looked up, and entries added. Nothing is ever removed.

use std::collections::{BTreeMap, BTreeSet};

use afterimage_journal::BLOCK_BYTES;

use crate::bytes::{crc32c, put32};
use crate::entries::{insert, put_entry, room, slots, Added};
use crate::error::{corrupt, unsupported, Error};
use crate::groups::Groups;
use crate::htree;
use crate::image::Image;
use crate::inode::{Inode, Kind};
use crate::leaves::Leaves;
use crate::superblock::Geometry;
use crate::tree;

/// The longest directory that is read, in blocks: 4 GiB, what ext4 without LARGEDIR has. Its map takes 8 bytes a block.
const BLOCKS_MAX: u64 = 1 << 20;

/// A directory that entries are added to.
pub(crate) struct Directory {
    inode: Inode,
    leaves: Leaves,
    /// Blocks of its tree.
    nodes: Vec<u64>,
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
        if wanted > BLOCKS_MAX {
            return unsupported(format!("directory {} has {wanted} blocks", inode.ino));
        }
        // Blocks behind the end were allocated ahead; they stay what they are.
        if tree.blocks() - tree.nodes.len() as u64 > wanted {
            return unsupported(format!("directory {} has blocks behind its end", inode.ino));
        }
        let Some(blocks) = tree.mapped(wanted).filter(|blocks| !blocks.is_empty()) else {
            return corrupt(format!("directory {} has holes", inode.ino));
        };
        let leaves = Leaves { ino: inode.ino, homes: blocks, seed: inode.seed(geometry) };
        Ok(Self { inode, leaves, nodes: tree.nodes })
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
        let ino = inode.ino;
        let mut leaves = Leaves { ino, homes: Vec::new(), seed: inode.seed(geometry) };
        let home = leaves.append(image, groups, goal)?;
        let (end, block) = (leaves.end(), image.edit(home)?);
        let file_type = if geometry.filetype { 2 } else { 0 };
        put_entry(block, 0, room(1), &Added { name: b".".to_vec(), ino, file_type });
        put_entry(block, room(1), end - room(1), &Added { name: b"..".to_vec(), ino: parent, file_type });
        leaves.seal(image, home)?;
        Ok(Self { inode, leaves, nodes: Vec::new() })
    }

    /// How many blocks of entries it has.
    pub(crate) fn blocks(&self) -> usize {
        self.leaves.homes.len()
    }

    /// What of these names it has.
    pub(crate) fn lookup(
        &self,
        image: &mut Image<'_>,
        names: &BTreeSet<&[u8]>,
    ) -> Result<BTreeMap<Vec<u8>, u32>, Error> {
        let mut found = BTreeMap::new();
        for &home in &self.leaves.homes {
            let block = image.get(home)?;
            // A leaf's tail is an entry that names nothing, and an index's blocks are one or two that reach to the end: also a root that
            // was a leaf, in which the kernel leaves the tail's head (`make_indexed_dir`).
            for slot in
                slots(&block, BLOCK_BYTES)?.iter().filter(|slot| slot.ino != 0 && names.contains(slot.name))
            {
                found.insert(slot.name.to_vec(), slot.ino);
            }
        }
        Ok(found)
    }

    /// Adds an entry whose name is not there.
    ///
    /// # Errors
    /// *Unsupported* where it has no room and there is no block: it is sound, and others may be added.
    pub(crate) fn add(
        &mut self,
        image: &mut Image<'_>,
        geometry: &Geometry,
        groups: &mut Groups<'_>,
        added: &Added,
    ) -> Result<(), Error> {
        if self.inode.is_indexed() {
            if htree::add(&mut self.leaves, image, geometry, groups, added)? {
                return Ok(());
            }
            htree::flatten(&self.leaves, image)?;
            self.inode.drop_index();
        }
        let end = self.leaves.end();
        for home in self.leaves.homes.clone().into_iter().rev() {
            let mut block = image.get(home)?;
            if insert(&mut block, end, added)? {
                image.put(home, block)?;
                return self.leaves.seal(image, home);
            }
        }
        let goal = groups.goal(self.inode.ino);
        let home = self.leaves.append(image, groups, goal)?;
        if !insert(image.edit(home)?, end, added)? {
            return corrupt("a name is longer than a block");
        }
        self.leaves.seal(image, home)
    }

    /// Its inode and tree, for the blocks that it has now; and blocks of the tree that are not needed any more.
    ///
    /// # Errors
    /// *Unsupported* where the tree would be too large, or there is no block for it.
    pub(crate) fn finish(
        mut self,
        image: &mut Image<'_>,
        geometry: &Geometry,
        groups: &mut Groups<'_>,
    ) -> Result<(Inode, Vec<u64>), Error> {
        let extents = tree::extents_of(&self.leaves.homes);
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
            if let Some(seed) = self.leaves.seed {
                let sum = crc32c(seed, &block[..tree::NODE_SUM]);
                put32(block.as_mut_slice(), tree::NODE_SUM, sum);
            }
            image.put(home, block)?;
        }
        self.inode.set_root(&root);
        self.inode.set_size((self.leaves.homes.len() * BLOCK_BYTES) as u64);
        let acl = u64::from(self.inode.file_acl() != 0);
        self.inode.set_blocks(self.leaves.homes.len() as u64 + needed as u64 + acl, geometry)?;
        Ok((self.inode, spare))
    }
}
