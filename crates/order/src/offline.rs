//! `inspect`, `check` and `recover`: what can be said and done while nobody serves the images.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_format::log::{LogHeader, STATE_CLEAN};
use afterimage_store::{
    find_any_log, find_log, is_live, is_log, mark_of, marked_log, owners, read_header, real_path,
    remove_mark, trust_storage, DirectMode, FileIdentity, Image, ImageStore, LogError, LogFile, OpenOptions,
};

use crate::redo::export::export as export_log;
pub use crate::redo::export::ExportedImage;
use crate::redo::takeover::{bring_home, is_left_over, is_needed_by, would_bring_home, Trust};
use crate::redo::{scan, Scan};
use crate::{OpenError, Replayed};

/// What is known about an image or a log, without judging it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct InspectReport {
    /// What was asked about.
    pub path: PathBuf,
    /// The image, where the path is one.
    pub image: Option<ImageReport>,
    /// The live log that the image has writes in, or the log that the path is.
    pub log: Option<LogReport>,
    /// Whether a plain copy of the image file alone is complete, as long as nobody serves it.
    pub copy_is_complete: bool,
    /// What to do, or why not to copy.
    pub advice: String,
}

/// An image file.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ImageReport {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Space that it takes, in bytes.
    pub allocated_bytes: u64,
    /// Whether some process serves or writes it now.
    pub in_use: bool,
}

/// A redo log.
#[derive(Clone, Debug, serde::Serialize)]
pub struct LogReport {
    /// The log.
    pub path: PathBuf,
    /// Format version.
    pub version: u32,
    /// `live` or `clean`.
    pub state: &'static str,
    /// The group's identity.
    pub group_uuid: String,
    /// Counts the headers written.
    pub generation: u64,
    /// Size of the record area in bytes.
    pub area_bytes: u64,
    /// Everything up to this sequence number is in the images.
    pub home_sequence: u64,
    /// Everything up to this sequence number is known to have been durable.
    pub durable_sequence: u64,
    /// The prefix that the log holds; `None` where it is corrupt.
    pub sequence: Option<u64>,
    /// Requests that are not home yet.
    pub records: u64,
    /// Bytes that they fill.
    pub record_bytes: u64,
    /// Whether something incomplete follows them, which will be left out.
    pub torn_tail: bool,
    /// What is wrong with it.
    pub corrupt: Option<String>,
    /// The images of the group.
    pub images: Vec<LoggedImage>,
}

/// An image as its log knows it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct LoggedImage {
    /// Where it was when the log was opened last.
    pub path: PathBuf,
    /// Inode number; 0 for a device.
    pub inode: u64,
    /// Device number.
    pub device: u64,
    /// Size in bytes.
    pub size_bytes: u64,
}

/// Whether an image and its log fit together and would recover.
#[derive(Clone, Debug, serde::Serialize)]
pub struct CheckReport {
    /// What was asked about.
    pub path: PathBuf,
    /// The images of its log; none without one, or where it cannot be opened with them.
    pub images: Vec<PathBuf>,
    /// Nothing is wrong.
    pub sound: bool,
    /// Nothing has to be replayed: the image is a plain raw file.
    pub clean: bool,
    /// What opening would replay.
    pub replay: Option<Replayed>,
    /// What is wrong, one sentence each.
    pub problems: Vec<String>,
}

/// What recovery did, or would do.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RecoverReport {
    /// What was asked about.
    pub path: PathBuf,
    /// The log that was there.
    pub log: Option<PathBuf>,
    /// The images that it was for.
    pub images: Vec<PathBuf>,
    /// What was brought home.
    pub replayed: Option<Replayed>,
    /// The loss that was accepted: why what only the log held cannot be had.
    pub given_up: Option<String>,
    /// Where the log is kept that was given up.
    pub log_kept: Option<PathBuf>,
    /// Nothing was changed.
    pub dry_run: bool,
}

