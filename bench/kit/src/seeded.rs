//! Benchmarks all of whose cells run in virtual time, each a function of its key and of a seed, several at once.
//!
//! ```text
//!   --tables FILE ─► tables                         keys ─► those that are to run ─► begin ─► run_at_once: measure ─► Store
//!   --report ─► Store ─► reports, tables                                                                  reports, tables ◄┘
//! ```

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use afterimage_report::note;
use clap::Args;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cells::run_at_once;
use crate::error::Result;
use crate::identity::CellIdentity;
use crate::options::{Common, Earlier, Resume};
use crate::outputs::{insert, read, write_all, write_on_signals};
use crate::program::say;
use crate::store::{Record, Store};

/// Their options.
#[derive(Args, Clone, Debug)]
pub struct SeededOptions {
    /// Of every benchmark.
    #[command(flatten)]
    pub common: Common,
    /// Of long ones.
    #[command(flatten)]
    pub resume: Resume,
    /// Of those that keep every cell.
    #[command(flatten)]
    pub earlier: Earlier,
    /// Only these cells: parts of a name between slashes, each a name or *, later parts may be left out
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Seeds 1 to this, all cells of one before the next [default: 5; 1 with --quick]
    #[arg(long)]
    pub seeds: Option<u64>,
    /// Cells that run at once
    #[arg(long, default_value_t = 2, value_name = "CELLS")]
    pub at_once: usize,
    /// Where results go
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
}

impl SeededOptions {
    /// How many seeds.
    pub fn seeds(&self) -> u64 {
        self.seeds.unwrap_or(if self.common.quick { 1 } else { 5 })
    }
}

/// The raw results, as they are committed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Records<R> {
    records: Vec<R>,
}

/// One scale of a benchmark: what its records are kept as, and shown.
#[derive(Clone, Debug)]
pub struct Seeded<R, W> {
    /// The benchmark's name, which is in its raw results.
    pub name: &'static str,
    /// The scale's, as in the marks of [`insert`].
    pub scale: &'static str,
    /// Where a file a finished cell goes.
    pub cells: PathBuf,
    /// Where the reports go.
    pub reports: PathBuf,
    /// Which records are of this scale.
    pub wanted: W,
    /// All tables of what there is.
    pub markdown: fn(&[R]) -> String,
    /// The same as a page.
    pub page: fn(&str) -> String,
}

/// Prints the tables of raw results.
///
/// # Errors
/// They cannot be read.
pub fn show<R: DeserializeOwned>(path: &Path, name: &str, markdown: impl Fn(&[R]) -> String) -> Result<bool> {
    say(&markdown(&read::<Records<R>>(path, name)?.records)).map(|()| true)
}

impl<R, W> Seeded<R, W>
where
    R: Record + Send + 'static,
    R::Key: Send + Sync,
    W: Fn(&R) -> bool + Copy + Send + 'static,
{
    fn write(&self, store: &Store<R>) -> Result<String> {
        let records: Vec<R> = store.records().cloned().collect();
        let markdown = (self.markdown)(&records);
        let page = (self.page)(&markdown);
        write_all(&self.reports, self.name, &Records { records }, &markdown, &page)?;
        Ok(markdown)
    }

    /// Runs what is to run of these cells, or reports what is finished. `begin` makes what all cells need; `measure` says in a few words what came
    /// out. Whether every cell came to a result.
    ///
    /// # Errors
    /// Results cannot be read or written, or cells not begun.
    pub fn run<S: Sync>(
        self,
        options: &SeededOptions,
        keys: impl FnOnce() -> Result<Vec<R::Key>>,
        begin: impl FnOnce() -> Result<S>,
        measure: impl Fn(&S, &R::Key) -> Result<(R, String)> + Sync,
    ) -> Result<bool> {
        let resume = &options.resume;
        let mut store = Store::open(&self.cells, self.wanted)?;
        if let Some(path) = &options.earlier.from {
            let records = read::<Records<R>>(path, self.name)?.records;
            store.adopt(records.into_iter().filter(self.wanted), resume)?;
        }
        if resume.report {
            let text = self.write(&store)?;
            say(&text)?;
            return resume
                .into
                .as_ref()
                .map_or(Ok(true), |path| insert(path, self.scale, &text).map(|()| true));
        }
        let keys = keys()?;
        let Some(todo) = store.to_run(&keys, resume)? else { return Ok(true) };
        let then = self.clone();
        write_on_signals(move || then.write(&Store::open(&then.cells, then.wanted)?).map(drop))?;
        let shared = begin()?;
        let kept = keys.len() - todo.len();
        let store = Mutex::new(store);
        let failed = run_at_once(&todo, kept, options.at_once, R::Key::name, |key| {
            let (record, words) = measure(&shared, key)?;
            store.lock().unwrap_or_else(PoisonError::into_inner).add(record)?;
            Ok(words)
        });
        say(&self.write(&store.into_inner().unwrap_or_else(PoisonError::into_inner))?)?;
        let results = self.reports.join(format!("{}.{{json.zst,md,html}}", self.name));
        note(&format!("results: {}\n", results.display()));
        Ok(failed.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cell, Cell, Number};

    #[derive(clap::Parser)]
    struct Options {
        #[command(flatten)]
        seeded: SeededOptions,
    }

    /// Who asks for a report or a list of raw results has not said that they are finished here; who runs has.
    #[test]
    fn only_a_run_keeps_the_cells_that_it_goes_on_from() {
        let folder = tempfile::tempdir().unwrap();
        let raw = folder.path().join("earlier");
        let records = Records { records: vec![cell(1, "full")] };
        std::fs::create_dir(&raw).unwrap();
        write_all(&raw, "bench", &records, "", "").unwrap();
        let out = folder.path().join("out");
        std::fs::create_dir(&out).unwrap();
        let run = |arguments: &[&str]| {
            let from = raw.join("bench.json.zst");
            let arguments =
                ["bench", "--from", from.to_str().unwrap()].into_iter().chain(arguments.iter().copied());
            let Options { seeded } = clap::Parser::parse_from(arguments);
            let bench = Seeded {
                name: "bench",
                scale: "full",
                cells: out.join("cells"),
                reports: out.clone(),
                wanted: |_: &Cell| true,
                markdown: |cells| format!("{} cells\n", cells.len()),
                page: str::to_owned,
            };
            let measure = |_: &(), key: &Number| Ok((cell(key.0, "full"), String::new()));
            assert!(bench.run(&seeded, || Ok(vec![Number(1), Number(2)]), || Ok(()), measure).unwrap());
            let mut kept: Vec<_> =
                std::fs::read_dir(out.join("cells")).unwrap().map(|e| e.unwrap().file_name()).collect();
            kept.sort();
            kept
        };
        assert!(run(&["--list"]).is_empty());
        assert!(run(&["--report"]).is_empty());
        assert_eq!(std::fs::read_to_string(out.join("bench.md")).unwrap(), "1 cells\n");
        assert_eq!(run(&[]), ["cell.s1.json", "cell.s2.json"]);
    }
}
