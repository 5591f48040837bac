//! What a lane is asked to do, and what it answers.

use std::time::Duration;

use crate::{BlockError, Buffers, Sector};

/// The submitter's name for a request; the completion carries it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What a flush promises when it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushKind {
    /// A guest's flush: everything that completed before it survives what the contract in force names.
    /// Under `power` that is durability, under `power-window` an ordering point (vDrive's *vorder*), under
    /// `guest-crash` nothing more than the process rule.
    Order,
    /// As [`FlushKind::Order`], where whoever wrote what it covers was told so before: at that time of the group's clock
    /// (what a guest publishes is committed by its own store). It counts as acknowledged since then, whenever this completes.
    Told {
        /// When.
        since: Duration,
    },
    /// Everything that completed before it is durable, under every contract (vDrive's *vflush*).
    Durable,
}

/// The operations of a block device (virtio 1.2 § 5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fill the buffers from the disk.
    Read,
    /// Store the buffers. With `flushed`, completion means what the completion of this write followed by a
    /// [`FlushKind::Order`] flush would mean (the cache rule: a guest without a write cache).
    Write {
        /// Complete as if flushed.
        flushed: bool,
    },
    /// See [`FlushKind`]. Carries no range.
    Flush(FlushKind),
    /// The range reads as zeroes afterwards and its space may be given back.
    Discard {
        /// Complete as if flushed.
        flushed: bool,
    },
    /// The range reads as zeroes afterwards. Without `unmap` its space stays allocated where the file system
    /// can do that.
    WriteZeroes {
        /// Space may be given back.
        unmap: bool,
        /// Complete as if flushed.
        flushed: bool,
    },
}

impl Operation {
    /// Whether the operation changes the disk and so takes a sequence number.
    pub fn is_write(self) -> bool {
        matches!(self, Self::Write { .. } | Self::Discard { .. } | Self::WriteZeroes { .. })
    }

    /// Whether completion must mean what a following guest flush would mean.
    pub fn is_flushed(self) -> bool {
        match self {
            Self::Write { flushed } | Self::Discard { flushed } | Self::WriteZeroes { flushed, .. } => {
                flushed
            }
            Self::Read | Self::Flush(_) => false,
        }
    }
}

/// One request. `sectors * 512` equals the buffers' length for reads and writes; discards and write-zeroes
/// have empty buffers.
#[derive(Debug)]
pub struct Request {
    /// The submitter's name for it.
    pub token: Token,
    /// What to do.
    pub operation: Operation,
    /// Where it starts.
    pub sector: Sector,
    /// How far it reaches, in sectors; 0 for a flush.
    pub sectors: u64,
    /// The memory to fill or to store.
    pub buffers: Buffers,
}

/// The answer to one [`Request`].
#[must_use]
#[derive(Debug, Clone)]
pub struct Completion {
    /// The request's token.
    pub token: Token,
    /// Success, or why not.
    pub result: Result<(), BlockError>,
}
