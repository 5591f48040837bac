//! The paper's figures in virtual time, at its sizes (docs/virtual-time.md): each cell is one guest on the host's disk of the paper, a
//! function of its seed. Cells do not disturb each other, so two run at once; a finished one is a file.

pub mod arm;
mod cell;
mod tables;
pub mod work;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use afterimage_bench_kit::virtual_time::Virtual;
use afterimage_bench_kit::{
    check_only, insert, is_chosen, read, run_at_once, say, write_all, write_on_signals, Earlier, Result,
    Resume,
};
use afterimage_report::note;
use serde::{Deserialize, Serialize};

use crate::scale::Scale;
use crate::template::Templates;
use cell::{Image, Key, Record};
use work::{Figure, Work};

/// The name of its results.
const NAME: &str = "serve-guests-virtual";

type Store = afterimage_bench_kit::Store<Record>;

/// What is run.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Where results go.
    pub out: &'a Path,
    /// The figures.
    pub figures: &'a [Figure],
    /// Patterns of `work/model/arm`.
    pub only: &'a [String],
    /// Seeds 1 to this.
    pub seeds: u64,
    /// Cells at once.
    pub at_once: usize,
    /// What every benchmark that resumes has.
    pub resume: &'a Resume,
    /// From where it goes on.
    pub earlier: &'a Earlier,
}

/// The raw results, as they are committed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Results {
    records: Vec<Record>,
}

/// The tables of committed raw results.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn tables(path: &Path) -> Result<String> {
    let Results { records } = read(path, NAME)?;
    Ok(tables::markdown(&records))
}

/// The cells, all of one seed before the next: whatever has to be broken off has every row.
fn keys(plan: &Plan<'_>) -> Result<Vec<Key>> {
    let mut keys = Vec::new();
    for seed in 1..=plan.seeds {
        for figure in plan.figures {
            for model in figure.models() {
                for work in figure.works() {
                    for arm in figure.arms() {
                        let key = Key { work: *work, model: (*model).to_owned(), arm: *arm, seed };
                        if !keys.contains(&key) {
                            keys.push(key);
                        }
                    }
                }
            }
        }
    }
    let paths: Vec<String> = keys.iter().map(Key::path).collect();
    check_only(plan.only, &paths, "work/model/arm, as in varmail/hdd10k/window")?;
    keys.retain(|key| is_chosen(plan.only, &key.path()));
    Ok(keys)
}

fn write(out: &Path, store: &Store) -> Result<String> {
    let records: Vec<Record> = store.records().cloned().collect();
    let markdown = tables::markdown(&records);
    write_all(out, NAME, &Results { records }, &markdown, &tables::page(&markdown))?;
    Ok(markdown)
}

/// Runs what is not finished. Whether every cell came to a result.
///
/// # Errors
/// Results cannot be read or written, or no image can be made.
pub fn run(plan: &Plan<'_>) -> Result<bool> {
    let (out, resume) = (plan.out, plan.resume);
    let folder = out.join(format!("{NAME}.cells"));
    let mut store = Store::open(&folder, |_| true)?;
    if let Some(path) = &plan.earlier.from {
        store.adopt(read::<Results>(path, NAME)?.records, resume)?;
    }
    if resume.report {
        let text = write(out, &store)?;
        say(&text)?;
        return resume.into.as_ref().map_or(Ok(true), |path| insert(path, "virtual", &text).map(|()| true));
    }
    let keys = keys(plan)?;
    let name = |key: &Key| format!("{} seed {}", key.path(), key.seed);
    let Some(todo) = store.to_run(&keys, resume, name)? else { return Ok(true) };
    let (out_then, folder_then) = (out.to_owned(), folder);
    write_on_signals(move || write(&out_then, &Store::open(&folder_then, |_| true)?).map(drop))?;
    let virtual_time = Virtual::find()?;
    let images = Images::new(out.join(format!("{NAME}.images")))?;
    let kept = keys.len() - todo.len();
    let store = Mutex::new(store);
    let failed = run_at_once(&todo, kept, plan.at_once, name, |key| {
        let record = cell::measure(key, &images.get(key.work)?, &virtual_time)?;
        let words = record.words();
        store.lock().unwrap_or_else(PoisonError::into_inner).add(record)?;
        Ok(words)
    });
    say(&write(out, &store.into_inner().unwrap_or_else(PoisonError::into_inner))?)?;
    note(&format!("results: {}\n", out.join(format!("{NAME}.{{json.zst,md,html}}")).display()));
    Ok(failed.is_empty())
}

/// Images by workload; made once, and kept on the machine's own disk for the next run.
struct Images {
    folder: PathBuf,
    made: Mutex<BTreeMap<Work, Image>>,
}

impl Images {
    fn new(folder: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&folder)?;
        Ok(Self { folder, made: Mutex::default() })
    }

    fn get(&self, work: Work) -> Result<Image> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(image) = made.get(&work) {
            return Ok(image.clone());
        }
        let kept = self.folder.join(format!("{}.img", work.workload().name()));
        if !kept.exists() {
            let path = Templates::new(self.folder.clone(), Scale::paper()).get(work.workload())?;
            if path != kept {
                std::fs::rename(&path, &kept)?;
            }
        }
        let image = Image::of(&kept)?;
        made.insert(work, image.clone());
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_several_figures_are_run_once_and_seed_by_seed() {
        let resume = Resume { calm: 0, fresh: false, list: false, report: false, into: None };
        let plan = |figures: &'static [Figure], only: &'static [String]| {
            let plan = Plan {
                out: Path::new(""),
                figures,
                only,
                seeds: 2,
                at_once: 1,
                resume: &resume,
                earlier: &Earlier::default(),
            };
            keys(&plan).map(|keys| keys.len())
        };
        assert_eq!(plan(&[Figure::Four], &[]).unwrap(), 2 * 12);
        // Nested, host, neither and window on varmail are in both.
        assert_eq!(plan(&[Figure::Four, Figure::Six], &[]).unwrap(), 2 * (12 + 48 - 4));
    }
}
