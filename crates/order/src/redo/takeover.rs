//! Whose log is this, and what is to be done with it before it can be served or removed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_block::{Disk as _, Medium};
use afterimage_format::log::{ImageEntry, RecordKind};
use afterimage_store::ImageStore;

use super::core::{Config, Core};
use super::files::{find_log, image_entry, is_live, real_path, scan_error, LogFile};
use super::open::TakeOverError;
use super::scan::scan;
use crate::clock::SystemClock;
use crate::{OpenError, Replayed};

/// How the images of a log and those that are given compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// The same, in the same order.
    Same,
    /// All images of the log are given; where, by the log's disk index.
    Among(Vec<usize>),
}

/// The live logs of these images, each once, and one at `more` where there is one.
pub(crate) fn live_logs(images: &[Arc<ImageStore>], more: Option<&Path>) -> Result<Vec<PathBuf>, OpenError> {
    let mut logs = Vec::new();
    for image in images {
        logs.extend(find_log(image.path())?);
    }
    if let Some(path) = more {
        if is_live(path)? {
            logs.push(path.to_owned());
        }
    }
    logs.sort();
    logs.dedup();
    Ok(logs)
}

/// A read-only image whose newest content is in a log would be served stale.
pub(crate) fn refuse_read_only(images: &[Arc<ImageStore>]) -> Result<(), OpenError> {
    for image in images.iter().filter(|image| image.geometry().read_only) {
        if let Some(log) = find_log(image.path())? {
            return Err(OpenError::ReadOnlyWithLog { image: image.path().to_owned(), log });
        }
    }
    Ok(())
}

/// Compares by inode; then sizes and times. A device number alone may change with a reboot.
pub(crate) fn match_images(log: &Path, images: &[Arc<ImageStore>]) -> Result<Match, OpenError> {
    let file = LogFile::peek(log)?.ok_or_else(|| OpenError::NotALog(log.to_owned()))?;
    let entries = images.iter().map(|i| image_entry(i)).collect::<Result<Vec<_>, _>>()?;
    let mut places = Vec::new();
    for recorded in file.images() {
        // Among several with one inode number the one on the same device.
        let fits = |e: &&(usize, &ImageEntry)| e.1.inode == recorded.inode && !places.contains(&e.0);
        let all: Vec<_> = entries.iter().enumerate().collect();
        let same_device = all.iter().filter(fits).find(|e| e.1.device == recorded.device);
        match same_device.or_else(|| all.iter().find(fits)) {
            Some((i, _)) => places.push(*i),
            None => return Err(stranger(log, file.images().len(), images)?),
        }
    }
    for (recorded, &i) in file.images().iter().zip(&places) {
        let (entry, image) = (&entries[i], images[i].path().to_owned());
        let log = log.to_owned();
        if recorded.size_bytes != entry.size_bytes {
            let why = format!(
                "its size is {} bytes, and the log expects {}",
                entry.size_bytes, recorded.size_bytes
            );
            return Err(OpenError::WrongImage { log, image, why });
        }
        if entry.mtime_ns.get() < recorded.mtime_ns.get() {
            let why = "it was last modified before the log was begun".to_owned();
            return Err(OpenError::RestoredCopy { log, image, why });
        }
        if entry.device != recorded.device {
            tracing::warn!(image = %image.display(), "its device number has changed since the log was written");
        }
    }
    let same = places.len() == images.len() && places.iter().enumerate().all(|(i, p)| i == *p);
    Ok(if same { Match::Same } else { Match::Among(places) })
}

