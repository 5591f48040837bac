//! Inodes, as they stand on disk (`Documentation/filesystems/ext4/inodes.rst`).

use crate::bytes::{crc32c, put16, put32, u16_at, u32_at};
use crate::error::{corrupt, Error};
use crate::groups::Groups;
use crate::image::Image;
use crate::superblock::{inode_seed, Geometry};
use crate::tree::{Tree, NODE_SUM, ROOT_BYTES};

const MODE: usize = 0x0;
const SIZE_LO: usize = 0x4;
const CTIME: usize = 0xC;
const MTIME: usize = 0x10;
const DTIME: usize = 0x14;
const LINKS: usize = 0x1A;
const BLOCKS_LO: usize = 0x1C;
const FLAGS: usize = 0x20;
const BLOCK: usize = 0x28;
const GENERATION: usize = 0x64;
const FILE_ACL_LO: usize = 0x68;
const SIZE_HIGH: usize = 0x6C;
const OBSO_FADDR: usize = 0x70;
const BLOCKS_HIGH: usize = 0x74;
const FILE_ACL_HIGH: usize = 0x76;
const CHECKSUM_LO: usize = 0x7C;
const GOOD_OLD: usize = 0x80;
const EXTRA_ISIZE: usize = 0x80;
const CHECKSUM_HI: usize = 0x82;
const CTIME_EXTRA: usize = 0x84;
const MTIME_EXTRA: usize = 0x88;

const FLAG_INDEX: u32 = 0x1000;
const FLAG_HUGE_FILE: u32 = 0x4_0000;
const FLAG_EXTENTS: u32 = 0x8_0000;
const FLAG_JOURNAL_DATA: u32 = 0x4000;
/// Encryption, verity, values of attributes, inline data, casefold; of files, journaled data, too.
const FLAGS_REFUSED: u32 = 0x800 | 0x10_0000 | 0x20_0000 | 0x1000_0000 | 0x4000_0000;
/// `EXT4_LINK_MAX`.
const LINKS_MAX: u32 = 65000;

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Other,
}

/// An inode's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) ino: u32,
    pub(crate) raw: Vec<u8>,
}

impl Inode {
    /// One of the file system's.
    pub(crate) fn load(image: &mut Image<'_>, groups: &Groups<'_>, ino: u32) -> Result<Self, Error> {
        let (block, range) = groups.inode_place(image, ino)?;
        Ok(Self { ino, raw: image.get(block)?[range].to_vec() })
    }

    pub(crate) fn store(
        mut self,
        image: &mut Image<'_>,
        groups: &Groups<'_>,
        geometry: &Geometry,
    ) -> Result<(), Error> {
        if let Some(seed) = geometry.checksum_seed {
            let has_hi = self.raw.len() > GOOD_OLD && self.reaches(CHECKSUM_HI + 2);
            put16(&mut self.raw, CHECKSUM_LO, 0);
            if has_hi {
                put16(&mut self.raw, CHECKSUM_HI, 0);
            }
            let sum = crc32c(inode_seed(seed, self.ino, self.generation()), &self.raw);
            put16(&mut self.raw, CHECKSUM_LO, sum as u16);
            if has_hi {
                put16(&mut self.raw, CHECKSUM_HI, (sum >> 16) as u16);
            }
        }
        let (block, range) = groups.inode_place(image, self.ino)?;
        image.edit(block)?[range].copy_from_slice(&self.raw);
        Ok(())
    }

    /// Whether `i_extra_isize` reaches up to an offset.
    fn reaches(&self, end: usize) -> bool {
        self.raw.len() >= end && GOOD_OLD + usize::from(u16_at(&self.raw, EXTRA_ISIZE)) >= end
    }

