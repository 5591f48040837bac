//! Which cells, in which order, with a word about how long it will take.
//!
//! A round of virtual time is a seed. In real time the modes of one workload follow each other within a round, starting at another mode
//! each round, so that a slow drift of the machine meets every mode alike. A figure that compares with a plain cell brings that cell along.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bench::Bench;
use crate::catalog::{
    Device, Figure, JournalPolicy, Kind, Mode, Setup, Workload, RECORDS_KIB, ROOMY_JOURNALS_MIB,
};
use crate::cell;
use crate::record::{CellKey, Record, Sample, Store};
use crate::template::Templates;
use crate::virtual_cell::{self, World};
use afterimage_bench_kit::{is_chosen, BenchError, CellIdentity, Result};
use afterimage_report::number::MIB;

/// What a cell with one guest takes in real time before any like it has been measured: `--quick`, and the full sizes.
const GUESS: [Duration; 2] = [Duration::from_secs(12), Duration::from_secs(40)];

/// Fig. 14's guests are large: no more than these at once, or they and their disks would not fit in a machine's memory.
const ROOMY_GUESTS: u32 = 4;

/// What was asked for.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Parts of the evaluation.
    pub figures: Vec<Figure>,
    /// Workloads.
    pub workloads: Vec<Workload>,
    /// Devices.
    pub devices: Vec<Device>,
    /// Modes; none means what a figure has: with several guests at once the bounds are left out.
    pub modes: Vec<Mode>,
    /// How many guests at once.
    pub guests: Vec<u32>,
    /// Contracts.
    pub contracts: Vec<String>,
    /// Rounds.
    pub rounds: u32,
    /// Patterns of [`CellKey::path`]; none means all.
    pub only: Vec<String>,
}

/// One device and contract in one round.
#[derive(Clone, Copy)]
struct Scene<'a> {
    device: Device,
    contract: &'a str,
    round: u32,
}

impl Scene<'_> {
    fn key(&self, kind: Kind, workload: Workload, mode: Mode, guests: u32, setup: Setup) -> CellKey {
        CellKey {
            kind,
            device: self.device,
            guests,
            contract: self.contract.to_owned(),
            setup,
            workload,
            mode,
            round: self.round,
        }
    }
}

/// The cells in order, each once.
///
/// # Errors
/// Nothing is left of what was asked for.
pub fn cells(selection: &Selection) -> Result<Vec<CellKey>> {
    let mut keys = Vec::new();
    for round in 1..=selection.rounds {
        for contract in &selection.contracts {
            for device in &selection.devices {
                let scene = Scene { device: *device, contract, round };
                for figure in &selection.figures {
                    keys.extend(figure_cells(*figure, &scene, selection));
                }
            }
        }
    }
    let mut seen = BTreeSet::new();
    keys.retain(|key| {
        is_possible(key)
            && (key.workload == Workload::Records || selection.workloads.contains(&key.workload))
            && (selection.modes.is_empty() || selection.modes.contains(&key.mode))
            && is_chosen(&selection.only, &key.path())
            && seen.insert(key.clone())
    });
    if keys.is_empty() {
        return Err(BenchError::Usage(
            "nothing is left of what was asked for: --only takes WORKLOAD/DEVICE/MODE/xGUESTS/CONTRACT, each part a name or *"
                .to_owned(),
        ));
    }
    Ok(keys)
}

