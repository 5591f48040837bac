//! The guest's journal, retained in host memory (VMA journaling for unmodified guests).
//!
//! ```text
//! disk      a queue's requests, split; one lock a disk
//!  │ write to the journal area, write home, completion, read of the area
//! ext4      what they mean: which journal, which transaction is committed, what a tail passes, when a guest is recovering
//!  │ mprotect, compare, landed, arrived; place by place
//! versions  committed content whatever file system it belongs to: arena (memory that outlives the process), where each version stands
//!  │        on its way home
//! order     sets and single writes, home
//! ```
#![warn(missing_docs)]

pub mod disk;
mod error;
pub mod ext4;
pub mod group;
mod ids;
mod mutation;
pub mod offline;
pub mod state_file;
mod status;
pub mod versions;

pub use disk::{by_uuid, Hand, Hands, Lending, RetainDisk, LANE_BYTES_MAX};
pub use error::JournalError;
pub use ext4::{layout, log, DISK_BYTES_MAX};
pub use ids::{AreaBlock, Block, FsBlock, Tid, BLOCK_BYTES, BLOCK_SECTORS};
pub use mutation::{Mistake, Mutation};
pub use status::{Classes, DiskStatus, FileSystemStatus};
pub use versions::arena;
pub use versions::arena::own_folder;

/// Whether the deliberately broken variants are compiled in, as tests that have to notice them want it. A program that ships
/// says no.
pub const HAS_MUTATIONS: bool = cfg!(feature = "mutations");
