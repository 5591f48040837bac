//! The reports: JSON for programs, Markdown for the README, HTML with pictures.

use std::path::Path;

use afterimage_bench_kit::{write_all, Result};
use serde::{Deserialize, Serialize};

use crate::html;
use crate::record::{Record, Sample, Store};
use crate::scale::Scale;
use crate::summary::Cells;
use crate::tables;

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
    let Results { scale, cells } = afterimage_bench_kit::read(path, "vma")?;
    Ok((scale, Store::of(cells.into_iter().map(|cell| (cell.record, cell.samples)))))
}

/// Writes the raw results `vma.json.zst`, and the tables as `vma.md` and `vma.html`, into `folder`, and returns the Markdown.
///
/// # Errors
/// A file can not be written.
pub fn write(folder: &Path, scale: &Scale, store: &Store) -> Result<String> {
    let cell =
        |record: &Record| Cell { record: record.clone(), samples: store.samples(&record.key).to_vec() };
    let results = Results { scale: scale.clone(), cells: store.cells.records().map(cell).collect() };
    let markdown = markdown(scale, store);
    write_all(folder, "vma", &results, &markdown, &html::page(scale, store, &Cells::new(store)))?;
    Ok(markdown)
}

/// The tables.
pub fn markdown(scale: &Scale, store: &Store) -> String {
    tables::all(scale, store, &Cells::new(store))
}
