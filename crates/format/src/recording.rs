//! A recording of block streams (`.afrec`).
//!
//! ```text
//! file     [file header][chunk header, stored bytes][chunk header, stored bytes] ...
//! stream   one zstd frame: the chunks' compressed bytes, one after the other; never ended
//! records  [record header, payload][record header, payload] ...    what the frame decodes to
//! ```
//!
//! Chunks are cut where it suits the writer, at a point to which the compressor has flushed; a record may begin in one
//! and end in another. So a file that ends early is readable up to the last record that lies in whole chunks, and the
//! compressor still sees [`WINDOW_LOG_MAX`] back, far enough to find the guest's write again in the log and at home.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{checksum, FormatError};

/// Magic of a file: "AFIREC\r\n".
pub const MAGIC: [u8; 8] = *b"AFIREC\r\n";
/// The newest format version, and the only one so far.
pub const VERSION: u32 = 1;
/// Incompatible features that this code understands: none exist yet.
pub const FEATURES_KNOWN: u32 = 0;
/// Magic of a chunk header: "AFCH".
pub const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"AFCH");
/// The most bytes that a chunk decodes to.
pub const CHUNK_RAW_MAX: u32 = 8 << 20;
/// The most bytes that a chunk's stored bytes may be.
pub const CHUNK_STORED_MAX: u32 = 16 << 20;
/// A chunk decodes to at most this many times its stored bytes, padding included, so that a reader's memory is bounded
/// by the file's size.
pub const RATIO_MAX: u32 = 256;
/// Base-2 logarithm of the largest zstd window: 64 MiB.
pub const WINDOW_LOG_MAX: u32 = 26;
/// The most targets.
pub const TARGETS_MAX: usize = 64;
/// The most bytes that all targets together can have: 1 TiB.
pub const TARGET_BYTES_MAX: u64 = 1 << 40;
/// The most bytes of a mark's text.
pub const MARK_BYTES_MAX: usize = 64 << 10;
/// [`TargetBody::same_as`]: the base content is in the target's own [`RecordKind::Base`] records.
pub const OWN_BASE: u16 = u16::MAX;

/// The start of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FileHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: U32,
    /// CRC-32C of this header with this field zero.
    pub crc: U32,
    /// Features without whose knowledge the file cannot be read.
    pub features_incompat: U32,
    /// Zero.
    pub reserved: [u8; 12],
}

/// In front of each chunk's stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChunkHeader {
    /// [`CHUNK_MAGIC`].
    pub magic: U32,
    /// CRC-32C of this header with this field zero.
    pub header_crc: U32,
    /// CRC-32C of the stored bytes.
    pub stored_crc: U32,
    /// The chunk's number, from 0.
    pub number: U32,
    /// Bytes that follow this header: the compressed ones, then zeroes.
    pub stored_bytes: U32,
    /// How many of them are the compressor's.
    pub compressed_bytes: U32,
    /// Bytes that they decode to: 1 to [`CHUNK_RAW_MAX`].
    pub raw_bytes: U32,
    /// Zero.
    pub reserved: U32,
}

/// In front of each record's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RecordHeader {
    /// A [`RecordKind`].
    pub kind: u8,
    /// [`FLAG_FLUSHED`], [`FLAG_UNMAP`], [`FLAG_FAILED`].
    pub flags: u8,
    /// Whose: the number of a target record, from 0 in their order. 0 where there is none.
    pub target: U16,
    /// Bytes of payload that follow.
    pub payload_bytes: U32,
    /// Nanoseconds since the event before; 0 in records that are no event.
    pub after_ns: U64,
    /// The request's name, or the publication's slot; 0 where there is none.
    pub id: U64,
}

/// `RecordHeader::flags` of a write or zeroing: completes as if flushed.
pub const FLAG_FLUSHED: u8 = 1;
/// `RecordHeader::flags` of a zeroing: space may be given back.
pub const FLAG_UNMAP: u8 = 2;
/// `RecordHeader::flags` of a completion: the request failed.
pub const FLAG_FAILED: u8 = 4;

/// The payload of a [`RecordKind::Target`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TargetBody {
    /// [`LAYER_GUEST`] or [`LAYER_STORAGE`].
    pub layer: u8,
    /// [`ROLE_DISK`] or [`ROLE_LOG`].
    pub role: u8,
    /// The disk's index in the group; 0 for a log.
    pub index: U16,
    /// The earlier target whose base content this one has, or [`OWN_BASE`].
    pub same_as: U16,
    /// Zero.
    pub reserved: U16,
    /// Size in bytes.
    pub bytes: U64,
}

/// `TargetBody::layer`: what a guest asked for.
pub const LAYER_GUEST: u8 = 1;
/// `TargetBody::layer`: what reached the files below.
pub const LAYER_STORAGE: u8 = 2;
/// `TargetBody::role`: a disk or its image.
pub const ROLE_DISK: u8 = 1;
/// `TargetBody::role`: the group's redo log.
pub const ROLE_LOG: u8 = 2;

/// The start of the payload of a write, a base record (the bytes follow) and a zeroing (nothing follows); of a publication several, each with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Extent {
    /// First byte.
    pub offset: U64,
    /// Number of bytes.
    pub len: U64,
}

