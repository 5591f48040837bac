//! What can go wrong with recordings.

use std::io;

use afterimage_format::FormatError;

/// Keeps *not ours*, *from a newer program*, *corrupt*, *misuse* and *I/O* apart.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file is no recording, from a newer program, or its header is damaged.
    #[error("{path} cannot be read as a recording: {source}")]
    Format {
        /// The file.
        path: String,
        /// What is wrong with its header.
        source: FormatError,
    },
    /// The file is damaged in its middle.
    #[error("{path} is damaged at byte {at}: {what}; record anew, or restore the file from a copy")]
    Corrupt {
        /// The file.
        path: String,
        /// Where the damaged chunk begins.
        at: u64,
        /// What was found there.
        what: String,
    },
    /// A recording in memory that no file can hold.
    #[error("this cannot be recorded: {0}")]
    Unsupported(String),
    /// The operating system's answer.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path.
        what: String,
        /// The answer.
        source: io::Error,
    },
}

impl TraceError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// The result of this crate.
pub type Result<T> = std::result::Result<T, TraceError>;
