//! One error type; it keeps *corrupt*, *unsupported* and *I/O* apart.

use afterimage_block::{BlockError, ErrorKind};

/// Why a file system's journal is not, or no longer, retained, or why retained data could not be handled.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// What the guest wrote contradicts itself.
    #[error("corrupt: {0}")]
    Corrupt(String),
    /// A sound structure that this code does not handle: the file system runs passthrough.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// What is retained belongs to another image, or to an earlier state of this one.
    #[error("{0}")]
    Foreign(String),
    /// The disk below, or the arena's file.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The retained-journal arena has no free slot.
    #[error("the arena is full ({bytes_max} bytes, --retain-max)")]
    Full {
        /// The bound.
        bytes_max: u64,
    },
}

impl JournalError {
    /// An I/O failure with what was being done.
    pub fn io(context: impl Into<std::sync::Arc<str>>, source: std::io::Error) -> Self {
        Self::Block(BlockError::io(context, source))
    }

    /// Whether there is no memory: the bound is reached, or the arena's tmpfs is full.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            Self::Block(e) => e.kind() == ErrorKind::NoSpace,
            Self::Corrupt(_) | Self::Unsupported(_) | Self::Foreign(_) => false,
        }
    }

    /// As whoever asked for a block is told.
    pub(crate) fn into_block(self) -> BlockError {
        match self {
            Self::Block(e) => e,
            other => BlockError::Corrupt(other.to_string().into()),
        }
    }
}
