//! Why a run came to no end.

use std::io;
use std::time::Duration;

use afterimage_compose::ComposeError;
use afterimage_journal::group::RetainError;
use afterimage_lab::LabError;

use crate::calendar::{Broken, Ns};

/// Why a run came to no end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The lab: a guest did not start, or broke its protocol.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A guest broke the calendar's rules.
    #[error(transparent)]
    Calendar(#[from] Broken),
    /// A daemon's layers cannot be built.
    #[error("daemon {guest}: {source}")]
    Compose {
        /// Whose.
        guest: usize,
        /// Why.
        source: ComposeError,
    },
    /// A daemon broke.
    #[error("daemon {guest} at {now} ns: {what}")]
    Daemon {
        /// Whose.
        guest: usize,
        /// When.
        now: Ns,
        /// Why.
        what: String,
    },
    /// A daemon cannot end in order.
    #[error("daemon {guest}: {source}")]
    End {
        /// Whose.
        guest: usize,
        /// Why.
        source: RetainError,
    },
    /// A file or socket of the run's.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// Every guest waits for something that will not come.
    #[error("at {0} ns every guest waits, and nothing will happen")]
    Stuck(Ns),
    /// It takes too long.
    #[error("the run took longer than {} s of real time, and was at {now} ns", limit.as_secs())]
    Limit {
        /// How long it might.
        limit: Duration,
        /// How far it came.
        now: Ns,
    },
}

pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> RunError {
    let what = what.into();
    move |source| RunError::Io { what, source }
}
