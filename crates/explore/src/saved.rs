//! A failing state on disk: a folder from which anybody can look at it, repeat it, and get the image.
//!
//! ```text
//!   FOLDER/failure.json       which crash, what is lost, which check failed: for programs
//!   FOLDER/recording.afrec    the recording, so that nothing else is needed
//!   FOLDER/README             the same for people, with the commands
//! ```

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_block::Medium as _;
use afterimage_trace::{Recording, Role};
use serde::{Deserialize, Serialize};

use crate::campaign::{Failure, Subject};
use crate::check::fsck::Fsck;
use crate::model::Choice;
use crate::setup::Setup;
use crate::state::Scratch;
use crate::tags::Tag;
use crate::{ExploreError, Result};

/// Format of `failure.json`; a program refuses a newer one. 1 listed what had not been asked for at the crash as lost, or had it
/// there; it never is.
const VERSION: u32 = 2;

const JSON: &str = "failure.json";
const RECORDING: &str = "recording.afrec";
const README: &str = "README";

/// `failure.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saved {
    /// Format.
    pub version: u32,
    /// How the states were made and checked.
    pub setup: Setup,
    /// The crash, the loss, and what is wrong.
    pub failure: Failure,
    /// When the crash is, in milliseconds since the recording began.
    pub crash_ms: f64,
    /// The loss in words and numbers.
    pub lost: Vec<LostRequest>,
    /// Volatile requests of the cut that are there.
    pub kept: usize,
    /// Giving back any one of the lost requests makes the failure go away.
    pub is_minimal: bool,
}

/// One request that is not there, or not all of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LostRequest {
    /// Where: `disk 0`, `log`.
    pub medium: String,
    /// First sector of the request.
    pub sector: u64,
    /// Its length in sectors.
    pub sectors: u64,
    /// Which of them are lost, counted from its first; `None`: all.
    pub lost_sectors: Option<Vec<(u32, u32)>>,
    /// When it was submitted, in milliseconds since the recording began.
    pub at_ms: f64,
    /// What it is.
    pub tag: Tag,
    /// A discard or write-zeroes.
    pub zero: bool,
    /// The files that its blocks belong to at the crash, where nothing is lost.
    #[serde(default)]
    pub files: Vec<String>,
}

