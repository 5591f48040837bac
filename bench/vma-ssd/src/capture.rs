//! The traces: guests at work over daemons that write down what reaches storage.
//!
//! ```text
//!   template ─► cell of `bench/vma`, its daemons with --trace ─► traces/NAME.new ─► traces/NAME
//! ```

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use afterimage_bench_kit::{Bench, Context, Result};
use afterimage_bench_vma::catalog::{Device, Kind, Mode, Setup, Workload};
use afterimage_bench_vma::cell;
use afterimage_bench_vma::record::CellKey;
use afterimage_bench_vma::scale::Scale;
use afterimage_bench_vma::source::Sources;
use afterimage_bench_vma::template::Templates;
use afterimage_report::number::MIB;

use crate::record::{Captured, Store, VERSION};

/// What is needed to trace, and where traces are kept.
pub struct Capture<'a> {
    /// Sizes.
    pub scale: &'a Scale,
    /// At once.
    pub guests: u32,
    /// Below the daemons.
    pub device: Device,
    /// A guest that takes longer is killed.
    pub limit: Duration,
    /// What is there.
    pub store: &'a Store,
    /// The Linux source tree.
    pub sources: &'a Sources,
    /// Disks.
    pub templates: Templates,
}

impl Bench for Capture<'_> {
    type Cell = (Workload, Mode);
    type Outcome = ();

    fn name(&self, (workload, mode): &Self::Cell) -> String {
        format!("trace {}/{}/x{}/{}", workload.name(), mode.name(), self.guests, self.device.name())
    }

    fn measure(&mut self, (workload, mode): &Self::Cell) -> Result<((), String)> {
        let captured = self.trace(*workload, *mode)?;
        let record = &captured.record;
        let stored = record.storage.write_bytes as f64 / MIB;
        Ok(((), format!("{:.1} s of work, {stored:.0} MiB stored", record.elapsed_s())))
    }

    /// A trace is moved to its place when it is whole.
    fn keep(&mut self, (): ()) -> Result<()> {
        Ok(())
    }
}

impl Capture<'_> {
    fn trace(&mut self, workload: Workload, mode: Mode) -> Result<Captured> {
        let store = self.store;
        let fresh = store.trace_folder(workload, mode).with_extension("new");
        if fresh.exists() {
            // What an interrupted run has left.
            fs::remove_dir_all(&fresh).context(|| format!("remove {}", fresh.display()))?;
        }
        fs::create_dir_all(&fresh).context(|| format!("make {}", fresh.display()))?;
        // The daemons have working folders of their own.
        let traces = fresh.canonicalize().context(|| format!("look at {}", fresh.display()))?;
        let key = CellKey {
            kind: Kind::Run,
            device: self.device,
            guests: self.guests,
            contract: "guest-crash".to_owned(),
            setup: Setup::Plain,
            workload,
            mode,
            round: 1,
        };
        let bench = afterimage_bench_vma::bench::Bench {
            scale: self.scale,
            sources: self.sources,
            scratch: &store.folder().join("scratch"),
            evidence: &store.folder().join("evidence"),
            retain_max: None,
            limit: self.limit,
            traces: Some(&traces),
        };
        let template = self.templates.get(workload, mode, Setup::Plain)?;
        let (record, _) = cell::run(&key, &bench, &template)?;
        let at_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let captured = Captured { version: VERSION, at_ns, record };
        store.keep_traces(&fresh, &captured)?;
        Ok(captured)
    }
}
