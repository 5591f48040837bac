//! What is kept when something was wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Context, Result};
use crate::guest::Guest;

/// A scenario's folder under `target/demo/evidence`; it exists from the scenario's start and goes when all is well.
#[derive(Debug)]
pub struct Evidence {
    folder: PathBuf,
}

impl Evidence {
    /// An empty folder; what an earlier run left there is removed.
    ///
    /// # Errors
    /// The folder can not be made.
    pub fn new(out: &Path, scenario: &str) -> Result<Evidence> {
        let folder = out.join("evidence").join(scenario.replace('/', "-"));
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

    /// Saves what a guest said.
    ///
    /// # Errors
    /// The folder can not be written.
    pub fn guest(&self, guest: &Guest, tag: &str) -> Result<()> {
        guest.save(&self.folder, tag)
    }

    /// Saves a text.
    ///
    /// # Errors
    /// The folder can not be written.
    pub fn text(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        fs::write(&path, text).context(|| format!("write {}", path.display()))
    }

    /// Copies files as they are now, holes kept. A file that is not there is left out.
    ///
    /// # Errors
    /// `cp` could not be run.
    pub fn copy(&self, from: &Path, tag: &str) -> Result<()> {
        if from.exists() {
            let name = from.file_name().unwrap_or_default().to_string_lossy();
            Command::new("cp")
                .args(["--sparse=always", "-r", "--"])
                .arg(from)
                .arg(self.folder.join(format!("{tag}-{name}")))
                .status()
                .context(|| format!("copy {}", from.display()))?;
        }
        Ok(())
    }

    /// All is well: nobody needs it.
    pub fn discard(self) {
        // What can not be removed now is removed by the next run.
        let _ = fs::remove_dir_all(&self.folder);
        if let Some(parent) = self.folder.parent() {
            // Goes only when it is empty.
            let _ = fs::remove_dir(parent);
        }
    }
}
