//! Why a redo log, or what an image says of it, could not be used: each is one sentence for the user.

use std::io;
use std::path::{Path, PathBuf};

use afterimage_block::advice;
use afterimage_format::FormatError;

use crate::{NotOurs, OpenError};

/// Nothing was touched when one of these is returned, unless the sentence says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
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
    /// The log contradicts itself beyond what a crash can do.
    #[error(
        "{} is corrupt: {what}; nothing was replayed; restore a backup, or move the log away (and keep it) to give up what \
         is only there",
        .path.display()
    )]
    Corrupt {
        /// The log.
        path: PathBuf,
        /// What contradicts what.
        what: String,
    },
    /// Somebody else's file, or a link, stands in the place of one of ours.
    #[error("{} {why}: it is not used; remove it, or, if it is known to be right, make it a file of the image's owner", .path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, as a predicate.
        why: String,
    },
    /// An image names a log that is not there.
    #[error(
        "{} is incomplete without its redo log {}, which is missing{}: put the log back, or give up what only it held with \
         `afterimage recover --accept-loss {}`",
        .image.display(), .log.display(), if *.other { " (another group's log is in its place)" } else { "" },
        .image.display()
    )]
    LogMissing {
        /// The image.
        image: PathBuf,
        /// Where the log should be.
        log: PathBuf,
        /// Another group's log is there.
        other: bool,
    },
    /// What an image says of its log cannot be read.
    #[error(
        "{what} is not a valid log reference ({why}), so it is not known which redo log {} is incomplete without: if there \
         is none, `afterimage recover --accept-loss {}` removes it",
        .image.display(), .image.display()
    )]
    BadReference {
        /// The image.
        image: PathBuf,
        /// What says it.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The mark of a newer program.
    #[error(
        "{} was marked by a newer afterimage (version {version}, this program knows up to {known}): use that one",
        .image.display()
    )]
    NewerMark {
        /// The image.
        image: PathBuf,
        /// The mark's version.
        version: u32,
        /// The newest version known here.
        known: u32,
    },
    /// The image's inode has no room for the mark.
    #[error(
        "{} cannot be marked as depending on its redo log: free space or raise the quota on its file system",
        .image.display()
    )]
    NoRoomForMark {
        /// The image.
        image: PathBuf,
    },
    /// A mark has no room for the log's path.
    #[error("the path of the redo log {} is longer than {max} bytes: name a shorter one with --log", .log.display())]
    LogPathTooLong {
        /// The log.
        log: PathBuf,
        /// The longest path.
        max: usize,
    },
    /// A clean log is to be replaced, and an image still names it.
    #[error(
        "the end of {} was cut short, and {} still names it: run `afterimage recover {}` first",
        .log.display(), .image.display(), .log.display()
    )]
    Unfinished {
        /// The clean log.
        log: PathBuf,
        /// An image of its group.
        image: PathBuf,
    },
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
    /// A log that another process holds.
    #[error(transparent)]
    LogInUse(OpenError),
    /// Any other answer of the operating system.
    #[error("{doing} {}: {source}{}", .path.display(), advice(.source))]
    Io {
        /// What was being done, such as "opening".
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl LogError {
    /// For `map_err`: what was being done, such as "opening", and to which file.
    pub fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }

    /// For `map_err`: a file beside an image, or one that the image names, could not be opened.
    pub(crate) fn opening(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match NotOurs::of(&source) {
            Some(why) => Self::NotOurs { path, why },
            None => Self::Io { doing: "opening", path, source },
        }
    }

    /// As a sentence that names the log.
    pub fn reading(path: &Path, error: LogReadError) -> Self {
        let path = path.to_owned();
        match error {
            LogReadError::Format(FormatError::Magic { .. }) => Self::NotALog(path),
            LogReadError::Format(FormatError::Version { version, known }) => {
                Self::NewerVersion { path, version, known }
            }
            LogReadError::Format(FormatError::Old { version, oldest }) => {
                Self::OlderVersion { path, version, oldest }
            }
            LogReadError::Format(FormatError::Features(flags)) => Self::UnknownFeatures { path, flags },
            LogReadError::Format(FormatError::Corrupt(what)) => Self::Corrupt { path, what: what.to_owned() },
            LogReadError::Corrupt(what) => Self::Corrupt { path, what },
            LogReadError::Io(e) => Self::io("reading", &path)(e),
        }
    }
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogReadError {
    /// Not a log, a newer one, or one with unknown features.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// It contradicts itself beyond what a crash can do.
    #[error("{0}")]
    Corrupt(String),
    /// It could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}
