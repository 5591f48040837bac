//! What one guest's daemon asks of its files, as `serve --trace` writes it (docs/trace-format.md): below all of its layers, above the host's
//! page cache. The times are the calendar's, which all guests share.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_block::{BlockError, Medium, SECTOR_BYTES};
use afterimage_journal::layout::{find, journal_ranges};
use afterimage_trace::capture::{
    write, CaptureOp, CaptureTap, Captured, Class, Classify, FileId, Listen, Seen, TracedFile,
};
use parking_lot::Mutex;

use crate::machine::Machine;

/// What was asked so far: in memory, because what one thread of a daemon does ahead of another's time comes earlier than it belongs.
pub struct StorageTrace {
    machine: Arc<Machine>,
    /// Where journals lay when it began.
    journals: Vec<Range<u64>>,
    seen: Mutex<Vec<Seen>>,
}

impl std::fmt::Debug for StorageTrace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a trace of what reaches storage")
    }
}

impl StorageTrace {
    /// Of a daemon that is about to begin, on an image as it is.
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn new(machine: &Arc<Machine>, mut image: Arc<dyn Medium>) -> Result<Arc<Self>, BlockError> {
        let sectors = image.len() / SECTOR_BYTES;
        let journals = journal_ranges(&find(&mut image, sectors)?);
        Ok(Arc::new(Self { machine: Arc::clone(machine), journals, seen: Mutex::default() }))
    }

    /// What the daemon's group is given.
    pub fn tap(self: &Arc<Self>) -> Arc<CaptureTap> {
        CaptureTap::new(Arc::clone(self) as Arc<dyn Listen>, 1)
    }

    /// Writes all of it, in the order of time. `files`: the bytes of the image and, where there is one, of the log.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path, about: &str, image_bytes: u64, log_bytes: u64) -> io::Result<Captured> {
        let mut seen = self.seen.lock();
        seen.sort_by_key(|seen| seen.at_ns);
        let named =
            |name: &str, bytes| TracedFile { name: name.to_owned(), bytes, path: PathBuf::from(name) };
        let mut files = vec![named("disk0", image_bytes)];
        files.extend((log_bytes > 0).then(|| named("log", log_bytes)));
        let mut classes = Classes(&self.journals);
        write(File::create(path)?, path, about, &files, seen.iter().copied(), &mut classes)
    }
}

impl Listen for StorageTrace {
    fn note(&self, file: FileId, op: CaptureOp, offset: u64, length: u64) {
        let at_ns = self.machine.now_ns();
        self.seen.lock().push(Seen { at_ns, offset, length, file, op });
    }
}

struct Classes<'a>(&'a [Range<u64>]);

impl Classify for Classes<'_> {
    fn class(&mut self, seen: &Seen) -> Class {
        match seen.file {
            FileId(0) => Class::on_image(seen, self.0),
            _ => Class::Log,
        }
    }
}
