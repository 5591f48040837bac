//! The three contracts of `--survives`: what an acknowledged guest flush survives.
//!
//! ```text
//!            ┌ power, guest-crash: passthrough ──────────────► store lane ─► image
//! frontend ──┤
//!            └ power-window: redo lane ─ append ─► redo log ─ sync (one a window) ─► durable
//!                                │                    └ checkpoint (durable records only) ─► images home
//!                                └ read: extent index ─► log part, the rest from the store lane
//! ```
//!
//! A [`Group`] is all disks of one guest: one sequence, one log. `docs/crash-rules.md` states which outcomes a crash
//! may leave at each step, and `docs/log-format.md` what the redo log looks like; the structures are declared in
//! `afterimage-format`.
#![warn(missing_docs)]

mod clock;
mod contract;
mod direct_group;
mod error;
mod events;
mod group;
mod home;
mod home_lane;
mod mark;
pub mod offline;
mod passthrough;
pub mod redo;
mod signal;
mod slots;
mod status;

pub use clock::{Clock, SystemClock, VirtualClock};
pub use contract::{Contract, ContractError, WINDOW_MAX, WINDOW_MIN};
pub use error::{OpenError, OpenErrorKind};
pub use events::{Subscription, Unread};
pub use group::{Group, GroupOptions};
pub use home::{HomeError, HomeWriter};
pub use mark::mark_of;
pub use status::{Closing, Event, GroupStatus, Replayed};

/// Whether the deliberately broken variants are compiled in, as tests that have to notice them want it. A program that ships
/// says no.
pub const HAS_MUTATIONS: bool = cfg!(feature = "mutations");
