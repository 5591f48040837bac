//! Which cell a result is of: what is measured, and which time.

use crate::error::{BenchError, Result};

/// Which time a cell is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// In real time; counted from 1.
    Round(u32),
    /// In virtual time, where a seed is a run.
    Seed(u64),
}

/// What a cell is told from others by.
pub trait CellIdentity: Ord + Clone {
    /// What is measured, for people and for `--only`: words with slashes between them.
    fn path(&self) -> String;

    /// Which time.
    fn turn(&self) -> Turn;

    /// Both, for people.
    fn name(&self) -> String {
        match self.turn() {
            Turn::Round(round) => format!("{} round {round}", self.path()),
            Turn::Seed(seed) => format!("{} seed {seed}", self.path()),
        }
    }

    /// Both, for a file, without its ending.
    fn file_name(&self) -> String {
        let path = self.path().replace(['/', '='], "_");
        match self.turn() {
            Turn::Round(round) => format!("{path}.r{round}"),
            Turn::Seed(seed) => format!("{path}.s{seed}"),
        }
    }
}

/// Those of the cells that `--only` chooses. `shape`: how a pattern is written, and an example.
///
/// # Errors
/// A pattern chooses none.
pub fn chosen<K: CellIdentity>(mut keys: Vec<K>, only: &[String], shape: &str) -> Result<Vec<K>> {
    let paths: Vec<String> = keys.iter().map(K::path).collect();
    check_only(only, &paths, shape)?;
    keys.retain(|key| is_chosen(only, &key.path()));
    Ok(keys)
}

/// Whether `--only` chooses a cell of that path: no pattern at all does.
pub fn is_chosen(only: &[String], path: &str) -> bool {
    only.is_empty() || only.iter().any(|pattern| matches(pattern, path))
}

/// Each pattern of `--only` has to choose one of these paths.
///
/// # Errors
/// One chooses nothing.
pub fn check_only(only: &[String], paths: &[String], shape: &str) -> Result<()> {
    match only.iter().find(|pattern| !paths.iter().any(|path| matches(pattern, path))) {
        None => Ok(()),
        Some(pattern) => Err(BenchError::Usage(format!("--only {pattern} matches no cell: write {shape}"))),
    }
}

/// Whether a pattern such as `varmail/*/window` chooses a path: each part a name or `*`, later parts may be left out.
fn matches(pattern: &str, path: &str) -> bool {
    let mut parts = path.split('/');
    pattern.split('/').all(|wanted| parts.next().is_some_and(|part| wanted == "*" || wanted == part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_choose() {
        for (pattern, chosen) in
            [("a", true), ("a/b", true), ("*/b/c", true), ("a/c", false), ("a/b/c/d", false), ("", false)]
        {
            assert_eq!(matches(pattern, "a/b/c"), chosen, "{pattern}");
        }
    }

    #[test]
    fn a_name_tells_rounds_from_seeds_and_fits_a_file() {
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
        struct Key(u32);
        impl CellIdentity for Key {
            fn path(&self) -> String {
                "postmark/power-window=50ms".to_owned()
            }

            fn turn(&self) -> Turn {
                if self.0 == 0 {
                    Turn::Seed(7)
                } else {
                    Turn::Round(self.0)
                }
            }
        }
        assert_eq!(Key(2).name(), "postmark/power-window=50ms round 2");
        assert_eq!(
            [Key(0).file_name(), Key(2).file_name()].join(" "),
            "postmark_power-window_50ms.s7 postmark_power-window_50ms.r2"
        );
        let keys = chosen(vec![Key(1), Key(2)], &["postmark".to_owned()], "").unwrap_or_default();
        assert_eq!(keys.len(), 2);
        assert!(chosen(keys, &["untar".to_owned()], "workload/contract").is_err());
    }
}
