//! The superblock, as far as recovery needs it (`Documentation/filesystems/ext4/super.rst`); that it is sound was judged when the
//! journal was found.

use afterimage_format::ijournal::INCOMPAT_IJOURNAL;
use afterimage_journal::BLOCK_BYTES;

use crate::bytes::{crc32c, put16, put32, u16_at, u32_at};
use crate::error::{unsupported, Error};
use crate::room::Room;

/// Where it stands in block 0.
pub(crate) const AT: usize = 1024;
pub(crate) const BYTES: usize = 1024;

const INODES: usize = 0x0;
const BLOCKS_LO: usize = 0x4;
const FREE_BLOCKS_LO: usize = 0xC;
const FREE_INODES: usize = 0x10;
const BLOCKS_PER_GROUP: usize = 0x20;
const INODES_PER_GROUP: usize = 0x28;
const FIRST_INO: usize = 0x54;
const INODE_SIZE: usize = 0x58;
const COMPAT: usize = 0x5C;
const INCOMPAT: usize = 0x60;
const RO_COMPAT: usize = 0x64;
const UUID: usize = 0x68;
const RESERVED_GDT_BLOCKS: usize = 0xCE;
const JOURNAL_INUM: usize = 0xE0;
const HASH_SEED: usize = 0xEC;
const DESC_SIZE: usize = 0xFE;
const BLOCKS_HI: usize = 0x150;
const FREE_BLOCKS_HI: usize = 0x158;
const FLAGS: usize = 0x160;
const MMP_INTERVAL: usize = 0x166;
const MMP_BLOCK: usize = 0x168;
const BACKUP_BGS: usize = 0x24C;
const CHECKSUM_SEED: usize = 0x270;
const ORPHAN_FILE_INUM: usize = 0x280;
const CHECKSUM: usize = 0x3FC;

const COMPAT_SPARSE_SUPER2: u32 = 0x200;
const INCOMPAT_FILETYPE: u32 = 0x2;
const INCOMPAT_RECOVER: u32 = 0x4;
const INCOMPAT_META_BG: u32 = 0x10;
const INCOMPAT_64BIT: u32 = 0x80;
const INCOMPAT_MMP: u32 = 0x100;
const INCOMPAT_EA_INODE: u32 = 0x400;
const INCOMPAT_CSUM_SEED: u32 = 0x2000;
const INCOMPAT_INLINE_DATA: u32 = 0x8000;
const INCOMPAT_ENCRYPT: u32 = 0x1_0000;
const INCOMPAT_CASEFOLD: u32 = 0x2_0000;
const RO_SPARSE_SUPER: u32 = 0x1;
const RO_LARGE_FILE: u32 = 0x2;
const RO_HUGE_FILE: u32 = 0x8;
const RO_GDT_CSUM: u32 = 0x10;
const RO_DIR_NLINK: u32 = 0x20;
const RO_QUOTA: u32 = 0x100;
const RO_BIGALLOC: u32 = 0x200;
const RO_METADATA_CSUM: u32 = 0x400;
const RO_PROJECT: u32 = 0x2000;
/// EXT2_FLAGS_UNSIGNED_HASH.
const FLAG_UNSIGNED_HASH: u32 = 0x2;

/// What does not change while recovery works.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) blocks: u64,
    pub(crate) inodes: u32,
    pub(crate) blocks_per_group: u32,
    pub(crate) inodes_per_group: u32,
    pub(crate) first_ino: u32,
    pub(crate) inode_bytes: usize,
    pub(crate) descriptor_bytes: usize,
    pub(crate) reserved_gdt_blocks: u32,
    pub(crate) uuid: [u8; 16],
    /// The seed of metadata's CRC-32Cs, where it has them.
    pub(crate) checksum_seed: Option<u32>,
    /// Descriptors have CRC-16s.
    pub(crate) gdt_csum: bool,
    pub(crate) huge_file: bool,
    pub(crate) dir_nlink: bool,
    pub(crate) filetype: bool,
    pub(crate) hash_seed: [u32; 4],
    pub(crate) unsigned_hash: bool,
    pub(crate) journal_ino: u32,
    /// Inodes that are the file system's own beside the journal's and those below `first_ino`.
    pub(crate) own: Vec<u32>,
    /// What is nobody's own.
    pub(crate) room: Room,
    sparse_super: bool,
    backups: Option<[u32; 2]>,
}

