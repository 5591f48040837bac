//! Why a frontend could not start or had to let go of its guest.

use std::io;

use afterimage_block::BlockError;

/// Errors of [`crate::Server::start`].
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    /// An option is out of its range.
    #[error("{0}")]
    Options(String),
    /// The disk did not open a lane for a queue.
    #[error("cannot open queue {queue} of the disk: {source}")]
    Lane {
        /// Which queue.
        queue: u16,
        /// The disk's answer.
        source: BlockError,
    },
    /// The operating system refused something at start-up.
    #[error("{context}: {source}")]
    Io {
        /// What was being done.
        context: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// The keeper holds something that this version cannot take over.
    #[error("cannot take over from the keeper: {0}")]
    Keep(#[from] crate::keep::KeepError),
}

impl FrontendError {
    pub(crate) fn io(context: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { context, source: source.into() }
    }
}

/// Why a connection ended other than by the guest closing it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The peer broke the vhost-user protocol.
    #[error("the peer broke the vhost-user protocol: {0}")]
    Protocol(String),
    /// The socket failed.
    #[error("the vhost-user socket failed: {0}")]
    Io(#[from] io::Error),
    /// A page of guest memory is gone.
    #[error(
        "guest memory was taken away: its file became shorter than the region that the peer had announced"
    )]
    MemoryGone,
}
