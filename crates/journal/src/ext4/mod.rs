//! One disk's ext4 file systems: what a guest writes to them and to their journals becomes operations on [`Versions`].
//!
//! ```text
//!                 ┌ area part ─► absorb ─► arena ─► follow: commit? ─► mprotect ─► (power-window: home at once)
//! write ─► split ─┤
//!                 └ the rest ──► compare: same bytes as the version? ─► below ─► completed: version is home
//! ```
//!
//! A state machine: events in (a write, a completion, a read, "the guest may be gone"), parts of requests and sets of home writes
//! out. It has no threads, and no clock. Everything here happens under one lock per disk, but for what goes home: sets are written
//! without it, see [`crate::versions`].
//!
//! Outcomes. A daemon killed at any instant leaves an arena from which the log can be read again from the guest's
//! tail: nothing else is needed, and what was completed towards the guest is in the arena or below. A guest that dies
//! at any instant leaves its own journal, from its own tail on, superblock included: what it wrote there reads back byte for byte, from
//! memory or from its own place on the disk. [`FileSystems::settle_all`] brings home what the replay of that would, and gives nothing up.
//! A log counts from a mount on (`Volume::begin`): one that was put in place is content.

mod absorb;
mod errors;
mod followed;
#[cfg(any(test, feature = "testkit"))]
#[path = "../../testkit/fuzz.rs"]
pub mod fuzz;
mod home;
mod journal;
mod known;
pub mod layout;
pub mod log;
mod orphan;
mod passed;
mod phase;
mod place;
mod ranges;
mod report;
mod retained;
mod side;
mod stamp;
mod survey;
mod systems;
mod tail;
mod volume;
mod volumes;
mod write;

pub use ranges::Ranges;
pub(crate) use stamp::{awaited, bears, give_up};
pub use systems::{FileSystems, Options, ReadPart, DISK_BYTES_MAX};
pub use write::{Change, Part};
