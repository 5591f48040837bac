//! `power-window`: a redo log beside the images.
//!
//! ```text
//! write, discard, ──► stage (copy, checksum) ──► append: number, one pwrite, index ──► completion
//! write-zeroes                                    ▲   │
//! set of home writes ──► its records, chained ────┘   │
//! flush ──► nothing new since the durable point, or no acknowledged flush older than the window? ──► completion
//!                                                     ▼
//!                          Syncer: seal the page, fdatasync the log ──► durable
//!                                                     ▼
//!         GoingHome: durable records ─► newest version of each sector ─► images ─► sync ─► header ─► sync ─► reuse
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
//! | decision | owner |
//! |---|---|
//! | which prefix a log holds | `Prefix`, told what `scan` reads |
//! | whose log it is, how the next process begins | [`Scan`], done by [`Redo::open`] |
//! | what has room, what may be given up | `Space`, in [`RedoLog`] |
//! | what a flush waits for | [`Window`](crate::window), in [`Syncer`] |
//! | what is done in the background, and when | [`schedule`](crate::schedule), kept by [`Syncer`] and [`GoingHome`] |
//! | what of the log goes home, in which order, what the header says then | `Round` and `Pace`, done by [`GoingHome`] |
//! | where records are, and which are the newest | [`RedoLog`] |
//! | what of a read is in the log, and whose turn it is | `Reads` |
//! | who waits, what has failed | [`Board`](crate::Board) |
//!
//! The first six know no lock, clock, thread or file.
//!
//! [`Redo`] puts them together. Two threads take the turns of its schedule, [`Syncer::turn`] and [`Redo::turn_home`]; simulators take
//! the same turns one at a time.

mod area;
pub(crate) mod backend;
mod batch;
mod engine;
pub(crate) mod export;
mod extents;
mod going_home;
mod index;
mod lane;
mod log;
pub(crate) mod mutation;
mod open;
mod prefix;
mod reads;
mod recovery;
mod round;
mod scan;
mod sets;
mod space;
mod syncer;
pub(crate) mod takeover;
mod witness;

pub use afterimage_store::{read_header, LogReadError};
pub use engine::{Config, Redo};
pub use going_home::GoingHome;
pub use index::REGIONS_MAX;
pub use lane::{RedoDisk, LANE_BYTES_MAX};
pub use log::{index_bytes_max, payload_bytes_max, RedoLog};
pub use mutation::Mutation;
pub use open::{create_medium, log_file_bytes};
pub use prefix::{Placed, Scan};
pub use recovery::TakeOverError;
pub use scan::scan;
pub use sets::set_bytes_max;
pub use space::records_max;
pub use syncer::{LogSync, Syncer};
