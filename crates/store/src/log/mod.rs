//! Redo logs as files: their names, their locks, their headers, and how images say that they depend on one.
//!
//! ```text
//! image ─► its mark, or the sidecar beside it, or the usual name ─► find_log ─► LogFile (locked) ─► Medium
//! ```
//!
//! What is in a log is nobody's business here: who writes records reads them.

mod dependency;
mod error;
mod file;
mod find;
mod header;
mod names;

pub use error::{LogError, LogReadError};
pub use file::{owners, LogFile, NewLog, Owner};
pub use find::{find_any_log, find_log, is_live, is_log, live_beside, named_by, needs, same_file};
pub use header::read_header;
pub use names::{absolute, log_beside, log_of, real_path};
