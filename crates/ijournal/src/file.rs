//! An image or a block device as storage.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use afterimage_journal::offline;
use afterimage_store::lock_image;
use rustix::fs::{fadvise, Advice, OFlags};

use crate::error::Error;
use crate::Storage;

/// See the module.
#[derive(Debug)]
pub struct FileStorage {
    file: File,
    bytes: u64,
}

impl FileStorage {
    /// Opens it for nobody else: a device that is mounted, or an image that is locked, is refused. A daemon that was killed is waited for,
    /// and an image of which it left something in its redo log or in memory is refused, too.
    ///
    /// # Errors
    /// It cannot be opened, is in use, or is not complete.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Io { what: format!("opening {}", path.display()), source };
        let is_device = path.metadata().map_err(failed)?.file_type().is_block_device();
        let flags = if is_device { OFlags::EXCL.bits() as i32 } else { 0 };
        let mut file =
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map_err(failed)?;
        lock_image(&file, path).map_err(|e| Error::Unsupported(e.to_string()))?;
        if !is_device {
            offline::is_complete(path).map_err(|e| Error::Unsupported(e.to_string()))?;
        }
        let bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let mut storage = Self { file, bytes };
        // A write-back that failed before is told to whoever opens next, once. Nothing of ours was in it: what counts is what storage has.
        if storage.sync().is_err() {
            storage.forget().map_err(failed)?;
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
