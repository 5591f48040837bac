//! Why a group could not be opened: each variant is one sentence for the user.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use afterimage_block::{advice, BlockError};

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
        "{} belongs to another image than {}: {why}; {held}: put the right image back{}",
        .log.display(), .image.display(), Moved(*.moved, .image)
    )]
    WrongImage {
        /// The log.
        log: PathBuf,
        /// The image that was given.
        image: PathBuf,
        /// What differs.
        why: String,
        /// What the log holds.
        held: Held,
        /// The image carries the log's mark: it was one of its images, or is a copy of one.
        moved: bool,
    },
    /// The image's times are older than its log.
    #[error(
        "{} is perhaps an older copy than {} expects: it was last modified before the log was begun; {held}: if it is the \
         right image (the clock was set back while it was served), `afterimage recover --trust-image {}` brings them home; \
         otherwise put the right one back, or move the log away (and keep it) to use this one without them",
        .image.display(), .log.display(), .image.display()
    )]
    PerhapsOlder {
        /// The log.
        log: PathBuf,
        /// The image that was given.
        image: PathBuf,
        /// What the log holds.
        held: Held,
    },
    /// The image is an older copy.
    #[error(
        "{} is an older copy than {} expects: {why}; {held}: put the image back that belongs to the log, or move the log \
         away (and keep it) to use this one without them",
        .image.display(), .log.display()
    )]
    RestoredCopy {
        /// The log.
        log: PathBuf,
        /// The image that was given.
        image: PathBuf,
        /// What gave it away.
        why: String,
        /// What the log holds.
        held: Held,
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
    #[error("{} is a device: say where its redo log is to be with --log", .0.display())]
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

/// How many requests only a log has; `None` where it cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held(pub Option<u64>);

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(1) => write!(f, "the log holds 1 request that is not in its image"),
            Some(requests) => write!(f, "the log holds {requests} requests that are not in its image"),
            None => write!(f, "the log may hold requests that are not in its image"),
        }
    }
}

/// What may be done with an image that carries the mark of another inode's log.
struct Moved<'a>(bool, &'a Path);

impl fmt::Display for Moved<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0 {
            return f.write_str(", or move the log away (and keep it) to use this image without them");
        }
        let image = self.1.display();
        write!(
            f,
            "; if this is it, moved from another file system, run `afterimage recover --trust-image {image}`; if it is a \
             copy that may do without them, `afterimage recover --accept-loss {image}`"
        )
    }
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
            Self::NewerVersion { .. }
            | Self::OlderVersion { .. }
            | Self::NewerMark { .. }
            | Self::UnknownFeatures { .. } => OpenErrorKind::Unsupported,
            Self::Io { .. } | Self::Block(_) | Self::NoSpace { .. } | Self::NoRoomForMark { .. } => {
                OpenErrorKind::Io
            }
            _ => OpenErrorKind::Refused,
        }
    }

    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}
