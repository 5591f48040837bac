//! The contract that every layer of the data path keeps.
//!
//! ```text
//! guest ─ virtqueue ─► frontend ─► order ─► store ─► file
//!                      (virtio)   (prefix,  (persist)
//!                                 redo log)
//! ```
//!
//! A layer is a [`Disk`]. Each virtqueue opens a [`Lane`] of its own on the disk and drives it from one
//! thread: [`Lane::submit`] requests, [`Lane::dispatch`] them as a batch, [`Lane::reap`] completions,
//! [`Lane::wait`] when there is nothing to do. A layer above another holds the lower layer's lane inside its
//! own, and hands down what was [`Admitted`] once. Synchronous work that is not a guest's (going home, recovery, checks) uses a [`Medium`].
//!
//! What a completion means: a *read* has filled its buffers; a *write*, *discard* or *write-zeroes* is visible
//! to every later read on any lane, and its data is in a file's page cache, on the device, or in memory that
//! outlives the process (the process rule); a *flush* keeps the contract in force. Of two overlapping requests
//! where one was submitted after the other had completed, the later one wins. Requests in flight together
//! have no order until they have a sequence number.
#![warn(missing_docs)]

mod admit;
mod bell;
mod blocking;
mod buffers;
mod disk;
mod error;
mod front;
pub mod guest_copy;
mod ids;
mod medium;
mod medium_disk;
mod request;
mod synchronous;
mod tap;

pub use admit::Admitted;
pub use bell::Bell;
pub use blocking::Blocking;
pub use buffers::Buffers;
pub use disk::{is_readable, wait_readable, Disk, Geometry, Health, Lane, Quiesced};
pub use error::{advice, BlockError, ErrorKind};
pub use front::Front;
pub use ids::{DiskIndex, Sector, SequenceNumber, SECTOR_BYTES};
pub use medium::Medium;
pub use medium_disk::MediumDisk;
pub use request::{Completion, FlushKind, Operation, Request, Token};
pub use synchronous::SynchronousLane;
pub use tap::Tap;
