//! One FTL on one drive under one load, in a process of its own.
//!
//! ```text
//! fill the drive ─► age: at most every page once more ─► slices of processor time, each with its rate
//! ```

use std::time::Duration;

use afterimage_flash::config::GcPolicy;
use afterimage_flash::counts::Cause;
use afterimage_flash::ftl::FtlError;
use afterimage_flash::geometry::Geometry;
use afterimage_flash::workload::{Pattern, Random};
use afterimage_flash::{Config, Ftl, FtlKind, Lpn};
use rustix::time::{clock_gettime, ClockId};
use serde::{Deserialize, Serialize};

/// How writes fall on the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// Single pages, every page equally often.
    Uniform,
    /// Single pages, 80 % of the writes on 20 % of the pages.
    Skewed,
    /// Ascending, again and again.
    Sequential,
    /// Two neighbouring pages at a time, as the quoted figures' 4 KiB random writes.
    Pairs,
}

impl Load {
    /// All loads.
    pub const ALL: [Self; 4] = [Self::Uniform, Self::Skewed, Self::Sequential, Self::Pairs];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Skewed => "skewed",
            Self::Sequential => "sequential",
            Self::Pairs => "uniform, 4 KiB",
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Cell {
    /// Which FTL, as an index into [`FtlKind::ALL`].
    pub ftl: usize,
    /// Flash, GB of 8,192 blocks of 128 KiB.
    pub size_gb: u32,
    /// What is written.
    pub load: Load,
    /// Which block page map and DFTL collect.
    pub gc_policy: GcPolicy,
    /// Processor time of ageing, at most, milliseconds.
    pub age_ms: u64,
    /// Processor time of each slice, milliseconds.
    pub slice_ms: u64,
}

impl Cell {
    /// Which FTL.
    pub fn kind(&self) -> FtlKind {
        FtlKind::ALL[self.ftl]
    }
}

/// What came out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Host page writes a second of processor time, slice by slice.
    pub writes_per_s: Vec<f64>,
    /// Pages programmed for each page the host wrote, over all slices.
    pub write_amplification: f64,
    /// Share of the drive's pages written in ageing, after the fill; 1: all as often.
    pub aged: f64,
    /// Largest resident size of the process, bytes.
    pub peak_bytes: u64,
}

/// Share of the flash that is not logical.
pub const SPARE: f64 = 0.07;
/// Writes between two looks at the clock.
const BATCH: u64 = 8192;

/// Processor time of this process.
pub fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Writes a load onto a drive.
struct Writer {
    ftl: Box<dyn Ftl>,
    load: Load,
    random: Random,
    pages: u32,
    written: u64,
    /// The next batch: as a trace's requests, the FTL knows them a little before their turn.
    next: Vec<Lpn>,
}

impl Writer {
    fn batch(&mut self) -> Result<(), FtlError> {
        let (random, pages) = (&mut self.random, self.pages);
        self.next.clear();
        let pattern = match self.load {
            Load::Uniform => Pattern::Uniform,
            Load::Skewed => Pattern::Skewed,
            Load::Sequential => Pattern::Sequential,
            Load::Pairs => {
                for _ in 0..BATCH / 2 {
                    let first = random.below(pages / 2) * 2;
                    self.next.extend([Lpn(first), Lpn(first + 1)]);
                }
                self.written += BATCH;
                return self.ftl.write_all(&self.next);
            }
        };
        let batch = self.written..self.written + BATCH;
        self.next.extend(batch.map(|i| pattern.page(random, i, pages)));
        self.written += BATCH;
        self.ftl.write_all(&self.next)
    }
}

/// A drive that is filled and aged, to be measured slice by slice.
pub struct Aged {
    writer: Writer,
    slice: Duration,
    aged: f64,
    writes_per_s: Vec<f64>,
}

impl Aged {
    /// Fills a cell's drive and ages it.
    ///
    /// # Errors
    /// One sentence: the drive cannot be built or has no space.
    pub fn new(cell: &Cell) -> Result<Self, String> {
        let geometry = Geometry::small(8192 * cell.size_gb, 64);
        let config = Config { geometry, spare: SPARE, gc_policy: cell.gc_policy, ..Config::default() };
        let ftl = config.build(cell.kind(), config.drive_blocks()).map_err(|e| e.to_string())?;
        let pages = ftl.logical_pages();
        let mut writer =
            Writer { ftl, load: cell.load, random: Random::new(1), pages, written: 0, next: Vec::new() };
        let text = |e: FtlError| e.to_string();
        for lpn in 0..pages {
            writer.ftl.write(Lpn(lpn)).map_err(text)?;
        }
        let end = processor_time() + Duration::from_millis(cell.age_ms);
        while writer.written < u64::from(pages) && processor_time() < end {
            writer.batch().map_err(text)?;
        }
        let aged = (writer.written as f64 / f64::from(pages)).min(1.0);
        writer.ftl.flash_mut().reset_counters();
        Ok(Self { writer, slice: Duration::from_millis(cell.slice_ms), aged, writes_per_s: Vec::new() })
    }

    /// Writes for one slice of processor time.
    ///
    /// # Errors
    /// One sentence: the drive has no space.
    pub fn slice(&mut self) -> Result<(), String> {
        let (start, before) = (processor_time(), self.writer.written);
        let mut spent = Duration::ZERO;
        while spent < self.slice {
            self.writer.batch().map_err(|e| e.to_string())?;
            spent = processor_time() - start;
        }
        self.writes_per_s.push((self.writer.written - before) as f64 / spent.as_secs_f64());
        Ok(())
    }

    /// What came out so far.
    ///
    /// # Errors
    /// One sentence: the kernel does not say how much memory was used.
    pub fn outcome(self) -> Result<Outcome, String> {
        let counts = self.writer.ftl.flash().counts();
        let host = counts.of(Cause::Host).programs.max(1);
        let write_amplification = counts.total().programs as f64 / host as f64;
        let Self { aged, writes_per_s, .. } = self;
        Ok(Outcome { writes_per_s, write_amplification, aged, peak_bytes: peak_bytes()? })
    }
}

/// The largest resident size this process has had.
fn peak_bytes() -> Result<u64, String> {
    let status =
        std::fs::read_to_string("/proc/self/status").map_err(|e| format!("/proc/self/status: {e}"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| "/proc/self/status names no VmHWM".to_owned())
}
