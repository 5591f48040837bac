//! What a round costs the flash: its requests on simulated drives (docs/flash.md).
//!
//! ```text
//!   a cell's guest0.trace.zst ─► each FTL, on a drive as large as the disk, whose pages were all written once ─► Wear
//! ```

use std::path::Path;

use afterimage_bench_kit::{BenchError, Result};
use afterimage_flash::control::{Control, RunError};
use afterimage_flash::place::{Precondition, RunOptions};
use afterimage_flash::scan::Scan;
use afterimage_flash::trace::{Options, Prefetch};
use afterimage_flash::{sim, Config, FtlKind};
use serde::{Deserialize, Serialize};

/// What one drive says of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wear {
    /// Its translation layer.
    pub ftl: FtlKind,
    /// Blocks erased.
    pub erases: u64,
    /// Pages programmed for each that was written; `None` if none was.
    pub write_amplification: Option<f64>,
}

/// Plays the trace of a disk of `disk_bytes` on each FTL.
///
/// # Errors
/// The trace cannot be read, or names what is not on the disk.
pub fn wear(trace: &Path, disk_bytes: u64) -> Result<Vec<Wear>> {
    let play = |ftl| play(trace, disk_bytes, ftl);
    let played: std::result::Result<Vec<Wear>, RunError> = FtlKind::ALL.into_iter().map(play).collect();
    played.map_err(|error| BenchError::Workload(format!("{} on flash: {error}", trace.display())))
}

fn play(trace: &Path, disk_bytes: u64, ftl: FtlKind) -> std::result::Result<Wear, RunError> {
    let config = Config::for_drive_of(disk_bytes);
    let reading = Options { strict: true, ..Options::default() };
    let open = || Prefetch::open(&[trace.to_owned()], &reading);
    let (control, options) =
        (Control::default(), RunOptions { precondition: Precondition::Drive, ..RunOptions::default() });
    let scan = Scan::trace(config.geometry, open()?, &control)?;
    let report = sim::run(&config, ftl, &scan, open()?, &options, &control)?;
    Ok(Wear { ftl, erases: report.erases, write_amplification: report.write_amplification })
}

#[cfg(test)]
mod tests {
    use super::*;

    // A drive that is full has to erase a block for about each block that is overwritten, and nothing for what is only read.
    #[test]
    fn what_is_written_is_erased_for() {
        let path = std::env::temp_dir().join(format!("joj-flash-{}.trace", std::process::id()));
        let played = |kind: char| {
            // SPC's: device, sector, bytes, kind, seconds.
            let spc: String = (0..4096).map(|at| format!("0,{},4096,{kind},{at}.0\n", at * 8)).collect();
            std::fs::write(&path, spc).unwrap();
            wear(&path, 64 << 20).unwrap()
        };
        let (written, read) = (played('W'), played('R'));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(written.len(), FtlKind::ALL.len());
        // 16 MiB are 128 blocks.
        assert!(written.iter().all(|wear| wear.erases >= 100), "{written:?}");
        assert!(read.iter().all(|wear| wear.erases == 0 && wear.write_amplification.is_none()), "{read:?}");
    }
}
