//! Creating an image.

use std::fs::OpenOptions as FileOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use afterimage_block::SECTOR_BYTES;

use crate::file_medium::sync_directory;
use crate::OpenError;

/// Creates a sparse image of `bytes` bytes (a multiple of 512 above zero), readable and writable by its owner, durable
/// with its name when this returns. Refuses to overwrite; leaves nothing behind where it fails.
///
/// # Errors
/// A size that is no image's, a name that exists, or what the file system says.
pub fn create_image(path: &Path, bytes: u64) -> Result<(), OpenError> {
    if bytes == 0 || bytes % SECTOR_BYTES != 0 {
        return Err(OpenError::BadSize { path: path.to_owned(), bytes });
    }
    let file = FileOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|e| match e
        .kind()
    {
        io::ErrorKind::AlreadyExists => OpenError::Exists(path.to_owned()),
        _ => failed("creating", path, e),
    })?;
    let made = file.set_len(bytes).and_then(|()| file.sync_all()).and_then(|()| sync_directory(path));
    made.map_err(|e| {
        // Nobody else can have wanted the file: it was created here a moment ago.
        let _ = std::fs::remove_file(path);
        failed("creating", path, e)
    })
}

fn failed(doing: &'static str, path: &Path, error: io::Error) -> OpenError {
    match error.kind() {
        io::ErrorKind::StorageFull => OpenError::NoSpace(path.to_owned()),
        _ => OpenError::io(doing, path)(error),
    }
}