/// The log names an image that is not given: another group's, or this path holds another file now.
fn stranger(log: &Path, count: usize, images: &[Arc<ImageStore>]) -> Result<OpenError, OpenError> {
    let names = LogFile::open(log, true)?.names(count);
    for image in images {
        let path = real_path(image.path())?;
        let Some(disk) = names.iter().position(|name| *name == path) else { continue };
        let recorded = LogFile::peek(log)?.and_then(|h| h.images().get(disk).copied());
        if recorded.is_some_and(|r| image_entry(image).is_ok_and(|e| e.inode != r.inode)) {
            let why = "it is another file (its inode differs) than the one that was served".to_owned();
            return Ok(OpenError::WrongImage { log: log.to_owned(), image: path, why });
        }
    }
    let names = names.iter().map(|n| n.display().to_string()).collect::<Vec<_>>().join(", ");
    if images.len() >= count {
        let image = images[0].path().to_owned();
        let why = format!("it was written for {names}");
        return Ok(OpenError::WrongImage { log: log.to_owned(), image, why });
    }
    Ok(OpenError::OtherGroup { log: log.to_owned(), count, names })
}

/// Writes everything in a log home, syncs, and removes it and its sidecars. Can be repeated after a crash at any point.
pub(crate) fn bring_home(log: &Path, images: &[Arc<ImageStore>]) -> Result<Option<Replayed>, OpenError> {
    let images: Vec<_> = match match_images(log, images)? {
        Match::Same => images.to_vec(),
        Match::Among(places) => places.into_iter().map(|i| Arc::clone(&images[i])).collect(),
    };
    let file = LogFile::open(log, false)?;
    let config = Config {
        window: crate::WINDOW_MAX,
        clock: Arc::new(SystemClock::default()),
        log: Arc::clone(&file.medium) as Arc<dyn Medium>,
        homes: images.iter().map(|image| image.medium()).collect(),
        incarnation: uuid::Uuid::new_v4().as_u64_pair().0,
        #[cfg(feature = "mutations")]
        mutation: None,
    };
    let core = Core::open(config).map_err(|e| take_over_error(log, &images, e))?;
    core.close()?;
    let paths = images.iter().map(|i| real_path(i.path())).collect::<Result<Vec<_>, _>>()?;
    file.remove(&paths)?;
    tracing::info!(log = %log.display(), replayed = ?core.replayed(), "brought a redo log home and removed it");
    Ok(core.replayed())
}

/// What [`bring_home`] would do, without doing it.
pub(crate) fn would_bring_home(log: &Path, images: &[Arc<ImageStore>]) -> Result<Replayed, OpenError> {
    let images: Vec<_> = match match_images(log, images)? {
        Match::Same => images.to_vec(),
        Match::Among(places) => places.into_iter().map(|i| Arc::clone(&images[i])).collect(),
    };
    let file = LogFile::open(log, true)?;
    let medium: Arc<dyn Medium> = Arc::clone(&file.medium) as Arc<dyn Medium>;
    let found = scan(&medium).map_err(|e| scan_error(log, e))?;
    let homes: Vec<_> = images.iter().map(|image| image.medium()).collect();
    super::open::check(&found, &homes).map_err(|e| take_over_error(log, &images, e))?;
    Ok(Replayed {
        records: found.records.iter().filter(|r| r.kind != RecordKind::Incarnation).count() as u64,
        bytes: found.end - found.header.tail_position.get(),
        sequence: found.sequence,
        torn_tail: found.torn_tail,
    })
}

/// A refusal as a sentence for the user.
pub(crate) fn take_over_error(log: &Path, images: &[Arc<ImageStore>], error: TakeOverError) -> OpenError {
    let image = |disk: usize| images.get(disk).map(|i| i.path().to_owned()).unwrap_or_default();
    let path = log.to_owned();
    match error {
        TakeOverError::Scan(e) => scan_error(log, e),
        TakeOverError::Clean => {
            OpenError::Corrupt { path, what: "it became clean while it was opened".into() }
        }
        TakeOverError::WrongImage { disk, why } => {
            OpenError::WrongImage { log: path, image: image(disk), why }
        }
        TakeOverError::FalseWitness { disk, sector } => OpenError::RestoredCopy {
            log: path,
            image: image(disk),
            why: format!("sector {sector} does not hold what had been written there"),
        },
        TakeOverError::Block(e) => OpenError::Block(e),
    }
}
