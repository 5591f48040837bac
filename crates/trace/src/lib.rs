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
//! has learnt at some event was caused by events before it.
#![warn(missing_docs)]

mod recording;
mod sparse;

pub use recording::{Event, EventKind, Layer, Op, Recording, Role, Target, TargetId};
pub use sparse::{Page, Sparse, PAGE_BYTES};
