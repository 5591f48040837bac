//! Files that a benchmark leaves, each written beside and renamed.

use std::fs;
use std::path::Path;

use afterimage_report::{note, raw, replace};
use serde::de::DeserializeOwned;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::{BenchError, Context, Result};

/// A record in a file of its own; `None` where there is no such file, or one of another version.
///
/// # Errors
/// What is there is of this version and cannot be read.
pub fn read_record<T: DeserializeOwned>(path: &Path, version: u32) -> Result<Option<T>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context(|| format!("read {}", path.display())),
    };
    raw::of_version(&text, version)
        .map_err(std::io::Error::from)
        .context(|| format!("{} cannot be read: remove it", path.display()))
}

/// Writes a record that [`read_record`] reads.
///
/// # Errors
/// It cannot be written.
pub fn write_record(path: &Path, record: &impl Serialize) -> Result<()> {
    let story = || format!("write {}", path.display());
    let text = serde_json::to_vec_pretty(record).map_err(std::io::Error::from).context(story)?;
    replace(path, &text).context(story)
}

/// Raw results, as they are committed.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn read<T: DeserializeOwned>(path: &Path, benchmark: &str) -> Result<T> {
    Ok(raw::read(path, benchmark)?.results)
}

/// Writes the raw results `BENCHMARK.json.zst`, and what is made of them for people as `.md` and `.html`, into a folder.
///
/// # Errors
/// A file can not be written.
pub fn write_all(
    folder: &Path,
    benchmark: &str,
    results: &impl Serialize,
    markdown: &str,
    page: &str,
) -> Result<()> {
    raw::write(&folder.join(format!("{benchmark}.json.zst")), benchmark, results)?;
    for (ending, text) in [("md", markdown), ("html", page)] {
        let path = folder.join(format!("{benchmark}.{ending}"));
        replace(&path, text.as_bytes()).context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

const END: &str = "<!-- end -->";

/// Puts the tables of a scale between its marks in a file.
///
/// # Errors
/// It has no marks, or can not be written.
pub fn insert(path: &Path, scale: &str, tables: &str) -> Result<()> {
    let text = fs::read_to_string(path).context(|| format!("read {}", path.display()))?;
    let begin = begin(scale);
    let fresh = between(&text, &begin, tables).ok_or_else(|| {
        BenchError::Usage(format!(
            "{} has no lines `{begin}` and `{END}` to put the tables between",
            path.display()
        ))
    })?;
    replace(path, fresh.as_bytes()).context(|| format!("write {}", path.display()))
}

/// Where the tables of a scale begin.
fn begin(scale: &str) -> String {
    format!("<!-- results: {scale} -->")
}

fn between(text: &str, begin: &str, tables: &str) -> Option<String> {
    let begin = text.find(begin)? + begin.len();
    let end = begin + text[begin..].find(END)?;
    Some(format!("{}\n\n{}\n{}", &text[..begin], tables.trim_end(), &text[end..]))
}

/// On Ctrl-C the reports are written from what is finished; the guards of the lab's processes see our end and kill, unmount and
/// remove whatever is running.
///
/// # Errors
/// Signals cannot be waited for.
pub fn write_on_signals(write: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).context(|| "wait for signals".to_owned())?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            match write() {
                Ok(()) => note("\nstopped; what is finished is kept, run again to go on\n"),
                Err(error) => note(&format!("\nstopped; {error}\n")),
            }
            // Dies of the signal, as whoever sent it expects.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_replace_what_was_between_the_marks() {
        let (full, quick) = (begin("full"), begin("quick"));
        let text = format!("before\n{full}\nkept\n{END}\n{quick}\nold\n{END}\nafter\n");
        let once = between(&text, &quick, "new\n").unwrap();
        assert_eq!(once, format!("before\n{full}\nkept\n{END}\n{quick}\n\nnew\n{END}\nafter\n"));
        assert_eq!(between(&once, &quick, "new\n").unwrap(), once);
        assert_eq!(between("no marks", &quick, "new"), None);
    }
}
