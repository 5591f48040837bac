//! Public block-trace formats, read as a stream.
//!
//! ```text
//! file ─► gzip? zstd? ─► no trace? named and refused ─► lines or records (bounded) ─► parser of the format ─► Request
//!                                                                          │ columns: a table of formats
//! ```
//!
//! Memory does not grow with the trace. A line that does not fit its format is broken: counted, the first ones kept
//! with file, line and reason; strict reading stops at the first. A trace without a single request is an error.
//! A capture of a daemon that was killed is read up to its last whole line.

mod blkparse;
mod capture;
mod class;
mod columns;
mod detect;
mod fields;
mod fio;
mod foreign;
mod formats;
mod gzip;
mod lines;
mod merge;
mod parser;
mod prefetch;
mod reader;
mod vscsi;
mod write;

use serde::Serialize;

pub use class::{ByClass, Class, ClassTally, Classes};
pub use merge::Merged;
pub use parser::{Action, Reason};
pub use prefetch::Prefetch;
pub use reader::{open, Broken, Options, Reader, Tally, TraceError};
pub use write::Writer;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Discard, trim.
    Discard,
}

/// One request of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Nanoseconds since the trace's first request; `None`: the trace has no times.
    pub time_ns: Option<u64>,
    /// The address space: a number for each device, file or ASU, in order of appearance.
    pub device: u32,
    /// What it does.
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
    /// Bytes, at least 1; at most [`MAX_TRANSFER`] for reads and writes, [`MAX_DISCARD`] for discards.
    pub bytes: u64,
    /// What it is for; home where the format does not say.
    pub class: Class,
}

impl Request {
    /// The same, that much later.
    fn later(self, ns: u64) -> Self {
        Self { time_ns: self.time_ns.map(|time| time.saturating_add(ns)), ..self }
    }
}

/// The largest read or write believed, bytes.
pub const MAX_TRANSFER: u64 = 1 << 30;
/// The largest discard believed, bytes.
pub const MAX_DISCARD: u64 = 1 << 44;
/// Requests beyond this byte address are not believed.
pub const MAX_ADDRESS: u64 = 1 << 56;

/// A trace format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// afterimage's own capture: `serve --trace`.
    Afterimage,
    /// Text of blkparse.
    Blkparse,
    /// fio iolog, version 2.
    Fio2,
    /// fio iolog, version 3.
    Fio3,
    /// MSR Cambridge.
    Msr,
    /// SPC (UMass).
    Spc,
    /// DiskSim ASCII: times in milliseconds.
    Disksim,
    /// MQSim ASCII: DiskSim's columns with times in nanoseconds.
    Mqsim,
    /// Alibaba's block traces.
    Alibaba,
    /// Tencent's cloud block storage.
    Tencent,
    /// SYSTOR '17 (Fujitsu).
    Systor,
    /// Florida International University.
    Fiu,
    /// CloudPhysics as CSV.
    Cloudphysics,
    /// CloudPhysics as it was recorded: binary.
    Vscsi,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 14] = [
        Self::Afterimage,
        Self::Blkparse,
        Self::Fio2,
        Self::Fio3,
        Self::Msr,
        Self::Spc,
        Self::Disksim,
        Self::Mqsim,
        Self::Alibaba,
        Self::Tencent,
        Self::Systor,
        Self::Fiu,
        Self::Cloudphysics,
        Self::Vscsi,
    ];

    /// All names, for messages.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Afterimage => "afterimage",
            Self::Blkparse => "blkparse",
            Self::Fio2 => "fio2",
            Self::Fio3 => "fio3",
            Self::Msr => "msr",
            Self::Spc => "spc",
            Self::Disksim => "disksim",
            Self::Mqsim => "mqsim",
            Self::Alibaba => "alibaba",
            Self::Tencent => "tencent",
            Self::Systor => "systor",
            Self::Fiu => "fiu",
            Self::Cloudphysics => "cloudphysics",
            Self::Vscsi => "vscsi",
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
