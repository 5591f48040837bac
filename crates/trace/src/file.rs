//! Recordings as files, whole.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Result, TraceError};
use crate::reader::{self, Ending};
use crate::writer::{RecordWriter, Written};
use crate::{Event, EventKind, Op, Recording, Target, TargetId, PAGE_BYTES};

/// Of a record without its data.
const RECORD_BYTES: u64 = 40;

/// Makes a file durable.
// A recording is a report, not storage of the data path.
#[allow(clippy::disallowed_methods)]
pub(crate) fn sync(file: &File) -> io::Result<()> {
    file.sync_data()
}

impl Recording {
    /// Reads a recording. One that was cut off by a crash of its recorder is read up to its last whole chunk; that is
    /// logged, and said in [`Recording::about`] under `cut`.
    ///
    /// # Errors
    /// The file cannot be read, is no recording, from a newer program, or damaged in its middle.
    pub fn load(path: &Path) -> Result<Self> {
        let (mut recording, ending) = Self::load_with_ending(path)?;
        if let Ending::Cut { at } = ending {
            let text = format!(
                "{} was cut off, by a crash of its recorder or a full disk: its {} events up to byte {at} are used",
                path.display(),
                recording.events.len()
            );
            tracing::warn!("{text}");
            recording.about.insert("cut".to_owned(), text.into());
        }
        Ok(recording)
    }

    /// As [`Recording::load`], and says how the file ends.
    ///
    /// # Errors
    /// As [`Recording::load`].
    pub fn load_with_ending(path: &Path) -> Result<(Self, Ending)> {
        let what = path.display().to_string();
        // Looked at first: opening a pipe would wait for its other end.
        let found = fs::metadata(path).map_err(TraceError::io(format!("opening {what}")))?;
        if !found.is_file() {
            let error = io::Error::new(
                io::ErrorKind::InvalidInput,
                "a recording is an ordinary file, and this is none",
            );
            return Err(TraceError::io(format!("opening {what}"))(error));
        }
        let file = File::open(path).map_err(TraceError::io(format!("opening {what}")))?;
        reader::read(io::BufReader::with_capacity(1 << 20, file), &what)
    }

    /// Reads a recording from memory.
    ///
    /// # Errors
    /// As [`Recording::load`].
    pub fn from_bytes(bytes: &[u8]) -> Result<(Self, Ending)> {
        reader::read(bytes, "the recording")
    }

    /// Writes a recording; the file is there whole, or as it was before.
    ///
    /// # Errors
    /// The file cannot be written, or no file can hold this (times that decrease, too many targets).
    pub fn save(&self, path: &Path) -> Result<Written> {
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let new = Path::new(&name);
        let what = new.display().to_string();
        let removed =
            fs::remove_file(new)
                .or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) });
        // Never through a link that somebody has put there.
        let file = removed
            .and_then(|()| File::options().write(true).create_new(true).open(new))
            .map_err(TraceError::io(format!("creating {what}")))?;
        let written = self.write(file, what.clone()).and_then(|(written, file)| {
            sync(&file)
                .and_then(|()| fs::rename(new, path))
                .map_err(TraceError::io(format!("writing {what}")))?;
            Ok(written)
        });
        if written.is_err() {
            // It is ours, and of no use to anybody.
            let _ = fs::remove_file(new);
        }
        written
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// As [`Recording::save`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.write(Vec::new(), "the recording".to_owned()).map(|(_, bytes)| bytes)
    }

    /// About what its records take.
    fn raw_bytes(&self) -> u64 {
        let page = |target: &Target| target.base.pages().count() as u64 * (PAGE_BYTES as u64 + RECORD_BYTES);
        let event = |event: &Event| match &event.kind {
            EventKind::Submit { op: Op::Write { data, .. }, .. } => data.len() as u64 + RECORD_BYTES,
            EventKind::Mark { text } => text.len() as u64 + RECORD_BYTES,
            EventKind::Publish { runs, .. } => {
                runs.iter().map(|run| run.data.len() as u64 + RECORD_BYTES).sum::<u64>() + RECORD_BYTES
            }
            EventKind::Submit { .. } | EventKind::Complete { .. } => RECORD_BYTES,
        };
        self.targets.iter().map(page).sum::<u64>() + self.events.iter().map(event).sum::<u64>()
    }

    fn write<W: io::Write>(&self, out: W, what: String) -> Result<(Written, W)> {
        let mut writer = RecordWriter::new(out, what, self.raw_bytes())?;
        writer.about(&self.about)?;
        for (index, target) in self.targets.iter().enumerate() {
            let same = self.targets[..index].iter().position(|other| Arc::ptr_eq(&other.base, &target.base));
            if target.base.len() != target.bytes {
                let text = format!("a target of {} bytes over {}", target.bytes, target.base.len());
                return Err(TraceError::Unsupported(text));
            }
            let same = same.map(|index| TargetId(index as u16));
            writer.target(target.layer, target.role, &target.base, same)?;
        }
        self.events.iter().try_for_each(|event| writer.event(event))?;
        writer.end()
    }
}
