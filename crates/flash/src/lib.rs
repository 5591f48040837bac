//! A trace-driven SSD simulator: FAST, Superblock, DFTL and the ideal page map over one NAND layer.
//!
//! ```text
//! trace file ─► requests ─► placed on the drive ─► 2 KB pages ─► FTL ─► Device (allocator, wear) ─► Flash ─► counts
//!  trace::open   trace::*      place                 sim           ftl::*   device, pool             nand
//! ```
//!
//! It answers what the VMA-SSD study asked (erases, garbage-collection overhead, lifetime) for any trace. Nothing is
//! global, nothing looks at the wall clock: the same trace and parameters give the same counters. Every parameter has
//! the study's value where the study states one ([`config::Config`]); the rest are marked [C] there.
//!
//! There is no crash inside a simulation: a run is a function of its trace. What stops a run early is a trace that
//! cannot be read or a drive without reclaimable space; both are errors, never zeros in a table.

pub mod cli;
mod comparison;
pub mod config;
pub mod control;
pub mod counts;
pub mod device;
pub mod ftl;
pub mod geometry;
pub mod ids;
pub mod nand;
pub mod place;
pub mod pool;
pub mod queue;
pub mod report;
pub mod scan;
pub mod sim;
pub mod table;
pub mod trace;
pub mod units;
pub mod victims;
pub mod wear;
pub mod workload;

pub use config::{Config, FtlKind};
pub use ftl::Ftl;
pub use ids::{Block, Lpn, Ppn};
