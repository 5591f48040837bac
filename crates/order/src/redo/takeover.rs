//! Whose log is this, and what is to be done with it before it can be served or removed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_block::BlockError;
use afterimage_format::log::{ImageEntry, LogHeader};
use afterimage_store::{
    find_any_log, find_log, is_live, live_beside, named_by, needs, owners, real_path, same_file, Image,
    LogError, LogFile,
};

use super::engine::{Config, Redo};
use super::open::check;
use super::recovery::TakeOverError;
use super::scan::scan;
use crate::clock::SystemClock;
use crate::error::Held;
use crate::{OpenError, Replayed};

fn image_entry(image: &dyn Image) -> Result<ImageEntry, OpenError> {
    image.log_entry().map_err(OpenError::io("looking at", image.path()))
}

/// How the images of a log and those that are given compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// The same, in the same order.
    Same,
    /// All images of the log are given; where, by the log's disk index.
    Among(Vec<usize>),
}

/// What may be taken for granted because the administrator has said it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trust {
    /// The log itself was named: its images need not name it.
    pub(crate) log: bool,
    /// It is the log's image: another inode or an old time is no matter.
    pub(crate) image: bool,
    /// The log's content is wanted over whatever the image holds now.
    pub(crate) content: bool,
}

/// The live logs of these images, each once, and one at `more` where there is one. Each is of these images.
pub(crate) fn live_logs(images: &[Arc<dyn Image>], more: Option<&Path>) -> Result<Vec<PathBuf>, OpenError> {
    let mut logs = Vec::new();
    for image in images {
        logs.extend(find_log(image.path())?);
        // Of another image, perhaps, that this one has taken the name from: not to be left behind unseen.
        logs.extend(live_beside(image.path())?);
    }
    if let Some(path) = more {
        if is_live(path)? {
            logs.push(path.to_owned());
        }
    }
    let mut logs = logs.iter().map(|log| real_path(log)).collect::<Result<Vec<_>, _>>()?;
    logs.sort();
    logs.dedup();
    // All are judged before one is brought home.
    let mut theirs = Vec::new();
    for log in logs {
        if is_left_over(&log, images)? {
            tracing::warn!(
                log = %log.display(),
                "this log holds nothing, and its image does not name it: it is not used"
            );
            continue;
        }
        match_images(&LogFile::look(&log)?, images, Trust::default())?;
        theirs.push(log);
    }
    Ok(theirs)
}

/// Whether a live log holds nothing, and no image names it: its image was deleted, and another one made in its place, or a start ended
/// before it had marked its images. An image that names no log is complete. A device cannot name one.
pub(crate) fn is_left_over(log: &Path, images: &[Arc<dyn Image>]) -> Result<bool, OpenError> {
    let file = LogFile::look(log)?;
    let header = file.header()?;
    let names = file.names(header.images().len());
    let mut in_its_place = false;
    for image in images {
        if image.is_device() || disk_named_by(image.as_ref(), &header)?.is_some() {
            return Ok(false);
        }
        in_its_place |= names.contains(&real_path(image.path())?);
    }
    for name in names.iter().filter(|name| name.exists()) {
        if needs(name, log)? {
            return Ok(false);
        }
    }
    file.check_owners(images)?;
    Ok(in_its_place && scan(&file.medium()).is_ok_and(|found| found.replayed().records == 0))
}

/// A read-only image whose newest content is in a log would be served stale.
pub(crate) fn refuse_read_only(images: &[Arc<dyn Image>]) -> Result<(), OpenError> {
    for image in images.iter().filter(|image| image.geometry().read_only) {
        if let Some(log) = find_any_log(image.path())? {
            return Err(OpenError::ReadOnlyWithLog { image: image.path().to_owned(), log });
        }
    }
    Ok(())
}

