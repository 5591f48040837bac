//! Block groups: what is in use, and the counts and checksums that follow from it (`Documentation/filesystems/ext4/group_descr.rst`,
//! `bitmaps.rst`).

use std::collections::BTreeSet;
use std::ops::Range;

use afterimage_journal::BLOCK_BYTES;

use crate::bytes::{crc16, crc32c, put16, u16_at, u32_at};
use crate::error::{corrupt, unsupported, Error};
use crate::image::{Block, Image};
use crate::room::Room;
use crate::superblock::{put_halves, Geometry};

const BLOCK_BITMAP: (usize, usize) = (0x0, 0x20);
const INODE_BITMAP: (usize, usize) = (0x4, 0x24);
const INODE_TABLE: (usize, usize) = (0x8, 0x28);
const FREE_BLOCKS: (usize, usize) = (0xC, 0x2C);
const FREE_INODES: (usize, usize) = (0xE, 0x2E);
const USED_DIRS: (usize, usize) = (0x10, 0x30);
const FLAGS: usize = 0x12;
const BLOCK_BITMAP_SUM: (usize, usize) = (0x18, 0x38);
const INODE_BITMAP_SUM: (usize, usize) = (0x1A, 0x3A);
const ITABLE_UNUSED: (usize, usize) = (0x1C, 0x32);
const CHECKSUM: usize = 0x1E;

const INODE_UNINIT: u16 = 0x1;
const BLOCK_UNINIT: u16 = 0x2;

/// See the module.
pub(crate) struct Groups<'a> {
    geometry: &'a Geometry,
    touched: BTreeSet<u64>,
}

/// A descriptor's number in two parts.
fn wide(descriptor: &[u8], (lo, hi): (usize, usize)) -> u64 {
    let high = if descriptor.len() >= hi + 4 { u32_at(descriptor, hi) } else { 0 };
    u64::from(high) << 32 | u64::from(u32_at(descriptor, lo))
}

fn count(descriptor: &[u8], (lo, hi): (usize, usize)) -> u32 {
    let high = if descriptor.len() >= hi + 2 { u16_at(descriptor, hi) } else { 0 };
    u32::from(high) << 16 | u32::from(u16_at(descriptor, lo))
}

fn bit(bitmap: &Block, at: usize) -> bool {
    bitmap[at / 8] >> (at % 8) & 1 != 0
}

impl<'a> Groups<'a> {
    pub(crate) fn new(geometry: &'a Geometry) -> Self {
        Self { geometry, touched: BTreeSet::new() }
    }

    /// What is left of the file system when superblocks, descriptors, bitmaps and inode tables have taken theirs
    /// (`ext4_setup_system_zone`).
    ///
    /// # Errors
    /// *Corrupt* where two are in one place, or a descriptor does not agree with its checksum.
    pub(crate) fn room(&self, image: &mut Image<'_>) -> Result<Room, Error> {
        let mut room = Room::new(self.geometry.blocks);
        for group in 0..self.geometry.groups() {
            let descriptor = self.descriptor(image, group)?;
            if self.sum(group, &descriptor).is_some_and(|sum| sum != u16_at(&descriptor, CHECKSUM)) {
                return corrupt(format!("group {group}'s descriptor does not agree with its checksum"));
            }
            if self.geometry.has_backup(group) {
                let (first, blocks) = self.blocks_of(group);
                let len = (1 + self.geometry.descriptor_blocks()).min(blocks as u64);
                room.take(first..first + len, &format!("group {group}'s superblock and descriptors"))?;
            }
            for (place, len, what) in [
                (BLOCK_BITMAP, 1, "block bitmap"),
                (INODE_BITMAP, 1, "inode bitmap"),
                (INODE_TABLE, self.table_blocks(), "inode table"),
            ] {
                let at = wide(&descriptor, place);
                room.take(at..at.saturating_add(len), &format!("group {group}'s {what}"))?;
            }
        }
        Ok(room)
    }

