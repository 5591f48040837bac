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

use crate::bare::Bare;

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
    /// Not the FTL but the peer.
    #[serde(default)]
    pub bare: bool,
}

impl Cell {
    /// Which FTL.
    pub fn kind(&self) -> FtlKind {
        FtlKind::ALL[self.ftl]
    }

    /// The same drive under the peer, which has one load: its speed says how fast the machine is.
    pub fn peer(&self) -> Self {
        Self { bare: true, load: Load::Uniform, ..*self }
    }

    /// What it is, in a few words.
    pub fn name(&self) -> String {
        let subject = if self.bare { "greedy map" } else { self.kind().name() };
        format!("{subject} at {} GB, {}", self.size_gb, self.load.name())
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

/// Blocks a GB.
const BLOCKS_A_GB: u32 = 8192;
/// Share of the flash that is not logical.
pub const SPARE: f64 = 0.07;
/// Writes between two looks at the clock.
const BATCH: u64 = 8192;

/// Processor time of this process.
pub fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// What is measured.
enum Subject {
    Simulator(Box<dyn Ftl>),
    Peer(Bare),
}

impl Subject {
    fn new(cell: &Cell) -> Result<Self, String> {
        if cell.bare {
            return Ok(Self::Peer(Bare::new(BLOCKS_A_GB * cell.size_gb, SPARE)));
        }
        let geometry = Geometry::small(BLOCKS_A_GB * cell.size_gb, 64);
        let config = Config { geometry, spare: SPARE, gc_policy: cell.gc_policy, ..Config::default() };
        let ftl = config.build(cell.kind(), config.drive_blocks()).map_err(|e| e.to_string())?;
        Ok(Self::Simulator(ftl))
    }

    fn logical_pages(&self) -> u32 {
        match self {
            Self::Simulator(ftl) => ftl.logical_pages(),
            Self::Peer(bare) => bare.logical_pages(),
        }
    }

    fn write_all(&mut self, pages: &[Lpn]) -> Result<(), FtlError> {
        match self {
            Self::Simulator(ftl) => ftl.write_all(pages),
            Self::Peer(bare) => {
                pages.iter().for_each(|lpn| bare.write(lpn.0));
                Ok(())
            }
        }
    }

    fn reset_counters(&mut self) {
        match self {
            Self::Simulator(ftl) => ftl.flash_mut().reset_counters(),
            Self::Peer(bare) => bare.reset_counters(),
        }
    }

    fn write_amplification(&self) -> f64 {
        match self {
            Self::Simulator(ftl) => {
                let counts = ftl.flash().counts();
                counts.total().programs as f64 / counts.of(Cause::Host).programs.max(1) as f64
            }
            Self::Peer(bare) => bare.write_amplification(),
        }
    }
}

/// Writes a load onto a drive.
struct Writer {
    subject: Subject,
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
                return self.subject.write_all(&self.next);
            }
        };
        let batch = self.written..self.written + BATCH;
        self.next.extend(batch.map(|i| pattern.page(random, i, pages)));
        self.written += BATCH;
        self.subject.write_all(&self.next)
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
        let subject = Subject::new(cell)?;
        let pages = subject.logical_pages();
        let mut writer =
            Writer { subject, load: cell.load, random: Random::new(1), pages, written: 0, next: Vec::new() };
        let text = |e: FtlError| e.to_string();
        for lpn in 0..pages {
            writer.subject.write_all(&[Lpn(lpn)]).map_err(text)?;
        }
        let end = processor_time() + Duration::from_millis(cell.age_ms);
        while writer.written < u64::from(pages) && processor_time() < end {
            writer.batch().map_err(text)?;
        }
        let aged = (writer.written as f64 / f64::from(pages)).min(1.0);
        writer.subject.reset_counters();
        Ok(Self { writer, slice: Duration::from_millis(cell.slice_ms), aged, writes_per_s: Vec::new() })
    }

    /// Writes for one slice of processor time; page writes a second.
    ///
    /// # Errors
    /// One sentence: the drive has no space.
    pub fn slice(&mut self) -> Result<f64, String> {
        let (start, before) = (processor_time(), self.writer.written);
        let mut spent = Duration::ZERO;
        while spent < self.slice {
            self.writer.batch().map_err(|e| e.to_string())?;
            spent = processor_time() - start;
        }
        let rate = (self.writer.written - before) as f64 / spent.as_secs_f64();
        self.writes_per_s.push(rate);
        Ok(rate)
    }

    /// What came out so far.
    ///
    /// # Errors
    /// One sentence: the kernel does not say how much memory was used.
    pub fn outcome(self) -> Result<Outcome, String> {
        let write_amplification = self.writer.subject.write_amplification();
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
