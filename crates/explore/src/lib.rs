//! The crash-state explorer: finds out what a crash may leave, recovers it, and checks it.
//!
//! ```text
//!   recording ─► stream ─► model: which states may a crash leave ─► State (overlay in memory)
//!                                                                     │ equal bytes: pruned
//!              own recovery (redo log) ◄────────────────────────────┘
//!                  │ exactly a prefix? within the window?
//!                  ▼ same bytes on what recovery reads: pruned
//!              guest's recovery: i-transactions ─► e2fsck │ mount in a pool of guests ─► application's checker
//!                  ▼
//!              outcome ─► counts │ first failure minimised, saved, replayable
//! ```
#![warn(missing_docs)]

pub mod campaign;
pub mod check;
pub mod derive;
pub mod enumerate;
mod error;
pub mod evaluate;
pub mod fault;
mod guest_recovery;
mod hash;
pub mod judge;
pub mod layers;
pub mod log_recovery;
pub mod marks;
pub mod materialise;
pub mod minimise;
pub mod model;
pub mod own;
pub mod prefix;
pub mod process_rule;
pub mod published;
pub mod record;
pub mod report;
pub mod retained;
pub mod runner;
pub mod saved;
pub mod schedule;
pub mod setup;
pub mod state;
pub mod stream;
pub mod suite;
pub mod tags;
pub mod tally;

pub use error::{ExploreError, Result};
