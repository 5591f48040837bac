//! Waiting for the rest of a shared machine.

use std::fs;
use std::time::{Duration, Instant};

use crate::error::{Context, Result};

/// How long the processors are watched.
const LOOK: Duration = Duration::from_millis(500);

/// Returns when the processors were idle for nine tenths of a moment, or when `patience` is over.
///
/// # Errors
/// `/proc/stat` can not be read.
pub fn wait(patience: Duration) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < patience {
        let (idle, all) = processors()?;
        std::thread::sleep(LOOK);
        let (idle_then, all_then) = processors()?;
        if (idle_then - idle) * 10 > (all_then - all) * 9 {
            break;
        }
    }
    Ok(())
}

/// Idle ticks and all ticks since boot, of all processors together.
fn processors() -> Result<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").context(|| "read /proc/stat".to_owned())?;
    let first = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = first.split_whitespace().skip(1).filter_map(|t| t.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal (proc(5)).
    let idle = ticks.iter().skip(3).take(2).sum();
    Ok((idle, ticks.iter().take(8).sum()))
}
