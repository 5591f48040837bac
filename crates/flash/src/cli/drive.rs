//! Options that describe the drive and how traces are read.

use std::path::PathBuf;

use super::CliError;
use crate::config::{Config, GcPolicy};
use crate::geometry::Geometry;
use crate::place::RunOptions;
use crate::place::{Precondition, Region};
use crate::trace::{Action, Class, Classes, Format, Options, Tally};
use crate::units::{parse_bytes, parse_part, parse_share};

/// What [`Config::gc_low`] and [`Config::gc_high`] may be.
pub const GC_BLOCKS: (u32, u32) = (2, 4096);
/// What [`Config::static_wear`] may be.
pub const WEAR: (u32, u32) = (1, u32::MAX);

fn within((least, most): (u32, u32)) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(i64::from(least)..=i64::from(most))
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| format!("'{text}' is not a size; write 4096, 64K, 2M or 1G"))
}

/// The time of an operation, in nanoseconds. At most a second, so that the sum over all operations of a run fits a number.
pub fn micros(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(us) if (0.0..=1e6).contains(&us) => Ok((us * 1000.0).round() as u64),
        _ => Err(format!("'{text}' is not a time of 0 to 1000000 microseconds")),
    }
}

/// The simulated drive. What is not given is the study's (Table II).
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Drive")]
pub struct DriveArgs {
    /// BLOCKSxPAGESxBYTES, or a size such as 32G (64 pages of 2 KB a block)
    ///
    /// With --precondition region only pages and bytes count; the blocks follow from the trace.
    #[arg(long, default_value = "262144x64x2048", value_name = "GEOMETRY")]
    geometry: Geometry,
    /// How the drive is aged before the trace
    #[arg(long, value_enum, default_value = "region")]
    precondition: Precondition,
    /// With --precondition region: the traced pages side by side, or whole blocks with a traced page
    #[arg(long, value_enum, default_value = "pages")]
    region: Region,
    /// Spare share: of the flash (drive, none) or on top of the traced region
    #[arg(long, default_value = "3%", value_parser = parse_share, value_name = "SHARE")]
    spare: f64,
    /// Page read time in microseconds
    #[arg(long, default_value = "88", value_parser = micros, value_name = "US")]
    read_us: u64,
    /// Page program time in microseconds
    #[arg(long, default_value = "263", value_parser = micros, value_name = "US")]
    program_us: u64,
    /// Block erase time in microseconds
    #[arg(long, default_value = "2000", value_parser = micros, value_name = "US")]
    erase_us: u64,
    /// Spare-area read time in microseconds
    #[arg(long, default_value = "27", value_parser = micros, value_name = "US")]
    spare_read_us: u64,
    /// Erases a block endures
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..), value_name = "ERASES")]
    endurance: u32,
    /// Move cold data when erase counts differ by more than this (default: never)
    #[arg(long, value_parser = within(WEAR), value_name = "ERASES")]
    static_wear: Option<u32>,
    /// Read a page before a write of a part of it
    #[arg(long)]
    modify: bool,
    /// Let discards reach the FTL (Superblock ignores them)
    #[arg(long)]
    discards: bool,
    /// Ignore the trace's times: one request after the other
    #[arg(long)]
    untimed: bool,
    /// Allow pages of a block to be programmed in any order (small-block NAND)
    #[arg(long)]
    out_of_order: bool,
    /// Page map, DFTL: which block is collected
    #[arg(long, value_enum, default_value = "greedy")]
    gc_policy: GcPolicy,
    /// Page map, DFTL: collect when at most this many blocks are free
    #[arg(long, default_value_t = 3, value_parser = within(GC_BLOCKS), value_name = "BLOCKS")]
    gc_low: u32,
    /// Page map, DFTL: until this many blocks are free (default: 4, DFTL 3)
    #[arg(long, value_parser = within(GC_BLOCKS), value_name = "BLOCKS")]
    gc_high: Option<u32>,
    /// FAST: random log blocks (default: all spare blocks but three)
    #[arg(long, value_name = "BLOCKS")]
    log_blocks: Option<u32>,
    /// Superblock: logical blocks a superblock, N
    #[arg(long, default_value_t = 8, value_name = "BLOCKS")]
    superblock_n: u32,
    /// Superblock: blocks it may have beyond N, M
    #[arg(long, default_value_t = 8, value_name = "BLOCKS")]
    superblock_m: u32,
    /// Superblock: collected pages share a block with host writes
    #[arg(long)]
    no_hot_cold: bool,
    /// Superblock: with the pool exhausted, collect the own extra block first, then other superblocks'
    #[arg(long)]
    local_first: bool,
    /// Superblock: compact the superblock written least recently, even while it still fills its open block
    #[arg(long)]
    oldest_first: bool,
    /// Superblock: RAM for the map cache (default: as large as FAST's tables)
    #[arg(long, value_parser = bytes, value_name = "BYTES")]
    map_cache: Option<u64>,
    /// DFTL: RAM for the cached mapping table (default: as large as FAST's tables)
    #[arg(long, value_parser = bytes, value_name = "BYTES")]
    cmt: Option<u64>,
    /// DFTL: protected share of the cached mapping table
    #[arg(long, default_value_t = 0.8, value_parser = parse_part, value_name = "SHARE")]
    cmt_protected: f64,
    /// DFTL: an eviction writes one entry, not all dirty ones of its translation page
    #[arg(long)]
    no_batch: bool,
    /// DFTL: with at most this many free blocks, translation blocks are collected first (0: never)
    #[arg(long, default_value_t = 1, value_name = "BLOCKS")]
    last_free: u32,
}

