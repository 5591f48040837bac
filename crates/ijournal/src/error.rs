//! Why a file system was not recovered.

use std::io;

use afterimage_block::BlockError;
use afterimage_journal::JournalError;

/// Keeps *corrupt*, *unsupported* and *I/O* apart. In every case the file system is as a crash of the recovery would leave it: the same
/// can be done again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What stands on the disk contradicts itself.
    #[error("{0}")]
    Corrupt(String),
    /// It is sound, and not handled.
    #[error("{0}")]
    Unsupported(String),
    /// Another host has it.
    #[error("{0}")]
    InUse(String),
    /// The disk could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The same, below.
    #[error(transparent)]
    Block(BlockError),
}

impl From<JournalError> for Error {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Corrupt(why) => Self::Corrupt(why),
            JournalError::Block(error) => Self::Block(error),
            other => Self::Unsupported(other.to_string()),
        }
    }
}

impl From<BlockError> for Error {
    fn from(error: BlockError) -> Self {
        Self::Block(error)
    }
}

/// *Corrupt*, with a sentence.
pub(crate) fn corrupt<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::Corrupt(why.into()))
}

/// *Unsupported*, with a sentence.
pub(crate) fn unsupported<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::Unsupported(why.into()))
}
