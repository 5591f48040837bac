//! The lab: real guests, device models, power cuts, and the daemons under test as processes.
//!
//! ```text
//!   Guest (UML │ QEMU) ── vhost-user socket ── Daemon (afterimage │ qemu-storage-daemon │ nested)
//!     │ agent: acknowledged writes                 │ image, log
//!     ▼                                            ▼
//!   Channel ─► ledger of acknowledgements        Powerfs (FUSE): service times, counters, faults, power cuts
//! ```
//!
//! Everything here is a process of its own, owned by a [`process::Group`]: whatever happens to the program
//! that started it, nothing is left behind.
#![warn(missing_docs)]

pub mod acks;
mod ask;
pub mod calm;
pub mod channel;
pub mod daemon;
pub mod demo;
pub mod device;
pub mod error;
mod evidence;
pub mod fsck;
pub mod guest;
pub mod integrity;
pub mod locate;
pub mod powerfs;
pub mod process;
pub mod processor;
pub mod suite;

pub use error::{LabError, Result};