impl DriveArgs {
    /// The parameters they mean.
    pub fn config(&self) -> Config {
        let mut config = Config { geometry: self.geometry, spare: self.spare, ..Config::default() };
        config.timing.read_ns = self.read_us;
        config.timing.program_ns = self.program_us;
        config.timing.erase_ns = self.erase_us;
        config.timing.spare_read_ns = self.spare_read_us;
        config.endurance = self.endurance;
        config.static_wear = self.static_wear;
        config.in_order = !self.out_of_order;
        config.gc_policy = self.gc_policy;
        config.gc_low = self.gc_low;
        config.gc_high = self.gc_high;
        config.fast.log_blocks = self.log_blocks;
        config.superblock.n = self.superblock_n;
        config.superblock.m = self.superblock_m;
        config.superblock.hot_cold = !self.no_hot_cold;
        config.superblock.local_first = self.local_first;
        config.superblock.full_first = !self.oldest_first;
        config.superblock.map_cache_bytes = self.map_cache;
        config.dftl.cmt_bytes = self.cmt;
        config.dftl.protected_share = self.cmt_protected;
        config.dftl.batch = !self.no_batch;
        config.dftl.last_free = self.last_free;
        config
    }

    /// How the trace is played.
    pub fn options(&self) -> RunOptions {
        RunOptions {
            precondition: self.precondition,
            region: self.region,
            modify: self.modify,
            discards: self.discards,
            timed: !self.untimed,
        }
    }
}

/// How traces are read.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Reading traces")]
pub struct ReadArgs {
    /// The trace's format: auto, afterimage, blkparse, fio2, fio3, msr, spc, disksim, mqsim, alibaba, tencent, systor, fiu, cloudphysics
    /// or vscsi
    #[arg(long, default_value = "auto", value_parser = format, value_name = "FORMAT")]
    format: FormatChoice,
    /// blkparse: which event is the request
    #[arg(long, value_enum, default_value = "auto")]
    action: Action,
    /// Stop at the first broken line
    #[arg(long)]
    strict: bool,
    /// afterimage: only requests of these classes, as in home,log to leave out what went to guests' journals
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CLASS,...")]
    classes: Vec<Class>,
}

/// A named format, or none: found out.
#[derive(Debug, Clone, Copy)]
pub struct FormatChoice(pub Option<Format>);

/// `auto` or the name of a format.
pub fn format(text: &str) -> Result<FormatChoice, String> {
    if text == "auto" {
        return Ok(FormatChoice(None));
    }
    let found = Format::ALL.into_iter().find(|f| f.name() == text);
    found
        .map(|f| FormatChoice(Some(f)))
        .ok_or_else(|| format!("'{text}' is not auto or one of {}", Format::names()))
}

impl ReadArgs {
    /// The options they mean.
    pub fn options(&self) -> Options {
        let classes = match self.classes[..] {
            [] => Classes::default(),
            _ => Classes::of(&self.classes),
        };
        Options { format: self.format.0, action: self.action, strict: self.strict, classes }
    }
}

/// A trace by name: one or more files played together.
#[derive(Debug, Clone)]
pub struct Source {
    /// What reports call it.
    pub name: String,
    /// Its files.
    pub files: Vec<PathBuf>,
}

impl Source {
    /// Several files as one trace, called after the first.
    pub fn together(files: &[PathBuf]) -> Self {
        let name = files.first().and_then(|f| f.file_name()).unwrap_or_default().to_string_lossy();
        let more = if files.len() > 1 { format!(" and {} more", files.len() - 1) } else { String::new() };
        Self { name: format!("{name}{more}"), files: files.to_vec() }
    }

    /// `[NAME=]FILE[,FILE...]`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, files) = match text.split_once('=') {
            Some((name, files)) if !name.is_empty() && !name.contains('/') => (Some(name), files),
            _ => (None, text),
        };
        let files: Vec<PathBuf> = files.split(',').filter(|f| !f.is_empty()).map(PathBuf::from).collect();
        if files.is_empty() {
            return Err(format!("'{text}' names no trace file; write FILE, or NAME=FILE[,FILE...]"));
        }
        let mut source = Self::together(&files);
        if let Some(name) = name {
            source.name = name.to_owned();
        }
        Ok(source)
    }
}

/// Says on stderr what could not be read, with file, line and reason, and what may have been meant otherwise.
pub fn show_broken(tally: &Tally) {
    for note in &tally.notes {
        eprintln!("{note}");
    }
    for broken in &tally.broken_first {
        eprintln!("{}:{}: broken line passed over: {}", broken.file.display(), broken.line, broken.reason);
    }
    if tally.broken > 0 {
        eprintln!("{} of {} lines are broken and were passed over", tally.broken, tally.lines);
    }
}

/// No two traces may have one name.
pub fn distinct(sources: &[Source]) -> Result<(), CliError> {
    for (i, source) in sources.iter().enumerate() {
        if sources[..i].iter().any(|other| other.name == source.name) {
            return Err(CliError::Usage(format!(
                "two traces are called '{}'; name them: --trace NAME=FILE",
                source.name
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        drive: DriveArgs,
    }

    #[test]
    fn without_options_a_drive_is_the_default_one() {
        let Alone { drive } = Alone::parse_from(["afterimage"]);
        assert_eq!(drive.config(), Config::default());
    }
}
