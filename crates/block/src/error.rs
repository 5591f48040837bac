//! One error type for the data path; it keeps *corrupt*, *unsupported* and *I/O* apart.

use std::io;
use std::sync::Arc;

use crate::Sector;

/// Why a request failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BlockError {
    /// The request reaches past the end of the disk.
    #[error("sectors {sector}+{sectors} lie outside the disk of {disk_sectors} sectors", sector = .sector.0)]
    OutOfRange {
        /// First sector asked for.
        sector: Sector,
        /// Number of sectors asked for.
        sectors: u64,
        /// Size of the disk.
        disk_sectors: u64,
    },
    /// A write to a disk that was opened read-only.
    #[error("the disk is read-only")]
    ReadOnly,
    /// An earlier failure turned the disk read-only; the reason is the first failure's.
    #[error("the disk stopped taking writes: {reason}")]
    Failed {
        /// The first failure, in one sentence.
        reason: Arc<str>,
    },
    /// What is stored contradicts itself.
    #[error("corrupt: {0}")]
    Corrupt(Arc<str>),
    /// A request or a feature that this layer does not offer.
    #[error("unsupported: {0}")]
    Unsupported(Arc<str>),
    /// The operating system's answer.
    #[error("{context}: {source}")]
    Io {
        /// What was being done, to which file.
        context: Arc<str>,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
}

/// The classes a caller decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request itself was wrong.
    BadRequest,
    /// The disk takes no writes.
    ReadOnly,
    /// Stored data contradicts itself.
    Corrupt,
    /// Not offered here.
    Unsupported,
    /// No space left on the file system that holds the image or the log.
    NoSpace,
    /// Any other answer of the operating system.
    Io,
}

/// What to do about an operating-system error that somebody can do something about, to be put behind it; else empty.
pub fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => ": its file system is full, free space there and start again",
        io::ErrorKind::QuotaExceeded => ": the disk quota is used up, raise it or free space and start again",
        io::ErrorKind::FileTooLarge => {
            ": its file system, or the file-size limit (ulimit -f), allows none so large, \
             raise the limit or put it elsewhere, and start again"
        }
        _ => "",
    }
}

impl BlockError {
    /// What to do about it; see [`advice`].
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Io { source, .. } => advice(source),
            _ => "",
        }
    }

    /// Wraps an operating-system error with what was being done.
    pub fn io(context: impl Into<Arc<str>>, source: io::Error) -> Self {
        Self::Io { context: context.into(), source: Arc::new(source) }
    }

    /// As an I/O error of the same kind, for users of a [`Medium`](crate::Medium).
    pub fn into_io(self) -> io::Error {
        let kind = match &self {
            Self::Io { source, .. } => source.kind(),
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self)
    }

    /// The class of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::OutOfRange { .. } => ErrorKind::BadRequest,
            Self::ReadOnly | Self::Failed { .. } => ErrorKind::ReadOnly,
            Self::Corrupt(_) => ErrorKind::Corrupt,
            Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            Self::Io { .. } => ErrorKind::Io,
        }
    }
}
