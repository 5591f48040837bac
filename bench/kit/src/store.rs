//! Finished cells: a file each, so that Ctrl-C, a crash or a power cut costs the running cell only.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::error::{Context, Result};
use crate::identity::CellIdentity;
use crate::options::Resume;
use crate::outputs::{read_record, write_record};
use crate::program::say;

/// What one cell leaves; its JSON has a member `version`.
pub trait Record: Serialize + DeserializeOwned + Clone {
    /// Which cell it is of.
    type Key: CellIdentity;
    /// Raised when a record of an older program would mean something else.
    const VERSION: u32;

    /// Which cell it is of.
    fn key(&self) -> &Self::Key;
}

/// The finished cells of earlier runs and this one.
#[derive(Clone, Debug)]
pub struct Store<R: Record> {
    folder: PathBuf,
    records: BTreeMap<R::Key, R>,
}

impl<R: Record> Store<R> {
    /// Opens a folder. Files of another version, and those that are not `wanted`, stay, unread.
    ///
    /// # Errors
    /// The folder can not be read or made, or holds what cannot be read.
    pub fn open(folder: &Path, wanted: impl Fn(&R) -> bool) -> Result<Self> {
        fs::create_dir_all(folder).context(|| format!("make {}", folder.display()))?;
        let mut store = Self::of(Vec::new());
        folder.clone_into(&mut store.folder);
        for entry in fs::read_dir(folder).context(|| format!("read {}", folder.display()))? {
            let path = entry.context(|| format!("read {}", folder.display()))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let record = read_record::<R>(&path, R::VERSION)?.filter(&wanted);
                store.records.extend(record.map(|record| (record.key().clone(), record)));
            }
        }
        Ok(store)
    }

    /// Of records that were read elsewhere; nothing is to be added.
    pub fn of(records: impl IntoIterator<Item = R>) -> Self {
        let records = records.into_iter().map(|record| (record.key().clone(), record)).collect();
        Self { folder: PathBuf::new(), records }
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All, in the order of their keys.
    pub fn records(&self) -> impl Iterator<Item = &R> {
        self.records.values()
    }

    /// One.
    pub fn get(&self, key: &R::Key) -> Option<&R> {
        self.records.get(key)
    }

    /// Which of these are to be run, as `--list` and `--fresh` ask for it: `None` where they are listed, and nothing else is wanted.
    ///
    /// # Errors
    /// What is to be forgotten can not be removed, or nothing can be said.
    pub fn to_run(&mut self, keys: &[R::Key], resume: &Resume) -> Result<Option<Vec<R::Key>>> {
        if resume.list {
            let state = |key| if self.get(key).is_some() { "finished" } else { "to do" };
            let lines = keys.iter().map(|key| format!("{}: {}\n", key.name(), state(key)));
            return say(&lines.collect::<String>()).map(|()| None);
        }
        if resume.fresh {
            self.forget(keys)?;
        }
        Ok(Some(self.missing(keys)))
    }

    /// Those of these that are not finished.
    pub fn missing(&self, keys: &[R::Key]) -> Vec<R::Key> {
        keys.iter().filter(|key| !self.records.contains_key(key)).cloned().collect()
    }

    /// Keeps a cell, at once.
    ///
    /// # Errors
    /// It can not be written.
    pub fn add(&mut self, record: R) -> Result<()> {
        write_record(&self.path(record.key()), &record)?;
        self.records.insert(record.key().clone(), record);
        Ok(())
    }

    /// Takes those of these records whose cells are not finished here; a run keeps them.
    ///
    /// # Errors
    /// One can not be written.
    pub fn adopt(&mut self, records: impl IntoIterator<Item = R>, resume: &Resume) -> Result<()> {
        for record in records {
            if self.get(record.key()).is_some() {
                continue;
            }
            if resume.is_run() {
                self.add(record)?;
            } else {
                self.records.insert(record.key().clone(), record);
            }
        }
        Ok(())
    }

    /// Forgets cells, so that they are run again.
    ///
    /// # Errors
    /// A file can not be removed.
    pub fn forget(&mut self, keys: &[R::Key]) -> Result<()> {
        for key in keys {
            if self.records.remove(key).is_some() {
                let path = self.path(key);
                fs::remove_file(&path).context(|| format!("remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    fn path(&self, key: &R::Key) -> PathBuf {
        self.folder.join(format!("{}.json", key.file_name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cell, Cell, Number};

    #[test]
    fn another_run_goes_on_from_there() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Store::<Cell>::open(&folder.path().join("cells"), |cell| cell.scale == "full");
        let mut store = open().unwrap();
        for found in [cell(1, "full"), cell(2, "quick"), cell(3, "full")] {
            store.add(found).unwrap();
        }
        let old = serde_json::json!({"version": 1, "other": 1}).to_string();
        fs::write(store.folder().join("cell.s4.json"), old).unwrap();
        let mut store = open().unwrap();
        assert_eq!(store.missing(&[1, 2, 3, 4].map(Number)), [2, 4].map(Number));
        store.forget(&[1, 2].map(Number)).unwrap();
        assert_eq!(open().unwrap().records().collect::<Vec<_>>(), [&cell(3, "full")]);
        fs::write(store.folder().join("cell.s5.json"), "{\"version\":2,\"key\":5}").unwrap();
        assert!(open().unwrap_err().to_string().contains("cell.s5.json"));
    }
}
