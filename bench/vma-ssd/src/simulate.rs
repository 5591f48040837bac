//! The traces of a workload and a seed on simulated drives: one drive for all modes, aged alike.
//!
//! ```text
//!   traces of all modes ─► union of what they touch ─► drive ─► age ─► each mode's trace ─► results/NAME.json
//! ```
//! Were each mode's region its own, the journal mode's would be larger by its journal, and so would its spare space.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use afterimage_bench_kit::{BenchError, Result};
use afterimage_bench_vma::catalog::Workload;
use afterimage_bench_vma::scale::DISK_BYTES;
use afterimage_flash::control::{Control, RunError};
use afterimage_flash::geometry::Geometry;
use afterimage_flash::place::RunOptions;
use afterimage_flash::place::{Precondition, Region};
use afterimage_flash::scan::Scan;
use afterimage_flash::sim;
use afterimage_flash::trace::{Class, Classes, Options, Prefetch};
use afterimage_flash::{Config, FtlKind};
use afterimage_report::note;
use parking_lot::Mutex;

use crate::record::{Age, Cell, Simulated, SimulationKey, Store};
use crate::study::Variant;

/// What is to be simulated of one workload and seed.
#[derive(Clone, Debug)]
pub struct Drives {
    /// What the guests did.
    pub workload: Workload,
    /// Of everything random in them.
    pub seed: u32,
    /// Variants whose traces there are.
    pub variants: Vec<Variant>,
    /// [`crate::record::Captured::at_ns`] of the traces.
    pub traces: Vec<u64>,
    /// FTLs.
    pub ftls: Vec<FtlKind>,
    /// Drives.
    pub ages: Vec<Age>,
}

impl Drives {
    /// Every simulation, in order.
    pub fn keys(&self) -> Vec<SimulationKey> {
        let mut keys = Vec::new();
        for age in &self.ages {
            for ftl in &self.ftls {
                for variant in &self.variants {
                    let (workload, variant, ftl, age) = (self.workload, *variant, *ftl, *age);
                    keys.push(SimulationKey { workload, variant, ftl, age });
                }
            }
        }
        keys
    }
}

fn reading(variant: Variant) -> Options {
    let classes = match variant {
        Variant::Derived => Classes::of(&[Class::Home, Class::Log]),
        _ => Classes::default(),
    };
    Options { strict: true, classes, ..Options::default() }
}

fn failed(what: impl std::fmt::Display) -> BenchError {
    BenchError::Workload(what.to_string())
}

/// Simulates what is not simulated yet, two at a time.
///
/// # Errors
/// A trace cannot be read, or a result cannot be written.
pub fn run(drives: &Drives, store: &Store, guests: u32, control: &Control) -> Result<()> {
    let mut todo: Vec<SimulationKey> = Vec::new();
    for key in drives.keys() {
        if store.simulated(&key, drives.seed, &drives.traces)?.is_none() {
            todo.push(key);
        }
    }
    if todo.is_empty() {
        return Ok(());
    }
    note(&format!("[simulate] {}, seed {}: {} drives\n", drives.workload.name(), drives.seed, todo.len()));
    let (workload, seed) = (drives.workload, drives.seed);
    let files = |variant: Variant| store.trace_files(Cell { workload, mode: variant.mode(), seed });
    let base = Config::default();
    let mut union = Scan::new(base.geometry);
    for variant in drives.variants.iter().filter(|v| **v != Variant::Derived) {
        add(&mut union, &files(*variant), &reading(*variant), control)?;
    }
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<BenchError>> = Mutex::new(None);
    let worker = || loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(key) = todo.get(at) else { return };
        let done = simulate(key, &files(key.variant), &base, &union, guests, control)
            .map(|report| Simulated::new(key.clone(), seed, drives.traces.clone(), &report))
            .map_err(|e| failed(format!("{} on {}: {e}", key.workload.name(), key.ftl)))
            .and_then(|simulated| store.keep_simulated(&simulated));
        if let Err(error) = done {
            next.store(todo.len(), Ordering::Relaxed);
            failure.lock().get_or_insert(error);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(todo.len());
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(worker))));
    failure.into_inner().map_or(Ok(()), Err)
}

fn add(union: &mut Scan, files: &[PathBuf], read: &Options, control: &Control) -> Result<()> {
    let mut trace = Prefetch::open(files, read).map_err(failed)?;
    while let Some(batch) = trace.next_batch().map_err(failed)? {
        for request in &batch {
            union.add(request).map_err(failed)?;
        }
        if control.stop.load(Ordering::Relaxed) {
            return Err(failed(RunError::Interrupted));
        }
    }
    Ok(())
}

fn simulate(
    key: &SimulationKey,
    files: &[PathBuf],
    base: &Config,
    union: &Scan,
    guests: u32,
    control: &Control,
) -> std::result::Result<afterimage_flash::report::Report, RunError> {
    let mut config = base.clone();
    let precondition = match key.age {
        Age::Region => Precondition::Region,
        Age::Drive => {
            config.geometry = whole_drive(guests);
            Precondition::Drive
        }
    };
    let options = RunOptions { precondition, region: Region::Pages, ..RunOptions::default() };
    let trace = Prefetch::open(files, &reading(key.variant))?;
    sim::run(&config, key.ftl, union, trace, &options, control)
}

/// The drive that holds all virtual disks: eight of them are the study's 262 144 blocks, and the spare share is on top.
pub fn whole_drive(guests: u32) -> Geometry {
    Config::for_drive_of(u64::from(guests) * DISK_BYTES).geometry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_disks_are_the_studys_flash() {
        for guests in [1, 2, 4, 8] {
            let config = Config { geometry: whole_drive(guests), ..Config::default() };
            assert_eq!(config.drive_blocks(), guests * 32_768, "{guests}");
        }
        assert_eq!(8 * 32_768, Geometry::default().blocks);
    }
}
