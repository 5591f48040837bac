//! Why a group could not be opened: each variant is one sentence for the user.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use afterimage_block::BlockError;
use afterimage_store::LogError;

/// Nothing was touched when one of these is returned, unless the sentence says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An image could not be opened.
    #[error(transparent)]
    Image(#[from] afterimage_store::OpenError),
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
    /// The image that the log is of is in its place, and this one is a copy of it.
    #[error(
        "{} is the redo log of {}, which needs it still, and {} is a copy of that image: copy the log, too, and put it beside the \
         copy; or give up what only the log holds with `afterimage recover --accept-loss {}`",
        .log.display(), .original.display(), .image.display(), .image.display()
    )]
    Copied {
        /// The log.
        log: PathBuf,
        /// Its image.
        original: PathBuf,
        /// The image that was given.
        image: PathBuf,
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
    /// A live log beside an image that does not name it.
    #[error(
        "{} is a redo log that {} does not name, and an image names the log that it needs; {held}: if they belong together, \
         `afterimage recover {}` brings them home; otherwise move the log away (and keep it)",
        .log.display(), .image.display(), .log.display()
    )]
    Unnamed {
        /// The log.
        log: PathBuf,
        /// The image that was given.
        image: PathBuf,
        /// What the log holds.
        held: Held,
    },
    /// Nothing tells that a log and an image that cannot name it belong together.
    #[error(
        "{} cannot say which redo log it needs, and no content of it tells that {} is its own; {held}: if they belong \
         together, `afterimage recover --trust-image {}` brings them home; otherwise move the log away (and keep it)",
        .image.display(), .log.display(), .log.display()
    )]
    Unproven {
        /// The log.
        log: PathBuf,
        /// The image that was given.
        image: PathBuf,
        /// What the log holds.
        held: Held,
    },
    /// The image holds something else than went home from the log.
    #[error(
        "{} was changed since {} was written, or is an older copy: {why}; {held}: put the image back as it was; or \
         `afterimage recover` it with --apply-anyway (they are written over what is there now), or with --accept-loss (they \
         are given up); --export FOLDER saves them first",
        .image.display(), .log.display()
    )]
    Changed {
        /// The log.
        log: PathBuf,
        /// The image that was given.
        image: PathBuf,
        /// What gave it away.
        why: String,
        /// What the log holds.
        held: Held,
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
    /// No log, where one is to be exported.
    #[error("{} has no redo log: there is nothing to export", .0.display())]
    NoLog(PathBuf),
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
    /// A log, or what an image says of it, cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A read, write or sync failed while opening.
    #[error(transparent)]
    Block(#[from] BlockError),
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
            Self::Log(LogError::Corrupt { .. }) => OpenErrorKind::Corrupt,
            Self::Log(
                LogError::NewerVersion { .. }
                | LogError::OlderVersion { .. }
                | LogError::NewerMark { .. }
                | LogError::UnknownFeatures { .. },
            ) => OpenErrorKind::Unsupported,
            Self::Log(LogError::Io { .. } | LogError::NoSpace { .. } | LogError::NoRoomForMark { .. })
            | Self::Block(_) => OpenErrorKind::Io,
            _ => OpenErrorKind::Refused,
        }
    }

    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let doing = LogError::io(doing, path);
        move |source| doing(source).into()
    }
}
