//! The mark: an extended attribute of an image, which says on the inode itself who uses it and which redo log it is
//! incomplete without. So it holds under whatever name the image is found, where a neighbour of that name would not.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{checksum, FormatError};

/// The extended attribute.
pub const MARK_NAME: &str = "user.afterimage.use";
/// Magic of a mark: "AFIMRK\r\n".
pub const MARK_MAGIC: [u8; 8] = *b"AFIMRK\r\n";
/// The newest version.
pub const MARK_VERSION: u32 = 1;
/// The longest path of a log in a mark. ext4 keeps all attributes of an inode in one block.
pub const MARK_PATH_BYTES_MAX: usize = 3072;

/// `MarkHeader::contract`: under `power`.
pub const CONTRACT_POWER: u16 = 1;
/// `MarkHeader::contract`: under `power-window`.
pub const CONTRACT_POWER_WINDOW: u16 = 2;
/// `MarkHeader::contract`: under `guest-crash`.
pub const CONTRACT_GUEST_CRASH: u16 = 3;

/// What a mark begins with; the log's path follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MarkHeader {
    /// [`MARK_MAGIC`].
    pub magic: [u8; 8],
    /// [`MARK_VERSION`].
    pub version: U32,
    /// CRC-32C of the mark with this field zero.
    pub crc: U32,
    /// The contract under which the image was opened last.
    pub contract: U16,
    /// The image's disk index in the log; 0 without one.
    pub disk: U16,
    /// Bytes of the log's path; 0: the image needs none.
    pub path_len: U16,
    /// Zero.
    pub reserved: U16,
    /// The log's `group_uuid`; zero without one.
    pub group_uuid: [u8; 16],
}

const _: () = assert!(size_of::<MarkHeader>() == 40);

/// A mark: the image was opened for writing and not yet closed in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The contract under which it was opened last, as in [`MarkHeader::contract`]. Not judged when read.
    pub contract: u16,
    /// The log that it is incomplete without.
    pub log: Option<MarkedLog>,
}

/// The log of a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkedLog {
    /// The log's identity.
    pub group_uuid: [u8; 16],
    /// The image's disk index in it.
    pub disk: u16,
    /// Where it was: absolute, not empty.
    pub path: Vec<u8>,
}

impl Mark {
    /// The attribute's value; `None` where the log's path is empty or longer than [`MARK_PATH_BYTES_MAX`].
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let path = self.log.as_ref().map_or(&[][..], |log| &log.path);
        if path.len() > MARK_PATH_BYTES_MAX || (path.is_empty() && self.log.is_some()) {
            return None;
        }
        let header = MarkHeader {
            magic: MARK_MAGIC,
            version: MARK_VERSION.into(),
            crc: 0.into(),
            contract: self.contract.into(),
            disk: self.log.as_ref().map_or(0, |log| log.disk).into(),
            path_len: (path.len() as u16).into(),
            reserved: 0.into(),
            group_uuid: self.log.as_ref().map_or([0; 16], |log| log.group_uuid),
        };
        let mut bytes = [header.as_bytes(), path].concat();
        let crc = checksum(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        Some(bytes)
    }

    /// Reads the attribute's value.
    ///
    /// # Errors
    /// Not a mark, one of a later version, or one whose checksum or fields are wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let (header, path) =
            MarkHeader::read_from_prefix(bytes).map_err(|_| FormatError::Corrupt("the mark is cut short"))?;
        if header.magic != MARK_MAGIC {
            return Err(FormatError::Magic { what: "a mark of afterimage" });
        }
        let version = header.version.get();
        if version > MARK_VERSION {
            return Err(FormatError::Version { version, known: MARK_VERSION });
        }
        let mut unsealed = bytes.to_vec();
        unsealed[12..16].fill(0);
        if version == 0 || checksum(&unsealed) != header.crc.get() {
            return Err(FormatError::Corrupt("the mark's checksum does not match"));
        }
        if usize::from(header.path_len.get()) != path.len() {
            return Err(FormatError::Corrupt("the mark's length is wrong"));
        }
        let log = (!path.is_empty()).then(|| MarkedLog {
            group_uuid: header.group_uuid,
            disk: header.disk.get(),
            path: path.to_vec(),
        });
        Ok(Self { contract: header.contract.get(), log })
    }
}
