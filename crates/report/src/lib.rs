//! What a measurement leaves: raw results, and what is made of them for people.
//!
//! ```text
//!   rounds ─► Spread ─► number, thousands, ... ─► Table ─► text │ Markdown │ HTML ┐
//!        └──────────────────────────────────────► plot ─► SVG ────────────────────┴► page
//!   raw::write ─► FILE.json.zst ─► raw::read: the tables again, without measuring
//! ```
//!
//! Every instrument writes through this crate, so that a number looks the same wherever it stands.
#![warn(missing_docs)]

pub mod number;
pub mod page;
pub mod plot;
pub mod raw;
mod spread;
mod table;

use std::io::{self, Write};
use std::path::Path;

pub use spread::{or_dash, Spread};
pub use table::Table;

/// Stands where there is no number.
pub const NONE: &str = "–";

/// Writes a file beside and renames it: a reader sees the old one or the new one, never half of one.
///
/// # Errors
/// It cannot be written, or not moved to its place.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    std::fs::write(&fresh, content)?;
    std::fs::rename(&fresh, path)
}

/// Writes a line, or several, to stdout. A reader that has gone, as `head` does, has read enough: that is no error.
///
/// # Errors
/// Stdout takes nothing, for another reason.
pub fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let end = if text.ends_with('\n') { "" } else { "\n" };
    match write!(out, "{text}{end}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Writes words about the progress to stderr, as they are. Nobody needs to listen.
pub fn note(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
