//! Files of JSON lines, a record each, that a program adds to and that outlive its being killed in the middle of a line.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::Serialize;

/// A file of lines cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LinesError {
    /// Reading or writing it failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A line is not what it should be.
    #[error("{} line {line} cannot be read ({source}): remove it, or the file", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which, from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// Reads the lines of a text. What follows the last end of a line was cut short by its writer's death: it was never said. Every
/// other line must be exactly a `T`.
///
/// # Errors
/// The number of the line, from 1, and what is wrong with it.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, (usize, serde_json::Error)> {
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let lines = whole.lines().enumerate();
    lines.map(|(at, line)| serde_json::from_str(line).map_err(|source| (at + 1, source))).collect()
}

/// A file that lines are added to.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    file: File,
}

impl Lines {
    /// Opens the file, or makes it, and reads what is there. Half a line at its end, of a writer that was killed, is removed: the next
    /// one would run into it.
    ///
    /// # Errors
    /// The file cannot be read or written, or holds something else.
    pub fn open<T: DeserializeOwned>(path: &Path) -> Result<(Lines, Vec<T>), LinesError> {
        let failed = |source| LinesError::Io { path: path.to_owned(), source };
        let mut file = File::options().read(true).append(true).create(true).open(path).map_err(failed)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let records =
            read(&text).map_err(|(line, source)| LinesError::Line { path: path.to_owned(), line, source })?;
        file.set_len(text.rfind('\n').map_or(0, |end| end + 1) as u64).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok((Lines { path: path.to_owned(), file }, records))
    }

    /// Adds a line.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add(&mut self, record: &impl Serialize) -> Result<(), LinesError> {
        let failed = |source| LinesError::Io { path: self.path.clone(), source };
        let mut line = serde_json::to_string(record).map_err(io::Error::from).map_err(failed)?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_line_may_be_cut_short() {
        assert_eq!(read::<u64>("1\n2\n3").unwrap(), [1, 2]);
        assert_eq!(read::<u64>("").unwrap(), [0u64; 0]);
        assert_eq!(read::<u64>("1\n2x\n3\n").unwrap_err().0, 2);
        assert_eq!(read::<u64>("1\n\n3\n").unwrap_err().0, 2);
    }

    #[test]
    fn after_a_killed_writer_the_next_line_is_whole() {
        let path = std::env::temp_dir().join(format!("afterimage-lines-{}", std::process::id()));
        std::fs::write(&path, "1\n2\n34").unwrap();
        let (mut lines, found) = Lines::open::<u64>(&path).unwrap();
        assert_eq!(found, [1, 2]);
        lines.add(&5).unwrap();
        drop(lines);
        assert_eq!(Lines::open::<u64>(&path).unwrap().1, [1, 2, 5]);
        std::fs::write(&path, "1\nnothing\n3\n").unwrap();
        let error = Lines::open::<u64>(&path).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
}
