//! What every cell of a run works with.

use std::path::Path;
use std::time::Duration;

use afterimage_lab::daemon::Daemon;
use afterimage_lab::guest::{Guest, Vmm};

use crate::record::CellKey;
use crate::scale::Scale;
use crate::source::Sources;
use afterimage_bench_kit::Result;

/// What all cells of a run have in common.
#[derive(Clone, Debug)]
pub struct Bench<'a> {
    /// Sizes.
    pub scale: &'a Scale,
    /// The Linux source tree.
    pub sources: &'a Sources,
    /// The folder for images on the machine's own disk.
    pub scratch: &'a Path,
    /// The folder for what a failed guest leaves.
    pub evidence: &'a Path,
    /// A guest that takes longer than this is killed.
    pub limit: Duration,
}

/// Starts one guest.
///
/// # Errors
/// It does not start.
pub fn start(key: &CellKey, daemon: &Daemon, bench: &Bench<'_>, script: &str) -> Result<Guest> {
    Ok(Guest::builder(Vmm::Uml)
        .disk(daemon.socket())
        .memory_mib(key.setup.guest_mib(bench.scale))
        .limit(bench.limit)
        .start(script)?)
}
