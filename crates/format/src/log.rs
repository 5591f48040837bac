//! The redo log of a consistency group.
//!
//! Positions in the record area are logical: they count bytes from the log's creation and never wrap; a position's
//! byte in the file is `RECORDS_OFFSET + position % area_bytes`. A record's header never straddles the wrap (positions
//! are multiples of [`RECORD_ALIGN`] and the area is one of [`PAGE_BYTES`]); its payload may.

use zerocopy::byteorder::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{checksum, FormatError};

/// The unit of the header slots, and of what a sync seals: a durable page is never written again before its space
/// is reused.
pub const PAGE_BYTES: u64 = 4096;
/// Records start at multiples of this.
pub const RECORD_ALIGN: u64 = 64;
/// Magic of a header slot: "AFILOG\r\n".
pub const HEADER_MAGIC: [u8; 8] = *b"AFILOG\r\n";
/// The format version, the only one that is read. Version 1 had a CRC-32C over payloads, which cannot tell apart blocks that
/// end with a CRC-32C of their own ([`crate::payload_hash`]).
pub const VERSION: u32 = 2;
/// `LogHeader::features_incompat`: records may carry [`KIND_MORE`].
pub const FEATURE_SETS: u32 = 1;
/// Incompatible features that this code understands.
pub const FEATURES_KNOWN: u32 = FEATURE_SETS;
/// In `RecordHeader::kind`: the record counts only together with the next one, which belongs to the same set.
pub const KIND_MORE: u16 = 0x8000;
/// The most images that a group can have.
pub const IMAGES_MAX: usize = 16;
/// The most witness blocks of a header.
pub const WITNESSES_MAX: usize = 64;
/// Byte offset of the image names in the file.
pub const NAMES_OFFSET: u64 = 2 * PAGE_BYTES;
/// Byte offset of the record area in the file.
pub const RECORDS_OFFSET: u64 = NAMES_OFFSET + NAMES_BYTES;
/// The largest record area: 1 TiB.
pub const AREA_BYTES_MAX: u64 = 1 << 40;

const NAMES_BYTES: u64 = (IMAGES_MAX * size_of::<ImageName>()) as u64;

/// `LogHeader::state`: records from the tail on may be needed.
pub const STATE_LIVE: u32 = 1;
/// `LogHeader::state`: everything is home; the images are plain raw files.
pub const STATE_CLEAN: u32 = 2;

/// One header slot. Two are written alternately; the valid one with the larger generation counts.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LogHeader {
    /// [`HEADER_MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: U32,
    /// CRC-32C of the whole slot with this field zero.
    pub crc: U32,
    /// Features without whose knowledge the log must not be touched.
    pub features_incompat: U32,
    /// [`STATE_LIVE`] or [`STATE_CLEAN`].
    pub state: U32,
    /// Counts header writes; the slot is `generation % 2`.
    pub generation: U64,
    /// The group's random identity.
    pub group_uuid: [u8; 16],
    /// Size of the record area in bytes, a multiple of [`PAGE_BYTES`].
    pub area_bytes: U64,
    /// Logical position of the first record that may be needed; a multiple of [`RECORD_ALIGN`].
    pub tail_position: U64,
    /// Everything up to this sequence number is home and synced.
    pub tail_sequence: U64,
    /// The incarnation in force at the tail.
    pub tail_incarnation: U64,
    /// Everything up to this sequence number was durable when this header was written.
    pub durable_sequence: U64,
    /// Used entries of `images`.
    pub image_count: U32,
    /// Used entries of `witnesses`.
    pub witness_count: U32,
    /// The images, by disk index.
    pub images: [ImageEntry; IMAGES_MAX],
    /// Blocks known to be home.
    pub witnesses: [WitnessEntry; WITNESSES_MAX],
    /// Zero.
    pub reserved: [u8; 2464],
}

/// What identifies an image.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ImageEntry {
    /// Device number. May change with a reboot: a difference alone is not a refusal.
    pub device: U64,
    /// Inode number.
    pub inode: U64,
    /// Size in bytes.
    pub size_bytes: U64,
    /// Modification time when it was last known to be on storage, in ns since the epoch.
    pub mtime_ns: I64,
}

/// The hash of a block that has gone home: an image that holds something else there, and no live record over it,
/// is not the image the log belongs to.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct WitnessEntry {
    /// First sector.
    pub sector: U64,
    /// Disk index.
    pub disk: U16,
    /// Number of sectors, at most 8.
    pub sectors: U16,
    /// [`crate::payload_hash`] of the content.
    pub hash: U32,
}