impl Geometry {
    /// What the superblock in block 0 says.
    pub(crate) fn new(block: &[u8; BLOCK_BYTES]) -> Result<Self, Error> {
        let sb = &block[AT..AT + BYTES];
        let (compat, incompat, ro) = (u32_at(sb, COMPAT), u32_at(sb, INCOMPAT), u32_at(sb, RO_COMPAT));
        for (has, name) in [
            (incompat & INCOMPAT_META_BG != 0, "meta_bg"),
            (incompat & INCOMPAT_EA_INODE != 0, "ea_inode"),
            (incompat & INCOMPAT_INLINE_DATA != 0, "inline_data"),
            (incompat & INCOMPAT_ENCRYPT != 0, "encrypt"),
            (incompat & INCOMPAT_CASEFOLD != 0, "casefold"),
            (ro & RO_BIGALLOC != 0, "bigalloc"),
            (ro & RO_QUOTA != 0, "quota"),
            (ro & RO_PROJECT != 0, "project"),
            (u16_at(sb, INODE_SIZE) > 256, "inodes of more than 256 bytes"),
        ] {
            if has {
                return unsupported(format!("iJournaling on an ext4 with {name}"));
            }
        }
        let wide = incompat & INCOMPAT_64BIT != 0;
        let hi = |at| if wide { u64::from(u32_at(sb, at)) << 32 } else { 0 };
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&sb[UUID..UUID + 16]);
        let seed = match incompat & INCOMPAT_CSUM_SEED != 0 {
            true => u32_at(sb, CHECKSUM_SEED),
            false => crc32c(!0, &uuid),
        };
        let blocks = hi(BLOCKS_HI) | u64::from(u32_at(sb, BLOCKS_LO));
        let geometry = Self {
            blocks,
            inodes: u32_at(sb, INODES),
            blocks_per_group: u32_at(sb, BLOCKS_PER_GROUP),
            inodes_per_group: u32_at(sb, INODES_PER_GROUP),
            first_ino: u32_at(sb, FIRST_INO),
            inode_bytes: u16_at(sb, INODE_SIZE).into(),
            descriptor_bytes: if wide { u16_at(sb, DESC_SIZE).into() } else { 32 },
            reserved_gdt_blocks: u16_at(sb, RESERVED_GDT_BLOCKS).into(),
            uuid,
            checksum_seed: (ro & RO_METADATA_CSUM != 0).then_some(seed),
            gdt_csum: ro & RO_GDT_CSUM != 0,
            huge_file: ro & RO_HUGE_FILE != 0,
            dir_nlink: ro & RO_DIR_NLINK != 0,
            filetype: incompat & INCOMPAT_FILETYPE != 0,
            hash_seed: std::array::from_fn(|i| u32_at(sb, HASH_SEED + 4 * i)),
            unsigned_hash: u32_at(sb, FLAGS) & FLAG_UNSIGNED_HASH != 0,
            journal_ino: u32_at(sb, JOURNAL_INUM),
            room: Room::new(blocks),
            own: vec![u32_at(sb, ORPHAN_FILE_INUM)],
            sparse_super: ro & RO_SPARSE_SUPER != 0,
            backups: (compat & COMPAT_SPARSE_SUPER2 != 0)
                .then(|| [u32_at(sb, BACKUP_BGS), u32_at(sb, BACKUP_BGS + 4)]),
        };
        if geometry.first_ino < 11
            || geometry.inode_bytes < 128
            || !(1..=8 * BLOCK_BYTES).contains(&(geometry.blocks_per_group as usize))
            || !(1..=8 * BLOCK_BYTES).contains(&(geometry.inodes_per_group as usize))
            || u64::from(geometry.inodes) != geometry.groups() * u64::from(geometry.inodes_per_group)
        {
            return Err(Error::Corrupt("the superblock's sizes cannot be".into()));
        }
        Ok(geometry)
    }

    pub(crate) fn groups(&self) -> u64 {
        self.blocks.div_ceil(self.blocks_per_group.into())
    }

    /// Whether an inode is none of a user's; the root is one.
    pub(crate) fn is_own(&self, ino: u32) -> bool {
        ino < self.first_ino || ino == self.journal_ino || self.own.contains(&ino)
    }

    /// Blocks of descriptors.
    pub(crate) fn descriptor_blocks(&self) -> u64 {
        self.groups().div_ceil((BLOCK_BYTES / self.descriptor_bytes) as u64)
    }

    /// Whether a group begins with the superblock or a copy of it (`ext4_bg_has_super`).
    pub(crate) fn has_backup(&self, group: u64) -> bool {
        let power_of = |base: u64| (1..).map(|e| base.pow(e)).find(|&power| power >= group) == Some(group);
        match self.backups {
            _ if group == 0 => true,
            Some(backups) => backups.iter().any(|&at| u64::from(at) == group),
            None => group == 1 || !self.sparse_super || power_of(3) || power_of(5) || power_of(7),
        }
    }
}

