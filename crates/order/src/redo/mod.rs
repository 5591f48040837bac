//! `power-window`: a redo log beside the images.
//!
//! ```text
//! write, discard, ──► stage (copy, checksum) ──► append: number, one pwrite, index ──► completion
//! write-zeroes                                    ▲   │
//! set of home writes ──► its records, chained ────┘   │
//! flush ──► nothing new since the durable point, or no acknowledged flush older than the window? ──► completion
//!                                                     ▼
//!                          sync_once: seal the page, fdatasync the log ──► durable
//!                                                     ▼
//!   checkpoint_once: durable records ─► newest version of each sector ─► images ─► sync ─► header ─► sync ─► reuse
//! ```
//!
//! States of a record, and what a power cut may leave of it:
//!
//! | state | in the log | at home | after a cut |
//! |---|---|---|---|
//! | appended | page cache | older | there or not; if not, nothing after it either (contiguous numbers) |
//! | durable | storage | older or half written | there: replayed from the log |
//! | home | storage, then reused | storage | there |
//!
//! A record reaches home only when durable; its log space is reused only when home is synced *and* the header that
//! says so is. A page that a sync has made durable is not written again before that.
//!
//! [`Core`] is the state machine. Its background steps, [`Core::sync_once`] and [`Core::checkpoint_once`], are called
//! in loops by two threads in production, and one at a time by the seeded simulation.

mod append;
mod area;
mod batch;
mod checkpoint;
mod core;
mod dependency;
mod extents;
pub(crate) mod files;
pub(crate) mod group;
mod header;
mod index;
mod lane;
mod mutation;
mod open;
mod scan;
mod sets;
pub(crate) mod takeover;
mod threads;
mod window;

pub use append::{index_bytes_max, payload_bytes_max, records_max};
pub use index::REGIONS_MAX;
pub use lane::{RedoDisk, LANE_BYTES_MAX};
pub use mutation::Mutation;
pub use open::{create_medium, log_file_bytes, TakeOverError};
pub use scan::{read_header, scan, Placed, Scan, ScanError};
pub use sets::set_bytes_max;

pub use self::core::{Config, Core};
pub use window::LogSync;