/// Where an image was when the log was opened: advice for `recover` and for messages, not identity.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ImageName {
    /// CRC-32C of the rest of the entry.
    pub crc: U32,
    /// Bytes of the path; 0: unknown.
    pub len: U16,
    /// The absolute path, not terminated.
    pub path: [u8; 1018],
}

/// A record's header; the payload follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RecordHeader {
    /// [`RECORD_MAGIC`].
    pub magic: U32,
    /// CRC-32C of this header with this field zero.
    pub header_crc: U32,
    /// [`crate::payload_hash`] of the payload; 0 without one.
    pub payload_hash: U32,
    /// Disk index.
    pub disk: U16,
    /// A [`RecordKind`], and [`KIND_MORE`].
    pub kind: U16,
    /// A random number drawn by each process that appends, after the group's own: it tells the records of this life of
    /// the log from those left behind by an earlier one, and a guest that forges records in its data cannot know it.
    pub incarnation: U64,
    /// The request's place in the group's history; consecutive. An incarnation record repeats its predecessor's.
    pub sequence: U64,
    /// First sector. In an incarnation record: the incarnation before.
    pub sector: U64,
    /// Number of sectors. In an incarnation record: 0.
    pub sectors: U64,
    /// The newest sequence number known to be durable when this record was appended. It proves what must be there: a
    /// gap before this number is damage, not a torn tail.
    pub durable_sequence: U64,
    /// First 8 bytes of the group's identity.
    pub group_tag: U64,
}

/// Magic of a record header: "AFIR".
pub const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"AFIR");

const _: () = {
    assert!(size_of::<LogHeader>() == PAGE_BYTES as usize);
    assert!(size_of::<ImageEntry>() == 32);
    assert!(size_of::<WitnessEntry>() == 16);
    assert!(size_of::<ImageName>() == 1024);
    assert!(size_of::<RecordHeader>() == RECORD_ALIGN as usize);
    assert!(RECORDS_OFFSET % PAGE_BYTES == 0);
};

/// What a record does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// The payload becomes the range's content.
    Write,
    /// The range reads as zeroes; its space may be given back.
    Discard,
    /// The range reads as zeroes; its space stays.
    Zero,
    /// A new process appends from here on.
    Incarnation,
}

impl RecordKind {
    /// The number on disk.
    pub fn code(self) -> u16 {
        match self {
            Self::Write => 1,
            Self::Discard => 2,
            Self::Zero => 3,
            Self::Incarnation => 4,
        }
    }

    /// The kind of a number, where it is known.
    pub fn from_code(code: u16) -> Option<Self> {
        match code {
            1 => Some(Self::Write),
            2 => Some(Self::Discard),
            3 => Some(Self::Zero),
            4 => Some(Self::Incarnation),
            _ => None,
        }
    }
}

impl LogHeader {
    /// An empty, live header of generation 0.
    pub fn new(group_uuid: [u8; 16], area_bytes: u64, incarnation: u64) -> Self {
        let mut header = Self::read_from_bytes(&[0; size_of::<Self>()]).expect("zeroes are a header's bytes");
        header.magic = HEADER_MAGIC;
        header.version = VERSION.into();
        header.state = STATE_LIVE.into();
        header.group_uuid = group_uuid;
        header.area_bytes = area_bytes.into();
        header.tail_incarnation = incarnation.into();
        header
    }

    /// The slot's bytes, checksum filled in.
    pub fn seal(&self) -> [u8; PAGE_BYTES as usize] {
        let mut sealed = *self;
        sealed.crc = 0.into();
        sealed.crc = checksum(sealed.as_bytes()).into();
        zerocopy::transmute!(sealed)
    }

    /// Where in the file this header's slot is.
    pub fn slot_offset(&self) -> u64 {
        self.generation.get() % 2 * PAGE_BYTES
    }