/// What [`recover`] may do.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecoverOptions {
    /// Nothing is changed.
    pub dry_run: bool,
    /// Where the log of an image is gone, or of the image as it was before somebody changed it, what only it held is given up.
    pub accept_loss: bool,
    /// The image is the log's, though its inode or its times say otherwise. Size and witnesses have to be right.
    pub trust_image: bool,
    /// What the log holds is written over whatever the image holds now.
    pub apply_anyway: bool,
}

fn look(path: &Path) -> Result<(FileIdentity, u64), OpenError> {
    FileIdentity::at(path).map_err(OpenError::io("looking at", path))
}

fn open_image(path: &Path, read_only: bool) -> Result<Arc<dyn Image>, OpenError> {
    let options =
        OpenOptions { read_only, direct: DirectMode::Off, any_content: true, ..OpenOptions::new(path) };
    Ok(ImageStore::open(&options)?)
}

/// Says what an image or a log is, in use or not. Reads only, and takes no lock for longer than a look.
///
/// # Errors
/// It cannot be read, is no image, or the log that the image names is gone.
pub fn inspect(path: &Path) -> Result<InspectReport, OpenError> {
    if is_log(path)? {
        let log = log_report(path)?;
        let in_use = matches!(LogFile::open(path, true), Err(LogError::LogInUse(_)));
        let advice = match log.state {
            _ if in_use => {
                "in use: `afterimage ctl SOCKET stop` brings its writes into the images".to_owned()
            }
            "clean" => format!(
                "the log is a leftover, and everything is in the images: `afterimage recover {}` removes it, and what \
                 images still say of it",
                path.display()
            ),
            _ => format!("`afterimage recover {}` brings its writes into the images", path.display()),
        };
        return Ok(InspectReport {
            path: path.to_owned(),
            image: None,
            log: Some(log),
            copy_is_complete: false,
            advice,
        });
    }
    let (FileIdentity { size_bytes, .. }, allocated_bytes) = look(path)?;
    let opened = open_image(path, true);
    let in_use = matches!(
        opened,
        Err(OpenError::Image(
            afterimage_store::OpenError::InUse { .. } | afterimage_store::OpenError::StillDraining { .. }
        ))
    );
    let log = find_any_log(path)?.map(|log| log_report(&log)).transpose()?;
    // A log is described whatever has become of its image.
    if log.is_none() && !in_use {
        opened?;
    }
    let image = ImageReport { size_bytes, allocated_bytes, in_use };
    let advice = match (&log, in_use) {
        (None, false) => "a plain raw image: copy it as it is".to_owned(),
        (None, true) => {
            "in use: a copy made now mixes old and new; pause it with `afterimage ctl SOCKET pause`, copy, \
                         and resume"
                .to_owned()
        }
        (Some(_), true) => {
            "in use, with writes in a redo log: `afterimage ctl SOCKET pause` brings them home, then \
                            copy the image, and resume"
                .to_owned()
        }
        (Some(log), false) => format!(
            "writes are still in {}: a copy of the image alone lacks them; run `afterimage recover {}` first",
            log.path.display(),
            path.display()
        ),
    };
    let copy_is_complete = log.is_none() && !in_use;
    Ok(InspectReport { path: path.to_owned(), image: Some(image), log, copy_is_complete, advice })
}

fn log_report(path: &Path) -> Result<LogReport, OpenError> {
    let (file, failed) = (LogFile::look(path)?, |e| LogError::reading(path, e));
    let header = read_header(file.medium().as_ref()).map_err(failed)?;
    let names = file.names(header.images().len());
    let found = scan(&file.medium()).map_err(failed);
    let corrupt = found.as_ref().err().map(ToString::to_string);
    Ok(describe(path, &header, names, found.ok(), corrupt))
}

