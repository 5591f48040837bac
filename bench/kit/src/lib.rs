//! What all benchmarks share. A benchmark says what its cells are, how one is measured, and which tables come of the records.
//!
//! ```text
//!   options ─► cells × rounds ─► run: left to do? calm? measure ─► Store: a file a cell, at once
//!                                                                   │ Ctrl-C, a crash: the next run goes on from there
//!                                  NAME.json.zst, .md, .html ◄──────┘
//! ```

mod cells;
mod error;
mod identity;
pub mod io;
mod jbd2;
mod large_file;
pub mod mariadb;
mod mke2fs;
mod options;
mod outputs;
pub mod process;
mod program;
pub mod seeded;
mod store;
#[cfg(test)]
mod testing;
pub mod virtual_time;

pub use cells::{run, run_at_once, Bench, Failure};
pub use error::{BenchError, Context, Result};
pub use identity::{check_only, chosen, is_chosen, CellIdentity, Turn};
pub use jbd2::Jbd2;
pub use large_file::large_file;
pub use mke2fs::mke2fs;
pub use options::{Common, Earlier, Resume};
pub use outputs::{insert, read, read_record, write_all, write_on_signals, write_record};
pub use program::{main, say};
pub use store::{Record, Store};
