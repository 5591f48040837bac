//! VMA journaling's evaluation in real guests, in parts that other benchmarks use as well.
//!
//! ```text
//!   figures × scale ─► plan ─┬► virtual_cell: template ─► afterimage-virtual ─────────────► outcome ─► cells/NAME.json
//!                            └► cell (the machine's disk): stage ─► daemons ─► guests ──────┘            │
//!                                                                    vma.json.zst, .md, .html ◄─ summary ─┘
//! ```

pub mod bench;
mod build_files;
pub mod catalog;
pub mod cell;
pub mod handed_over;
pub mod html;
pub mod memory;
pub mod outcome;
pub mod paper;
pub mod plan;
pub mod record;
pub mod report;
pub mod sampler;
pub mod scale;
pub mod script;
pub mod source;
pub mod stage;
pub mod summary;
pub mod tables;
pub mod template;
pub mod virtual_cell;
