//! The arenas in a folder: whose they are, and the removal of one that nobody needs.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use afterimage_store::open_unlinked;
use rustix::fs::{flock, FlockOperation};
use serde::Serialize;

use crate::error::JournalError;
use crate::group::RetainError;
use crate::state_file::{self, ImageIdentity, State};
use crate::versions::arena::{Arena, ArenaIdentity, Peeked};

/// Who needs an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// A daemon has it open.
    InUse,
    /// An image is not complete without it: its state file says so.
    Named,
    /// Nothing is retained in it, and the image, which is where it was, has no state file that names it.
    Orphan,
    /// It cannot be told: the image is not where it was, or another one is, or what it says is not enough.
    Unknown,
}

/// An arena.
#[derive(Clone, Debug, Serialize)]
pub struct ArenaReport {
    /// Its file.
    pub path: PathBuf,
    /// Memory that it takes, in bytes.
    pub resident_bytes: u64,
    /// Where its image was when a daemon opened it last; `None` where it does not say.
    pub image: Option<PathBuf>,
    /// Who needs it.
    pub need: Need,
    /// Why it cannot be read.
    pub problem: Option<String>,
}

/// The arenas in a folder, by name. Changes nothing.
///
/// # Errors
/// The folder, or a file in it, cannot be read.
pub fn arenas(folder: &Path) -> Result<Vec<ArenaReport>, RetainError> {
    let failed = |e| JournalError::io(format!("reading the folder {}", folder.display()), e);
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if !name.starts_with(b"afterimage-") {
            continue;
        }
        // Each in a folder of its own; those of earlier versions are not.
        let inside = path.join("arena");
        if inside.is_file() {
            paths.push(inside);
        } else if name.ends_with(b".arena") {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| Ok(look(path)?.1)).collect()
}

/// Removes an arena that no daemon has open and that its image's state file does not name; with `accept_loss` also where
/// that cannot be told. What it holds that is not home is given up.
///
/// # Errors
/// It is needed, or is no arena, or cannot be removed.
pub fn remove_arena(path: &Path, accept_loss: bool) -> Result<ArenaReport, RetainError> {
    let (_locked, report) = look(path)?;
    let image = report.image.as_deref().unwrap_or(Path::new("an image")).display();
    let refused = |why: String| {
        Err(JournalError::Unsupported(format!("the arena {} stays: {why}", path.display())).into())
    };
    match (&report.problem, report.need) {
        (Some(problem), _) => return refused(problem.clone()),
        (None, Need::InUse) => return refused("a daemon has it open; stop that first".to_owned()),
        (None, Need::Named) => {
            return refused(format!(
                "{image} is not complete without it; `afterimage recover {image}` brings it home and removes it"
            ))
        }
        (None, Need::Unknown) if !accept_loss => {
            return refused(format!(
                "it cannot be told who needs it: the image that it is of is not at {image} any more, or does not say; \
                 --accept-loss gives up what the arena holds"
            ))
        }
        (None, Need::Orphan | Need::Unknown) => {}
    }
    crate::versions::arena::remove(path)
        .map_err(|e| JournalError::io(format!("removing the arena {}", path.display()), e))?;
    Ok(report)
}

/// Looks at one; the file is locked against daemons as long as it is kept open.
fn look(path: &Path) -> Result<(File, ArenaReport), RetainError> {
    let failed = |e: io::Error| JournalError::io(format!("opening the arena {}", path.display()), e);
    let file = open_unlinked(path, true).map_err(failed)?;
    let resident_bytes = file.metadata().map_err(failed)?.blocks() * 512;
    let in_use = match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => false,
        Err(rustix::io::Errno::WOULDBLOCK) => true,
        Err(e) => return Err(failed(e.into()).into()),
    };
    let mut report = ArenaReport {
        path: path.to_owned(),
        resident_bytes,
        image: None,
        need: Need::Unknown,
        problem: None,
    };
    match Arena::peek(path) {
        Ok(peeked) => {
            report.need = if in_use { Need::InUse } else { need(&peeked) };
            report.image = peeked.image;
        }
        Err(e) => report.problem = Some(e.to_string()),
    }
    Ok((file, report))
}

/// A name proves only that it is needed: the image may have another one by now, with its state file, and another image this one. An inode is
/// given out again, too. So what nothing names is needed by nobody only where nothing is in it.
fn need(peeked: &Peeked) -> Need {
    let Some(image) = peeked.image.as_deref().filter(|image| image.exists()) else { return Need::Unknown };
    let ArenaIdentity { uuid, inode, size_bytes } = peeked.identity;
    let named = state_file::state_path(image).and_then(|path| State::read(&path));
    let there = ImageIdentity::of(image);
    match named {
        Ok(Some(state)) if *state.arena_uuid.as_bytes() == uuid => Need::Named,
        Ok(_)
            if peeked.records.is_empty()
                && matches!(there, Ok(Some(found)) if found == ImageIdentity { inode, size_bytes }) =>
        {
            Need::Orphan
        }
        Ok(_) | Err(_) => Need::Unknown,
    }
}

impl fmt::Display for ArenaReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} bytes of memory", self.path.display(), self.resident_bytes)?;
        if let Some(problem) = &self.problem {
            return write!(f, ", unreadable: {problem}");
        }
        match &self.image {
            Some(image) => write!(f, ", of {}", image.display())?,
            None => write!(f, ", of an image that it does not name")?,
        }
        f.write_str(match self.need {
            Need::InUse => ": in use",
            Need::Named => ": the image is not complete without it",
            Need::Orphan => ": nothing names it, it may be removed",
            Need::Unknown => {
                ": it cannot be told who needs it, for its image is not there any more, or does not say"
            }
        })
    }
}
