//! Why a group could not be opened: each variant is one sentence for the user.

use std::io;
use std::path::{Path, PathBuf};

use afterimage_block::BlockError;

/// Nothing was touched when one of these is returned, unless the sentence says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An image could not be opened.
    #[error(transparent)]
    Image(#[from] afterimage_store::OpenError),
    /// Not a redo log.
    #[error("{} is not an Afterimage redo log: move it away or name another log", .0.display())]
    NotALog(PathBuf),
    /// Written by a newer program.
    #[error(
        "{} has log format version {version}, and this program knows up to {known}: use a newer afterimage",
        .path.display()
    )]
    NewerVersion {
        /// The log.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// The newest version known here.
        known: u32,
    },
    /// Written by an older program, and not to be trusted.
    #[error(
        "{} has log format version {version}, whose checksums can take a torn record for a whole one, and this program reads \
         {oldest} only: bring it home with the afterimage that wrote it (`afterimage recover`), then start again",
        .path.display()
    )]
    OlderVersion {
        /// The log.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// The oldest version that is read.
        oldest: u32,
    },
    /// Features that must be understood are not.
    #[error(
        "{} uses log features {flags:#x} that this program does not know: use a newer afterimage",
        .path.display()
    )]
    UnknownFeatures {
        /// The log.
        path: PathBuf,
        /// The unknown flags.
        flags: u32,
    },
    /// The log belongs to another image.
    #[error(
        "{} belongs to another image than {}: {why}; put the right image back, or remove the log to give up what is \
         only there",
        .log.display(), .image.display()
    )]
    WrongImage {
        /// The log.
        log: PathBuf,
        /// The image that was given.
        image: PathBuf,
        /// What differs.
        why: String,
    },
    /// The image is an older copy.
    #[error(
        "{} is an older copy than {} expects: {why}; restore the copy together with its log, or remove the log to \
         use the copy as it is",
        .image.display(), .log.display()
    )]
    RestoredCopy {
        /// The log.
        log: PathBuf,
        /// The image that was given.
        image: PathBuf,
        /// What gave it away.
        why: String,
    },
    /// The log contradicts itself beyond what a crash can do.
    #[error(
        "{} is corrupt: {what}; nothing was replayed; restore a backup, or remove the log to give up what is only \
         there",
        .path.display()
    )]
    Corrupt {
        /// The log.
        path: PathBuf,
        /// What contradicts what.
        what: String,
    },
    /// The log of a group of other images.
    #[error(
        "{} holds writes of {count} images ({names}): serve them together, or run `afterimage recover {}` first",
        .log.display(), .log.display()
    )]
    OtherGroup {
        /// The log.
        log: PathBuf,
        /// How many images the group has.
        count: usize,
        /// Their paths, as far as they are known.
        names: String,
    },
    /// A sidecar names a log that is not there.
    #[error(
        "{} has writes in the log {}, which is missing: put the log back, or remove {} to give up what was only there",
        .image.display(), .log.display(), .sidecar.display()
    )]
    LogMissing {
        /// The image.
        image: PathBuf,
        /// Where the log should be.
        log: PathBuf,
        /// The sidecar that says so.
        sidecar: PathBuf,
    },
    /// A sidecar that cannot be read.
    #[error(
        "{} is not a valid log reference: if {} has no live log, remove it",
        .sidecar.display(), .image.display()
    )]
    BadSidecar {
        /// The sidecar.
        sidecar: PathBuf,
        /// The image it stands beside.
        image: PathBuf,
    },
    /// There is a live log, and the image is to be opened for reading only.
    #[error(
        "{} has writes in the log {} and is to be served read-only: run `afterimage recover {}` first",
        .image.display(), .log.display(), .image.display()
    )]
    ReadOnlyWithLog {
        /// The image.
        image: PathBuf,
        /// Its live log.
        log: PathBuf,
    },
    /// Beside a device node there is no lasting place for a log.
    #[error("{} is a device: say where its redo log is to be with --log-path", .0.display())]
    LogPathNeeded(PathBuf),
    /// No room for the log.
    #[error(
        "no space for the redo log {} of {bytes} bytes: free space, name another place for it, or make it smaller \
         with --log-max",
        .path.display()
    )]
    NoSpace {
        /// The log.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// A log too small to work with.
    #[error("a redo log of {bytes} bytes is too small: --log-max must be at least {min_bytes}")]
    LogTooSmall {
        /// What was asked for.
        bytes: u64,
        /// The smallest size.
        min_bytes: u64,
    },
    /// More images than a log can name.
    #[error("a group has at most {max} disks, not {count}: serve them from several processes")]
    TooManyImages {
        /// How many were given.
        count: usize,
        /// How many a log can name.
        max: usize,
    },
    /// A log that another process holds.
    #[error("{} is in use by another process: stop it first", .0.display())]
    LogInUse(PathBuf),
    /// A read, write or sync failed while opening.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// Any other answer of the operating system.
    #[error("{doing} {}: {source}", .path.display())]
    Io {
        /// What was being done, such as "opening".
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// The classes a caller decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenErrorKind {
    /// What is stored contradicts itself.
    Corrupt,
    /// A version or feature that is not known here.
    Unsupported,
    /// The images, log and options do not fit together.
    Refused,
    /// The operating system's answer.
    Io,
}

impl OpenError {
    /// The class of this error.
    pub fn kind(&self) -> OpenErrorKind {
        match self {
            Self::Corrupt { .. } => OpenErrorKind::Corrupt,
            Self::NewerVersion { .. } | Self::OlderVersion { .. } | Self::UnknownFeatures { .. } => {
                OpenErrorKind::Unsupported
            }
            Self::Io { .. } | Self::Block(_) | Self::NoSpace { .. } => OpenErrorKind::Io,
            _ => OpenErrorKind::Refused,
        }
    }

    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}
