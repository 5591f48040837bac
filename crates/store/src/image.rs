//! The image as a [`Disk`].

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use afterimage_block::{BlockError, Disk, Geometry, Health, Lane, Medium};
use afterimage_format::log::ImageEntry;
use afterimage_format::mark::MARK_NAME;

use crate::attribute::{self, Attributes};
use crate::core::Core;
use crate::direct::Backing;
use crate::image_medium::ImageMedium;
use crate::inline_lane::InlineLane;
use crate::memory_lane::MemoryLane;
use crate::ring_lane::RingLane;
use crate::{open, Counters, OpenError, OpenOptions};

/// An open, locked image file or block device.
///
/// Both kinds of flush sync the file's data; a write that must complete as if flushed is a write and then a sync,
/// which it may share with flushes that wait at the same moment.
pub struct ImageStore {
    core: Arc<Core>,
}

/// Which file this is, and what it looked like: a log recognises its images by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// The file system's device number.
    pub dev: u64,
    /// The inode.
    pub ino: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Last modification, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Who owns it.
    pub uid: u32,
    /// Last change of the inode, in nanoseconds since 1970: unlike `mtime_ns` no tool can set it back.
    pub ctime_ns: i64,
}

impl FileIdentity {
    /// Of whatever a path leads to, and the space that it takes, in bytes.
    ///
    /// # Errors
    /// It leads nowhere.
    pub fn at(path: &Path) -> io::Result<(Self, u64)> {
        let metadata = std::fs::metadata(path)?;
        Ok((Self::of(&metadata, metadata.len()), metadata.blocks() * 512))
    }

    /// From what the file system says.
    pub fn of(metadata: &std::fs::Metadata, size_bytes: u64) -> Self {
        Self {
            dev: metadata.dev(),
            ino: metadata.ino(),
            size_bytes,
            uid: metadata.uid(),
            mtime_ns: metadata.mtime().wrapping_mul(1_000_000_000).wrapping_add(metadata.mtime_nsec()),
            ctime_ns: metadata.ctime().wrapping_mul(1_000_000_000).wrapping_add(metadata.ctime_nsec()),
        }
    }
}

/// What the layers above know of an image: its content as a [`Disk`] or a [`Medium`], and what identifies it. Which file that is, if
/// it is one, is nobody else's business.
pub trait Image: Disk {
    /// What a person calls it, and where its neighbours are looked for.
    fn path(&self) -> &Path;

    /// Whether it is a device: those have no lasting neighbours and no lasting inode.
    fn is_device(&self) -> bool;

    /// Synchronous access to the same content. A failed sync turns the disk read-only, whoever asked for it. A failed write does
    /// not by itself: its user decides, through [`Disk::health`].
    fn medium(&self) -> Arc<dyn Medium>;

    /// As the layer below the one that serves it.
    fn as_disk(self: Arc<Self>) -> Arc<dyn Disk>;

    /// The identity now.
    ///
    /// # Errors
    /// It cannot be asked for.
    fn identity(&self) -> io::Result<FileIdentity>;

    /// Sets the mark, durably, and with it all that the file system says of the image (its times). A sync that fails turns the
    /// disk read-only, as any other.
    ///
    /// # Errors
    /// It can be neither set nor said to be impossible; the sync failed.
    fn set_mark(&self, mark: &[u8]) -> io::Result<Attributes>;

