//! `--trace FILE`: a text trace of every request that reaches the images and the redo log.
//!
//! ```text
//! settings ─► TraceFile (created: a bad path is refused before anything is touched)
//!          ─► sandbox ─► Tracing (its thread) ─► tap of the group ─► ... ─► group closed ─► Tracing::finish
//! ```
//!
//! A start that fails leaves no file, where the sandbox lets it go. `docs/trace-format.md` describes the lines.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{advice, Disk as _, Medium, Tap, SECTOR_BYTES};
use afterimage_journal::layout::{find, journal_ranges, places};
use afterimage_order::Contract;
use afterimage_store::{log_of, Image as _, ImageStore, LogError};
use afterimage_trace::capture::{Capture, CaptureOp, CaptureTap, Class, Classify, FileId, Seen, TracedFile};

use super::settings::Settings;
use crate::failure::Failure;

/// How much of a volume's beginning says whether it is an ext4, and where its journal is: a write there may change it.
const HEAD_BYTES: u64 = 68 << 10;
/// How long after such a write it is looked at again: the write is noted before it is done.
const SETTLED: Duration = Duration::from_secs(1);

/// The file, before anything is written to it.
#[derive(Debug)]
pub struct TraceFile {
    file: File,
    unstarted: Unstarted,
}

/// The file of a daemon that has not started. Dropped, it removes it: the next start would be refused for its sake.
#[derive(Debug)]
struct Unstarted(Option<PathBuf>);

impl TraceFile {
    /// Creates the file that the settings name, if they do. `%p` in it is this process's id.
    ///
    /// # Errors
    /// It is there already, or cannot be created.
    pub fn create(settings: &Settings) -> Result<Option<Self>, Failure> {
        let Some(path) = &settings.trace else { return Ok(None) };
        let path = with_process_id(path);
        let file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(|e| {
            let hint = match e.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    "; remove it, or name another file (%p becomes the process id)"
                }
                std::io::ErrorKind::NotFound => "; its folder must exist",
                _ => "",
            };
            Failure::failed(format!("cannot create the trace {}: {e}{hint}", path.display()))
        })?;
        Ok(Some(Self { file, unstarted: Unstarted(Some(path)) }))
    }

    /// Starts the trace of a group that is about to be opened on these images. Call it after the sandbox was closed
    /// around this thread.
    ///
    /// # Errors
    /// No thread can be made, or there is no place for the log.
    pub fn start(self, settings: &Settings, images: &[Arc<ImageStore>]) -> Result<Tracing, Failure> {
        let files = traced_files(settings, images).map_err(|e| Failure::failed(e.to_string()))?;
        let about = format!(
            "by afterimage {}: --survives {} --journal {}",
            env!("CARGO_PKG_VERSION"),
            settings.contract,
            settings.journal.mode()
        );
        let Self { file, unstarted } = self;
        let path = unstarted.0.as_deref().unwrap_or(Path::new(""));
        let failed =
            |e: std::io::Error| Failure::failed(format!("cannot start the trace {}: {e}", path.display()));
        let classes = Classes { disks: images.iter().map(|i| Journals::new(i.medium())).collect() };
        let capture = Capture::start(file, path, &about, &files, Box::new(classes)).map_err(failed)?;
        let disks = u16::try_from(images.len()).unwrap_or(u16::MAX);
        Ok(Tracing { tap: CaptureTap::new(Arc::clone(&capture) as _, disks), capture, unstarted })
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        // Ours, and of no use to anybody.
        if let Some((path, Err(error))) = self.0.take().map(|path| (path.clone(), std::fs::remove_file(path)))
        {
            // The sandbox may be closed already, which lets nothing go but in some folders.
            tracing::warn!(path = %path.display(), %error, "remove the trace of a start that failed before the next one");
        }
    }
}

/// A trace being written.
#[derive(Debug)]
pub struct Tracing {
    capture: Arc<Capture>,
    tap: Arc<CaptureTap>,
    unstarted: Unstarted,
}