fn describe(
    path: &Path,
    header: &LogHeader,
    names: Vec<PathBuf>,
    found: Option<Scan>,
    corrupt: Option<String>,
) -> LogReport {
    let images = header.images().iter().zip(names).map(|(image, path)| LoggedImage {
        path,
        inode: image.inode.get(),
        device: image.device.get(),
        size_bytes: image.size_bytes.get(),
    });
    let replayed = found.as_ref().map(Scan::replayed);
    LogReport {
        path: path.to_owned(),
        version: header.version.get(),
        state: if header.state.get() == STATE_CLEAN { "clean" } else { "live" },
        group_uuid: uuid::Uuid::from_bytes(header.group_uuid).to_string(),
        generation: header.generation.get(),
        area_bytes: header.area_bytes.get(),
        home_sequence: header.tail_sequence.get(),
        durable_sequence: found.as_ref().map_or(header.durable_sequence.get(), |s| s.durable_sequence.0),
        sequence: replayed.map(|r| r.sequence),
        records: replayed.map_or(0, |r| r.records),
        record_bytes: replayed.map_or(0, |r| r.bytes),
        torn_tail: replayed.is_some_and(|r| r.torn_tail),
        corrupt,
        images: images.collect(),
    }
}

/// A log and its images, opened.
type LoggedGroup = (PathBuf, Vec<Arc<dyn Image>>);

/// The log of a path, and its images opened.
fn group_of(path: &Path, read_only: bool) -> Result<Option<LoggedGroup>, OpenError> {
    let log = if is_log(path)? { Some(path.to_owned()) } else { find_any_log(path)? };
    let Some(log) = log else {
        open_image(path, true)?;
        return Ok(None);
    };
    let Some(header) = LogFile::peek(&log)? else { return Ok(None) };
    let file = LogFile::open(&log, true)?;
    let names = file.names(header.images().len());
    let here = real_path(path)?;
    let inode = look(&here)?.0.ino;
    let mut images = Vec::new();
    for (name, recorded) in names.iter().zip(header.images()) {
        // The image that was asked about may have moved since; the others must be where they were.
        let asked = log != path && (recorded.inode.get() == inode || names.len() == 1);
        let name = if asked { &here } else { name };
        // A clean log has nothing for its images; one that is gone is not missed.
        if header.state.get() != STATE_CLEAN || name.exists() {
            images.push(open_image(name, read_only)?);
        }
    }
    if log != path && header.state.get() != STATE_CLEAN && is_left_over(&log, &images)? {
        return Ok(None);
    }
    Ok(Some((log, images)))
}

/// Whether an image (or the images of a log) would recover: everything that opening would check. Reads only.
///
/// # Errors
/// It is in use, or cannot be read: what the user has to put right is in the report.
pub fn check(path: &Path) -> Result<CheckReport, OpenError> {
    let mut report = CheckReport {
        path: path.to_owned(),
        images: Vec::new(),
        sound: true,
        clean: true,
        replay: None,
        problems: Vec::new(),
    };
    let found = group_of(path, true).and_then(|group| {
        let Some((log, images)) = group else { return Ok(None) };
        report.images = images.iter().map(|image| image.path().to_owned()).collect();
        let trust = Trust { log: is_log(path)?, ..Trust::default() };
        is_live(&log)?.then(|| would_bring_home(&log, &images, trust)).transpose()
    });
    match found {
        Ok(None) => {}
        Ok(Some(replay)) => {
            report.clean = false;
            report.replay = Some(replay);
        }
        // What the user has to put right first is an answer, too; an image in use, or an I/O error, is none.
        Err(e @ (OpenError::Log(LogError::Io { .. } | LogError::LogInUse(_)) | OpenError::Block(_))) => {
            return Err(e)
        }
        Err(OpenError::Image(e)) => return Err(e.into()),
        Err(e) => {
            report.sound = false;
            report.clean = false;
            report.problems.push(e.to_string());
        }
    }
    Ok(report)
}

