//! Image files and block devices.
//!
//! ```text
//!            ┌ MemoryLane ── pread, pwritev, fallocate ──────┐   images in memory (tmpfs)
//! ImageStore ┤                                               ├─► one locked file description
//!            ├ RingLane ──── io_uring, one ring a queue ─────┤   everything else
//!            └ ImageMedium ─ the same, waited for ───────────┘   going home, recovery, checks
//! FileMedium ─────────────── a plain file of its own             LogFile: a redo log, its name, its lock, its marks
//! ```
//!
//! Each description has one `Syncs`: nobody else syncs it, one sync runs at a time, and a failed one is everybody's.
//!
//! What a crash may leave: a write whose completion was reaped is in the page cache or, with O_DIRECT, was taken by
//! the device: it survives this process. A power cut leaves any subset of the writes, at sector granularity and
//! with torn sectors, that completed after the last sync was *started*; a flush completes only after a sync that was
//! started after it was submitted, or finds that nothing was written since the last one.
#![warn(missing_docs)]

mod attribute;
mod claim;
mod core;
mod counters;
mod create;
mod direct;
mod error;
mod file_medium;
mod holder;
mod image;
mod image_medium;
mod inline_lane;
mod lock;
mod log;
mod magic;
mod mark;
mod memory_lane;
mod note;
mod open;
mod options;
mod ours;
mod ring;
mod ring_lane;
mod slots;
mod stored;
mod syncs;
mod transfer;
mod zero;

pub use attribute::{read_attribute, Attributes};
pub use counters::{Counters, CountersSnapshot};
pub use create::create_image;
pub use error::OpenError;
pub use file_medium::{sync_directory, FileMedium};
pub use image::{FileIdentity, Image, ImageStore};
pub use lock::{lock_file, lock_image};
pub use log::{
    absolute, find_any_log, find_log, is_live, is_log, live_beside, log_beside, log_of, named_by, needs,
    owners, read_header, real_path, same_file, LogError, LogFile, LogReadError, NewLog, Owner,
};
pub use mark::{mark_of, mark_used, marked_log, remove_mark};
pub use note::notes_folder;
pub use options::{DirectMode, OpenOptions};
pub use ours::{check_owner, open_ours, open_unlinked, NotOurs};
pub use ring_lane::LANE_BYTES_MAX;
pub use stored::{give_up_looking_when, trust_storage};
