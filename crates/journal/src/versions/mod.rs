//! Committed content and its way home, whatever file system it belongs to.
//!
//! ```text
//! a client's places ─► arena (memory that outlives the process) ──────────────┐
//! a client commits  ─► mprotect: its blocks' newest versions, each at a place ├─► home: block by block, or as one set
//! a guest's writes  ─► compare, track, landed, arrived: home, or overwritten ─┘
//! ```
//!
//! A client is whoever knows what is committed: [`crate::ext4`] reads it from a guest's journal, whose blocks are its places; a guest
//! that says it itself would have slots. The operations are those of VMA's Table I ([`area`]), with content: `init`, `cleanup`,
//! `mprotect`, `query`, `recover`.
//!
//! Outcomes. What a kill leaves of content is in [`arena`]. A version whose home was written with something else, or is being written,
//! is marked so in the arena before that write is handed down; one is marked home only when a write of its bytes has completed
//! and nothing was written there since. So whoever reads the commits again finds each version in a state that is true.
//!
//! A state machine: events in, sets out ([`way`]). It has no threads, and no clock; the disk below is read and written through its lane.

pub mod area;
pub mod arena;
mod below;
mod content;
mod flight;
mod home;
mod inflight;
mod places;
mod set;
mod store;
mod way;

pub use area::{Query, Tuple, Version, VersionState};
pub(crate) use below::Below;
pub use flight::Carried;
pub use home::SetError;
pub(crate) use home::BATCH_BLOCKS;
pub use inflight::{Flying, Track};
pub use places::{unescape, Places, Reader};
pub use set::HomeSet;
pub(crate) use store::blocks_of;
pub use store::{Room, Versions};
