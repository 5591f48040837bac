//! Real guests on modelled disks in virtual time: stock Linux under User Mode Linux's time travel, our own layers between guest and
//! device, one thread and one calendar (docs/virtual-time.md).
//!
//! ```text
//!  guest (User Mode Linux) ── vhost-user, kicks and calls as messages ──► daemon: frontend queue ─► journal ─► order ─► image
//!    │ the time: REQUEST, WAIT, GET, UPDATE                                │ stepped, on the machine's clock          │
//!    ▼ RUN, FREE_UNTIL                                                     ▼                                          ▼
//!  world ─► calendar: who is next ◄──────────────── the earliest of ── machine: what completes when,      storage: page cache,
//!                                                                      syncs, going home                  device model
//! ```
//!
//! A run is a function of its options: the same seed gives the same requests with the same content at the same nanoseconds, on any
//! load. What computes takes no time unless it is charged for, so nothing here says how fast a processor is.
//!
//! A crate of its own, and no part of the lab: the lab runs the programs that ship as processes and links none of their layers; this
//! one links them, with the front end's test kit, which no program that ships has.
#![warn(missing_docs)]

mod beside;
pub mod calendar;
mod canary;
mod cell;
mod content;
mod crowd;
mod daemon;
#[cfg(test)]
mod daemon_tests;
mod error;
mod extents;
mod guest;
mod host_fs;
mod image;
mod machine;
mod meeting;
mod options;
mod page_cache;
mod record;
mod report;
mod simulate;
mod site;
mod storage;
mod storage_trace;
mod timed;
mod trace;
mod volatile;
mod world;

pub use canary::Canary;
pub use cell::{run_cell, CellError};
pub use daemon::KICK_NS;
pub use error::RunError;
pub use guest::{GuestKernel, GuestOptions};
pub use host_fs::HostFs;
pub use options::{Kill, RunOptions};
pub use page_cache::DirtyLimits;
pub use record::{record, RecordError};
pub use report::{End, GuestReport, Meeting, Report, Sample};
pub use simulate::{simulate, SimulateOptions, Simulated, Tally};
pub use trace::Counts;
pub use world::run;