/// Whether there may be valid i-transactions, of a kernel part that said so here and not in the journal's superblock.
pub(crate) fn has_bit(block: &[u8; BLOCK_BYTES]) -> bool {
    u32_at(block, AT + INCOMPAT) & INCOMPAT_IJOURNAL != 0
}

/// Where its multi-mount protection is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protection {
    pub(crate) block: u64,
    /// Seconds.
    pub(crate) interval: u16,
    /// Of its checksum, where it has one.
    pub(crate) seed: Option<u32>,
}

/// Its multi-mount protection, if it has any.
pub(crate) fn protection(block: &[u8; BLOCK_BYTES]) -> Option<Protection> {
    let sb = &block[AT..AT + BYTES];
    let incompat = u32_at(sb, INCOMPAT);
    let seed = match incompat & INCOMPAT_CSUM_SEED != 0 {
        true => u32_at(sb, CHECKSUM_SEED),
        false => crc32c(!0, &sb[UUID..UUID + 16]),
    };
    (incompat & INCOMPAT_MMP != 0).then(|| Protection {
        block: u64::from(u32_at(sb, MMP_BLOCK + 4)) << 32 | u64::from(u32_at(sb, MMP_BLOCK)),
        interval: u16_at(sb, MMP_INTERVAL),
        seed: (u32_at(sb, RO_COMPAT) & RO_METADATA_CSUM != 0).then_some(seed),
    })
}

/// Whether the journal was in use.
pub(crate) fn needs_recovery(block: &[u8; BLOCK_BYTES]) -> bool {
    u32_at(block, AT + INCOMPAT) & INCOMPAT_RECOVER != 0
}

fn seal(sb: &mut [u8]) {
    if u32_at(sb, RO_COMPAT) & RO_METADATA_CSUM != 0 {
        let sum = crc32c(!0, &sb[..CHECKSUM]);
        put32(sb, CHECKSUM, sum);
    }
}

/// Block 0 as recovery's transaction has it: without the bit, with these counts, the journal still in use.
pub(crate) fn recovered(block: &mut [u8; BLOCK_BYTES], free_blocks: u64, free_inodes: u32, large_file: bool) {
    let sb = &mut block[AT..AT + BYTES];
    let incompat = u32_at(sb, INCOMPAT) & !INCOMPAT_IJOURNAL | INCOMPAT_RECOVER;
    put32(sb, INCOMPAT, incompat);
    put32(sb, FREE_BLOCKS_LO, free_blocks as u32);
    if incompat & INCOMPAT_64BIT != 0 {
        put32(sb, FREE_BLOCKS_HI, (free_blocks >> 32) as u32);
    }
    put32(sb, FREE_INODES, free_inodes);
    if large_file {
        let ro = u32_at(sb, RO_COMPAT) | RO_LARGE_FILE;
        put32(sb, RO_COMPAT, ro);
    }
    seal(sb);
}

/// Block 0 with an empty journal.
pub(crate) fn at_rest(block: &mut [u8; BLOCK_BYTES]) {
    let sb = &mut block[AT..AT + BYTES];
    let incompat = u32_at(sb, INCOMPAT) & !INCOMPAT_RECOVER;
    put32(sb, INCOMPAT, incompat);
    seal(sb);
}

/// An inode's seed (`ext4_iget`).
pub(crate) fn inode_seed(seed: u32, ino: u32, generation: u32) -> u32 {
    crc32c(crc32c(seed, &ino.to_le_bytes()), &generation.to_le_bytes())
}

/// A descriptor's halves of a 32-bit checksum, the upper one where the descriptor reaches that far.
pub(crate) fn put_halves(descriptor: &mut [u8], lo: usize, hi: usize, sum: u32) {
    put16(descriptor, lo, sum as u16);
    if descriptor.len() >= hi + 2 {
        put16(descriptor, hi, (sum >> 16) as u16);
    }
}
