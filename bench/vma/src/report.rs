//! The reports: JSON for programs, Markdown for the README, HTML with pictures.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{BenchError, Context, Result};
use crate::html;
use crate::record::{Record, Sample, Store};
use crate::scale::Scale;
use crate::summary::Table;
use crate::tables;

const END: &str = "<!-- end -->";

/// The raw results, as they are committed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Results {
    scale: Scale,
    cells: Vec<Cell>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    record: Record,
    samples: Vec<Sample>,
}

/// Reads committed raw results.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn read(path: &Path) -> Result<(Scale, Store)> {
    let Results { scale, cells } = afterimage_results::read(path, "vma")?.results;
    Ok((scale, Store::of(cells.into_iter().map(|cell| (cell.record, cell.samples)))))
}

/// Writes the raw results `vma.json.zst`, and the tables as `vma.md` and `vma.html`, into `folder`, and returns the Markdown.
///
/// # Errors
/// A file can not be written.
pub fn write(folder: &Path, scale: &Scale, store: &Store) -> Result<String> {
    let table = Table::new(store);
    let cell =
        |record: &Record| Cell { record: record.clone(), samples: store.samples(&record.key).to_vec() };
    let results = Results { scale: scale.clone(), cells: store.records().map(cell).collect() };
    afterimage_results::write(&folder.join("vma.json.zst"), "vma", &results)?;
    let markdown = tables::all(scale, store, &table);
    for (name, text) in [("vma.md", &markdown), ("vma.html", &html::page(scale, store, &table))] {
        put(&folder.join(name), text)?;
    }
    Ok(markdown)
}

/// The tables.
pub fn markdown(scale: &Scale, store: &Store) -> String {
    tables::all(scale, store, &Table::new(store))
}

/// Puts the tables of a scale between its marks in a file.
///
/// # Errors
/// It has no marks, or can not be written.
pub fn insert(path: &Path, scale: &Scale, tables: &str) -> Result<()> {
    let text = fs::read_to_string(path).context(|| format!("read {}", path.display()))?;
    let begin = begin(&scale.name);
    let fresh = between(&text, &begin, tables).ok_or_else(|| {
        BenchError::Usage(format!(
            "{} has no lines `{begin}` and `{END}` to put the tables between",
            path.display()
        ))
    })?;
    put(path, &fresh)
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

/// Written beside and renamed: a reader never sees half a report.
///
/// # Errors
/// It can not be written.
pub fn put(path: &Path, text: &str) -> Result<()> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, text).context(|| format!("write {}", fresh.display()))?;
    fs::rename(&fresh, path).context(|| format!("write {}", path.display()))
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
