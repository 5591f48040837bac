//! The states that all ways of checking are measured on.

use std::collections::HashSet;
use std::path::Path;

use afterimage_explore::campaign::Subject;
use afterimage_explore::model::{state_digest, Model};
use afterimage_explore::record::{record as record_guest, RecordOptions};
use afterimage_explore::schedule::{Item, Picking, Schedule};
use afterimage_explore::setup::{atomic_bytes, Level, Setup};
use afterimage_explore::{check::apps, derive, ExploreError, Result};
use afterimage_trace::{Layer, Recording};

/// A log that is small enough to wrap and to be read in no time, as the target asks for: pure recovery.
const LOG_AREA_BYTES: u64 = 64 * 4096;

/// A prepared stream and some of its states, all different.
pub struct States {
    /// The stream.
    pub subject: Subject,
    /// Which.
    pub states: Vec<Item>,
}

/// Acknowledged records on a 64 MiB ext4.
pub fn record(path: &Path) -> Result<Recording> {
    let app = apps::records_workload(300, 4096, 2);
    let contract =
        "power".parse().map_err(|_| ExploreError::Usage("power is no contract any more".to_owned()))?;
    record_guest(&RecordOptions {
        force: true,
        setup: app.setup,
        check: Some(app.check.to_text()),
        ..RecordOptions::new(path.to_owned(), contract, app.command)
    })?;
    Recording::load(path).map_err(|e| ExploreError::Corrupt(e.to_string()))
}

/// States of the guest's own disk.
pub fn of_disk(recording: &Recording, seed: u64, count: usize) -> Result<States> {
    let setup = Setup {
        layer: Layer::Guest,
        level: Level::Mount,
        atomic_bytes: atomic_bytes(recording, Layer::Guest),
        ..setup(recording, seed)?
    };
    distinct(setup.subject(recording)?, count)
}

/// States of the redo log and the image under it, for the same requests.
pub fn of_log(recording: &Recording, seed: u64, count: usize) -> Result<States> {
    let derived = derive::under(recording, "power-window=20ms", false, LOG_AREA_BYTES, seed)?;
    distinct(setup(&derived, seed)?.subject(&derived)?, count)
}

fn setup(recording: &Recording, seed: u64) -> Result<Setup> {
    Ok(Setup {
        model: Model::Disk,
        level: Level::Log,
        picking: Picking::Rounds,
        seed,
        ..Setup::of(recording)?
    })
}

fn distinct(subject: Subject, count: usize) -> Result<States> {
    let mut seen = HashSet::new();
    let schedule = Schedule::new(&subject.stream, &subject.cuts, subject.picking, subject.seed);
    let states: Vec<Item> = schedule
        // A stream with few states is looked at to its end.
        .take(count * 50)
        .filter(|item| {
            seen.insert(state_digest(&subject.cuts[item.cut].state_at(
                &subject.stream,
                &item.choice,
                item.crash.crash,
            )))
        })
        .take(count)
        .collect();
    Ok(States { states, subject })
}
