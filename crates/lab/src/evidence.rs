//! What is kept when something was wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::daemon::Daemon;
use crate::error::{Context, Result};
use crate::guest::Guest;

/// A folder for one case: saving into it never fails the case, since the case's own failure is the news.
#[derive(Debug)]
pub struct Evidence {
    folder: PathBuf,
}

impl Evidence {
    /// An empty folder; what an earlier run left there is removed.
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
        note(fs::write(self.folder.join(name), text).context(|| format!("write {name}")));
    }

    /// Saves what a guest said.
    pub fn guest(&self, guest: &Guest, tag: &str) {
        note(guest.save(&self.folder, tag));
    }

    /// Saves what a daemon said.
    pub fn daemon(&self, daemon: &Daemon, tag: &str) {
        note(daemon.save(&self.folder, tag));
    }

    /// Saves files as they are, holes kept, with `prefix` before their names. One that is not there is left out.
    pub fn files(&self, paths: &[PathBuf], prefix: &str) {
        for path in paths.iter().filter(|path| path.exists()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let copied = Command::new("cp")
                .args(["--sparse=always", "-r", "--"])
                .arg(path)
                .arg(self.folder.join(format!("{prefix}{name}")))
                .stderr(Stdio::null())
                .status()
                .context(|| format!("copy {}", path.display()));
            note(copied.map(drop));
        }
    }

    /// All is well: nobody needs it.
    pub fn discard(self) {
        note(fs::remove_dir_all(&self.folder).context(|| format!("remove {}", self.folder.display())));
        // Goes only when it is empty.
        let _ = self.folder.parent().map(fs::remove_dir);
    }
}

/// Remembers that something could not be saved.
fn note(saved: Result<()>) {
    if let Err(error) = saved {
        tracing::warn!(%error, "evidence");
    }
}