/// Brings the writes in a log into its images, syncs them, and removes the log and its images' marks: the images are
/// plain raw files then. `path` is the log or one of the images.
///
/// # Errors
/// See [`OpenError`]: something is in use, does not belong together, or storage failed. What has gone home stays there.
pub fn recover(path: &Path, options: &RecoverOptions) -> Result<RecoverReport, OpenError> {
    let dry_run = options.dry_run;
    let mut report = RecoverReport {
        path: path.to_owned(),
        log: None,
        images: Vec::new(),
        replayed: None,
        given_up: None,
        log_kept: None,
        dry_run,
    };
    let trust = Trust { log: is_log(path)?, image: options.trust_image, content: options.apply_anyway };
    let lost = lost_log(path)?.filter(|_| options.accept_loss);
    if options.accept_loss && !dry_run {
        // A log that is another image's is none of ours to look at.
        let log = if lost.is_some() || trust.log { None } else { find_log(path).ok().flatten() };
        for file in [Some(path.to_owned()), log].into_iter().flatten() {
            if trust_storage(&file)? {
                tracing::warn!(path = %file.display(), "what storage holds counts, and not what the host's cache showed of it");
            }
        }
    }
    if let Some(lost) = lost {
        let image = open_image(path, dry_run)?;
        if !dry_run {
            owners(&[image])?.iter().try_for_each(|owner| owner.release(None))?;
        }
        report.images = vec![path.to_owned()];
        report.given_up = Some(lost);
        return Ok(report);
    }
    let (log, images) = match group_of(path, dry_run) {
        Ok(Some(group)) => group,
        Ok(None) if !dry_run && mark_of(path)?.is_some_and(|mark| mark.log.is_some()) => {
            // A leftover of an end that was cut short.
            remove_mark(open_image(path, false)?.as_ref())?;
            return Ok(report);
        }
        Ok(None) => return Ok(report),
        Err(e) => return Err(e),
    };
    report.images = images.iter().map(|image| image.path().to_owned()).collect();
    if is_live(&log)? {
        let done = match dry_run {
            true => would_bring_home(&log, &images, trust).map(Some),
            false => bring_home(&log, &images, trust),
        };
        report.replayed = match done {
            Err(changed @ OpenError::Changed { .. }) if options.accept_loss => {
                report.given_up = Some(changed_why(&changed));
                if !dry_run {
                    report.log_kept = Some(LogFile::open(&log, false)?.set_aside(&owners(&images)?)?);
                }
                return Ok(report);
            }
            done => done?,
        };
    } else if !dry_run {
        // Clean: a leftover of a power cut during an orderly close.
        LogFile::open(&log, false)?.remove(&owners(&images)?)?;
    }
    report.log = Some(log);
    Ok(report)
}

/// What [`export`] wrote.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ExportReport {
    /// The log.
    pub log: PathBuf,
    /// One for each of its images, in its order.
    pub images: Vec<ExportedImage>,
}

/// Writes what the log of an image, or the log that `path` is, would change into files of a folder. Log and images stay as they are;
/// nothing is asked of the images.
///
/// # Errors
/// There is no log, or another process has it; a file cannot be written.
pub fn export(path: &Path, folder: &Path) -> Result<ExportReport, OpenError> {
    let log = if is_log(path)? { Some(path.to_owned()) } else { find_any_log(path)? };
    let log = log.ok_or_else(|| OpenError::NoLog(path.to_owned()))?;
    let images = export_log(&LogFile::open(&log, true)?, folder)?;
    Ok(ExportReport { log, images })
}

/// What an image and its log disagree about.
fn changed_why(error: &OpenError) -> String {
    match error {
        OpenError::Changed { why, .. } => why.clone(),
        other => other.to_string(),
    }
}

