//! iJournaling: file-level transactions that an fsync writes beside the file system's own journal.
//!
//! ```text
//! file   [area header][area 0, circular][area 1, circular] ...        areas * area_blocks + 1 blocks of 4 KiB
//! area   [run][run] ... [free]                                        a run never crosses the end of its area
//! run    [Header][record][record] ... [zeroes][Commit]                one i-transaction: 1 to RUN_BLOCKS_MAX blocks
//! record [RecordHeader][body][zeroes, up to a multiple of 8]
//! ```
//!
//! A commit record is the last 32 bytes of a run: in its own block where the run has several, behind the records where everything fits
//! in one. What these say, and what recovery makes of them, is in `docs/ijournaling.md`; `guest/kernel/src/ijournal_format.h` says the same
//! in C, and `tests/ijournal.rs` compares the two.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{checksum, FormatError};

/// The areas' file, in the root directory.
pub const FILE_NAME: &str = ".vext4-ijournal";
/// The bit of the journal superblock's `s_feature_incompat` that is set while there may be valid i-transactions; earlier of the file system's.
/// Neither jbd2 nor ext4 uses it.
pub const INCOMPAT_IJOURNAL: u32 = 0x4000_0000;
/// Bytes of a block; of a file system with i-transactions, too.
pub const BLOCK_BYTES: usize = 4096;
/// The longest run, in blocks.
pub const RUN_BLOCKS_MAX: u32 = 64;
/// The most areas.
pub const AREAS_MAX: u32 = 1024;
/// The smallest area, in blocks.
pub const AREA_BLOCKS_MIN: u32 = RUN_BLOCKS_MAX;
/// The most blocks of all areas together, 16 GiB: whoever reads them keeps 8 bytes for each.
pub const AREAS_BLOCKS_MAX: u32 = 1 << 22;
/// The largest on-disk inode.
pub const INODE_BYTES_MAX: usize = 256;
/// The smallest on-disk inode.
pub const INODE_BYTES_MIN: usize = 128;
/// Bytes of an extent tree's header, and of each entry.
pub const EXTENT_ENTRY_BYTES: usize = 12;
/// Entries of an extent block.
pub const EXTENT_ENTRIES_MAX: usize = (BLOCK_BYTES - EXTENT_ENTRY_BYTES) / EXTENT_ENTRY_BYTES;

/// Magic of the areas' header: "AFIJAR\r\n".
pub const AREAS_MAGIC: [u8; 8] = *b"AFIJAR\r\n";
/// Magic of a run's first block: "AFIJTX\r\n".
pub const RUN_MAGIC: [u8; 8] = *b"AFIJTX\r\n";
/// Magic of a commit record: "AFIJCM\r\n".
pub const COMMIT_MAGIC: [u8; 8] = *b"AFIJCM\r\n";
/// The newest version of all of them.
pub const IJOURNAL_VERSION: u16 = 1;

/// `Header::kind`: a regular file's inode and its dirty external extent blocks.
pub const KIND_FILE: u16 = 1;
/// `Header::kind`: a directory's inode and entries of it.
pub const KIND_DIRECTORY: u16 = 2;

/// `RecordHeader::kind`: the on-disk inode, `s_inode_size` bytes. The first record of every run, and in no other place.
pub const RECORD_INODE: u16 = 1;
/// `RecordHeader::kind`: [`ExtentBlock`] and as much of an external extent block as is in use: its header and `eh_entries` entries.
pub const RECORD_EXTENT_BLOCK: u16 = 2;
/// `RecordHeader::kind`: [`Entry`] and its name.
pub const RECORD_ENTRY: u16 = 3;

/// Block 0 of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Areas {
    /// [`AREAS_MAGIC`].
    pub magic: [u8; 8],
    /// [`IJOURNAL_VERSION`].
    pub version: U16,
    /// Zero.
    pub reserved_10: [u8; 2],
    /// CRC-32C of the block with this field zero.
    pub crc: U32,
    /// Whose runs are valid: random, another one after each mount. Zero: none was ever written.
    pub epoch: [u8; 16],
    /// How many areas follow.
    pub areas: U32,
    /// Blocks of each.
    pub area_blocks: U32,
    /// [`BLOCK_BYTES`].
    pub block_bytes: U32,
    /// The first transaction that was not committed when the epoch began: no run of it has an older one's identity.
    pub first_tid: U32,
    /// Zero.
    pub reserved_48: [u8; 4048],
}

const _: () = assert!(size_of::<Areas>() == BLOCK_BYTES);

