//! Which cells, in which order, with a word about how long it will take.
//!
//! The rows of one workload on one device follow each other within a round, starting at another row each round,
//! so that a slow drift of the machine meets every row alike.

use std::path::Path;

use crate::catalog::{Device, Row, Workload};
use crate::cell;
use crate::record::{CellKey, Record, Store};
use crate::scale::Scale;
use crate::template::Templates;
use afterimage_bench_kit::{check_only, is_chosen, Bench, CellIdentity, Result};

/// The cells in order.
///
/// # Errors
/// A pattern matches nothing.
pub fn cells(devices: &[Device], rounds: u32, only: &[String]) -> Result<Vec<CellKey>> {
    let paths: Vec<String> = all(&Device::ALL, 1).iter().map(CellKey::path).collect();
    check_only(only, &paths, "workload/device/row, as in varmail/hdd15k/window")?;
    // A pattern that names a device asks for that device.
    let named: Vec<Device> = Device::ALL
        .into_iter()
        .filter(|device| {
            devices.contains(device) || only.iter().any(|p| p.split('/').nth(1) == Some(device.name()))
        })
        .collect();
    let mut keys = all(&named, rounds);
    keys.retain(|key| is_chosen(only, &key.path()));
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

/// What is needed to run cells, and where they are kept.
pub struct Run<'a> {
    /// Sizes.
    pub scale: &'a Scale,
    /// The folder for images on the machine's own disk.
    pub scratch: &'a Path,
    /// What is finished.
    pub store: Store,
    /// Disks.
    pub templates: Templates,
}

impl Bench for Run<'_> {
    type Cell = CellKey;
    type Outcome = Record;

    fn name(&self, key: &CellKey) -> String {
        CellIdentity::name(key)
    }

    fn measure(&mut self, key: &CellKey) -> Result<(Record, String)> {
        let template = self.templates.get(key.workload)?;
        let record = cell::run(*key, self.scale, &template, self.scratch)?;
        let fsync = record.fsync.map_or(String::new(), |f| format!(", fsync p50 {:.0} µs", f.p50_us));
        let words = format!("{:.1} {}/s{fsync}", record.ops_per_s, key.workload.unit());
        Ok((record, words))
    }

    fn keep(&mut self, record: Record) -> Result<()> {
        self.store.add(record)
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
