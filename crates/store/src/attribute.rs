//! Extended attributes of image files: what an image says of itself, whatever its name.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{fgetxattr, fremovexattr, fsetxattr, getxattr, XattrFlags};
use rustix::io::Errno;

/// No value of ours is longer.
const VALUE_BYTES_MAX: usize = 4096;

/// Whether a file can have an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attributes {
    /// It has it.
    Kept,
    /// A device node, or a file system without user attributes.
    Unsupported,
    /// The file system, or the inode, has no room for it.
    NoRoom,
}

/// An attribute of whatever a path leads to; `None` where it has none, or can have none.
///
/// # Errors
/// The path leads nowhere, or may not be read.
pub fn read_attribute(path: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; VALUE_BYTES_MAX];
    found(getxattr(path, name, &mut value), value)
}

fn found(read: rustix::io::Result<usize>, mut value: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    match read {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

pub(crate) fn read(file: &File, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; VALUE_BYTES_MAX];
    found(fgetxattr(file, name, &mut value), value)
}

/// Durable after an fsync: fdatasync would not have to cover it.
pub(crate) fn set(file: &File, name: &str, value: &[u8]) -> io::Result<Attributes> {
    if !file.metadata()?.is_file() {
        return Ok(Attributes::Unsupported);
    }
    match fsetxattr(file, name, value, XattrFlags::empty()) {
        Ok(()) => Ok(Attributes::Kept),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(Attributes::Unsupported),
        // ext4 says the first, a quota the second; other file systems the others where the inode's attributes do not fit.
        Err(Errno::NOSPC | Errno::DQUOT | Errno::TOOBIG | Errno::RANGE) => Ok(Attributes::NoRoom),
        Err(e) => Err(e.into()),
    }
}

/// Whether it was there. Durable after an fsync.
pub(crate) fn remove(file: &File, name: &str) -> io::Result<bool> {
    match fremovexattr(file, name) {
        Ok(()) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) if !has(file, name) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn has(file: &File, name: &str) -> bool {
    read(file, name).is_ok_and(|value| value.is_some())
}
