//! The traces: guests at work in virtual time, over daemons whose requests to storage are written down.
//!
//! ```text
//!   template ─► cell of `bench/vma`, traced ─► traces/NAME.new ─► traces/NAME
//! ```

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use afterimage_bench_kit::{Context, Result};
use afterimage_bench_vma::catalog::{Device, Kind, Setup};
use afterimage_bench_vma::record::CellKey;
use afterimage_bench_vma::template::Templates;
use afterimage_bench_vma::virtual_cell::{self, World};
use afterimage_report::number::MIB;

use crate::record::{Captured, Cell, Store, VERSION};

/// What is needed to trace, and where traces are kept.
pub struct Capture<'a> {
    /// At once.
    pub guests: u32,
    /// Below the daemons.
    pub device: Device,
    /// What all cells have in common.
    pub world: World<'a>,
    /// What is there.
    pub store: &'a Store,
    /// Disks.
    pub templates: Mutex<Templates>,
}

impl Capture<'_> {
    /// For people.
    pub fn name(&self, Cell { workload, mode, seed }: &Cell) -> String {
        format!("trace {}/{}/x{}/{}/s{seed}", workload.name(), mode.name(), self.guests, self.device.name())
    }

    /// Makes the traces of a cell, and says in a few words what came out. They are moved to their place when they are whole.
    ///
    /// # Errors
    /// Anything that keeps the guests from their end, or the traces from their place.
    pub fn trace(&self, cell: &Cell) -> Result<String> {
        let (store, Cell { workload, mode, seed }) = (self.store, *cell);
        let fresh = store.trace_folder(*cell).with_extension("new");
        if fresh.exists() {
            // What an interrupted run has left.
            fs::remove_dir_all(&fresh).context(|| format!("remove {}", fresh.display()))?;
        }
        fs::create_dir_all(&fresh).context(|| format!("make {}", fresh.display()))?;
        let key = CellKey {
            kind: Kind::Run,
            device: self.device,
            guests: self.guests,
            contract: "guest-crash".to_owned(),
            setup: Setup::Plain,
            workload,
            mode,
            round: seed,
        };
        let template = {
            let mut templates = self.templates.lock().unwrap_or_else(PoisonError::into_inner);
            templates.get(workload, mode, Setup::Plain)?
        };
        let world = World { traces: Some(&fresh), ..self.world.clone() };
        let (record, _) = virtual_cell::run(&key, &world, &template, None)?;
        let at_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let captured = Captured { version: VERSION, at_ns, record };
        store.keep_traces(&fresh, &captured)?;
        let stored = captured.record.storage.write_bytes as f64 / MIB;
        Ok(format!("{:.1} s of work, {stored:.0} MiB stored", captured.record.elapsed_s()))
    }
}