/// The beginning of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`RUN_MAGIC`].
    pub magic: [u8; 8],
    /// [`IJOURNAL_VERSION`].
    pub version: U16,
    /// [`KIND_FILE`] or [`KIND_DIRECTORY`].
    pub kind: U16,
    /// Blocks of the run, this one included.
    pub blocks: U32,
    /// [`Areas::epoch`].
    pub epoch: [u8; 16],
    /// The sub-transaction id: one order over all areas. From 1, never used twice in an epoch.
    pub sub_id: U64,
    /// The transaction of the file system's journal without which the run is needed.
    pub tid: U32,
    /// Whose inode this is.
    pub ino: U32,
    /// `i_generation`, as in the inode.
    pub generation: U32,
    /// Bytes of the records, padding included.
    pub records_len: U32,
    /// The area that the run is in.
    pub area: U32,
    /// Its first block within the area.
    pub at: U32,
}

const _: () = assert!(size_of::<Header>() == 64);

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Commit {
    /// [`COMMIT_MAGIC`].
    pub magic: [u8; 8],
    /// [`Header::sub_id`].
    pub sub_id: U64,
    /// Zero.
    pub reserved_16: [u8; 12],
    /// CRC-32C of the whole run but these four bytes.
    pub crc: U32,
}

const _: () = assert!(size_of::<Commit>() == 32);

/// Before each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RecordHeader {
    /// [`RECORD_INODE`] and its like.
    pub kind: U16,
    /// Zero.
    pub reserved_2: U16,
    /// Bytes of the body, without padding.
    pub len: U32,
}

const _: () = assert!(size_of::<RecordHeader>() == 8);

/// A tag: where an external extent block is at home. Its header and entries follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExtentBlock {
    /// The file system's block.
    pub home: U64,
}

const _: () = assert!(size_of::<ExtentBlock>() == 8);

/// An entry of a directory. Its name follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Entry {
    /// The inode that it names.
    pub ino: U32,
    /// That inode's `i_generation`: a number that was given out again is another inode.
    pub generation: U32,
    /// As in the directory: 1 a regular file, 2 a directory.
    pub file_type: u8,
    /// Bytes of the name, 1 to 255.
    pub name_len: u8,
    /// Zero.
    pub reserved_10: U16,
}

const _: () = assert!(size_of::<Entry>() == 12);

/// Blocks of a run whose records have that many bytes.
pub fn run_blocks(records_len: u64) -> u64 {
    let one = (BLOCK_BYTES - size_of::<Header>() - size_of::<Commit>()) as u64;
    if records_len <= one {
        return 1;
    }
    // With several blocks the last is the commit block.
    (size_of::<Header>() as u64 + records_len).div_ceil(BLOCK_BYTES as u64) + 1
}

fn version(version: u16) -> Result<(), FormatError> {
    match version {
        0 => Err(FormatError::Old { version: 0, oldest: 1 }),
        IJOURNAL_VERSION => Ok(()),
        newer => Err(FormatError::Version { version: newer.into(), known: IJOURNAL_VERSION.into() }),
    }
}

impl Areas {
    /// A header, with its checksum.
    pub fn new(areas: u32, area_blocks: u32, epoch: [u8; 16], first_tid: u32) -> Self {
        let mut block = Self {
            magic: AREAS_MAGIC,
            version: IJOURNAL_VERSION.into(),
            epoch,
            areas: areas.into(),
            area_blocks: area_blocks.into(),
            block_bytes: (BLOCK_BYTES as u32).into(),
            first_tid: first_tid.into(),
            ..Self::new_zeroed()
        };
        block.crc = checksum(block.as_bytes()).into();
        block
    }

    /// Reads a header.
    ///
    /// # Errors
    /// Not one, one of a later version, or one whose checksum or fields are wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let areas = Self::read_from_bytes(bytes)
            .map_err(|_| FormatError::Corrupt("the areas' header is not one block long"))?;
        if areas.magic != AREAS_MAGIC {
            return Err(FormatError::Magic { what: "a header of iJournaling's areas" });
        }
        version(areas.version.get())?;
        let unsealed = Self { crc: 0.into(), ..areas };
        if checksum(unsealed.as_bytes()) != areas.crc.get() {
            return Err(FormatError::Corrupt("the checksum of the areas' header does not match"));
        }
        let sound = (1..=AREAS_MAX).contains(&areas.areas.get())
            && areas.area_blocks.get() >= AREA_BLOCKS_MIN
            && areas.blocks() <= 1 + u64::from(AREAS_BLOCKS_MAX)
            && areas.block_bytes.get() == BLOCK_BYTES as u32;
        if !sound {
            return Err(FormatError::Corrupt("the areas' number or size cannot be"));
        }
        Ok(areas)
    }

    /// Blocks of the file.
    pub fn blocks(&self) -> u64 {
        1 + u64::from(self.areas.get()) * u64::from(self.area_blocks.get())
    }

    /// The block of the file at which an area begins.
    pub fn area_start(&self, area: u32) -> u64 {
        1 + u64::from(area) * u64::from(self.area_blocks.get())
    }
}

