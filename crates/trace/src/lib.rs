//! Captures what passes a layer of the data path.
//!
//! ```text
//!   frontend ─► TapDisk (layer guest) ─► order ─► TapDisk, TapMedium (layer storage) ─► store
//!                    └────────────────┬──────────────────┘
//!   guest's marks ─────────────► Recorder ─► recording file ─► Recording
//! ```
//!
//! One recording holds both layers in one order. A request is two events: its submission, with its data, before the
//! layer below may act on it, and its completion, before the layer above may learn of it. So whatever somebody outside
//! has learnt at some event was caused by events before it. Where a guest publishes a commit in its own memory, and may tell of it before
//! anybody has made a request of it, the publication is an event of its own.
//!
//! The file is described in `docs/recording-format.md`, its structures are declared in `afterimage-format`.
//!
//! [`capture`] is the other thing that listens there: a text trace of requests, without data, for simulators.
#![warn(missing_docs)]

mod builder;
pub mod capture;
mod error;
mod file;
mod reader;
mod recorder;
mod recording;
mod sparse;
mod tally;
mod tap_disk;
mod tap_medium;
mod taps;
mod writer;

pub use error::{Result, TraceError};
pub use reader::Ending;
pub use recorder::{Base, Finished, Recorder};
pub use recording::{Event, EventKind, Layer, Op, Recording, Role, Run, Target, TargetId};
pub use sparse::{Page, Sparse, PAGE_BYTES};
pub use tally::{LayerTally, Tally};
pub use tap_disk::TapDisk;
pub use tap_medium::TapMedium;
pub use taps::{read_disk, read_medium, Taps};
pub use writer::Written;
