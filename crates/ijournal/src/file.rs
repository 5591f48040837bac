//! An image or a block device as storage.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{fadvise, flock, Advice, FlockOperation, OFlags};

use crate::Storage;

/// See the module.
#[derive(Debug)]
pub struct FileStorage {
    file: File,
    bytes: u64,
}

impl FileStorage {
    /// Opens it for nobody else: a device that is mounted, or an image that is locked, is refused.
    ///
    /// # Errors
    /// It cannot be opened, or is in use.
    pub fn open(path: &Path) -> io::Result<Self> {
        let is_device = path.metadata()?.file_type().is_block_device();
        let flags = if is_device { OFlags::EXCL.bits() as i32 } else { 0 };
        let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let bytes = file.seek(SeekFrom::End(0))?;
        let mut storage = Self { file, bytes };
        // A write-back that failed before is told to whoever opens next, once. Nothing of ours was in it: what counts is what storage has.
        if storage.sync().is_err() {
            storage.forget()?;
        }
        Ok(storage)
    }

    /// Reads come from storage again.
    fn forget(&self) -> io::Result<()> {
        Ok(fadvise(&self.file, 0, None, Advice::DontNeed)?)
    }
}

impl Storage for FileStorage {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write_at(&mut self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset)
    }

    fn wait(&mut self, time: Duration) -> io::Result<()> {
        std::thread::sleep(time);
        self.forget()
    }

    // No image that a daemon serves: nothing counts here, and tests inject their faults behind the trait.
    #[allow(clippy::disallowed_methods)]
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}