/// One record, with what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// The on-disk inode.
    Inode(&'a [u8]),
    /// An external extent block's home, and its header and entries.
    ExtentBlock(u64, &'a [u8]),
    /// An entry, and its name.
    Entry(Entry, &'a [u8]),
}

/// A run that is whole: its checksum is right, and its records are what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// Its beginning.
    pub header: Header,
    records: &'a [u8],
}

impl Header {
    /// How a run of this epoch at this place begins, if one does: its length is possible, nothing more is known.
    pub fn sniff(block: &[u8], areas: &Areas, area: u32, at: u32) -> Option<Self> {
        let (header, _) = Self::read_from_prefix(block).ok()?;
        let blocks = header.blocks.get();
        let here = header.magic == RUN_MAGIC
            && header.epoch == areas.epoch
            && (header.area.get(), header.at.get()) == (area, at)
            && (1..=RUN_BLOCKS_MAX).contains(&blocks)
            && u64::from(at) + u64::from(blocks) <= u64::from(areas.area_blocks.get());
        here.then_some(header)
    }
}

impl<'a> Run<'a> {
    /// Reads a run of all its blocks.
    ///
    /// # Errors
    /// Corrupt: torn, overwritten or never a run. Of a later version: whole, but not to be understood here.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let corrupt = FormatError::Corrupt;
        let (header, rest) =
            Header::read_from_prefix(bytes).map_err(|_| corrupt("the run is shorter than its header"))?;
        if header.magic != RUN_MAGIC {
            return Err(FormatError::Magic { what: "a run of an i-transaction" });
        }
        if bytes.len() != header.blocks.get() as usize * BLOCK_BYTES {
            return Err(corrupt("the run is not as long as it says"));
        }
        let (commit_at, crc_at) = (bytes.len() - size_of::<Commit>(), bytes.len() - 4);
        let commit =
            Commit::read_from_bytes(&bytes[commit_at..]).map_err(|_| corrupt("the run has no end"))?;
        if commit.magic != COMMIT_MAGIC
            || commit.sub_id != header.sub_id
            || checksum(&bytes[..crc_at]) != commit.crc.get()
        {
            return Err(corrupt("the run's checksum does not match"));
        }
        version(header.version.get())?;
        let len = header.records_len.get() as usize;
        if run_blocks(len as u64) != u64::from(header.blocks.get()) || len % 8 != 0 {
            return Err(corrupt("the run is longer or shorter than its records"));
        }
        let run = Self { header, records: &rest[..len] };
        run.check()?;
        Ok(run)
    }

    fn check(&self) -> Result<(), FormatError> {
        let (mut at, mut entries) = (0, 0);
        while at < self.records.len() {
            let (record, next) = self.record(at)?;
            match (record, self.header.kind.get()) {
                (Record::Inode(_), KIND_FILE | KIND_DIRECTORY) if at == 0 => {}
                (Record::ExtentBlock(..), KIND_FILE) if at > 0 => {}
                (Record::Entry(..), KIND_DIRECTORY) if at > 0 => entries += 1,
                _ => return Err(FormatError::Corrupt("a record is not where its run may have it")),
            }
            at = next;
        }
        if at == 0 || (self.header.kind.get() == KIND_DIRECTORY) != (entries > 0) {
            return Err(FormatError::Corrupt("the run says nothing"));
        }
        if self.header.sub_id.get() == 0 || self.header.ino.get() == 0 {
            return Err(FormatError::Corrupt("the run has no number, or is of no inode"));
        }
        Ok(())
    }

    /// The record at an offset, and the offset behind it.
    fn record(&self, at: usize) -> Result<(Record<'a>, usize), FormatError> {
        let corrupt = FormatError::Corrupt;
        let (header, rest) = RecordHeader::read_from_prefix(&self.records[at..])
            .map_err(|_| corrupt("a record is cut off"))?;
        let len = header.len.get() as usize;
        let body = rest.get(..len).ok_or(corrupt("a record is cut off"))?;
        let next = at + size_of::<RecordHeader>() + len.next_multiple_of(8);
        if next > self.records.len() || header.reserved_2.get() != 0 {
            return Err(corrupt("a record's header is wrong"));
        }
        let record = match header.kind.get() {
            RECORD_INODE if (INODE_BYTES_MIN..=INODE_BYTES_MAX).contains(&len) => Record::Inode(body),
            RECORD_EXTENT_BLOCK => {
                let (tag, node) = ExtentBlock::read_from_prefix(body)
                    .map_err(|_| corrupt("a record of an extent block is cut off"))?;
                let entries = node.get(2..4).map_or(0, |e| usize::from(u16::from_le_bytes([e[0], e[1]])));
                if entries > EXTENT_ENTRIES_MAX || node.len() != EXTENT_ENTRY_BYTES * (1 + entries) {
                    return Err(corrupt("an extent block is longer or shorter than its entries"));
                }
                Record::ExtentBlock(tag.home.get(), node)
            }
            RECORD_ENTRY => {
                let (entry, name) =
                    Entry::read_from_prefix(body).map_err(|_| corrupt("a directory entry is cut off"))?;
                let special = name == b"." || name == b".." || name.iter().any(|b| matches!(b, 0 | b'/'));
                if name.is_empty() || name.len() != usize::from(entry.name_len) || special {
                    return Err(corrupt("a directory entry's name cannot be"));
                }
                if entry.reserved_10.get() != 0 || entry.ino.get() == 0 || !matches!(entry.file_type, 1 | 2) {
                    return Err(corrupt("a directory entry names what it cannot"));
                }
                Record::Entry(entry, name)
            }
            _ => return Err(corrupt("a record of no known kind, or of no possible length")),
        };
        Ok((record, next))
    }

    /// Its records in order: the inode, then extent blocks or entries.
    pub fn records(&self) -> impl Iterator<Item = Record<'a>> {
        let (run, mut at) = (*self, 0);
        std::iter::from_fn(move || {
            let (record, next) = (at < run.records.len()).then(|| run.record(at).ok())??;
            at = next;
            Some(record)
        })
    }

    /// The on-disk inode.
    pub fn inode(&self) -> &'a [u8] {
        match self.records().next() {
            Some(Record::Inode(inode)) => inode,
            _ => &[],
        }
    }
}

