//! Why an image could not be opened or created: each is one sentence for the user.

use std::io;
use std::path::{Path, PathBuf};

use afterimage_block::advice;

/// Nothing was touched when one of these is returned.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The path leads nowhere.
    #[error("{} does not exist: create it with `afterimage create` or correct the path", .0.display())]
    NotFound(PathBuf),
    /// Creating would overwrite.
    #[error("{} exists already: choose another name or remove it first", .0.display())]
    Exists(PathBuf),
    /// A directory, pipe, socket or character device.
    #[error("{} is {what}, not a regular file or a block device", .path.display())]
    WrongKind {
        /// The path.
        path: PathBuf,
        /// What it is, with its article.
        what: &'static str,
    },
    /// There is no byte in it.
    #[error("{} is empty: give the disk a size with `truncate --size=SIZE {}`, as in 10G", .0.display(), .0.display())]
    Empty(PathBuf),
    /// The size is no whole number of sectors.
    #[error(
        "{} has {bytes} bytes, and a disk's size is a multiple of 512: extend it with `truncate --size=%512`",
        .path.display()
    )]
    BadSize {
        /// The path.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// Another image format.
    #[error(
        "{} is a {format} image, not a raw one: convert it with `qemu-img convert -O raw {} NEW.raw`{}",
        .path.display(), .path.display(), .hint
    )]
    OtherFormat {
        /// The path.
        path: PathBuf,
        /// The format's name.
        format: &'static str,
        /// What else may be done.
        hint: &'static str,
    },
    /// No permission to write.
    #[error("{} cannot be written ({reason}): serve it read-only or change its permissions", .path.display())]
    NotWritable {
        /// The path.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Another process serves or writes this image.
    #[error("{} is in use by {holder}: stop that first", .path.display())]
    InUse {
        /// The path.
        path: PathBuf,
        /// The holder, as far as it can be told, such as "process 4711 (afterimage)".
        holder: String,
    },
    /// A dead process's I/O did not end in time.
    #[error(
        "{} is still locked by the last I/O of process {pid}, which is dead: it did not end within {waited_ms} ms, try again later",
        .path.display()
    )]
    StillDraining {
        /// The path.
        path: PathBuf,
        /// The dead holder.
        pid: i32,
        /// How long was waited, in milliseconds.
        waited_ms: u128,
    },
    /// O_DIRECT was demanded.
    #[error("{} cannot be opened with O_DIRECT on its file system: leave direct I/O off or on automatic", .0.display())]
    NoDirect(PathBuf),
    /// The file system has no room.
    #[error("no space is left for {}: free space on its file system", .0.display())]
    NoSpace(PathBuf),
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

impl OpenError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}