fn figure_cells(figure: Figure, scene: &Scene<'_>, selection: &Selection) -> Vec<CellKey> {
    let mut keys = Vec::new();
    let run = |workload, mode, guests, setup| scene.key(Kind::Run, workload, mode, guests, setup);
    let most = selection.guests.iter().copied().max().unwrap_or(1);
    let turned = |modes: &[Mode]| {
        let mut modes = modes.to_vec();
        let count = modes.len();
        modes.rotate_left((scene.round as usize - 1) % count);
        modes
    };
    let journaling = [Mode::Writeback, Mode::Ordered, Mode::Journal, Mode::JournalRetain, Mode::Vma];
    match figure {
        Figure::Main => {
            for guests in &selection.guests {
                let bounds = *guests == 1 || !selection.modes.is_empty();
                let modes = if bounds { &Mode::ALL[..] } else { &journaling };
                for workload in Workload::ALL {
                    for mode in turned(modes) {
                        keys.push(run(workload, mode, *guests, Setup::Plain));
                    }
                }
            }
        }
        Figure::Table3 => {
            for workload in [Workload::Postmark, Workload::Untar, Workload::Build, Workload::BuildFiles] {
                for mode in turned(&[&journaling[..], &[Mode::OrderedRetain]].concat()) {
                    // At a part of what time? Of this one's.
                    keys.push(run(workload, mode, 1, Setup::Plain));
                    keys.push(scene.key(Kind::KillGuest, workload, mode, 1, Setup::Plain));
                    if mode.policy() == JournalPolicy::Retain {
                        keys.push(scene.key(Kind::KillBoth, workload, mode, 1, Setup::Plain));
                    }
                }
            }
        }
        Figure::Fig12 => {
            // Larger ones need larger guests, as Fig. 14's.
            let sizes = [16, 32, 128].map(Setup::JournalMib);
            let commits = [1, 15, 30].map(Setup::CommitS);
            for workload in [Workload::Postmark, Workload::Untar] {
                for mode in turned(&[Mode::Journal, Mode::JournalRetain, Mode::Vma]) {
                    for setup in [Setup::Plain].iter().chain(&sizes).chain(&commits) {
                        keys.push(run(workload, mode, 1, *setup));
                    }
                }
            }
        }
        Figure::Fig14 => {
            for workload in Workload::ALL {
                for mode in turned(&[Mode::Journal, Mode::JournalRetain]) {
                    for journal_mib in ROOMY_JOURNALS_MIB {
                        keys.push(run(workload, mode, most.min(ROOMY_GUESTS), Setup::Roomy(journal_mib)));
                    }
                }
            }
        }
        Figure::Fig15 => {
            for workload in [Workload::Postmark, Workload::Untar] {
                for mode in turned(&journaling) {
                    keys.push(run(workload, mode, most, Setup::Plain));
                    keys.push(run(workload, mode, most, Setup::Aged));
                }
            }
        }
        Figure::Fig16 => {
            for workload in Workload::ALL {
                keys.push(run(workload, Mode::Journal, most, Setup::Plain));
                keys.push(run(workload, Mode::JournalRetain, most, Setup::Plain));
                keys.push(run(workload, Mode::Journal, most, Setup::RamJournal));
            }
        }
        Figure::Fig19 => {
            // What is asked is which blocks are there, and not how soon: one device says it.
            for kib in RECORDS_KIB.into_iter().filter(|_| scene.device == Device::Hdd15k) {
                for mode in [&journaling[..], &[Mode::OrderedRetain]].concat() {
                    keys.push(scene.key(Kind::KillGuest, Workload::Records, mode, 1, Setup::Records(kib)));
                }
            }
        }
        Figure::Vflush => {
            for workload in Workload::ALL {
                for setup in [Setup::Plain, Setup::Vflush] {
                    keys.push(run(workload, Mode::JournalRetain, 1, setup));
                }
            }
        }
    }
    keys
}

/// `power` and retention do not go together, and dropping the journal has no contract but `guest-crash`'s.
/// On the machine's own disk nobody counts what a dying daemon still writes, and guests have no vext4.
fn is_possible(key: &CellKey) -> bool {
    let contract = match key.mode.policy() {
        JournalPolicy::Passthrough => true,
        JournalPolicy::Retain => key.contract != "power",
        JournalPolicy::Drop => key.contract == "guest-crash",
    };
    contract && (key.device.is_model() || (key.kind == Kind::Run && !key.mode.hands_over()))
}

/// What is needed to run cells, and where they are kept.
pub struct Run<'a> {
    /// Of those in real time.
    pub bench: Bench<'a>,
    /// Of those in virtual time; `None` where none is to be run.
    pub world: Option<World<'a>>,
    /// What is finished.
    pub store: Mutex<Store>,
    /// Disks.
    pub templates: Mutex<Templates>,
}

/// At which part of the work's time a guest dies, by round: around the half, as in the paper, and never twice at the same.
const KILLED_AT: [f64; 5] = [0.50, 0.40, 0.60, 0.45, 0.55];

impl Run<'_> {
    /// Measures a cell, keeps it at once, and says in a few words what came out.
    ///
    /// # Errors
    /// Anything that keeps it from a result.
    pub fn measure_and_keep(&self, key: &CellKey) -> Result<String> {
        let (record, samples) = self.cell(key)?;
        let words = match &record.recovery {
            _ if !record.records.is_empty() => {
                let mixed = record.records.iter().filter(|found| found.mixed > 0).count();
                format!("{mixed} of {} left records in pieces", record.records.len())
            }
            Some(recovery) => format!(
                "recovered in {:.2} s, {:.1} MiB moved",
                recovery.total_s(),
                recovery.traffic_bytes() as f64 / MIB
            ),
            None => format!(
                "{:.2} s, {:.0} MiB stored",
                record.elapsed_s(),
                record.storage.write_bytes as f64 / MIB
            ),
        };
        self.store().add(record, samples)?;
        Ok(words)
    }

    /// What is finished so far.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cell(&self, key: &CellKey) -> Result<(Record, Vec<Sample>)> {
        let template = {
            let mut templates = self.templates.lock().unwrap_or_else(PoisonError::into_inner);
            templates.get(key.workload, key.mode, key.setup)?
        };
        let Some(world) = self.world.as_ref().filter(|_| key.device.is_model()) else {
            return cell::run(key, &self.bench, &template);
        };
        if key.kind == Kind::Run || key.workload == Workload::Records {
            return virtual_cell::run(key, world, &template, None);
        }
        // Of the same seed's work: it goes on in the same way until it is killed.
        let whole =
            self.store().cells.get(&CellKey { kind: Kind::Run, ..key.clone() }).map(Record::elapsed_s);
        let unknown = || BenchError::Workload("how long the work takes was not measured".to_owned());
        let part = KILLED_AT[(key.round as usize - 1) % KILLED_AT.len()];
        virtual_cell::run(key, world, &template, Some(whole.ok_or_else(unknown)? * part))
    }
}

