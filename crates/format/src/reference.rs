//! The sidecar `<image>.afref`: while a log is live, it stands beside every image of the group whose file system has no
//! extended attributes for a mark ([`crate::mark`]), and says where the log is, so that nobody opens such an image alone.
//! Earlier programs knew no marks, and wrote one for every image without a log of its name beside it.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{checksum, FormatError};

/// Magic of a sidecar: "AFIREF\r\n".
pub const REFERENCE_MAGIC: [u8; 8] = *b"AFIREF\r\n";
/// The newest version.
pub const REFERENCE_VERSION: u32 = 1;

/// The whole sidecar.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Reference {
    /// [`REFERENCE_MAGIC`].
    pub magic: [u8; 8],
    /// [`REFERENCE_VERSION`].
    pub version: U32,
    /// CRC-32C of the sidecar with this field zero.
    pub crc: U32,
    /// The group's identity, as in the log's header.
    pub group_uuid: [u8; 16],
    /// Bytes of the log's path.
    pub path_len: U16,
    /// The image's disk index in the group.
    pub disk: U16,
    /// The log's absolute path, not terminated.
    pub path: [u8; 4060],
}

const _: () = assert!(size_of::<Reference>() == 4096);

impl Reference {
    /// A sidecar; `None` where the path is too long for one.
    pub fn new(group_uuid: [u8; 16], disk: u16, log_path: &[u8]) -> Option<Self> {
        let mut reference = Self {
            magic: REFERENCE_MAGIC,
            version: REFERENCE_VERSION.into(),
            crc: 0.into(),
            group_uuid,
            path_len: (log_path.len() as u16).into(),
            disk: disk.into(),
            path: [0; 4060],
        };
        reference.path.get_mut(..log_path.len())?.copy_from_slice(log_path);
        reference.crc = checksum(reference.as_bytes()).into();
        Some(reference)
    }

    /// Reads a sidecar.
    ///
    /// # Errors
    /// Not a sidecar, one of a later version, or one whose checksum or fields are wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let reference =
            Self::read_from_bytes(bytes).map_err(|_| FormatError::Corrupt("the sidecar's size is wrong"))?;
        if reference.magic != REFERENCE_MAGIC {
            return Err(FormatError::Magic { what: "a log reference" });
        }
        if reference.version.get() > REFERENCE_VERSION {
            let version = reference.version.get();
            return Err(FormatError::Version { version, known: REFERENCE_VERSION });
        }
        let mut unsealed = reference;
        unsealed.crc = 0.into();
        if checksum(unsealed.as_bytes()) != reference.crc.get() {
            return Err(FormatError::Corrupt("the sidecar's checksum does not match"));
        }
        if usize::from(reference.path_len.get()) > reference.path.len() {
            return Err(FormatError::Corrupt("the sidecar's path is longer than the sidecar"));
        }
        Ok(reference)
    }

    /// The log's absolute path.
    pub fn log_path(&self) -> &[u8] {
        &self.path[..usize::from(self.path_len.get()).min(self.path.len())]
    }
}
