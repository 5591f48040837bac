//! The guest's journal, retained in host memory (VMA journaling for unmodified guests).
//!
//! ```text
//! write to the journal area ──► arena (memory that outlives the process) ──► parsed: which home blocks, committed?
//! write home ──► compare with the newest committed version ──► order ─► store        │
//!                        └ same bytes: the version is home ──► whole transactions released from the tail
//! read of the area ──► arena, superblock with the served tail
//! guest gone ──► committed versions that are not home are written home
//! ```
#![warn(missing_docs)]

pub mod area;
pub mod arena;
pub mod disk;
mod error;
pub mod group;
mod ids;
pub mod layout;
pub mod log;
pub mod offline;
pub mod retain;
pub mod state_file;
mod status;

pub use arena::own_folder;
pub use disk::{RetainDisk, LANE_BYTES_MAX};
pub use error::JournalError;
pub use ids::{AreaBlock, Block, FsBlock, Tid, BLOCK_BYTES, BLOCK_SECTORS};
pub use retain::DISK_BYTES_MAX;
pub use status::{DiskStatus, FileSystemStatus};

/// Whether the deliberately broken variants are compiled in, as tests that have to notice them want it. A program that ships
/// says no.
pub const HAS_MUTATIONS: bool = cfg!(feature = "mutations");
