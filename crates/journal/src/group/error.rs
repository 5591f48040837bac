//! Why a group's journals cannot be retained, or given up.

use std::path::{Path, PathBuf};

use afterimage_block::BlockError;

use crate::error::JournalError;
use crate::state_file::StateError;

/// See the variants; each is one sentence for a person.
#[derive(Debug, thiserror::Error)]
pub enum RetainError {
    /// The state file.
    #[error(transparent)]
    State(#[from] StateError),
    /// The state file is damaged: what it named is not known.
    #[error(
        "{source}, so it is not known where the journals of {image} are retained: bring the file back, or give up what \
         the guest had committed and not written home with --accept-loss",
        image = .image.display()
    )]
    Damaged {
        /// The image.
        image: PathBuf,
        /// What is wrong.
        source: StateError,
    },
    /// The state file was made for another image.
    #[error(
        "the state file {path} belongs to another image (inode {inode}, {size_bytes} bytes): {image} is a copy or was \
         replaced, and what was retained belongs to the other one; remove the file, or use --accept-loss, if {image} is \
         complete by itself",
        path = .path.display(), image = .image.display()
    )]
    OtherImage {
        /// The image.
        image: PathBuf,
        /// Its state file.
        path: PathBuf,
        /// The other image's.
        inode: u64,
        /// The other image's.
        size_bytes: u64,
    },
    /// There is no state file, and a journal says that there was one.
    #[error(
        "{image} is not complete: its journals say that what its guest committed was not written home, and the state file that \
         names the arena is not beside it ({why}); give the image the name back that its state file has, or give \
         up what is retained with --accept-loss and check the file systems",
        image = .image.display()
    )]
    Stray {
        /// The image.
        image: PathBuf,
        /// Where it is retained, as far as is known.
        why: String,
    },
    /// What was retained is gone.
    #[error(
        "the retained journals of {image} are lost: {why}, and with them what the guest had committed and not yet written \
         home since; put a backup in its place, or serve it as it is with --accept-loss and check its file systems",
        image = .image.display()
    )]
    Lost {
        /// The image.
        image: PathBuf,
        /// What became of the arena.
        why: String,
    },
    /// The image is not complete without its arena.
    #[error(
        "{image} is not complete: what its guest committed is still retained in {arena}; serve it with --journal retain, \
         or run `afterimage recover {image}` first",
        image = .image.display(), arena = .arena.display()
    )]
    Retained {
        /// The image.
        image: PathBuf,
        /// The arena.
        arena: PathBuf,
    },
    /// The image is not complete without its redo log.
    #[error(
        "{image} is not complete: its redo log holds what is not home yet; serve it, or run `afterimage recover {image}` first",
        image = .image.display()
    )]
    Logged {
        /// The image.
        image: PathBuf,
    },
    /// The arena belongs to another state of the image.
    #[error(
        "{image} is not as it was left: {why}; what its guest had committed is still retained in {arena} and belongs to the \
         image as it was: put that one back, or give up what is retained with --accept-loss and check the file systems",
        image = .image.display(), arena = .arena.display()
    )]
    Foreign {
        /// The image.
        image: PathBuf,
        /// The arena.
        arena: PathBuf,
        /// What differs.
        why: String,
    },
    /// No place for the state file.
    #[error(
        "{image} is a block device: its journals cannot be retained, because beside it there is no place for a state file \
         that outlives a restart; serve it with --journal passthrough, or use an image file",
        image = .image.display()
    )]
    Device {
        /// The image.
        image: PathBuf,
    },
    /// The arena's folder.
    #[error("cannot keep arenas in {folder}: {why}; name a folder on a tmpfs with --arena", folder = .folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A thread could not be started.
    #[error("cannot start the thread that checkpoints retained journals: {0}")]
    Thread(std::io::Error),
    /// The arena, or the disk below.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// An image or the group cannot be opened.
    #[error(transparent)]
    Group(afterimage_order::OpenError),
    /// The group.
    #[error(transparent)]
    Block(#[from] BlockError),
}

impl RetainError {
    /// An error of retention of an image, with the names that it needs.
    pub(crate) fn of(error: JournalError, image: &Path, arena: &Path) -> Self {
        match error {
            JournalError::Foreign(why) => {
                Self::Foreign { image: image.to_owned(), arena: arena.to_owned(), why }
            }
            other => Self::Journal(other),
        }
    }
}
