//! What the offline tools say.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::ids::BLOCK_BYTES;
use crate::state_file::State;
use crate::status::{DiskStatus, FileSystemStatus};

/// What is retained of an image.
#[derive(Clone, Debug, Serialize)]
pub struct InspectReport {
    /// The image.
    pub image: PathBuf,
    /// Its state file.
    pub state_file: PathBuf,
    /// What that says; `None` where it cannot be understood.
    pub state: Option<State>,
    /// A daemon serves the image: ask it with `ctl status`.
    pub in_use: bool,
    /// What the arena holds; `None` where it is in use, or gone.
    pub retained: Option<DiskStatus>,
    /// Why what was retained cannot be had, in one sentence.
    pub problem: Option<String>,
    /// Why the arena is gone, where nothing durable went with it (`power-window`): serving and recovery go on without.
    pub gone: Option<String>,
}

/// What recovery did, or would do.
#[derive(Clone, Debug, Serialize)]
pub struct RecoverReport {
    /// The image.
    pub image: PathBuf,
    /// Its state file.
    pub state_file: PathBuf,
    /// The arena; `None` where it is not known.
    pub arena: Option<PathBuf>,
    /// What was retained is gone, and was given up.
    pub lost: bool,
    /// Per file system.
    pub file_systems: Vec<WouldWrite>,
    /// Bytes written to the image, the journals' superblocks included.
    pub written_bytes: u64,
    /// Nothing was changed.
    pub dry_run: bool,
}

/// What recovery writes to one file system.
#[derive(Clone, Debug, Serialize)]
pub struct WouldWrite {
    /// Its first sector.
    pub start_sector: u64,
    /// Its UUID.
    pub uuid: Option<String>,
    /// `retain`; otherwise nothing is written.
    pub mode: String,
    /// Why nothing is retained of it.
    pub why: Option<String>,
    /// Committed transactions held.
    pub transactions: u64,
    /// Versions retained.
    pub versions: u64,
    /// Those that go home, a block each.
    pub home_blocks: u64,
    /// Their bytes.
    pub home_bytes: u64,
}

impl InspectReport {
    pub(super) fn new(image: PathBuf, state_file: PathBuf) -> Self {
        Self { image, state_file, state: None, in_use: false, retained: None, problem: None, gone: None }
    }
}

impl RecoverReport {
    pub(super) fn new(image: PathBuf, state_file: PathBuf, dry_run: bool) -> Self {
        Self {
            image,
            state_file,
            arena: None,
            lost: false,
            file_systems: Vec::new(),
            written_bytes: 0,
            dry_run,
        }
    }

    pub(super) fn found(&mut self, status: &DiskStatus, written_bytes: u64) {
        self.written_bytes = written_bytes;
        self.file_systems = status.file_systems.iter().map(Into::into).collect();
    }
}

impl From<&FileSystemStatus> for WouldWrite {
    fn from(status: &FileSystemStatus) -> Self {
        Self {
            start_sector: status.start_sector,
            uuid: status.uuid.clone(),
            mode: status.mode.clone(),
            why: status.why.clone(),
            transactions: status.transactions,
            versions: status.versions,
            home_blocks: status.versions_pending,
            home_bytes: status.versions_pending * BLOCK_BYTES as u64,
        }
    }
}

/// A file system's name for people.
struct Named<'a>(u64, &'a Option<String>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file system at sector {}", self.0)?;
        self.1.as_ref().map_or(Ok(()), |uuid| write!(f, " ({uuid})"))
    }
}

impl fmt::Display for InspectReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: journals are retained", self.image.display())?;
        if let Some(state) = &self.state {
            write!(f, " in {} under {}", state.arena.display(), state.contract)?;
        }
        if self.in_use {
            write!(f, "\n  in use: `afterimage ctl SOCKET status` says what is retained now")?;
        }
        if let Some(problem) = &self.problem {
            write!(f, "\n  NOT recoverable: {problem}")?;
        }
        if let Some(gone) = &self.gone {
            write!(f, "\n  its arena is lost, and nothing durable with it: {gone}")?;
        }
        let Some(retained) = &self.retained else { return Ok(()) };
        write!(
            f,
            "\n  {} bytes of journal content, {} bytes of memory",
            retained.arena_used_bytes, retained.arena_resident_bytes
        )?;
        for fs in &retained.file_systems {
            write!(f, "\n  {}: ", Named(fs.start_sector, &fs.uuid))?;
            match &fs.why {
                Some(why) => write!(f, "{}: {why}", fs.mode)?,
                None => write!(
                    f,
                    "{}: {} transactions, {} versions ({} not home), {} bytes of data, {} bytes of journal information",
                    fs.mode,
                    fs.transactions,
                    fs.versions,
                    fs.versions_pending,
                    fs.data_bytes,
                    fs.information_bytes
                )?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for RecoverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let image = self.image.display();
        if self.lost {
            let would = if self.dry_run { "would give" } else { "gave" };
            return write!(f, "{image}: {would} up retained journals that are gone, or another state's");
        }
        let would = if self.dry_run { "would write" } else { "wrote" };
        write!(f, "{image}: {would} {} bytes of retained journals home", self.written_bytes)?;
        for fs in &self.file_systems {
            write!(f, "\n  {}: ", Named(fs.start_sector, &fs.uuid))?;
            match &fs.why {
                Some(why) => write!(f, "nothing: {why}")?,
                None => write!(
                    f,
                    "{} transactions, {} versions, of which {} go home ({} bytes)",
                    fs.transactions, fs.versions, fs.home_blocks, fs.home_bytes
                )?,
            }
        }
        Ok(())
    }
}
