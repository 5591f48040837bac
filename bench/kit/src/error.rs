//! What can go wrong in a benchmark.

use std::io;

use afterimage_lab::LabError;
use afterimage_report::raw::ResultsError;

/// The benchmark's error.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A system call or a file operation failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The same, where the answer tells the story.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The lab could not do its part.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// Results of earlier runs cannot be read, or these not written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A workload's program failed or said something unexpected.
    #[error("{0}")]
    Workload(String),
    /// The guest was to be killed at its work, and had done it.
    #[error("the work was done before {after_s:.1} s had passed, which is half of what it took before")]
    TooLate {
        /// When it was to be killed.
        after_s: f64,
    },
    /// Something was asked for that does not exist.
    #[error("{0}")]
    Usage(String),
}

/// One sentence of those who know no more.
impl From<String> for BenchError {
    fn from(sentence: String) -> Self {
        Self::Workload(sentence)
    }
}

/// The benchmark's result.
pub type Result<T> = std::result::Result<T, BenchError>;

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
        self.map_err(|source| BenchError::Io { what: what(), source: source.into() })
    }
}
