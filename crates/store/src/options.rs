//! How an image is opened.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lock::WAIT;

/// Whether guest data bypasses the host's page cache (`O_DIRECT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectMode {
    /// Where the file system allows it at 512-byte granularity; buffered elsewhere.
    #[default]
    Auto,
    /// Always; opening fails where the file system cannot do it. Where it needs larger blocks, the disk shows
    /// them as its logical block size.
    On,
    /// Never.
    Off,
}

/// What [`ImageStore::open`](crate::ImageStore::open) is asked for.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The image: a regular file or a block device.
    pub path: PathBuf,
    /// Serve it without ever writing; the lock is then shared.
    pub read_only: bool,
    /// See [`DirectMode`].
    pub direct: DirectMode,
    /// What GET_ID answers; the file name where `None`. Only the first 20 bytes are kept.
    pub serial: Option<String>,
    /// How long to wait for a lock whose holder is dead (its last I/O is still in the kernel). A live holder
    /// gets half a second of it.
    pub lock_wait: Duration,
    /// Take the content as raw even where it begins like another image format: a guest may have copied one onto its
    /// raw disk.
    pub any_content: bool,
}

impl OpenOptions {
    /// A writable image, direct where possible, waiting up to 30 s for a dead predecessor.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            read_only: false,
            direct: DirectMode::Auto,
            serial: None,
            lock_wait: WAIT,
            any_content: false,
        }
    }
}
