//! The paper's figures in virtual time, at its sizes (docs/virtual-time.md): each cell is one guest on the host's disk of the paper, a
//! function of its seed. Cells do not disturb each other, so two run at once; a finished one is a file.

pub mod arm;
mod cell;
mod tables;
pub mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use afterimage_bench_kit::seeded::{show, Seeded, SeededOptions};
use afterimage_bench_kit::virtual_time::Virtual;
use afterimage_bench_kit::{chosen, Result};

use crate::scale::Scale;
use crate::template::Templates;
use cell::{Image, Key, Record};
use work::{Figure, Work};

/// The name of its results.
const NAME: &str = "serve-guests-virtual";

/// The cells, all of one seed before the next: whatever has to be broken off has every row.
fn keys(figures: &[Figure], seeds: u64, only: &[String]) -> Result<Vec<Key>> {
    let mut keys = Vec::new();
    for seed in 1..=seeds {
        for figure in figures {
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
    chosen(keys, only, "work/model/arm, as in varmail/hdd10k/window")
}

/// Runs what is not finished. Whether every cell came to a result.
///
/// # Errors
/// Results cannot be read or written, or no image can be made.
pub fn run(options: &SeededOptions, figures: &[Figure]) -> Result<bool> {
    if let Some(path) = &options.common.tables {
        return show(path, NAME, tables::markdown);
    }
    let out = &options.out;
    let bench = Seeded {
        name: NAME,
        scale: "virtual",
        cells: out.join(format!("{NAME}.cells")),
        reports: out.clone(),
        wanted: |_: &Record| true,
        markdown: tables::markdown,
        page: tables::page,
    };
    bench.run(
        options,
        || keys(figures, options.seeds(), &options.only),
        || Ok((Virtual::find()?, Images::new(out.join(format!("{NAME}.images")))?)),
        |(machine, images), key| {
            let record = cell::measure(key, &images.get(key.work)?, machine)?;
            let words = record.words();
            Ok((record, words))
        },
    )
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
        let count = |figures: &[Figure]| keys(figures, 2, &[]).unwrap().len();
        assert_eq!(count(&[Figure::Four]), 2 * 12);
        // Nested, host, neither and window on varmail are in both.
        assert_eq!(count(&[Figure::Four, Figure::Six]), 2 * (12 + 48 - 4));
    }
}