/// Saves a failure. Files of an earlier one in the folder are replaced.
///
/// # Errors
/// The folder cannot be written.
pub fn save(
    folder: &Path,
    recording: &Recording,
    subject: &Subject,
    setup: &Setup,
    failure: &Failure,
    is_minimal: bool,
) -> Result<Saved> {
    let mut saved = describe(subject, setup, failure, is_minimal);
    // For people: that something has no name is no failure.
    if let Err(error) = name_files(&mut saved.lost, recording, subject, failure) {
        tracing::warn!(%error, "the files of lost requests are not named");
    }
    let io = |path: &Path| ExploreError::io(format!("cannot write {}", path.display()));
    fs::create_dir_all(folder).map_err(io(folder))?;
    let path = folder.join(RECORDING);
    recording.save(&path).map_err(|e| ExploreError::Corrupt(e.to_string()))?;
    let path = folder.join(JSON);
    let json = serde_json::to_string_pretty(&saved).map_err(|e| ExploreError::Corrupt(e.to_string()))?;
    fs::write(&path, json).map_err(io(&path))?;
    let path = folder.join(README);
    fs::write(&path, show(&saved, folder)).map_err(io(&path))?;
    Ok(saved)
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Removes a saved failure, where there is one. Other files in its folder stay.
///
/// # Errors
/// It cannot be removed.
pub fn remove(folder: &Path) -> Result<()> {
    if !folder.join(JSON).exists() {
        return Ok(());
    }
    let failed =
        ExploreError::io(format!("cannot remove the failure of an earlier run in {}", folder.display()));
    [JSON, RECORDING, README]
        .iter()
        .try_for_each(|name| fs::remove_file(folder.join(name)))
        .map_err(failed)?;
    // Where somebody has put something beside them it stays.
    drop(fs::remove_dir(folder));
    Ok(())
}

/// Reads a saved failure and its recording.
///
/// # Errors
/// It is not there, is damaged, or is of a newer version.
pub fn load(folder: &Path) -> Result<(Saved, Recording)> {
    let path = folder.join(JSON);
    let text = fs::read_to_string(&path)
        .map_err(ExploreError::io(format!("cannot read {} (is it a saved failure?)", path.display())))?;
    let damaged = |e| ExploreError::Corrupt(format!("{} is damaged: {e}", path.display()));
    // First of all: a newer one may say everything else in another way.
    let Version { version } = serde_json::from_str(&text).map_err(damaged)?;
    if version > VERSION {
        return Err(ExploreError::Usage(format!(
            "{} has version {version}, and this program knows {VERSION}: use the one that saved it",
            path.display(),
        )));
    }
    let saved: Saved = serde_json::from_str(&text).map_err(damaged)?;
    let path: PathBuf = folder.join(RECORDING);
    let recording = Recording::load(&path).map_err(|e| ExploreError::Corrupt(e.to_string()))?;
    Ok((saved, recording))
}

fn describe(subject: &Subject, setup: &Setup, failure: &Failure, is_minimal: bool) -> Saved {
    let stream = &subject.stream;
    let lost = failure.choice.lost.iter().filter_map(|lost| {
        // One that had not been made is not lost: failures of older versions list it.
        let write = stream.writes.get(lost.write).filter(|write| write.submitted < failure.crash_event)?;
        Some(LostRequest {
            medium: match stream.media[write.medium].role {
                Role::Disk(index) => format!("disk {index}"),
                Role::Log => "log".to_owned(),
            },
            sector: write.first,
            sectors: write.count,
            lost_sectors: lost.sectors.clone(),
            at_ms: write.at_ns as f64 / 1e6,
            tag: write.tag,
            zero: write.zero,
            files: Vec::new(),
        })
    });
    let lost: Vec<LostRequest> = lost.collect();
    let cut = subject.cuts.iter().find(|cut| cut.event == failure.cut_event);
    Saved {
        version: VERSION,
        setup: setup.clone(),
        failure: failure.clone(),
        crash_ms: stream.at_ns(failure.crash_event) as f64 / 1e6,
        kept: cut
            .map_or(0, |cut| cut.volatile_at(stream, failure.crash_event).count())
            .saturating_sub(lost.len()),
        lost,
        is_minimal,
    }
}

/// Lost requests whose files are named, and blocks of each.
const NAMED_MAX: usize = 256;
const BLOCKS_NAMED_MAX: u64 = 64;

/// Says which files lost requests belong to: those of the first disk, where that is an ext4.
fn name_files(
    lost: &mut [LostRequest],
    recording: &Recording,
    subject: &Subject,
    failure: &Failure,
) -> Result<()> {
    let is_ext4 = recording.about_text("file_system").unwrap_or("ext4").starts_with("ext");
    let Some(cut) = subject.cuts.iter().find(|cut| cut.event == failure.cut_event) else { return Ok(()) };
    if !is_ext4 || lost.is_empty() {
        return Ok(());
    }
    let images = cut.state_at(&subject.stream, &Choice::default(), failure.crash_event);
    let disks = match &subject.own {
        None => images.into_iter().map(|image| Arc::new(Scratch::new(image))).collect(),
        Some(own) => own.recover(images).map_err(ExploreError::Checker)?.disks,
    };
    let Some(disk) = disks.first() else { return Ok(()) };
    let mut superblock = [0; 32];
    disk.read_at(&mut superblock, 1024).map_err(ExploreError::io("read a superblock"))?;
    // s_log_block_size.
    let block_sectors = 2_u64 << superblock[24].min(6);
    let blocks = |request: &LostRequest| {
        let (first, end) = (request.sector, request.sector + request.sectors);
        (first / block_sectors..end.div_ceil(block_sectors)).take(BLOCKS_NAMED_MAX as usize)
    };
    let named = || lost.iter().filter(|request| request.medium == "disk 0").take(NAMED_MAX);
    let all: Vec<u64> = named().flat_map(blocks).collect();
    let names = Fsck::new()?.names(&disks, &all)?;
    for request in lost.iter_mut().filter(|request| request.medium == "disk 0").take(NAMED_MAX) {
        let mut files: Vec<String> = blocks(request).filter_map(|block| names.get(&block).cloned()).collect();
        files.dedup();
        request.files = files;
    }
    Ok(())
}

/// A saved failure for people.
pub fn show(saved: &Saved, folder: &Path) -> String {
    let mut text = String::new();
    let verdict = &saved.failure.verdict;
    // Writing to a string does not fail.
    if let Some(problem) = &verdict.problem {
        let _ = writeln!(text, "{} says: {}", problem.check, problem.what);
        if problem.above_the_daemon {
            let _ = writeln!(
                text,
                "above the daemon: the disks hold exactly a prefix of the guest's own requests, and the guest does not survive it"
            );
        }
        for line in problem.evidence.lines().take(20) {
            let _ = writeln!(text, "    {line}");
        }
    }
    let _ = writeln!(
        text,
        "crash {:.3} ms after the recording began (before event {}), model {}, {} layer, {}",
        saved.crash_ms,
        saved.failure.crash_event,
        saved.setup.model.name(),
        saved.setup.layer_name(),
        saved.setup.contract
    );
    if verdict.stale_ms > 0.0 {
        let _ = writeln!(text, "what is missing had been acknowledged {:.1} ms before", verdict.stale_ms);
    }
    let kept = format!("{} others that were in the cache or in flight are there", saved.kept);
    let _ = match (saved.lost.len(), saved.is_minimal) {
        (0, _) => writeln!(text, "lost: nothing; it fails with all that had been asked for ({kept})"),
        (1, true) => writeln!(text, "lost: 1 request, and the failure needs it; {kept}"),
        (lost, true) => {
            writeln!(text, "lost: {lost} requests, and the failure needs every one of them; {kept}")
        }
        (lost, false) => writeln!(text, "lost: {lost} requests; {kept}"),
    };
    for lost in &saved.lost {
        let _ = writeln!(
            text,
            "  {:<7} sector {:>9} + {:<5} {:>11.3} ms  {}{}{}{}",
            lost.medium,
            lost.sector,
            lost.sectors,
            lost.at_ms,
            lost.tag.describe(),
            if lost.zero { " (zeroes)" } else { "" },
            if lost.files.is_empty() { String::new() } else { format!(" of {}", lost.files.join(", ")) },
            match &lost.lost_sectors {
                None => String::new(),
                Some(ranges) => format!(
                    ", torn: only sectors {} of it are lost",
                    ranges.iter().map(|(a, b)| format!("{a}..{b}")).collect::<Vec<_>>().join(", ")
                ),
            }
        );
    }
    let _ = writeln!(text, "\nrepeat it:        afterimage explore replay {}", folder.display());
    let _ = writeln!(text, "get the image:    afterimage explore replay {} --image FILE", folder.display());
    text
}
