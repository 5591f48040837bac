//! The traces: guests at work over daemons that write down what reaches storage.
//!
//! ```text
//!   template ─► cell of `bench/vma`, its daemons with --trace ─► traces/NAME.new ─► traces/NAME
//! ```

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use afterimage_bench_vma::catalog::{Device, Kind, Mode, Setup, Workload};
use afterimage_bench_vma::cell::{self, Bench};
use afterimage_bench_vma::error::{BenchError, Context, Result};
use afterimage_bench_vma::record::CellKey;
use afterimage_bench_vma::scale::Scale;
use afterimage_bench_vma::source::Sources;
use afterimage_bench_vma::template::Templates;
use afterimage_lab::calm;
use afterimage_lab::locate;
use afterimage_lab::process::Workdir;

use crate::record::{Captured, Store, VERSION};

/// How guests are run.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Sizes.
    pub scale: &'a Scale,
    /// At once.
    pub guests: u32,
    /// Below the daemons.
    pub device: Device,
    /// What is to be traced.
    pub cells: &'a [(Workload, Mode)],
    /// A guest that takes longer is killed.
    pub limit: Duration,
    /// How long to wait for a calm machine before each cell.
    pub patience: Duration,
}

/// Traces what is not traced yet. Cells that failed are returned with the reason; they do not stop the others.
///
/// # Errors
/// Nothing can be written.
pub fn run(plan: &Plan<'_>, store: &Store) -> Result<Vec<(String, BenchError)>> {
    let mut todo = Vec::new();
    for cell in plan.cells {
        if store.captured(cell.0, cell.1)?.is_none() {
            todo.push(cell);
        }
    }
    let kept = plan.cells.len() - todo.len();
    if kept > 0 {
        eprintln!(
            "{kept} of {} traces are there already and are kept (--fresh makes them again)",
            plan.cells.len()
        );
    }
    let mut failed = Vec::new();
    if todo.is_empty() {
        return Ok(failed);
    }
    let sources = Sources::at(&locate::cache_folder(), plan.scale);
    // In memory: copying a template must not warm or wear the device under test.
    let templates_folder = Workdir::new_in(Path::new("/dev/shm"), "vma-ssd-templates")?;
    let mut templates =
        Templates::new(templates_folder.path().to_owned(), plan.scale.clone(), sources.clone());
    for (at, (workload, mode)) in todo.iter().enumerate() {
        let name = format!("{}/{}/x{}/{}", workload.name(), mode.name(), plan.guests, plan.device.name());
        eprint!("[trace {}/{}] {name} ", at + 1, todo.len());
        match one(plan, store, &sources, &mut templates, *workload, *mode) {
            Ok(captured) => eprintln!(
                "{:.1} s of work, {:.0} MiB stored ({:.0} s)",
                captured.record.elapsed_s(),
                captured.record.storage.write_bytes as f64 / f64::from(1 << 20),
                captured.record.wall_s
            ),
            Err(error) => {
                eprintln!("FAILED: {error}");
                failed.push((name, error));
            }
        }
    }
    Ok(failed)
}

fn one(
    plan: &Plan<'_>,
    store: &Store,
    sources: &Sources,
    templates: &mut Templates,
    workload: Workload,
    mode: Mode,
) -> Result<Captured> {
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
        device: plan.device,
        guests: plan.guests,
        contract: "guest-crash".to_owned(),
        setup: Setup::Plain,
        workload,
        mode,
        round: 1,
    };
    let bench = Bench {
        scale: plan.scale,
        sources,
        scratch: &store.folder().join("scratch"),
        evidence: &store.folder().join("evidence"),
        retain_max: None,
        limit: plan.limit,
        traces: Some(&traces),
    };
    let template = templates.get(workload, mode, Setup::Plain)?;
    calm::wait(plan.patience)?;
    let (record, _) = cell::run(&key, &bench, &template, None)?;
    let at_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let captured = Captured { version: VERSION, at_ns, record };
    store.keep_traces(&fresh, &captured)?;
    Ok(captured)
}
