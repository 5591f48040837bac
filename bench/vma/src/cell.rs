//! One cell: fresh disks, a daemon and a guest for each, the work in all of them at once; and what it cost below.
//!
//! ```text
//!   images ─► daemons ─► guests boot, mount, set up ─► "ready" from all ─► go ─► work ─► "end" from all: measured
//!     ─► go ─► sync, unmount, power off ─► daemons end in order ─► page cache to the device: the whole
//! ```
//! Times are those that the programs measured themselves; what a mode puts off is in the second account.

use std::fs;
use std::path::Path;
use std::time::Instant;

use afterimage_lab::daemon::Daemon;
use afterimage_lab::guest::Guest;

use crate::bench::{start, Bench};
use crate::catalog::JournalPolicy;
use crate::outcome;
use crate::record::{CellKey, Record, Sample};
use crate::sampler::Sampler;
use crate::script::{in_real_time, run_script};
use crate::stage::{serve, written_by, Stage};
use afterimage_bench_kit::io::{load_average, StorageIo};
use afterimage_bench_kit::process::{groups_cpu_s, process_cpu_s};
use afterimage_bench_kit::{CellIdentity, Context, Result};

/// Runs one cell in real time. (Guests are killed in virtual time only.)
///
/// # Errors
/// Anything that keeps it from a result.
pub fn run(key: &CellKey, bench: &Bench<'_>, template: &Path) -> Result<(Record, Vec<Sample>)> {
    let started = Instant::now();
    let load = load_average();
    let stage = Stage::new(key.device, key.guests, template, bench.scratch)?;
    let mut daemons = Vec::new();
    for image in stage.images() {
        daemons.push(serve(key, image, bench.scale)?);
    }
    let guests = boot(key, bench, &daemons)?;
    let mut record = Record::empty(key, bench.scale, load);
    let samples = work(&mut record, bench, &stage, daemons, guests)?;
    record.wall_s = started.elapsed().as_secs_f64();
    Ok((record, samples))
}

/// Starts a guest for each daemon, and waits until all are ready.
fn boot(key: &CellKey, bench: &Bench<'_>, daemons: &[Daemon]) -> Result<Vec<Guest>> {
    let script = in_real_time(&run_script(key.workload, key.mode, key.setup, bench.scale, bench.sources));
    let mut guests = Vec::new();
    for daemon in daemons {
        guests.push(start(key, daemon, bench, &script)?);
    }
    wait_all(key, bench, &guests, "ready")?;
    Ok(guests)
}

/// Waits until every guest has reported; of one that does not, everything is kept as evidence.
fn wait_all(key: &CellKey, bench: &Bench<'_>, guests: &[Guest], report: &str) -> Result<()> {
    for (at, guest) in guests.iter().enumerate() {
        if let Err(error) = guest.wait_report("bench", report) {
            fs::create_dir_all(bench.evidence).context(|| format!("make {}", bench.evidence.display()))?;
            guest.save(bench.evidence, &format!("{}.guest{at}", key.file_name()))?;
            return Err(error.into());
        }
    }
    Ok(())
}

fn work(
    record: &mut Record,
    bench: &Bench<'_>,
    stage: &Stage,
    daemons: Vec<Daemon>,
    mut guests: Vec<Guest>,
) -> Result<Vec<Sample>> {
    let machines: Vec<u32> = guests.iter().map(Guest::pid).collect();
    let daemon_cpu_s = |daemons: &[Daemon]| -> Result<f64> {
        let mut sum = 0.0;
        for daemon in daemons {
            sum += process_cpu_s(daemon.pid())?;
        }
        Ok(sum)
    };
    // What the set-up left in the host's page cache is not the work's; what it left in the guest's is.
    stage.settle()?;
    let storage_before = stage.storage(&daemons)?;
    let written_before = written_by(&daemons)?;
    let absorbed_before = absorbed(&daemons)?;
    let (guest_before_s, daemon_before_s) = (groups_cpu_s(&machines)?, daemon_cpu_s(&daemons)?);
    let sampler = (record.key.mode.policy() == JournalPolicy::Retain && record.key.guests == 1)
        .then(|| daemons[0].control_socket().map(Sampler::start))
        .flatten()
        .transpose()?;
    for guest in &guests {
        guest.channel().send("go")?;
    }
    wait_all(&record.key, bench, &guests, "end")?;
    record.guest_cpu_s = Some(groups_cpu_s(&machines)? - guest_before_s);
    record.daemon_cpu_s = Some(daemon_cpu_s(&daemons)? - daemon_before_s);
    record.storage_measured = stage.storage(&daemons)?.since(&storage_before);
    record.file_systems = daemons[0].disk()?.file_systems;
    let samples = sampler.map(Sampler::stop).transpose()?.unwrap_or_default();
    for guest in &guests {
        guest.channel().send("go")?;
    }
    for guest in &mut guests {
        guest.wait_success()?;
        record.guests.push(outcome::read(&guest.channel().lines())?);
    }
    drop(guests);
    record.daemon_io = finish(&daemons)?.since(&written_before);
    record.absorbed_bytes =
        absorbed(&daemons)?.zip(absorbed_before).map(|(now, then)| now.saturating_sub(then));
    let by_daemons = record.daemon_io;
    for daemon in daemons {
        daemon.stop()?;
    }
    stage.settle()?;
    record.storage =
        if record.key.device.is_model() { stage.storage(&[])?.since(&storage_before) } else { by_daemons };
    Ok(samples)
}

/// Brings what is retained or logged home, as an orderly end would, so that the daemons' own counts hold it.
fn finish(daemons: &[Daemon]) -> Result<StorageIo> {
    for daemon in daemons {
        daemon.request(&serde_json::json!({ "command": "pause" }))?;
    }
    written_by(daemons)
}

/// Journal writes that the daemons kept from storage so far.
fn absorbed(daemons: &[Daemon]) -> Result<Option<u64>> {
    let mut sum = Some(0);
    for daemon in daemons {
        let bytes = daemon.file_system()?.map(|found| found.classes.journal_absorbed_bytes);
        sum = sum.zip(bytes).map(|(sum, bytes)| sum + bytes);
    }
    Ok(sum)
}