impl Tracing {
    /// What the group is given.
    pub fn tap(&self) -> Arc<dyn Tap> {
        Arc::clone(&self.tap) as Arc<dyn Tap>
    }

    /// The daemon has started: its trace stays, whatever becomes of it.
    pub fn stays(&mut self) {
        self.unstarted.0 = None;
    }

    /// Ends the trace; call it when the group is closed.
    ///
    /// # Errors
    /// The trace is incomplete.
    pub fn finish(&self) -> Result<(), Failure> {
        let path = self.capture.path().display();
        let captured = self.capture.finish().map_err(|e| {
            Failure::failed(format!(
                "the trace {path} is incomplete: it cannot be written: {e}{}",
                advice(&e)
            ))
        })?;
        tracing::info!(requests = captured.lines, dropped = captured.dropped, "the trace is complete");
        Ok(())
    }
}

/// Whether each daemon's trace has a name of its own.
pub fn has_process_id(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.contains("%p"))
}

fn with_process_id(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) => text.replace("%p", &std::process::id().to_string()).into(),
        None => path.to_owned(),
    }
}

/// Disks by their index, and behind them the log where there will be one.
fn traced_files(settings: &Settings, images: &[Arc<ImageStore>]) -> Result<Vec<TracedFile>, LogError> {
    let disk = |(index, image): (usize, &Arc<ImageStore>)| TracedFile {
        name: format!("disk{index}"),
        bytes: image.geometry().bytes(),
        path: image.path().to_owned(),
    };
    let mut files: Vec<TracedFile> = images.iter().enumerate().map(disk).collect();
    let logged = matches!(settings.contract, Contract::PowerWindow { .. });
    let first = images.iter().find(|image| !image.geometry().read_only);
    if let (true, Some(first)) = (logged, first) {
        files.push(TracedFile {
            name: "log".to_owned(),
            bytes: settings.log_bytes_max,
            path: log_of(settings.log.as_deref(), first.path())?,
        });
    }
    Ok(files)
}

/// Which requests go to a guest's journal.
struct Classes {
    disks: Vec<Journals>,
}

impl Classify for Classes {
    fn class(&mut self, seen: &Seen) -> Class {
        let FileId(file) = seen.file;
        match self.disks.get_mut(usize::from(file)) {
            Some(disk) => disk.class(seen),
            None => Class::Log,
        }
    }
}

/// Where the journals of one image are.
struct Journals {
    image: Arc<dyn Medium>,
    /// Byte ranges of journals, in order.
    journals: Vec<Range<u64>>,
    /// Where volumes begin, in bytes.
    starts: Vec<u64>,
    /// When to look again.
    due: Option<Instant>,
}

impl Journals {
    fn new(image: Arc<dyn Medium>) -> Self {
        let mut journals = Self { image, journals: Vec::new(), starts: vec![0], due: None };
        journals.look();
        journals
    }

    fn look(&mut self) {
        self.due = None;
        let sectors = self.image.len() / SECTOR_BYTES;
        let image = &mut self.image;
        let seen = find(image, sectors).and_then(|found| Ok((found, places(image, sectors)?)));
        match seen {
            Ok((found, places)) => {
                self.starts = std::iter::once(0).chain(places.iter().map(|s| s.0 * SECTOR_BYTES)).collect();
                self.journals = journal_ranges(&found);
            }
            // What was known stays: a class is a remark, not a promise.
            Err(error) => tracing::debug!(%error, "where journals are could not be looked up for the trace"),
        }
    }

    fn class(&mut self, seen: &Seen) -> Class {
        if self.due.is_some_and(|due| Instant::now() >= due) {
            self.look();
        }
        let end = seen.offset.saturating_add(seen.length);
        let head = |start: &u64| seen.offset < start.saturating_add(HEAD_BYTES) && *start < end;
        let changes = !matches!(seen.op, CaptureOp::Read | CaptureOp::Flush);
        if changes && self.due.is_none() && self.starts.iter().any(head) {
            self.due = Some(Instant::now() + SETTLED);
        }
        Class::on_image(seen, &self.journals)
    }
}
