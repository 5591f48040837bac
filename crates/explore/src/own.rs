//! What the daemon's own recovery is to the explorer.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::state::{Image, Scratch};

/// The daemon's own recovery of the media of a storage layer.
pub trait OwnRecovery: Send + Sync {
    /// Recovers.
    ///
    /// # Errors
    /// In one sentence: why it refuses, or why what it left is no prefix of the guest's history.
    fn recover(&self, media: Vec<Image>) -> std::result::Result<Recovered, String>;

    /// What a crash right before any of these events promises for a disk that holds the first `prefix` requests: the event up
    /// to which marks must be visible.
    ///
    /// # Errors
    /// In one sentence: why the contract does not allow so old a state at the last of them, or how it was one of the future at
    /// the first.
    fn promised(&self, prefix: u64, crash: RangeInclusive<usize>) -> std::result::Result<usize, String>;
}

/// What it left.
pub struct Recovered {
    /// The guest's disks.
    pub disks: Vec<Arc<Scratch>>,
    /// Their digest.
    pub digest: u128,
    /// How many of the guest's requests they hold.
    pub prefix: u64,
}
