//! An image or a block device as storage.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use afterimage_journal::state_file::state_path;
use afterimage_store::lock_file;
use rustix::fs::{flock, FlockOperation, OFlags};

use crate::Storage;

/// See the module.
#[derive(Debug)]
pub struct FileStorage {
    file: File,
    bytes: u64,
}

impl FileStorage {
    /// Opens it for nobody else: a device that is mounted, an image that is locked, and one whose journals are retained elsewhere are
    /// refused. A daemon that has died may still have requests in flight: its lock is waited for.
    ///
    /// # Errors
    /// It cannot be opened, is in use, or is not complete.
    pub fn open(path: &Path) -> io::Result<Self> {
        let is_device = path.metadata()?.file_type().is_block_device();
        let flags = if is_device { OFlags::EXCL.bits() as i32 } else { 0 };
        let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        match is_device {
            true => flock(&file, FlockOperation::NonBlockingLockExclusive)?,
            false => {
                lock_file(&file, path, false).map_err(io::Error::other)?;
                let state = state_path(path).map_err(io::Error::other)?;
                if state.try_exists()? {
                    let why = format!(
                        "{} says that what was committed is in memory, and not in the image: run `afterimage recover` first",
                        state.display()
                    );
                    return Err(io::Error::other(why));
                }
            }
        }
        let bytes = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, bytes })
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

    // No image that a daemon serves: nothing counts here, and tests inject their faults behind the trait.
    #[allow(clippy::disallowed_methods)]
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}
