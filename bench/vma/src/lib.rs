//! VMA journaling's evaluation in real guests, in parts that other benchmarks use as well.
//!
//! ```text
//!   figures × scale ─► plan ─► cell: template ─► stage ─► daemons ─► guests ─► outcome ─► cells/NAME.json
//!                                                                                          │
//!                                                   vma.json.zst, .md, .html ◄─ summary ─┘
//! ```

pub mod bench;
pub mod catalog;
pub mod cell;
pub mod html;
pub mod memory;
pub mod outcome;
pub mod paper;
pub mod plan;
pub mod record;
pub mod recovery;
pub mod report;
pub mod sampler;
pub mod scale;
pub mod script;
pub mod source;
pub mod stage;
pub mod summary;
pub mod tables;
pub mod template;
