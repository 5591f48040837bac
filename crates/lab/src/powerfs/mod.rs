//! A file system of the lab's own, in FUSE, below whatever is tested: it models a device's time, counts what
//! reaches storage, fails on request, and cuts the power.
//!
//! ```text
//!   daemon, its image and log ── kernel page cache ── FUSE ─► fs ─► core ─► content, names ─► backing folder
//!                                                          └► device ─► clock (when to reply)
//!   test ── control socket ─► cut, restore, arm, fault, counters
//! ```
//!
//! Why below: a wrapper inside our own store could neither slow a competitor down nor catch a sync that our
//! own store forgot. Ours, qemu-storage-daemon and a loop-mounted ext4 all run on this one.
//!
//! The fault model. A file's bytes are durable once an fsync or fdatasync of that file, issued after they had
//! arrived, has returned (or the write itself was O_DSYNC); names once an fsync of their directory has; extended
//! attributes once an fsync of the file has (fdatasync does not cover them).
//! Everything else is at the mercy of a cut, sector by sector: see [`content`], [`names`] and [`extended`]. Nothing is
//! reordered or lost while the power stays on. What the kernel's page cache still holds never reached storage
//! and is lost whole. Not modelled: bit rot, lost syncs (a drive that lies), attributes other than lengths.

mod cli;
mod client;
mod clock;
mod content;
#[cfg(test)]
mod content_tests;
mod control;
mod core;
mod counters;
mod dice;
mod extended;
mod fs;
mod names;
mod shared;
mod stored;

pub use self::cli::{run_fuse, FuseOptions};
pub use self::client::{Counters, Cut, MountOptions, PowerMount, Status};
pub use self::content::CutTally;
pub use self::core::{CutReport, Faults};
pub use self::counters::FileCounters;
pub use crate::device::ModelName;