    /// Reads one slot. Checks what makes every later computation safe: the counts, and that area and tail are whole
    /// pages within bounds.
    ///
    /// # Errors
    /// Not such a header, one of a later version, or one whose checksum or fields are wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let (header, _) =
            Self::read_from_prefix(bytes).map_err(|_| FormatError::Corrupt("the header is cut short"))?;
        if header.magic != HEADER_MAGIC {
            return Err(FormatError::Magic { what: "a redo log header" });
        }
        // Before the checksum, whose place may move in a later version. A torn write of ours cannot change the version.
        if header.version.get() > VERSION {
            return Err(FormatError::Version { version: header.version.get(), known: VERSION });
        }
        let mut unsealed = header;
        unsealed.crc = 0.into();
        if header.version.get() == 0 || checksum(unsealed.as_bytes()) != header.crc.get() {
            return Err(FormatError::Corrupt("the header's checksum does not match"));
        }
        if header.version.get() < VERSION {
            return Err(FormatError::Old { version: header.version.get(), oldest: VERSION });
        }
        let unknown = header.features_incompat.get() & !FEATURES_KNOWN;
        if unknown != 0 {
            return Err(FormatError::Features(unknown));
        }
        let area = header.area_bytes.get();
        if area == 0 || area % PAGE_BYTES != 0 || area > AREA_BYTES_MAX {
            return Err(FormatError::Corrupt("the header's record area is no whole number of pages"));
        }
        let tail = header.tail_position.get();
        if tail % RECORD_ALIGN != 0 || tail > u64::MAX / 4 {
            return Err(FormatError::Corrupt("the header's tail is not where a record can start"));
        }
        if header.tail_sequence.get() > u64::MAX / 4
            || header.durable_sequence.get() < header.tail_sequence.get()
            || header.generation.get() > u64::MAX / 4
        {
            return Err(FormatError::Corrupt("the header's numbers contradict each other"));
        }
        if header.image_count.get() as usize > IMAGES_MAX
            || header.witness_count.get() as usize > WITNESSES_MAX
        {
            return Err(FormatError::Corrupt("the header names more images or witnesses than it can hold"));
        }
        if !matches!(header.state.get(), STATE_LIVE | STATE_CLEAN) {
            return Err(FormatError::Corrupt("the header's state is unknown"));
        }
        Ok(header)
    }

    /// The images of the group.
    pub fn images(&self) -> &[ImageEntry] {
        &self.images[..(self.image_count.get() as usize).min(IMAGES_MAX)]
    }

    /// The witness blocks.
    pub fn witnesses(&self) -> &[WitnessEntry] {
        &self.witnesses[..(self.witness_count.get() as usize).min(WITNESSES_MAX)]
    }

    /// Whether records may form sets.
    pub fn has_sets(&self) -> bool {
        self.features_incompat.get() & FEATURE_SETS != 0
    }

    /// What every record of this group carries.
    pub fn group_tag(&self) -> u64 {
        group_tag(&self.group_uuid)
    }
}

/// What every record of a group carries: the first 8 bytes of its identity.
pub fn group_tag(uuid: &[u8; 16]) -> u64 {
    u64::from_le_bytes(*uuid.first_chunk().expect("16 bytes hold 8"))
}

impl RecordHeader {
    /// Fills the checksum in. The payload's has to be there already.
    pub fn seal(&mut self) {
        self.header_crc = 0.into();
        self.header_crc = checksum(self.as_bytes()).into();
    }

    /// Reads a record header; `None` where there is none (a torn, stale or never written place).
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, _) = Self::read_from_prefix(bytes).ok()?;
        if header.magic.get() != RECORD_MAGIC {
            return None;
        }
        let mut unsealed = header;
        unsealed.header_crc = 0.into();
        (checksum(unsealed.as_bytes()) == header.header_crc.get()).then_some(header)
    }

    /// The kind, where it is known.
    pub fn kind(&self) -> Option<RecordKind> {
        RecordKind::from_code(self.kind.get() & !KIND_MORE)
    }

    /// Whether the record counts only together with the next one.
    pub fn more(&self) -> bool {
        self.kind.get() & KIND_MORE != 0
    }

    /// Bytes of payload that follow; `None` where the number is absurd or the kind unknown.
    pub fn payload_bytes(&self) -> Option<u64> {
        match self.kind()? {
            RecordKind::Write => self.sectors.get().checked_mul(512).filter(|bytes| *bytes <= AREA_BYTES_MAX),
            RecordKind::Discard | RecordKind::Zero | RecordKind::Incarnation => Some(0),
        }
    }
}

impl ImageName {
    /// An entry for a path; unknown where it is too long.
    pub fn new(path: &[u8]) -> Self {
        let mut name = Self { crc: 0.into(), len: 0.into(), path: [0; 1018] };
        if let Some(target) = name.path.get_mut(..path.len()) {
            target.copy_from_slice(path);
            name.len = (path.len() as u16).into();
        }
        name.crc = checksum(&name.as_bytes()[4..]).into();
        name
    }

    /// The path; `None` where it is unknown or damaged.
    pub fn parse(bytes: &[u8]) -> Option<Vec<u8>> {
        let (name, _) = Self::read_from_prefix(bytes).ok()?;
        if checksum(&name.as_bytes()[4..]) != name.crc.get() || name.len.get() == 0 {
            return None;
        }
        name.path.get(..usize::from(name.len.get())).map(<[u8]>::to_vec)
    }
}
