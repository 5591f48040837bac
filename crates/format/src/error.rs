//! Why bytes are not the structure that was expected.

/// Keeps *not ours*, *from a newer program* and *corrupt* apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The magic number is missing.
    #[error("not {what}")]
    Magic {
        /// What was expected, with its article.
        what: &'static str,
    },
    /// Written by a newer program.
    #[error("version {version} is newer than {known}")]
    Version {
        /// The version found.
        version: u32,
        /// The newest version known here.
        known: u32,
    },
    /// Written by a program so old that what it wrote cannot be trusted.
    #[error("version {version} is older than {oldest}")]
    Old {
        /// The version found.
        version: u32,
        /// The oldest version that is read.
        oldest: u32,
    },
    /// Features that must be understood are not.
    #[error("unknown incompatible features {0:#x}")]
    Features(u32),
    /// A checksum does not match, or a field contradicts another.
    #[error("{0}")]
    Corrupt(&'static str),
}
