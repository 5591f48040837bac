//! The control disk: a tiny disk beside the others through which a guest's programs ask for what vDrive (§ 4.1) adds to flushes: an
//! ordering point, durability now, and word of when a point is durable; and through which a guest's file system hands over its commits
//! (VMA, Table I). Any guest has the driver.
//!
//! ```text
//! guest ─ write, slot ─► frontend ─► ControlDisk's lane ─► Desk ──── Flights ──► one thread: Group::flush
//!       ◄ read, answer ─                  ▲    (what is asked, what waits; rules)    │
//!                                 │       └───────────── bell ◄──────────────────────┴── durability events
//!                                 ├─ blocks of a commit ─► Handing ─► a lane of the disk whose journal they belong to
//!                                 └─ a read, held: Loan ──published──┘
//! ```
//!
//! Commands and answers are declared in `afterimage-format`, their meaning is told in `docs/control-disk.md`. [`desk`], [`flights`] and [`lent`] hold the
//! rules, without a clock, a thread or a lock; the queue's lane and the thread in [`disk`] are their shell.
//!
//! Outcomes. A command is answered when what it promises holds, not before: a flush that serves it began after it came. Nothing
//! that is written here touches a byte of any image, but for commits that are handed over, which are what the file system would write there itself. A command that is executed twice means the same: an answer's point covers whatever had
//! completed when it was asked.
#![warn(missing_docs)]

mod commands;
pub mod desk;
mod disk;
mod durability;
pub mod flights;
mod hand;
mod lane;
pub mod lent;
mod shared;

pub use afterimage_format::control_disk::PUBLISHED_US_MAX;
pub use commands::Commands;
pub use disk::ControlDisk;
pub use durability::Durability;
pub use lane::{ControlLane, Hear, Published};
pub use shared::Promise;