/// Compares by inode; then sizes and times. A device number alone may change with a reboot. And nothing of that is a proof: a log
/// counts only if it is ours, and if its images name it.
pub(crate) fn match_images(
    file: &LogFile,
    images: &[Arc<dyn Image>],
    trust: Trust,
) -> Result<Match, OpenError> {
    let (log, header) = (file.path(), file.header()?);
    let entries = images.iter().map(|i| image_entry(i.as_ref())).collect::<Result<Vec<_>, _>>()?;
    let marks = images.iter().map(|i| disk_named_by(i.as_ref(), &header)).collect::<Result<Vec<_>, _>>()?;
    let names = file.names(header.images().len());
    let mut places = Vec::new();
    for (disk, recorded) in header.images().iter().enumerate() {
        // Among several with one inode number the one on the same device.
        let fits = |e: &&(usize, &ImageEntry)| e.1.inode == recorded.inode && !places.contains(&e.0);
        let all: Vec<_> = entries.iter().enumerate().collect();
        let same_device = all.iter().filter(fits).find(|e| e.1.device == recorded.device);
        let by_inode = same_device.or_else(|| all.iter().find(fits)).map(|(i, _)| *i);
        let trusted = || match trust.image {
            false => None,
            true if header.images().len() == 1 && images.len() == 1 => Some(0),
            true => marks.iter().position(|mark| *mark == Some(disk)),
        };
        match by_inode.or_else(trusted) {
            Some(i) => places.push(i),
            None => return Err(stranger(log, &header, &names, images, &marks)?),
        }
    }
    let ours: Vec<_> = places.iter().map(|place| Arc::clone(&images[*place])).collect();
    file.check_owners(&ours)?;
    for (disk, (recorded, &i)) in header.images().iter().zip(&places).enumerate() {
        let (entry, image, original) = (&entries[i], &images[i], &names[disk]);
        if is_needed_by(log, original, image.path())? {
            let (log, original, image) = (log.to_owned(), original.to_owned(), image.path().to_owned());
            return Err(OpenError::Copied { log, original, image });
        }
        if recorded.size_bytes != entry.size_bytes {
            let why = format!(
                "its size is {} bytes, and the log expects {}",
                entry.size_bytes, recorded.size_bytes
            );
            return Err(wrong_image(log, image.path(), why, false));
        }
        if !trust.image && age(recorded, image.as_ref(), marks[i] == Some(disk))? == Age::Older {
            return Err(OpenError::PerhapsOlder {
                log: log.to_owned(),
                image: image.path().to_owned(),
                held: held(log),
            });
        }
        if entry.device != recorded.device {
            tracing::warn!(
                image = %image.path().display(),
                "its device number has changed since the log was written"
            );
        }
    }
    let named: Vec<_> = places.iter().enumerate().map(|(disk, i)| marks[*i] == Some(disk)).collect();
    judge_unnamed(file, &ours, &named, trust)?;
    let same = places.len() == images.len() && places.iter().enumerate().all(|(i, p)| i == *p);
    Ok(if same { Match::Same } else { Match::Among(places) })
}

/// Whether a log may be taken for that of images, in its order, which do not all name it: `named`. A device cannot; its log is named
/// by `--log`, and its content has to agree.
fn judge_unnamed(
    file: &LogFile,
    images: &[Arc<dyn Image>],
    named: &[bool],
    trust: Trust,
) -> Result<(), OpenError> {
    if named.iter().all(|named| *named) || trust.log && trust.image {
        return Ok(());
    }
    let log = file.path().to_owned();
    let found = scan(&file.medium()).map_err(|e| LogError::reading(&log, e))?;
    let replayed = found.replayed();
    if replayed.records == 0 {
        // A start that ended before it had marked its images: nothing of it would be written.
        return Ok(());
    }
    let home_bytes: Vec<_> = images.iter().map(|image| image.geometry().bytes()).collect();
    let telling = found.witnesses(&home_bytes).map_err(|e| take_over_error(&log, images, e))?;
    for (disk, image) in images.iter().enumerate().filter(|(disk, _)| !named[*disk]) {
        let (image_path, held) = (image.path().to_owned(), Held(Some(replayed.records)));
        if !trust.log && !image.is_device() {
            return Err(OpenError::Unnamed { log, image: image_path, held });
        }
        if !trust.image && telling.iter().all(|witness| usize::from(witness.disk.get()) != disk) {
            return Err(OpenError::Unproven { log, image: image_path, held });
        }
    }
    Ok(())
}

