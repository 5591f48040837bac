//! The server of one cell: the lab's daemon, and what it and the kernel count.

use std::fs;
use std::path::Path;

use afterimage_lab::daemon::{Daemon, PeerOptions, ServeOptions};
use serde_json::json;

use crate::catalog::Row;
use crate::record::LogIo;
use crate::scale::LOG_FULL;
use afterimage_bench_kit::io::{CountedBy, StorageIo};
use afterimage_bench_kit::{BenchError, Context, Result};

/// Starts the row's server on an image.
///
/// # Errors
/// It is not installed or does not come up.
pub fn start(row: Row, image: &Path) -> Result<Daemon> {
    let survives = match row {
        Row::Nested | Row::Writeback => return Ok(Daemon::peer(&PeerOptions::writeback(image))?),
        Row::NoFlush => return Ok(Daemon::peer(&PeerOptions::no_flush(image))?),
        Row::Power => "power",
        Row::Window | Row::WindowFull => "power-window=50ms",
        Row::GuestCrash => "guest-crash",
    };
    let mut options = ServeOptions::new(survives, &[image.to_owned()]);
    options.log_max = (row == Row::WindowFull).then(|| LOG_FULL.to_owned());
    Ok(Daemon::serve(&options)?)
}

/// The redo log (of the rows that have one).
///
/// # Errors
/// The daemon does not answer.
pub fn log(row: Row, daemon: &Daemon) -> Result<Option<LogIo>> {
    if !matches!(row, Row::Window | Row::WindowFull) {
        return Ok(None);
    }
    let log = daemon.status()?.log;
    Ok(Some(LogIo {
        appended_bytes: log.appended_bytes,
        syncs: log.syncs,
        home_written_bytes: log.home_written_bytes,
        throttled: log.throttled,
        held_flushes: log.held_flushes,
        used_bytes: log.bytes,
    }))
}

/// Brings everything home, so that the counters hold what an orderly end would still write (ours only: a pause
/// does exactly that).
///
/// # Errors
/// It does not answer, or refuses.
pub fn settle(row: Row, daemon: &Daemon) -> Result<()> {
    if row.is_ours() {
        daemon.request(&json!({ "command": "pause" }))?;
    }
    Ok(())
}

/// What the daemon itself, or the kernel for it, counts.
///
/// # Errors
/// It does not answer.
pub fn storage(row: Row, daemon: &Daemon) -> Result<StorageIo> {
    if row.is_ours() {
        return StorageIo::of_daemon(daemon);
    }
    let path = format!("/proc/{}/io", daemon.pid());
    let text = fs::read_to_string(&path).context(|| format!("read {path}"))?;
    let number = |name: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.and_then(|digits| digits.parse().ok())
            .ok_or_else(|| BenchError::Workload(format!("{path} has no {name}")))
    };
    Ok(StorageIo {
        counted_by: Some(CountedBy::Process),
        reads: None,
        read_bytes: Some(number("read_bytes")?),
        writes: None,
        write_bytes: number("write_bytes")?,
        flushes: None,
        seeks: None,
    })
}
