//! What a case leaves behind if it fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Context, Result};

/// A folder for one case: saving into it never fails the case, since the case's own failure is the news.
#[derive(Debug)]
pub struct Evidence {
    folder: PathBuf,
}

impl Evidence {
    /// An empty folder.
    ///
    /// # Errors
    /// It can not be made.
    pub fn new(base: &Path, case: &str) -> Result<Evidence> {
        let folder = base.join(case.replace(['/', '='], "-"));
        if folder.exists() {
            fs::remove_dir_all(&folder).context(|| format!("remove {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).context(|| format!("make {}", folder.display()))?;
        Ok(Evidence { folder })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Saves a text.
    pub fn text(&self, name: &str, text: &str) {
        self.note(fs::write(self.folder.join(name), text).context(|| format!("write {name}")));
    }

    /// Saves files as they are, holes kept.
    pub fn files(&self, paths: &[PathBuf]) {
        for path in paths.iter().filter(|path| path.exists()) {
            let copied = Command::new("cp")
                .arg("--sparse=always")
                .arg(path)
                .arg(&self.folder)
                .stderr(Stdio::null())
                .status()
                .context(|| format!("copy {}", path.display()));
            self.note(copied.map(drop));
        }
    }

    /// Remembers that something could not be saved.
    pub fn note(&self, saved: Result<()>) {
        if let Err(error) = saved {
            tracing::warn!(%error, "evidence");
        }
    }

    /// All is well: nothing to keep.
    pub fn discard(self) {
        self.note(fs::remove_dir_all(&self.folder).context(|| format!("remove {}", self.folder.display())));
    }
}