const _: () = {
    assert!(size_of::<FileHeader>() == 32);
    assert!(size_of::<ChunkHeader>() == 32);
    assert!(size_of::<RecordHeader>() == 24);
    assert!(size_of::<TargetBody>() == 16);
    assert!(size_of::<Extent>() == 16);
};

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Payload: JSON object, what was run and how. A later one adds to an earlier one.
    About,
    /// Payload: [`TargetBody`]. Its number is the count of target records before it.
    Target,
    /// Payload: [`Extent`] and bytes of a target's base content; the rest is zero.
    Base,
    /// Payload: [`Extent`] and bytes.
    Write,
    /// Payload: [`Extent`].
    Zero,
    /// No payload.
    Flush,
    /// A request was answered. No payload.
    Complete,
    /// Payload: the text.
    Mark,
    /// The recording was finished in order. No payload; nothing follows.
    End,
    /// Payload: one [`Extent`] and bytes after another. `id` is the control disk's slot in which the memory was lent.
    Publish,
}

impl RecordKind {
    /// The number in the file.
    pub fn code(self) -> u8 {
        match self {
            Self::About => 1,
            Self::Target => 2,
            Self::Base => 3,
            Self::Write => 4,
            Self::Zero => 5,
            Self::Flush => 6,
            Self::Complete => 7,
            Self::Mark => 8,
            Self::End => 9,
            Self::Publish => 10,
        }
    }

    /// The kind of a number, where it is known.
    pub fn from_code(code: u8) -> Option<Self> {
        const ALL: [RecordKind; 10] = [
            RecordKind::About,
            RecordKind::Target,
            RecordKind::Base,
            RecordKind::Write,
            RecordKind::Zero,
            RecordKind::Flush,
            RecordKind::Complete,
            RecordKind::Mark,
            RecordKind::End,
            RecordKind::Publish,
        ];
        ALL.into_iter().find(|kind| kind.code() == code)
    }
}

impl FileHeader {
    /// The bytes of a file's header, checksum filled in.
    pub fn sealed() -> [u8; size_of::<Self>()] {
        let mut header = Self {
            magic: MAGIC,
            version: VERSION.into(),
            crc: 0.into(),
            features_incompat: 0.into(),
            reserved: [0; 12],
        };
        header.crc = checksum(header.as_bytes()).into();
        zerocopy::transmute!(header)
    }

    /// Reads the header at the start of a file.
    ///
    /// # Errors
    /// Not a recording, one of a later version, or one whose checksum or fields are wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(FormatError::Magic { what: "a recording" });
        }
        let (header, _) =
            Self::read_from_prefix(bytes).map_err(|_| FormatError::Corrupt("the header is cut short"))?;
        if header.version.get() > VERSION {
            return Err(FormatError::Version { version: header.version.get(), known: VERSION });
        }
        let mut unsealed = header;
        unsealed.crc = 0.into();
        if header.version.get() == 0 || checksum(unsealed.as_bytes()) != header.crc.get() {
            return Err(FormatError::Corrupt("the header's checksum does not match"));
        }
        let unknown = header.features_incompat.get() & !FEATURES_KNOWN;
        if unknown != 0 {
            return Err(FormatError::Features(unknown));
        }
        Ok(header)
    }
}

impl ChunkHeader {
    /// The header of a chunk, checksums filled in. `stored` is what follows it.
    pub fn seal(number: u32, compressed_bytes: u32, raw_bytes: u32, stored: &[u8]) -> Self {
        let mut header = Self {
            magic: CHUNK_MAGIC.into(),
            header_crc: 0.into(),
            stored_crc: checksum(stored).into(),
            number: number.into(),
            stored_bytes: (stored.len() as u32).into(),
            compressed_bytes: compressed_bytes.into(),
            raw_bytes: raw_bytes.into(),
            reserved: 0.into(),
        };
        header.header_crc = checksum(header.as_bytes()).into();
        header
    }

    /// How many stored bytes a chunk needs at least that decodes to this many.
    pub fn stored_bytes_min(raw_bytes: u32) -> u32 {
        raw_bytes.div_ceil(RATIO_MAX)
    }

    /// Reads the header of the chunk of that number; `None` where there is none: its checksum does not match, or its
    /// sizes are not what a writer may choose.
    pub fn parse(bytes: &[u8], number: u32) -> Option<Self> {
        let (header, _) = Self::read_from_prefix(bytes).ok()?;
        let mut unsealed = header;
        unsealed.header_crc = 0.into();
        let (stored, raw) = (header.stored_bytes.get(), header.raw_bytes.get());
        let sound = header.magic.get() == CHUNK_MAGIC
            && checksum(unsealed.as_bytes()) == header.header_crc.get()
            && header.number.get() == number
            && header.compressed_bytes.get() <= stored
            && stored <= CHUNK_STORED_MAX
            && (1..=CHUNK_RAW_MAX).contains(&raw)
            && stored >= Self::stored_bytes_min(raw);
        sound.then_some(header)
    }
}

impl RecordHeader {
    /// The kind, where it is known.
    pub fn kind(&self) -> Option<RecordKind> {
        RecordKind::from_code(self.kind)
    }
}
