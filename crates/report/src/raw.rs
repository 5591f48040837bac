//! Raw results, as they are committed: `bench/NAME/results/*.json.zst` and the demo's, from which the tables are printed.
//!
//! ```text
//!   cells ─► Raw { benchmark, machine, results } ─ write ─► FILE.json.zst ─ read ─► tables
//! ```
//!
//! `zstd -dc FILE.json.zst` shows them. What is read must be exactly what this version writes: a renamed member is no zero.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Results cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// Reading or writing the file failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It holds something else.
    #[error("{} is not what this version of the benchmark writes: {why}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl ResultsError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    fn other(path: &Path, why: impl std::fmt::Display) -> Self {
        Self::Other { path: path.to_owned(), why: why.to_string() }
    }
}

/// Where something was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Release of the kernel.
    pub kernel: String,
    /// Processors.
    pub cpus: u64,
}

impl Machine {
    /// This one.
    ///
    /// # Errors
    /// The kernel does not say its release.
    pub fn this() -> io::Result<Machine> {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
        let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        Ok(Machine { kernel, cpus })
    }
}

/// A benchmark's raw results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Raw<T> {
    /// Its name, as `./x bench` takes it.
    pub benchmark: String,
    /// The benchmark program's version.
    pub version: String,
    /// Where it ran.
    pub machine: Machine,
    /// Everything measured.
    pub results: T,
}

/// Writes results of this machine, beside and renamed: a reader never sees half of them.
///
/// # Errors
/// The file cannot be written.
pub fn write<T: Serialize>(path: &Path, benchmark: &str, results: &T) -> Result<(), ResultsError> {
    let raw = Raw {
        benchmark: benchmark.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: Machine::this().map_err(ResultsError::io(path))?,
        results,
    };
    let json = serde_json::to_vec(&raw).map_err(io::Error::from).map_err(ResultsError::io(path))?;
    let packed = zstd::encode_all(&json[..], 19).map_err(ResultsError::io(path))?;
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(ResultsError::io(folder))?;
    }
    crate::replace(path, &packed).map_err(ResultsError::io(path))
}

/// Reads results of a benchmark.
///
/// # Errors
/// The file cannot be read, or holds anything else.
pub fn read<T: DeserializeOwned>(path: &Path, benchmark: &str) -> Result<Raw<T>, ResultsError> {
    let packed = fs::read(path).map_err(ResultsError::io(path))?;
    let json = zstd::decode_all(&packed[..]).map_err(ResultsError::io(path))?;
    let raw: Raw<T> = serde_json::from_slice(&json).map_err(|error| ResultsError::other(path, error))?;
    if raw.benchmark == benchmark {
        return Ok(raw);
    }
    Err(ResultsError::other(path, format!("these are results of `{}`", raw.benchmark)))
}

/// Reads a record that says its `version`; `None` if it is of another one, which the cell is then run again for.
///
/// # Errors
/// It is no record, or of this version and not exactly a `T`.
pub fn of_version<T: DeserializeOwned>(text: &str, version: u32) -> Result<Option<T>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let found: Versioned = serde_json::from_str(text)?;
    (found.version == version).then(|| serde_json::from_str(text)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Cell {
        version: u32,
        ms: f64,
    }

    #[test]
    fn results_come_back_and_others_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results/quick.json.zst");
        let cells = vec![Cell { version: 1, ms: 0.1 }, Cell { version: 1, ms: 1e300 }];
        write(&path, "vma", &cells).unwrap();
        let raw: Raw<Vec<Cell>> = read(&path, "vma").unwrap();
        assert_eq!((raw.results, raw.machine), (cells, Machine::this().unwrap()));
        assert!(read::<Vec<Cell>>(&path, "serve").unwrap_err().to_string().contains("`vma`"));
        assert!(read::<Vec<u64>>(&path, "vma").is_err());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn another_version_is_left_out_and_a_renamed_member_is_not() {
        let whole = r#"{"version":2,"ms":1.5}"#;
        assert_eq!(of_version(whole, 2).unwrap(), Some(Cell { version: 2, ms: 1.5 }));
        assert_eq!(of_version::<Cell>(r#"{"version":1,"s":1}"#, 2).unwrap(), None);
        for bad in [r#"{"version":2,"s":1}"#, r#"{"version":2,"ms":1,"more":1}"#, r#"{"version":2,"#, "{}"] {
            assert!(of_version::<Cell>(bad, 2).is_err(), "{bad}");
        }
    }
}
