//! What is asked of a group.

use std::path::PathBuf;
use std::sync::Arc;

use afterimage_block::Tap;

use crate::{Contract, Host, Machine};

/// How a group is opened.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The promise.
    pub contract: Contract,
    /// Size of the redo log file in bytes (`power-window` only); at least [`GroupOptions::LOG_MIN_BYTES`].
    pub log_max_bytes: u64,
    /// Where the redo log is; `<first image>.aflog` where `None`.
    pub log_path: Option<PathBuf>,
    /// Who listens to what reaches the images and the log, from the opened log on: what opening itself brings home
    /// from an earlier log is not heard. Nobody, usually.
    pub tap: Option<Arc<dyn Tap>>,
    /// What it runs on.
    pub host: Arc<dyn Host>,
    /// A mistake that the redo log is to make; only with the feature `mutations`.
    #[cfg(feature = "mutations")]
    pub mutation: Option<crate::redo::Mutation>,
}

impl GroupOptions {
    /// The smallest redo log.
    pub const LOG_MIN_BYTES: u64 = 16 << 20;
    /// A redo log that suits most guests.
    pub const LOG_DEFAULT_BYTES: u64 = 256 << 20;

    /// The usual log beside the first image.
    pub fn new(contract: Contract) -> Self {
        Self {
            contract,
            log_max_bytes: Self::LOG_DEFAULT_BYTES,
            log_path: None,
            tap: None,
            host: Arc::new(Machine),
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}