    /// The mark as it was set; `None` where there is none, or can be none.
    ///
    /// # Errors
    /// It cannot be read.
    fn mark(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Removes the mark, durably; see [`Image::set_mark`].
    ///
    /// # Errors
    /// As [`Image::set_mark`].
    fn remove_mark(&self) -> io::Result<()>;

    /// Makes what reads of the image show durable, and its times: see [`Medium::settle`]. To be called before lanes are open, by whoever
    /// is going to call something durable.
    ///
    /// # Errors
    /// A read, write or sync failed; or it cannot be known what is right.
    fn settle(&self) -> io::Result<()> {
        self.medium().settle()
    }

    /// What identifies it in a log's header.
    ///
    /// # Errors
    /// As [`Image::identity`].
    fn log_entry(&self) -> io::Result<ImageEntry> {
        let size_bytes = self.geometry().bytes();
        let FileIdentity { dev, ino, mtime_ns, .. } = match self.is_device() {
            true => {
                FileIdentity { dev: 0, ino: 0, uid: 0, size_bytes, mtime_ns: i64::MIN, ctime_ns: i64::MIN }
            }
            false => self.identity()?,
        };
        Ok(ImageEntry {
            device: dev.into(),
            inode: ino.into(),
            size_bytes: size_bytes.into(),
            mtime_ns: mtime_ns.into(),
        })
    }
}

impl ImageStore {
    /// Opens, checks and locks an image. Nothing is changed where this fails.
    ///
    /// # Errors
    /// It is no image, it is in use, or the file system cannot carry it: each with the path and what to do.
    pub fn open(options: &OpenOptions) -> Result<Arc<Self>, OpenError> {
        Ok(Arc::new(Self { core: Arc::new(open::open(options)?) }))
    }

    /// What has reached the file.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    fn sync_all(&self) -> io::Result<()> {
        let sync = || Ok(rustix::fs::fsync(&*self.core.file)?);
        self.core.syncs.sync_by(&sync).map_err(BlockError::into_io)
    }

    /// Whether its last name is gone: the file itself goes with this store.
    pub fn is_deleted(&self) -> bool {
        self.core.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }

    /// Whether it is read and written with O_DIRECT.
    pub fn is_direct(&self) -> bool {
        self.core.alignment.is_some()
    }
}

impl Disk for ImageStore {
    fn geometry(&self) -> Geometry {
        self.core.geometry
    }

    fn serial(&self) -> &str {
        &self.core.serial
    }

    fn health(&self) -> &Health {
        &self.core.health
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, BlockError> {
        let core = Arc::clone(&self.core);
        let in_memory = core.backing == Backing::Memory;
        match RingLane::new(Arc::clone(&core)) {
            Ok(ring) if in_memory => Ok(Box::new(MemoryLane::new(InlineLane::new(core), ring))),
            Ok(ring) => Ok(Box::new(ring)),
            // Not in the kernel, switched off (kernel.io_uring_disabled) or filtered by a container.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES)) => {
                if !in_memory {
                    tracing::warn!(error = %e, "no io_uring here: requests are served one at a time");
                }
                Ok(Box::new(InlineLane::new(core)))
            }
            Err(e) => Err(BlockError::io("setting up io_uring", e)),
        }
    }
}

impl Image for ImageStore {
    fn path(&self) -> &Path {
        &self.core.path
    }

    fn is_device(&self) -> bool {
        self.core.file.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
    }

    fn medium(&self) -> Arc<dyn Medium> {
        Arc::new(ImageMedium::new(Arc::clone(&self.core)))
    }

    fn as_disk(self: Arc<Self>) -> Arc<dyn Disk> {
        self
    }

    fn identity(&self) -> io::Result<FileIdentity> {
        Ok(FileIdentity::of(&self.core.file.metadata()?, self.core.geometry.bytes()))
    }

    fn set_mark(&self, mark: &[u8]) -> io::Result<Attributes> {
        let kept = attribute::set(&self.core.file, MARK_NAME, mark)?;
        if kept == Attributes::Kept {
            self.sync_all()?;
        }
        Ok(kept)
    }

    fn mark(&self) -> io::Result<Option<Vec<u8>>> {
        attribute::read(&self.core.file, MARK_NAME)
    }

    fn remove_mark(&self) -> io::Result<()> {
        match attribute::remove(&self.core.file, MARK_NAME)? {
            true => self.sync_all(),
            false => Ok(()),
        }
    }
}