/// Whether the image in the recorded place of a log's disk is another one than is given and needs this very log: it would be lost with
/// the log. A snapshot has the inode number of its original.
pub(crate) fn is_needed_by(log: &Path, recorded: &Path, given: &Path) -> Result<bool, OpenError> {
    Ok(recorded.exists() && !same_file(recorded, given) && needs(recorded, log)?)
}

/// The disk of this log that an image says it is.
fn disk_named_by(image: &dyn Image, log: &LogHeader) -> Result<Option<usize>, OpenError> {
    let named = named_by(image)?;
    Ok(named.filter(|named| named.group_uuid == log.group_uuid).map(|named| usize::from(named.disk)))
}

/// What an image's times say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    /// It is the one that was served, or younger.
    Served,
    /// Its content is, or seems to be, of a time before the log was begun.
    Older,
}

fn age(recorded: &ImageEntry, image: &dyn Image, marked: bool) -> Result<Age, OpenError> {
    if image.is_device() {
        return Ok(Age::Served);
    }
    let now = image.identity().map_err(OpenError::io("looking at", image.path()))?;
    let age = judge_age(recorded.mtime_ns.get(), now.mtime_ns, now.ctime_ns, marked);
    if age == Age::Served && now.mtime_ns < recorded.mtime_ns.get() {
        tracing::warn!(
            image = %image.path().display(),
            "the clock was set back while it was served: it seems to be older than its log, but it carries the log's mark"
        );
    }
    Ok(age)
}

/// A clock that was set back makes an image look older than its log: all its times are, while nobody can set the time of
/// its last change back on purpose. The same times could come from a file system that was rolled back as a whole; but that
/// would have taken back the mark as well, which is younger than the recorded time. Whoever restores content in place
/// and sets the time of modification back has changed the inode now.
fn judge_age(recorded_ns: i64, modified_ns: i64, changed_ns: i64, marked: bool) -> Age {
    if modified_ns >= recorded_ns || (marked && changed_ns < recorded_ns) {
        Age::Served
    } else {
        Age::Older
    }
}

/// How many requests only the log has; `None` where it cannot be read.
fn held(log: &Path) -> Held {
    let found = LogFile::look(log).ok().and_then(|file| scan(&file.medium()).ok());
    Held(found.map(|found| found.replayed().records))
}

fn wrong_image(log: &Path, image: &Path, why: String, moved: bool) -> OpenError {
    let (log, image, held) = (log.to_owned(), image.to_owned(), held(log));
    OpenError::WrongImage { log, image, why, held, moved }
}

/// The log names an image that is not given: another group's, or this path holds another file now.
fn stranger(
    log: &Path,
    header: &LogHeader,
    names: &[PathBuf],
    images: &[Arc<dyn Image>],
    marks: &[Option<usize>],
) -> Result<OpenError, OpenError> {
    let count = names.len();
    for (image, mark) in images.iter().zip(marks) {
        let path = real_path(image.path())?;
        let named = names.iter().position(|name| *name == path);
        let Some(disk) = named.or(*mark) else { continue };
        let recorded = header.images().get(disk);
        if recorded.is_some_and(|r| image.log_entry().is_ok_and(|e| e.inode != r.inode)) {
            let why = "it is another file (its inode differs) than the one that was served".to_owned();
            return Ok(wrong_image(log, &path, why, mark.is_some()));
        }
    }
    let names = names.iter().map(|n| n.display().to_string()).collect::<Vec<_>>().join(", ");
    if images.len() >= count {
        return Ok(wrong_image(log, images[0].path(), format!("it was written for {names}"), false));
    }
    Ok(OpenError::OtherGroup { log: log.to_owned(), count, names })
}