/// Cells in real time, one after the other.
pub struct InRealTime<'a>(pub &'a Run<'a>);

impl afterimage_bench_kit::Bench for InRealTime<'_> {
    type Cell = CellKey;
    type Outcome = ();

    fn name(&self, key: &CellKey) -> String {
        CellIdentity::name(key)
    }

    /// What cells like this one took.
    fn estimate(&self, key: &CellKey) -> Option<Duration> {
        let store = self.0.store();
        let mean = |like: &dyn Fn(&CellKey) -> bool| {
            let walls: Vec<f64> = store.cells.records().filter(|r| like(&r.key)).map(|r| r.wall_s).collect();
            (!walls.is_empty())
                .then(|| Duration::from_secs_f64(walls.iter().sum::<f64>() / walls.len() as f64))
        };
        mean(&|other| other.without_round() == key.without_round())
            .or_else(|| {
                mean(&|other| {
                    (other.workload, other.device, other.guests) == (key.workload, key.device, key.guests)
                })
            })
            .or(Some(GUESS[usize::from(self.0.bench.scale.name != "quick")] * key.guests))
    }

    fn measure(&mut self, key: &CellKey) -> Result<((), String)> {
        Ok(((), self.0.measure_and_keep(key)?))
    }

    /// It was kept when it was measured.
    fn keep(&mut self, (): ()) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection() -> Selection {
        Selection {
            figures: Figure::ALL.to_vec(),
            workloads: Workload::ALL.to_vec(),
            devices: Device::ALL.to_vec(),
            modes: Mode::ALL.to_vec(),
            guests: vec![1, 8],
            contracts: vec!["guest-crash".to_owned()],
            rounds: 2,
            only: Vec::new(),
        }
    }

    #[test]
    fn every_cell_comes_once_and_the_main_ones_are_all_there() {
        let keys = cells(&selection()).unwrap();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        let main = |key: &&CellKey| key.kind == Kind::Run && key.setup == Setup::Plain;
        // On the machine's disk nothing is handed over.
        assert_eq!(keys.iter().filter(main).count(), 2 * (3 * 9 - 1) * 2 * 7);
        // What nobody named is what the figures have.
        let keys = cells(&Selection { modes: Vec::new(), ..selection() }).unwrap();
        assert_eq!(keys.iter().filter(main).count(), 2 * (3 * (9 + 5) - 2) * 7);
        let first = |round| keys.iter().find(|key| key.round == round).map(|key| key.mode);
        assert_eq!((first(1), first(2)), (Some(Mode::Writeback), Some(Mode::Ordered)));
    }

    #[test]
    fn who_is_killed_has_been_timed_before() {
        let keys = cells(&Selection { figures: vec![Figure::Table3], ..selection() }).unwrap();
        for (at, key) in keys.iter().enumerate().filter(|(_, key)| key.kind != Kind::Run) {
            let base = CellKey { kind: Kind::Run, ..key.clone() };
            assert!(keys[..at].contains(&base), "{}", key.path());
        }
    }

    #[test]
    fn records_are_killed_on_one_device_whatever_workloads_are_asked_for() {
        let keys = cells(&Selection {
            figures: vec![Figure::Fig19],
            workloads: vec![Workload::Untar],
            ..selection()
        })
        .unwrap();
        assert_eq!(keys.len(), 2 * RECORDS_KIB.len() * 6);
        assert!(keys.iter().all(|key| key.device == Device::Hdd15k && key.kind == Kind::KillGuest));
        assert!(!keys.iter().any(|key| key.mode.policy() == JournalPolicy::Drop));
    }

    #[test]
    fn power_has_neither_retention_nor_bound_a() {
        let contracts = vec!["power".to_owned()];
        let keys = cells(&Selection { contracts, ..selection() }).unwrap();
        assert!(keys.iter().all(|key| key.mode.policy() == JournalPolicy::Passthrough));
    }

    #[test]
    fn patterns_choose() {
        let only = |pattern: &str| {
            let selection =
                Selection { only: vec![pattern.to_owned()], figures: vec![Figure::Main], ..selection() };
            cells(&selection).map(|keys| keys.len())
        };
        assert_eq!(only("postmark/hdd15k/journal/x8").unwrap(), 2);
        assert_eq!(only("*/ssd/ordered").unwrap(), 2 * 2 * 7);
        assert!(only("postmrak").is_err());
    }
}