/// Why an image cannot have the log that it names; `None` where it can, or names none.
fn lost_log(path: &Path) -> Result<Option<String>, OpenError> {
    if is_log(path)? {
        return Ok(None);
    }
    let log = match find_log(path) {
        Err(e @ (LogError::LogMissing { .. } | LogError::BadReference { .. })) => {
            return Ok(Some(e.to_string()))
        }
        Err(e) => return Err(e.into()),
        Ok(log) => log,
    };
    // A copy carries the mark of the image that it was made of, which may be in use.
    let named = marked_log(path)?;
    let header = log.as_deref().map(LogFile::peek).transpose()?.flatten();
    let inode = look(path)?.0.ino;
    let (Some(log), Some(header), Some(named)) = (log, header, named) else { return Ok(None) };
    let is_another = header.images().iter().all(|image| image.inode.get() != inode);
    let recorded = LogFile::look(&log)?.names(header.images().len());
    let recorded = recorded.get(usize::from(named.disk)).map(PathBuf::as_path).unwrap_or(Path::new(""));
    let is_copy =
        header.group_uuid == named.group_uuid && (is_another || is_needed_by(&log, recorded, path)?);
    Ok(is_copy.then(|| "it is a copy of another image, which the log belongs to".to_owned()))
}

impl fmt::Display for InspectReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(image) = &self.image {
            writeln!(
                f,
                "{}: raw image, {} bytes ({} allocated){}",
                self.path.display(),
                image.size_bytes,
                image.allocated_bytes,
                if image.in_use { ", in use" } else { "" }
            )?;
        }
        if let Some(log) = &self.log {
            writeln!(
                f,
                "{}: {} redo log, format {}, group {}, {} bytes",
                log.path.display(),
                log.state,
                log.version,
                log.group_uuid,
                log.area_bytes
            )?;
            match (&log.corrupt, log.sequence) {
                (Some(corrupt), _) => writeln!(f, "  corrupt: {corrupt}")?,
                (None, Some(sequence)) => writeln!(
                    f,
                    "  home up to {}, {} requests ({} bytes) to replay up to {sequence}{}",
                    log.home_sequence,
                    log.records,
                    log.record_bytes,
                    if log.torn_tail { "; an incomplete tail is left out" } else { "" }
                )?,
                (None, None) => {}
            }
            for image in &log.images {
                writeln!(
                    f,
                    "  image {} (inode {}, {} bytes)",
                    image.path.display(),
                    image.inode,
                    image.size_bytes
                )?;
            }
        }
        write!(f, "{}", self.advice)
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.replay {
            _ if !self.sound => write!(f, "{path}: NOT sound: {}", self.problems.join("; ")),
            Some(replay) => write!(
                f,
                "{path}: sound; {} requests up to {} wait in the log for recovery",
                replay.records, replay.sequence
            ),
            None => write!(f, "{path}: sound and clean: a plain raw image"),
        }
    }
}

impl fmt::Display for ExportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} image(s)", self.log.display(), self.images.len())?;
        self.images.iter().try_for_each(|image| {
            write!(
                f,
                "\n  {}: {} bytes of data and {} of zeroes: {}, ranges in {}",
                image.image.display(),
                image.data_bytes,
                image.zero_bytes,
                image.content.display(),
                image.ranges.display()
            )
        })
    }
}

impl fmt::Display for RecoverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.given_up {
            let would = if self.dry_run { "would give" } else { "gave" };
            write!(f, "{}: {would} up what only its redo log held ({why})", self.path.display())?;
            return match &self.log_kept {
                Some(log) => write!(f, "; the log is kept as {}", log.display()),
                None => Ok(()),
            };
        }
        let would = if self.dry_run { "would bring" } else { "brought" };
        match (&self.replayed, &self.log) {
            (Some(r), Some(log)) => write!(
                f,
                "{would} {} requests up to {} from {} into {} image(s)",
                r.records,
                r.sequence,
                log.display(),
                self.images.len()
            ),
            (None, Some(log)) => write!(f, "{}: nothing to bring home", log.display()),
            (_, None) => write!(f, "{}: nothing to recover", self.path.display()),
        }
    }
}