/// Makes a run: for tests, and for whatever writes one outside a kernel.
#[derive(Clone, Debug)]
pub struct RunBuilder {
    header: Header,
    records: Vec<u8>,
}

impl RunBuilder {
    /// Of an inode's kind, number and bytes, with the journal's transaction and the sub-transaction.
    pub fn new(kind: u16, ino: u32, inode: &[u8], tid: u32, sub_id: u64) -> Self {
        let generation = inode.get(100..104).map_or([0; 4], |b| [b[0], b[1], b[2], b[3]]);
        let header = Header {
            magic: RUN_MAGIC,
            version: IJOURNAL_VERSION.into(),
            kind: kind.into(),
            sub_id: sub_id.into(),
            tid: tid.into(),
            ino: ino.into(),
            generation: U32::from_bytes(generation),
            ..Header::new_zeroed()
        };
        let mut builder = Self { header, records: Vec::new() };
        builder.push(RECORD_INODE, &[inode]);
        builder
    }

    fn push(&mut self, kind: u16, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let header = RecordHeader { kind: kind.into(), reserved_2: 0.into(), len: (len as u32).into() };
        self.records.extend_from_slice(header.as_bytes());
        parts.iter().for_each(|part| self.records.extend_from_slice(part));
        self.records.resize(self.records.len().next_multiple_of(8), 0);
    }

    /// With an external extent block: its header and entries.
    pub fn extent_block(mut self, home: u64, node: &[u8]) -> Self {
        self.push(RECORD_EXTENT_BLOCK, &[ExtentBlock { home: home.into() }.as_bytes(), node]);
        self
    }

    /// With a directory entry.
    pub fn entry(mut self, ino: u32, generation: u32, file_type: u8, name: &[u8]) -> Self {
        let entry = Entry {
            ino: ino.into(),
            generation: generation.into(),
            file_type,
            name_len: name.len() as u8,
            reserved_10: 0.into(),
        };
        self.push(RECORD_ENTRY, &[entry.as_bytes(), name]);
        self
    }

    /// Blocks that the run takes.
    pub fn blocks(&self) -> u32 {
        run_blocks(self.records.len() as u64) as u32
    }

    /// The run, for a place.
    pub fn seal(mut self, epoch: [u8; 16], area: u32, at: u32) -> Vec<u8> {
        let blocks = self.blocks();
        self.header.blocks = blocks.into();
        self.header.epoch = epoch;
        self.header.records_len = (self.records.len() as u32).into();
        (self.header.area, self.header.at) = (area.into(), at.into());
        let mut bytes = self.header.as_bytes().to_vec();
        bytes.append(&mut self.records);
        bytes.resize(blocks as usize * BLOCK_BYTES - size_of::<Commit>(), 0);
        let commit = Commit { magic: COMMIT_MAGIC, sub_id: self.header.sub_id, ..Commit::new_zeroed() };
        bytes.extend_from_slice(commit.as_bytes());
        let crc_at = bytes.len() - 4;
        let crc = checksum(&bytes[..crc_at]);
        bytes[crc_at..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}
