//! The structures that Afterimage puts on disks and into guests, declared once. (State files, stamps and arenas of retained journals are
//! `afterimage-journal`'s.)
//!
//! ```text
//! redo log    [header slot 0][header slot 1][image names][record area, circular ...]     log::*
//! mark        [header, path of the log], an extended attribute of an image              mark::*
//! sidecar     [reference], where there are no extended attributes                       reference::*
//! recording   [file header][chunk header, compressed records] ...                       recording::*
//! control     commands and answers of the control disk, a sector each                   control_disk::*
//! ijournal    what an fsync under iJournaling writes, in a file of the guest's           ijournal::*
//! ```
//!
//! All integers are little-endian whatever the machine; sizes are asserted when this compiles; golden bytes are in
//! `tests/`; the meaning is told in `docs/log-format.md`, `docs/recording-format.md`, `docs/control-disk.md` and `docs/ijournaling.md`. Parsers take hostile bytes:
//! they never panic, and allocate no more than the input's size allows.
#![warn(missing_docs)]

pub mod control_disk;
mod error;
pub mod ijournal;
pub mod log;
pub mod mark;
mod payload;
pub mod recording;
pub mod reference;

pub use error::FormatError;
pub use payload::{payload_hash, PayloadHasher};

/// The checksum of all structures of our own: CRC-32C (Castagnoli). What guests have written is hashed by [`payload_hash`].
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}
