//! What watches and stops a run, and why one ends early.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Arc;

use crate::config::{ConfigError, FtlKind};
use crate::ftl::FtlError;
use crate::trace::TraceError;

/// What watches and stops a run.
#[derive(Debug, Default)]
pub struct Control {
    /// Set to stop; the run ends with [`RunError::Interrupted`].
    pub stop: Arc<AtomicBool>,
    /// Requests looked at in first passes.
    pub scanned: AtomicU64,
    /// Requests served, over all runs.
    pub served: AtomicU64,
}

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The parameters.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The trace does not fit.
    #[error("{0}")]
    TooLarge(String),
    /// The FTL ran out of blocks.
    #[error("{ftl} stopped after {requests} requests: {error}")]
    Ftl {
        /// Which.
        ftl: FtlKind,
        /// Requests served.
        requests: u64,
        /// Why.
        error: FtlError,
    },
    /// Ctrl-C, or another signal that asks for the end.
    #[error("interrupted")]
    Interrupted,
}
