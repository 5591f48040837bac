//! What can go wrong in the lab, kept apart by what the reader can do about it.

use std::io;
use std::time::Duration;

use afterimage_protocol::lines::LinesError;
use afterimage_protocol::report::ReportError;

/// The lab's error.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A system call or a file operation of the lab itself failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path where there is one.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Something did not happen before its deadline. Whatever was started for it has been killed.
    #[error("{what} did not happen within {} s", limit.as_secs_f32())]
    Deadline {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
    },
    /// A program, kernel or device that the lab needs is not here; the text says how to get it.
    #[error("{0}")]
    Missing(String),
    /// The guest did not do what was asked: it died, would not boot, or its program failed.
    #[error("{0}")]
    Guest(String),
    /// A process on the other side of a socket or pipe answered something unexpected, or an error.
    #[error("{0}")]
    Peer(String),
    /// A promise of the product did not hold; the text names it. This is what tests exist for.
    #[error("{0}")]
    Broken(String),
}

impl LabError {
    /// An [`LabError::Io`] with its story.
    pub fn io(what: impl Into<String>, source: impl Into<io::Error>) -> LabError {
        LabError::Io { what: what.into(), source: source.into() }
    }
}

impl From<ReportError> for LabError {
    fn from(error: ReportError) -> LabError {
        LabError::Guest(error.to_string())
    }
}

impl From<LinesError> for LabError {
    fn from(error: LinesError) -> LabError {
        match error {
            LinesError::Io { path, source } => LabError::io(path.display().to_string(), source),
            line @ LinesError::Line { .. } => LabError::Peer(line.to_string()),
        }
    }
}

/// The lab's result.
pub type Result<T> = std::result::Result<T, LabError>;

/// Adds the story to an I/O error.
pub trait Context<T> {
    /// What was being done, with the path where there is one.
    ///
    /// # Errors
    /// The same error, with its story.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| LabError::io(what(), source))
    }
}
