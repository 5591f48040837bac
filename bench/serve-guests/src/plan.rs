//! Which cells, in which order, with a word about how long it will take.
//!
//! The rows of one workload on one device follow each other within a round, starting at another row each round,
//! so that a slow drift of the machine meets every row alike.

use std::path::Path;
use std::time::{Duration, Instant};

use afterimage_lab::process::Workdir;

use crate::catalog::{Device, Row, Workload};
use crate::cell;
use crate::error::{BenchError, Result};
use crate::record::{CellKey, Store};
use crate::scale::Scale;
use crate::template::Templates;
use afterimage_lab::calm;

/// What a cell takes before any has been measured.
const GUESS: Duration = Duration::from_secs(13);

/// The cells in order.
///
/// # Errors
/// A pattern matches nothing.
pub fn cells(devices: &[Device], rounds: u32, only: &[String]) -> Result<Vec<CellKey>> {
    for pattern in only {
        if !all(&Device::ALL, 1).iter().any(|key| matches(pattern, key)) {
            return Err(BenchError::Usage(format!(
                "--only {pattern} matches no cell: write workload/device/row, as in varmail/hdd15k/window"
            )));
        }
    }
    // A pattern that names a device asks for that device.
    let named: Vec<Device> = Device::ALL
        .into_iter()
        .filter(|device| {
            devices.contains(device) || only.iter().any(|p| p.split('/').nth(1) == Some(device.name()))
        })
        .collect();
    let mut keys = all(&named, rounds);
    keys.retain(|key| only.is_empty() || only.iter().any(|pattern| matches(pattern, key)));
    Ok(keys)
}

fn all(devices: &[Device], rounds: u32) -> Vec<CellKey> {
    let mut keys = Vec::new();
    for round in 1..=rounds {
        for device in devices {
            for workload in Workload::ALL {
                for at in 0..Row::ALL.len() {
                    let row = Row::ALL[(at + round as usize - 1) % Row::ALL.len()];
                    if device.has(row) {
                        keys.push(CellKey { workload, device: *device, row, round });
                    }
                }
            }
        }
    }
    keys
}

fn matches(pattern: &str, key: &CellKey) -> bool {
    let names = [key.workload.name(), key.device.name(), key.row.name()];
    let parts: Vec<&str> = pattern.split('/').collect();
    parts.len() <= names.len() && parts.iter().zip(names).all(|(part, name)| *part == "*" || *part == name)
}

/// Runs what is not finished yet. Cells that failed are returned with the reason; they do not stop the others.
///
/// # Errors
/// Results can not be written.
pub fn run(
    keys: &[CellKey],
    scale: &Scale,
    mut store: Store,
    out: &Path,
    calm: Duration,
) -> Result<Vec<(CellKey, BenchError)>> {
    let todo: Vec<CellKey> = keys.iter().copied().filter(|key| !store.has(key)).collect();
    let kept = keys.len() - todo.len();
    if kept > 0 {
        eprintln!(
            "{kept} of {} cells are finished already and are kept (--fresh runs them again)",
            keys.len()
        );
    }
    // In memory: copying a template must not warm or wear the device under test.
    let folder = Workdir::new_in(Path::new("/dev/shm"), "bench-templates")?;
    let scratch = out.join("scratch");
    let mut templates = Templates::new(folder.path().to_owned(), scale.clone());
    let mut failed = Vec::new();
    let started = Instant::now();
    for (at, key) in todo.iter().enumerate() {
        let each = if at == 0 { GUESS } else { started.elapsed() / at as u32 };
        let left = each * (todo.len() - at) as u32;
        eprint!(
            "[{}/{}, about {} left] {} round {} ",
            at + 1,
            todo.len(),
            minutes(left),
            key.path(),
            key.round
        );
        let outcome = templates.get(key.workload).and_then(|template| {
            calm::wait(calm)?;
            cell::run(*key, scale, &template, &scratch)
        });
        match outcome {
            Ok(record) => {
                let fsync = record.fsync.map_or(String::new(), |f| format!(", fsync p50 {:.0} µs", f.p50_us));
                eprintln!(
                    "{:.1} {}/s{fsync} ({:.1} s)",
                    record.ops_per_s,
                    key.workload.unit(),
                    record.wall_s
                );
                store.add(record)?;
            }
            Err(error) => {
                eprintln!("FAILED: {error}");
                failed.push((*key, error));
            }
        }
    }
    Ok(failed)
}

fn minutes(time: Duration) -> String {
    match time.as_secs() {
        s if s < 90 => format!("{s} s"),
        s => format!("{} min", s.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_every_row_and_starts_elsewhere() {
        let keys = cells(&[Device::Ssd], 2, &[]).unwrap();
        assert_eq!(keys.len(), 2 * 9 * 7);
        assert_eq!((keys[0].row, keys[63].row), (Row::Nested, Row::Writeback));
    }

    #[test]
    fn patterns_choose() {
        let only = |p: &str| cells(&[Device::Hdd15k], 1, &[p.to_owned()]).map(|keys| keys.len());
        assert_eq!(only("varmail").unwrap(), 7);
        assert_eq!(only("varmail/hdd15k/window").unwrap(), 1);
        assert_eq!(only("*/disk/window-full").unwrap(), 9);
        assert!(only("varmial").is_err());
        assert!(only("varmail/hdd15k/window/x").is_err());
    }
}