    /// A descriptor's checksum, where it has one.
    fn sum(&self, group: u64, descriptor: &[u8]) -> Option<u16> {
        let number = (group as u32).to_le_bytes();
        let (before, behind) = (&descriptor[..CHECKSUM], &descriptor[CHECKSUM + 2..]);
        match self.geometry.checksum_seed {
            Some(seed) => {
                let sum = crc32c(crc32c(seed, &number), before);
                Some(crc32c(crc32c(sum, &[0; 2]), behind) as u16)
            }
            None => self.geometry.gdt_csum.then(|| {
                let sum = crc16(crc16(crc16(!0, &self.geometry.uuid), &number), before);
                crc16(sum, behind)
            }),
        }
    }

    fn table_blocks(&self) -> u64 {
        let bytes = self.geometry.inodes_per_group as usize * self.geometry.inode_bytes;
        bytes.div_ceil(BLOCK_BYTES) as u64
    }

    fn has_flags(&self) -> bool {
        self.geometry.gdt_csum || self.geometry.checksum_seed.is_some()
    }

    /// The block of a group's descriptor, and where in it.
    fn place(&self, group: u64) -> (u64, Range<usize>) {
        let (bytes, per_block) =
            (self.geometry.descriptor_bytes, (BLOCK_BYTES / self.geometry.descriptor_bytes) as u64);
        let at = (group % per_block) as usize * bytes;
        (1 + group / per_block, at..at + bytes)
    }

    fn descriptor(&self, image: &mut Image<'_>, group: u64) -> Result<Vec<u8>, Error> {
        let (block, range) = self.place(group);
        Ok(image.get(block)?[range].to_vec())
    }

