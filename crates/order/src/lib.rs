//! The three contracts of `--survives`: what an acknowledged guest flush survives.
//!
//! ```text
//!            ┌ power, guest-crash: passthrough ──────────────► store lane ─► image
//! frontend ──┤
//!            └ power-window: redo lane ─ append ─► redo log ─ sync (one a window) ─► durable
//!                                │                    └ going home (durable records only) ─► images
//!                                └ read: extent index ─► log part, the rest from the store lane
//! ```
//!
//! A [`Group`] is all disks of one guest: one sequence, one log. `docs/crash-rules.md` states which outcomes a crash
//! may leave at each step, and `docs/log-format.md` what the redo log looks like; the structures are declared in
//! `afterimage-format`.
#![warn(missing_docs)]

mod backend;
mod board;
mod changes;
mod clock;
mod contract;
mod direct;
mod error;
mod events;
mod group;
mod home;
mod home_lane;
mod host;
pub mod offline;
mod options;
mod passthrough;
pub mod redo;
mod relaxed_flushes;
mod schedule;
mod sequence;
mod signal;
mod status;
mod window;

pub use board::Board;
pub use changes::Ranges;
pub use clock::{Clock, SystemClock, VirtualClock};
pub use contract::{Contract, ContractError, WINDOW_MAX, WINDOW_MIN};
pub use error::{OpenError, OpenErrorKind};
pub use events::{Subscription, Unread};
pub use group::Group;
pub use home::{HomeError, HomeWriter};
pub use home_lane::LaneHome;
pub use host::{Host, Machine};
pub use options::GroupOptions;
pub use schedule::UNFLUSHED_MAX;
pub use sequence::{LogPosition, LoggedDisk, Sequence, Watermark};
pub use status::{Closing, Event, GroupStatus, Replayed};

/// Whether the deliberately broken variants are compiled in, as tests that have to notice them want it. A program that ships
/// says no.
pub const HAS_MUTATIONS: bool = cfg!(feature = "mutations");
