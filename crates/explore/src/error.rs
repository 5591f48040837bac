//! What can go wrong in the explorer itself. A crash state that is inconsistent is a finding, not an error.

use std::io;

use afterimage_lab::LabError;

/// The explorer's error.
#[derive(Debug, thiserror::Error)]
pub enum ExploreError {
    /// The request cannot be carried out as asked; the text says what to do.
    #[error("{0}")]
    Usage(String),
    /// A system call or file operation of the explorer failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path where there is one.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A guest, a daemon or a missing program.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A recording, or a saved state, contradicts itself or does not fit.
    #[error("{0}")]
    Corrupt(String),
    /// A tool that checks states did something unexpected: nothing can be said about the state.
    #[error("{0}")]
    Checker(String),
    /// The campaign's time ended before a state was judged.
    #[error("the time was over before the state was judged: allow more with --budget")]
    OutOfTime,
    /// A campaign could not go on, and had found something before.
    #[error("{source}; before that states were found that break the promise: {found}")]
    Found {
        /// Why it could not go on.
        source: Box<ExploreError>,
        /// What was wrong with them.
        found: String,
    },
}

impl ExploreError {
    /// An [`ExploreError::Io`] with its story.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// The explorer's result.
pub type Result<T> = std::result::Result<T, ExploreError>;