    fn edit<T>(
        &mut self,
        image: &mut Image<'_>,
        group: u64,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, Error> {
        let (block, range) = self.place(group);
        self.touched.insert(group);
        Ok(change(&mut image.edit(block)?[range]))
    }

    fn flags(&self, descriptor: &[u8]) -> u16 {
        if self.has_flags() {
            u16_at(descriptor, FLAGS)
        } else {
            0
        }
    }

    /// The first block of a group, and how many it has.
    fn blocks_of(&self, group: u64) -> (u64, usize) {
        let per_group = u64::from(self.geometry.blocks_per_group);
        let first = group * per_group;
        (first, (self.geometry.blocks - first).min(per_group) as usize)
    }

    /// Whether bytes of a bitmap agree with the checksum that the descriptor has of them.
    fn agrees(&self, descriptor: &[u8], place: (usize, usize), counted: &[u8]) -> bool {
        let Some(seed) = self.geometry.checksum_seed else { return true };
        let whole = descriptor.len() >= place.1 + 2;
        let sum = crc32c(seed, counted) & if whole { u32::MAX } else { 0xFFFF };
        count(descriptor, place) == sum
    }

    /// A group's inode bitmap, which was written before.
    fn inode_bitmap(&self, image: &mut Image<'_>, group: u64) -> Result<Box<Block>, Error> {
        let descriptor = self.descriptor(image, group)?;
        let home = wide(&descriptor, INODE_BITMAP);
        let bitmap = image.get(home)?;
        let counted = &bitmap[..self.geometry.inodes_per_group as usize / 8];
        if !image.changed.contains_key(&home) && !self.agrees(&descriptor, INODE_BITMAP_SUM, counted) {
            return corrupt(format!("group {group}'s inode bitmap does not agree with its checksum"));
        }
        Ok(bitmap)
    }

    /// A group's block bitmap; one that was never written is what it would be.
    fn block_bitmap(&self, image: &mut Image<'_>, group: u64) -> Result<(u64, Box<Block>), Error> {
        let descriptor = self.descriptor(image, group)?;
        let home = wide(&descriptor, BLOCK_BITMAP);
        if self.flags(&descriptor) & BLOCK_UNINIT == 0 {
            let bitmap = image.get(home)?;
            let counted = &bitmap[..self.geometry.blocks_per_group as usize / 8];
            if !image.changed.contains_key(&home) && !self.agrees(&descriptor, BLOCK_BITMAP_SUM, counted) {
                return corrupt(format!("group {group}'s block bitmap does not agree with its checksum"));
            }
            return Ok((home, bitmap));
        }
        let mut bitmap = Box::new([0; BLOCK_BYTES]);
        let (first, blocks) = self.blocks_of(group);
        let mut set = |at: usize| bitmap[at / 8] |= 1 << (at % 8);
        if self.geometry.has_backup(group) {
            let behind = 1 + self.geometry.descriptor_blocks() + u64::from(self.geometry.reserved_gdt_blocks);
            (0..behind.min(blocks as u64) as usize).for_each(&mut set);
        }
        let table = (wide(&descriptor, INODE_TABLE), self.table_blocks());
        for (at, len) in [(home, 1), (wide(&descriptor, INODE_BITMAP), 1), table] {
            let within = at.max(first)..at.saturating_add(len).min(first + blocks as u64);
            within.for_each(|block| set((block - first) as usize));
        }
        (blocks..8 * BLOCK_BYTES).for_each(&mut set);
        Ok((home, bitmap))
    }

    /// The parts of a range of blocks, group by group: group, bits.
    fn split(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
        let per_group = u64::from(self.geometry.blocks_per_group);
        let mut at = range.start;
        std::iter::from_fn(move || {
            let group = at / per_group;
            let end = range.end.min((group + 1) * per_group);
            let bits =
                (at < range.end).then(|| (at % per_group) as usize..(end - group * per_group) as usize)?;
            at = end;
            Some((group, bits))
        })
    }

    /// Whether nothing uses any of these blocks.
    pub(crate) fn are_free(&self, image: &mut Image<'_>, range: Range<u64>) -> Result<bool, Error> {
        if !self.geometry.room.has(&range) {
            return Ok(false);
        }
        for (group, bits) in self.split(range) {
            let (_, bitmap) = self.block_bitmap(image, group)?;
            if bits.into_iter().any(|at| bit(&bitmap, at)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Marks blocks as used or free, each of which was the other.
    pub(crate) fn mark(&mut self, image: &mut Image<'_>, range: Range<u64>, used: bool) -> Result<(), Error> {
        if !self.geometry.room.has(&range) {
            return corrupt(format!("blocks {}..{} can be nobody's", range.start, range.end));
        }
        for (group, bits) in self.split(range) {
            let (home, mut bitmap) = self.initialised(image, group)?;
            for at in bits.clone() {
                if bit(&bitmap, at) == used {
                    let state = if used { "used" } else { "free" };
                    let block = self.blocks_of(group).0 + at as u64;
                    return corrupt(format!("block {block} is {state} already"));
                }
                bitmap[at / 8] ^= 1 << (at % 8);
            }
            image.put(home, bitmap)?;
            let len = bits.len() as u32;
            self.edit(image, group, |descriptor| {
                let free = count(descriptor, FREE_BLOCKS);
                let free = if used { free.saturating_sub(len) } else { free + len };
                put_halves(descriptor, FREE_BLOCKS.0, FREE_BLOCKS.1, free);
            })?;
        }
        Ok(())
    }

    /// A group's block bitmap, from now on one that is written.
    fn initialised(&mut self, image: &mut Image<'_>, group: u64) -> Result<(u64, Box<Block>), Error> {
        let (home, bitmap) = self.block_bitmap(image, group)?;
        image.put(home, bitmap.clone())?;
        if self.flags(&self.descriptor(image, group)?) & BLOCK_UNINIT != 0 {
            let free = (0..self.blocks_of(group).1).filter(|&at| !bit(&bitmap, at)).count() as u32;
            self.edit(image, group, |descriptor| {
                let flags = u16_at(descriptor, FLAGS) & !BLOCK_UNINIT;
                put16(descriptor, FLAGS, flags);
                put_halves(descriptor, FREE_BLOCKS.0, FREE_BLOCKS.1, free);
            })?;
        }
        Ok((home, bitmap))
    }

    /// Takes a free block, at `goal` or behind it, or else the first.
    pub(crate) fn allocate(&mut self, image: &mut Image<'_>, goal: u64) -> Result<u64, Error> {
        let per_group = u64::from(self.geometry.blocks_per_group);
        let (groups, goal) = (self.geometry.groups(), goal.min(self.geometry.blocks - 1));
        for i in 0..=groups {
            let group = (goal / per_group + i) % groups;
            if count(&self.descriptor(image, group)?, FREE_BLOCKS) == 0 {
                continue;
            }
            let (_, bitmap) = match self.block_bitmap(image, group) {
                Err(Error::Corrupt(_)) => continue,
                bitmap => bitmap?,
            };
            let (first, blocks) = self.blocks_of(group);
            let from = if i == 0 { (goal % per_group) as usize } else { 0 };
            if let Some(at) = (from..blocks).find(|&at| !bit(&bitmap, at)) {
                let block = first + at as u64;
                self.mark(image, block..block + 1, true)?;
                return Ok(block);
            }
        }
        unsupported("there is no room for the directories' blocks")
    }

    /// The block of an inode in its table, and where in it.
    pub(crate) fn inode_place(&self, image: &mut Image<'_>, ino: u32) -> Result<(u64, Range<usize>), Error> {
        if ino == 0 || ino > self.geometry.inodes {
            return corrupt(format!("inode {ino} of {}", self.geometry.inodes));
        }
        let (group, index) = self.inode_index(ino);
        let table = wide(&self.descriptor(image, group)?, INODE_TABLE);
        Ok(self.slot(table, index))
    }

    fn inode_index(&self, ino: u32) -> (u64, u32) {
        let per_group = self.geometry.inodes_per_group;
        (u64::from((ino - 1) / per_group), (ino - 1) % per_group)
    }

    fn slot(&self, table: u64, index: u32) -> (u64, Range<usize>) {
        let bytes = self.geometry.inode_bytes;
        let per_block = (BLOCK_BYTES / bytes) as u32;
        let at = (index % per_block) as usize * bytes;
        (table.saturating_add((index / per_block).into()), at..at + bytes)
    }

    /// A group's first block: where an inode of it likes to have its blocks.
    pub(crate) fn goal(&self, ino: u32) -> u64 {
        self.inode_index(ino).0 * u64::from(self.geometry.blocks_per_group)
    }

    /// How much of a group's inode table has ever been used.
    fn table_used(&self, descriptor: &[u8]) -> u32 {
        let per_group = self.geometry.inodes_per_group;
        match self.flags(descriptor) & INODE_UNINIT {
            _ if !self.has_flags() => per_group,
            0 => per_group.saturating_sub(count(descriptor, ITABLE_UNUSED)),
            _ => 0,
        }
    }

    /// Whether an inode is in use.
    pub(crate) fn has_inode(&self, image: &mut Image<'_>, ino: u32) -> Result<bool, Error> {
        if ino == 0 || ino > self.geometry.inodes {
            return Ok(false);
        }
        let (group, index) = self.inode_index(ino);
        let descriptor = self.descriptor(image, group)?;
        if index >= self.table_used(&descriptor) {
            return Ok(false);
        }
        Ok(bit(&*self.inode_bitmap(image, group)?, index as usize))
    }

    /// Takes an inode that is free. What of its table counts as used from now on is zeroes.
    pub(crate) fn take_inode(
        &mut self,
        image: &mut Image<'_>,
        ino: u32,
        directory: bool,
    ) -> Result<(), Error> {
        let (group, index) = self.inode_index(ino);
        let per_group = self.geometry.inodes_per_group;
        let descriptor = self.descriptor(image, group)?;
        let home = wide(&descriptor, INODE_BITMAP);
        if self.flags(&descriptor) & INODE_UNINIT != 0 {
            // As the kernel does, the block bitmap with it.
            self.initialised(image, group)?;
            let mut bitmap = Box::new([0; BLOCK_BYTES]);
            (per_group as usize..8 * BLOCK_BYTES).for_each(|at| bitmap[at / 8] |= 1 << (at % 8));
            image.put(home, bitmap)?;
        }
        let used = self.table_used(&descriptor);
        for fresh in used..=index.max(used.saturating_sub(1)) {
            let (block, range) = self.slot(wide(&descriptor, INODE_TABLE), fresh);
            if fresh >= used {
                let fresh = group as u32 * per_group + fresh + 1;
                if self.geometry.is_own(fresh) {
                    return corrupt(format!("inode {fresh}, the file system's own, was never used"));
                }
                image.edit(block)?[range].fill(0);
            }
        }
        self.inode_bitmap(image, group)?;
        let at = index as usize;
        let bitmap = image.edit(home)?;
        if bit(bitmap, at) {
            return corrupt(format!("inode {ino} is used already"));
        }
        bitmap[at / 8] |= 1 << (at % 8);
        let flags = self.has_flags();
        self.edit(image, group, |descriptor| {
            let free = count(descriptor, FREE_INODES).saturating_sub(1);
            put_halves(descriptor, FREE_INODES.0, FREE_INODES.1, free);
            if directory {
                let dirs = count(descriptor, USED_DIRS) + 1;
                put_halves(descriptor, USED_DIRS.0, USED_DIRS.1, dirs);
            }
            if flags {
                let known = u16_at(descriptor, FLAGS) & !INODE_UNINIT;
                put16(descriptor, FLAGS, known);
                let unused = per_group - used.max(index + 1);
                put_halves(descriptor, ITABLE_UNUSED.0, ITABLE_UNUSED.1, unused);
            }
        })
    }

    /// Checksums of all that was changed; then free blocks and inodes of the file system.
    pub(crate) fn finish(mut self, image: &mut Image<'_>) -> Result<(u64, u32), Error> {
        let geometry = self.geometry;
        for group in std::mem::take(&mut self.touched) {
            let descriptor = self.descriptor(image, group)?;
            let blocks = image.get(wide(&descriptor, BLOCK_BITMAP))?;
            let inodes = image.get(wide(&descriptor, INODE_BITMAP))?;
            let flags = self.flags(&descriptor);
            self.edit(image, group, |descriptor| {
                if let Some(seed) = geometry.checksum_seed {
                    if flags & BLOCK_UNINIT == 0 {
                        let sum = crc32c(seed, &blocks[..geometry.blocks_per_group as usize / 8]);
                        put_halves(descriptor, BLOCK_BITMAP_SUM.0, BLOCK_BITMAP_SUM.1, sum);
                    }
                    if flags & INODE_UNINIT == 0 {
                        let sum = crc32c(seed, &inodes[..geometry.inodes_per_group as usize / 8]);
                        put_halves(descriptor, INODE_BITMAP_SUM.0, INODE_BITMAP_SUM.1, sum);
                    }
                }
            })?;
            let descriptor = self.descriptor(image, group)?;
            if let Some(sum) = self.sum(group, &descriptor) {
                self.edit(image, group, |descriptor| put16(descriptor, CHECKSUM, sum))?;
            }
        }
        let (mut free_blocks, mut free_inodes) = (0, 0u32);
        for group in 0..geometry.groups() {
            let descriptor = self.descriptor(image, group)?;
            free_blocks += u64::from(count(&descriptor, FREE_BLOCKS));
            free_inodes = free_inodes.saturating_add(count(&descriptor, FREE_INODES));
        }
        Ok((free_blocks, free_inodes))
    }
}