    pub(crate) fn kind(&self) -> Kind {
        match u16_at(&self.raw, MODE) & 0xF000 {
            0x8000 => Kind::File,
            0x4000 => Kind::Directory,
            _ => Kind::Other,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        u64::from(u32_at(&self.raw, SIZE_HIGH)) << 32 | u64::from(u32_at(&self.raw, SIZE_LO))
    }

    pub(crate) fn set_size(&mut self, size: u64) {
        put32(&mut self.raw, SIZE_LO, size as u32);
        put32(&mut self.raw, SIZE_HIGH, (size >> 32) as u32);
    }

    pub(crate) fn links(&self) -> u32 {
        u16_at(&self.raw, LINKS).into()
    }

    /// How many more it may have, where they are counted.
    pub(crate) fn links_left(&self) -> u32 {
        LINKS_MAX.saturating_sub(self.links())
    }

    /// More links; a directory with too many has one, which means that nobody counts.
    pub(crate) fn add_links(&mut self, more: u32, dir_nlink: bool) -> Result<(), Error> {
        let links = self.links();
        let uncounted =
            self.kind() == Kind::Directory && dir_nlink && (links == 1 || links + more >= LINKS_MAX);
        match links + more {
            _ if uncounted => put16(&mut self.raw, LINKS, 1),
            links if links > LINKS_MAX => return corrupt(format!("inode {} has {links} links", self.ino)),
            links => put16(&mut self.raw, LINKS, links as u16),
        }
        Ok(())
    }

    pub(crate) fn set_links(&mut self, links: u32) {
        put16(&mut self.raw, LINKS, links.min(LINKS_MAX) as u16);
    }

    pub(crate) fn generation(&self) -> u32 {
        u32_at(&self.raw, GENERATION)
    }

    pub(crate) fn file_acl(&self) -> u64 {
        u64::from(u16_at(&self.raw, FILE_ACL_HIGH)) << 32 | u64::from(u32_at(&self.raw, FILE_ACL_LO))
    }

    /// Keeps what only the committed inode knows: its place on the list of orphans.
    pub(crate) fn keep_orphan(&mut self, committed: Option<&Self>) {
        // Obsolete, and e2fsck wants it empty.
        put32(&mut self.raw, OBSO_FADDR, 0);
        put32(&mut self.raw, DTIME, committed.map_or(0, |inode| u32_at(&inode.raw, DTIME)));
    }

    /// Whether its blocks and attributes are where recovery can follow them.
    pub(crate) fn is_plain(&self) -> bool {
        let flags = u32_at(&self.raw, FLAGS);
        // A directory hands the flag on, no more: its own blocks are journaled anyway.
        let journaled = flags & FLAG_JOURNAL_DATA != 0 && self.kind() != Kind::Directory;
        flags & FLAG_EXTENTS != 0 && flags & FLAGS_REFUSED == 0 && !journaled
    }

    pub(crate) fn is_indexed(&self) -> bool {
        u32_at(&self.raw, FLAGS) & FLAG_INDEX != 0
    }

    pub(crate) fn drop_index(&mut self) {
        let flags = u32_at(&self.raw, FLAGS) & !FLAG_INDEX;
        put32(&mut self.raw, FLAGS, flags);
    }

    pub(crate) fn root(&self) -> &[u8] {
        &self.raw[BLOCK..BLOCK + ROOT_BYTES]
    }

    pub(crate) fn set_root(&mut self, root: &[u8; ROOT_BYTES]) {
        self.raw[BLOCK..BLOCK + ROOT_BYTES].copy_from_slice(root);
    }

    /// `i_blocks`, for so many blocks of the file system, attributes' included.
    pub(crate) fn set_blocks(&mut self, blocks: u64, geometry: &Geometry) -> Result<(), Error> {
        let flags = u32_at(&self.raw, FLAGS);
        let units = if flags & FLAG_HUGE_FILE != 0 { blocks } else { blocks * 8 };
        if units >> 32 != 0 && !geometry.huge_file || units >> 48 != 0 {
            return corrupt(format!("inode {} has {blocks} blocks", self.ino));
        }
        put32(&mut self.raw, BLOCKS_LO, units as u32);
        if geometry.huge_file {
            put16(&mut self.raw, BLOCKS_HIGH, (units >> 32) as u16);
        }
        Ok(())
    }

    /// A directory's times of change are the other's.
    pub(crate) fn take_times(&mut self, from: &Self) {
        for at in [CTIME, MTIME, CTIME_EXTRA, MTIME_EXTRA] {
            if at < GOOD_OLD || self.reaches(at + 4) && from.reaches(at + 4) {
                let time = u32_at(&from.raw, at);
                put32(&mut self.raw, at, time);
            }
        }
    }

    /// The seed of the checksums of its blocks.
    pub(crate) fn seed(&self, geometry: &Geometry) -> Option<u32> {
        geometry.checksum_seed.map(|seed| inode_seed(seed, self.ino, self.generation()))
    }

    /// Its tree, which is the file system's own.
    pub(crate) fn tree(&self, image: &mut Image<'_>, geometry: &Geometry) -> Result<Tree, Error> {
        let seed = self.seed(geometry);
        let tree = Tree::read(self.root(), &geometry.room, &mut |block| {
            let content = image.get(block)?;
            if seed.is_some_and(|seed| crc32c(seed, &content[..NODE_SUM]) != u32_at(&content[..], NODE_SUM)) {
                return corrupt(format!("the extents in block {block} do not agree with their checksum"));
            }
            Ok(content.to_vec())
        });
        tree.map_err(|error| match error {
            Error::Corrupt(why) => Error::Corrupt(format!("inode {}: {why}", self.ino)),
            other => other,
        })
    }
}
