//! What finished work leaves: a folder a cell's traces, a file a simulated drive; written beside and renamed.

use std::fs;
use std::path::{Path, PathBuf};

use afterimage_bench_kit::{read_record, write_record, Context, Result};
use afterimage_bench_vma::catalog::{Device, Mode, Workload};
use afterimage_bench_vma::record::Record;
use afterimage_bench_vma::scale::Scale;
use afterimage_flash::report::Report;
use afterimage_flash::FtlKind;
use serde::{Deserialize, Serialize};

use crate::study::Variant;

/// Raised when what an older program left would mean something else.
pub const VERSION: u32 = 4;

/// How a drive is aged before a trace (`docs/flash.md`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Age {
    /// The flash holds the pages that any mode of the workload touches, each written once, and [`afterimage_flash::Config::SPARE`].
    Region,
    /// The flash holds the guests' disks whole, filled sequentially, and as much spare.
    Drive,
}

impl Age {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Region, Self::Drive];

    /// In file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Region => "region",
            Self::Drive => "drive",
        }
    }
}

/// What guests are traced for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// What they do.
    pub workload: Workload,
    /// How they journal.
    pub mode: Mode,
    /// Of everything random in them.
    pub seed: u32,
}

/// The traces of one cell, and how they came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Captured {
    /// [`VERSION`]
    pub version: u32,
    /// When it was finished, nanoseconds since 1970: names it.
    pub at_ns: u64,
    /// What the guests did, and how long it took.
    pub record: Record,
}

impl Captured {
    /// Of what it is.
    pub fn cell(&self) -> Cell {
        let key = &self.record.key;
        Cell { workload: key.workload, mode: key.mode, seed: key.round }
    }
}

/// What was simulated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulationKey {
    /// What the guests did.
    pub workload: Workload,
    /// How they journaled.
    pub variant: Variant,
    /// On which FTL.
    pub ftl: FtlKind,
    /// On which drive.
    pub age: Age,
}

impl SimulationKey {
    /// The journal mode's, on the same drive.
    pub fn of_journal(&self) -> Self {
        Self { variant: Variant::Journal, ..self.clone() }
    }

    fn file_name(&self, seed: u32) -> String {
        let (workload, variant, age) = (self.workload.name(), self.variant.name(), self.age.name());
        format!("{workload}_{variant}_{}_{age}_s{seed}.json", self.ftl)
    }
}

/// The result of a simulation, as far as the tables need it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Simulated {
    /// [`VERSION`]
    pub version: u32,
    /// The traces that shaped the drive or were played, by [`Captured::at_ns`].
    pub traces: Vec<u64>,
    /// Of everything random in their guests.
    pub seed: u32,
    /// What.
    pub key: SimulationKey,
    /// Blocks of the flash.
    pub blocks: u32,
    /// Logical pages of it.
    pub logical_pages: u32,
    /// Reads and writes.
    pub requests: u64,
    /// Bytes of these.
    pub traffic_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// All erases.
    pub erases: u64,
    /// Erases of the most erased block.
    pub erases_max: u32,
    /// GC overhead in nanoseconds of flash time.
    pub collection_ns: u64,
    /// Its share of the time that the flash worked.
    pub collection_share: f64,
    /// Programs a page the host wrote.
    pub write_amplification: Option<f64>,
    /// Mean response time, nanoseconds.
    pub response_ns: f64,
}

impl Simulated {
    /// From a simulator's report.
    pub fn new(key: SimulationKey, seed: u32, traces: Vec<u64>, report: &Report) -> Self {
        let traffic = &report.traffic;
        Self {
            version: VERSION,
            traces,
            seed,
            key,
            blocks: report.geometry.blocks,
            logical_pages: report.logical_pages,
            requests: traffic.reads + traffic.writes,
            traffic_bytes: traffic.bytes(),
            write_bytes: traffic.write_bytes,
            erases: report.erases,
            erases_max: report.wear.max,
            collection_ns: report.collection.ns,
            collection_share: report.collection.of_device_time,
            write_amplification: report.write_amplification,
            response_ns: report.response.mean_ns,
        }
    }

    /// Spare space of the drive, bytes: 64 pages of 2 KB a block.
    pub fn spare_bytes(&self) -> u64 {
        (u64::from(self.blocks) * 64 - u64::from(self.logical_pages)) * 2048
    }

    /// Whether it says what a mode costs. The spare space is erased when a trace begins: what is written into it causes no erase,
    /// and one mode may end there where another has only begun to collect.
    pub fn outgrows_spare(&self) -> bool {
        self.write_bytes >= 2 * self.spare_bytes()
    }
}

/// Everything finished at one scale, with one number of guests on one device, of all seeds.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    scale: Scale,
    guests: u32,
    device: Device,
}

impl Store {
    /// The folder is made when something is put into it.
    pub fn new(out: &Path, scale: &Scale, guests: u32, device: Device) -> Self {
        let folder = out.join(format!("{}-x{guests}-{}", scale.name, device.name()));
        Self { folder, scale: scale.clone(), guests, device }
    }

    /// Where everything is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where traces are, or will be.
    pub fn trace_folder(&self, cell: Cell) -> PathBuf {
        let name = format!("{}_{}_s{}", cell.workload.name(), cell.mode.name(), cell.seed);
        self.folder.join("traces").join(name)
    }

    /// The traces of each guest.
    pub fn trace_files(&self, cell: Cell) -> Vec<PathBuf> {
        let folder = self.trace_folder(cell);
        (0..self.guests as usize)
            .map(|guest| folder.join(afterimage_bench_vma::virtual_cell::trace_name(guest)))
            .collect()
    }

    /// What was captured, if it is there, whole, and of these sizes.
    ///
    /// # Errors
    /// What is there is of this version and cannot be read.
    pub fn captured(&self, cell: Cell) -> Result<Option<Captured>> {
        let Some(found) = read_record::<Captured>(&self.trace_folder(cell).join("captured.json"), VERSION)?
        else {
            return Ok(None);
        };
        let key = &found.record.key;
        let fits = found.record.scale == self.scale
            && found.cell() == cell
            && (key.guests, key.device) == (self.guests, self.device)
            && self.trace_files(cell).iter().all(|file| file.is_file());
        Ok(fits.then_some(found))
    }

    /// Keeps traces that were written into `fresh`, in place of earlier ones.
    ///
    /// # Errors
    /// Files cannot be written or moved.
    pub fn keep_traces(&self, fresh: &Path, captured: &Captured) -> Result<()> {
        write_record(&fresh.join("captured.json"), captured)?;
        let folder = self.trace_folder(captured.cell());
        if folder.exists() {
            fs::remove_dir_all(&folder).context(|| format!("remove {}", folder.display()))?;
        }
        fs::rename(fresh, &folder).context(|| format!("move {} to {}", fresh.display(), folder.display()))
    }

    /// What was simulated of exactly these traces, if it was.
    ///
    /// # Errors
    /// As [`Store::captured`].
    pub fn simulated(&self, key: &SimulationKey, seed: u32, traces: &[u64]) -> Result<Option<Simulated>> {
        let path = self.folder.join("results").join(key.file_name(seed));
        let found = read_record::<Simulated>(&path, VERSION)?;
        Ok(found.filter(|found| (&found.key, found.seed) == (key, seed) && found.traces == traces))
    }

    /// Keeps a result.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep_simulated(&self, simulated: &Simulated) -> Result<()> {
        let folder = self.folder.join("results");
        fs::create_dir_all(&folder).context(|| format!("make {}", folder.display()))?;
        write_record(&folder.join(simulated.key.file_name(simulated.seed)), simulated)
    }
}