/// Makes what the images show durable: an earlier process's failed sync may have left pages in the cache that storage never got.
pub(crate) fn settle(images: &[Arc<dyn Image>]) -> Result<(), OpenError> {
    for image in images {
        let doing = || format!("making sure that storage holds what {} shows", image.path().display());
        image.settle().map_err(|e| BlockError::io(doing(), e))?;
    }
    Ok(())
}

/// The images of a log, in its order.
fn in_order(
    file: &LogFile,
    images: &[Arc<dyn Image>],
    trust: Trust,
) -> Result<Vec<Arc<dyn Image>>, OpenError> {
    Ok(match match_images(file, images, trust)? {
        Match::Same => images.to_vec(),
        Match::Among(places) => places.into_iter().map(|i| Arc::clone(&images[i])).collect(),
    })
}

/// Writes everything in a log home, syncs, and removes it and its images' marks. Can be repeated after a crash at any
/// point.
pub(crate) fn bring_home(
    log: &Path,
    images: &[Arc<dyn Image>],
    trust: Trust,
) -> Result<Option<Replayed>, OpenError> {
    let file = LogFile::open(log, false)?;
    let images = in_order(&file, images, trust)?;
    let config = Config {
        window: crate::WINDOW_MAX,
        clock: Arc::new(SystemClock),
        log: file.medium(),
        homes: images.iter().map(|image| image.medium()).collect(),
        incarnation: uuid::Uuid::new_v4().as_u64_pair().0,
        any_content: trust.content,
        #[cfg(feature = "mutations")]
        mutation: None,
    };
    let redo = Redo::open(config).map_err(|e| take_over_error(log, &images, e))?;
    redo.close()?;
    file.remove(&owners(&images)?)?;
    let (records, sequence) = redo.replayed().map_or((0, 0), |r| (r.records, r.sequence));
    tracing::info!(log = %log.display(), records, sequence, "brought a redo log home and removed it");
    Ok(redo.replayed())
}

/// What [`bring_home`] would do, without doing it.
pub(crate) fn would_bring_home(
    log: &Path,
    images: &[Arc<dyn Image>],
    trust: Trust,
) -> Result<Replayed, OpenError> {
    let file = LogFile::open(log, true)?;
    let images = in_order(&file, images, trust)?;
    let found = scan(&file.medium()).map_err(|e| LogError::reading(log, e))?;
    let homes: Vec<_> = images.iter().map(|image| image.medium()).collect();
    check(&found, &homes, trust.content).map_err(|e| take_over_error(log, &images, e))?;
    Ok(found.replayed())
}

/// A refusal as a sentence for the user.
pub(crate) fn take_over_error(log: &Path, images: &[Arc<dyn Image>], error: TakeOverError) -> OpenError {
    let image = |disk: usize| images.get(disk).map(|i| i.path().to_owned()).unwrap_or_default();
    let path = log.to_owned();
    match error {
        TakeOverError::Scan(e) => LogError::reading(log, e).into(),
        TakeOverError::Clean => {
            LogError::Corrupt { path, what: "it became clean while it was opened".into() }.into()
        }
        TakeOverError::WrongImage { disk, why } => wrong_image(log, &image(disk), why, false),
        TakeOverError::FalseWitness { disk, sector } => OpenError::Changed {
            log: path,
            image: image(disk),
            why: format!("sector {sector} does not hold what had been written there"),
            held: held(log),
        },
        TakeOverError::Block(e) => OpenError::Block(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_clock_explains_may_look_older() {
        let recorded = 1000;
        for (modified, changed, marked, expected) in [
            (1000, 1000, false, Age::Served),
            (2000, 2000, false, Age::Served),
            // Written after the clock was set back.
            (900, 900, true, Age::Served),
            (900, 950, true, Age::Served),
            // The same times, and no mark: a rolled back file system.
            (900, 900, false, Age::Older),
            // Content restored in place, with its time: the inode was changed after the log was begun.
            (900, 1000, true, Age::Older),
            (900, 2000, true, Age::Older),
            (900, 2000, false, Age::Older),
        ] {
            let found = judge_age(recorded, modified, changed, marked);
            assert_eq!(found, expected, "{modified} {changed} {marked}");
        }
    }
}
