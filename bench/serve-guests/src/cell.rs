//! One cell: a fresh image, a server, a guest, a workload; and what it cost below.
//!
//! The storage counters run from the guest's "go" to the server's orderly end, and the guest's own from "begin"
//! to after its unmount: whatever a row puts off (page cache, log) is in its account. Throughput, latencies and
//! processor time are those of the measured part alone.

use std::path::Path;
use std::time::{Duration, Instant};

use afterimage_lab::guest::{Guest, Vmm};

use crate::catalog::{Device, Row};
use crate::daemon;
use crate::outcome;
use crate::record::{CellKey, Record};
use crate::scale::Scale;
use crate::script::guest_script;
use crate::stage::Stage;
use afterimage_bench_kit::io::load_average;
use afterimage_bench_kit::process::process_cpu_s;
use afterimage_bench_kit::{BenchError, CellIdentity, Record as _, Result};

/// Boots, set-ups and unmounts on a disk that seeks take their time; a guest that hangs does not get more.
const GUEST_LIMIT: Duration = Duration::from_secs(240);

/// Runs one cell.
///
/// # Errors
/// Anything that keeps it from a result.
pub fn run(key: CellKey, scale: &Scale, template: &Path, scratch: &Path) -> Result<Record> {
    let started = Instant::now();
    let load = load_average();
    let stage = Stage::new(key.device, key.row, template, scratch, !key.workload.starts_warm())?;
    let daemon = daemon::start(key.row, stage.image())?;
    let mut guest = Guest::builder(Vmm::Uml)
        .disk(daemon.socket())
        .memory_mib(scale.memory_mib(key.workload))
        .limit(GUEST_LIMIT)
        .start(&guest_script(key.workload, scale))?;

    guest.wait_report("bench", "ready")?;
    let storage_before = stage.storage(key.row, Some(&daemon))?;
    let cpu_before_s = process_cpu_s(daemon.pid())?;
    guest.channel().send("go")?;
    guest.wait_report("bench", "end")?;
    let daemon_cpu_s = process_cpu_s(daemon.pid())? - cpu_before_s;
    let log = daemon::log(key.row, &daemon)?;
    guest.wait_success()?;
    let outcome = outcome::read(key.workload, &guest.channel().lines(), &guest.output())?;
    drop(guest);
    let before_close = Instant::now();
    // A prompt end may leave some of the log to the next start; here it has to be home, and counted.
    daemon::settle(key.row, &daemon)?;
    // What only the daemon knows has to be asked before its end.
    let asked = if key.device == Device::Disk && key.row != Row::Nested {
        stage.storage(key.row, Some(&daemon))?
    } else {
        None
    };
    daemon.stop()?;
    let close = before_close.elapsed();
    let storage_after = match asked {
        Some(asked) => Some(asked),
        None => stage.storage(key.row, None)?,
    };
    let (Some(before), Some(after)) = (storage_before, storage_after) else {
        return Err(BenchError::Workload(format!("{}: nobody counted what reached storage", key.path())));
    };
    Ok(Record {
        version: Record::VERSION,
        scale: scale.clone(),
        key,
        operations: outcome.operations,
        elapsed_s: outcome.elapsed_s,
        ops_per_s: outcome.operations as f64 / outcome.elapsed_s,
        fsync: outcome.fsync,
        transaction_p99_ms: outcome.transaction_p99_ms,
        guest: outcome.guest,
        guest_whole: outcome.guest_whole,
        storage: after.since(&before),
        log,
        daemon_cpu_s,
        close_s: close.as_secs_f64(),
        wall_s: started.elapsed().as_secs_f64(),
        load,
    })
}
