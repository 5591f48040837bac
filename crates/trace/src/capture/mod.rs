//! A text trace of the requests that reach storage, without their data.
//!
//! ```text
//! order ─► CaptureTap's disks and media ─► store        one line a request, in the order of their submission
//!               │ Listen: 32 bytes, a short lock
//!               ▼
//!          Queue (bounded) ─► thread: class, text, zstd ─► file       (on a clock of one's own: one's own list ─► write ─► file)
//! ```
//!
//! What the study of VMA journaling on SSDs did in Xen's backend driver: a trace of requests where storage gets them, for
//! simulators. It is not a recording (the other half of this crate), which holds the data and both layers and from which
//! crash states are derived. The format is described in `docs/trace-format.md`.
//!
//! The data path waits for nothing but a lock that is held for a few instructions. Where the file cannot keep up and
//! [`QUEUED_BYTES_MAX`] are waiting, requests go unseen; they are counted, and the trace says where. An error of the file
//! ends the trace and nothing else; [`Capture::finish`] says why.
//!
//! A crash of the process leaves a trace that ends about [`FLUSH_EVERY`] earlier, at most in the middle of a line; a power
//! cut leaves any part of it.

mod line;
mod queue;
mod sink;
mod tap;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use afterimage_block::advice;

pub use line::{CaptureOp, Class, Seen};
pub use queue::QUEUED_BYTES_MAX;
pub use tap::CaptureTap;

use parking_lot::Mutex;
use queue::Queue;
use sink::Sink;

/// What was seen is in the file after this time, also while little happens.
pub const FLUSH_EVERY: Duration = Duration::from_millis(250);

/// A number of a file of the trace, in the order of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u16);

/// A file that is listened to, for the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedFile {
    /// Its name in the lines: `disk0`, `log`. No blanks.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Where it is, for people.
    pub path: PathBuf,
}

/// Says what a request is for. Called in the thread that writes, in the order of the trace.
pub trait Classify: Send {
    /// The class of what was seen.
    fn class(&mut self, seen: &Seen) -> Class;
}

/// Told of each request before it is made.
pub trait Listen: std::fmt::Debug + Send + Sync {
    /// A request of so many bytes from `offset` on, to a file of the trace.
    fn note(&self, file: FileId, op: CaptureOp, offset: u64, length: u64);
}

/// How a capture went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// Requests in the trace.
    pub lines: u64,
    /// Requests that went unseen because the file could not keep up.
    pub dropped: u64,
}

/// A trace being written. Shared by all taps.
#[derive(Debug)]
pub struct Capture {
    queue: Arc<Queue>,
    path: PathBuf,
    thread: Mutex<Option<JoinHandle<io::Result<Captured>>>>,
}

impl Capture {
    /// Starts writing into an open file, compressed where the name ends in `.zst`. `about`: a line for people. Time starts
    /// now. The thread that writes inherits this thread's restrictions.
    ///
    /// # Errors
    /// The thread or the compressor cannot be made.
    pub fn start(
        file: File,
        path: &Path,
        about: &str,
        files: &[TracedFile],
        classify: Box<dyn Classify>,
    ) -> io::Result<Arc<Self>> {
        let sink = Sink::new(file, is_compressed(path))?;
        // Only for people and for traces that are played together: times in the lines are of a clock that never goes back.
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let header = line::header(about, begun.as_nanos(), files);
        let names: Vec<String> = files.iter().map(|f| f.name.clone()).collect();
        let queue = Arc::new(Queue::new());
        let theirs = Arc::clone(&queue);
        let what = path.display().to_string();
        let thread = std::thread::Builder::new().name("trace".to_owned()).spawn(move || {
            let written = sink::write_all(&theirs, sink, &header, &names, classify);
            if let Err(error) = &written {
                theirs.close();
                let advice = advice(error);
                tracing::error!(%error, trace = what, "the trace ends here: its file cannot be written{advice}");
            }
            written
        })?;
        Ok(Arc::new(Self { queue, path: path.to_owned(), thread: Mutex::new(Some(thread)) }))
    }

    /// Where the trace is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the trace: everything noted so far is in it, and the file is synced. What is noted later goes unseen. A second
    /// call says nothing.
    ///
    /// # Errors
    /// The file could not be written, now or earlier: the trace is incomplete.
    pub fn finish(&self) -> io::Result<Captured> {
        self.queue.end();
        let thread = self.thread.lock().take();
        let Some(thread) = thread else { return Ok(Captured::default()) };
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes it panicked")))
    }
}

impl Listen for Capture {
    #[inline]
    fn note(&self, file: FileId, op: CaptureOp, offset: u64, length: u64) {
        self.queue.note(file, op, offset, length);
    }
}

/// Writes a whole trace into an open file, of requests that whoever has a clock of their own has noted; compressed where the name ends in
/// `.zst`. The same requests make the same file. It begins with 1970, so that traces of one clock are merged by it.
///
/// # Errors
/// The file cannot be written.
pub fn write(
    file: File,
    path: &Path,
    about: &str,
    files: &[TracedFile],
    requests: impl Iterator<Item = Seen>,
    classify: &mut dyn Classify,
) -> io::Result<Captured> {
    let mut sink = Sink::new(file, is_compressed(path))?;
    let mut text = line::header(about, 0, files).into_bytes();
    let mut captured = Captured::default();
    for seen in requests {
        let name = files.get(usize::from(seen.file.0)).map_or(line::OTHER, |file| &file.name);
        line::push(&mut text, &seen, name, classify.class(&seen));
        captured.lines += 1;
        sink.write_some(&mut text)?;
    }
    sink.finish(text, captured)?;
    Ok(captured)
}

fn is_compressed(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "zst")
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!(%error, trace = %self.path.display(), "a trace is incomplete");
        }
    }
}
