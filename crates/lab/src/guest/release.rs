//! Debian releases whose QEMU, firmware and boot loader are unpacked and not installed.
//!
//! ```text
//!   mmdebstrap --variant=extract ─► cache/fetch-(random) ─► rename to cache/release-NAME
//! ```
//! A cut leaves a `fetch-` folder that nothing reads. Programs run under the release's own dynamic loader and libraries, on the host's
//! kernel and files: a chroot would hide the daemon's sockets.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Context, LabError, Result};
use crate::locate;
use crate::process::run;

const PACKAGES: &str = "qemu-system-x86,seabios,ovmf,grub-common,grub-pc-bin,grub-efi-amd64-bin,mtools";

/// A release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Debian 12, with QEMU 7.2.
    Bookworm,
    /// Debian 13, with QEMU 10.
    Trixie,
}

impl Release {
    /// The oldest first.
    pub const ALL: [Release; 2] = [Release::Bookworm, Release::Trixie];

    fn name(self) -> &'static str {
        match self {
            Release::Bookworm => "bookworm",
            Release::Trixie => "trixie",
        }
    }

    /// How its QEMU's version begins.
    pub fn qemu(self) -> &'static str {
        match self {
            Release::Bookworm => "7.2",
            Release::Trixie => "10.",
        }
    }

    /// The option with which its QEMU comes back to a daemon, and its value: QEMU 9.2 deprecated the one in seconds.
    pub fn reconnect(self, seconds: u32) -> (&'static str, u32) {
        match self {
            Release::Bookworm => ("reconnect", seconds),
            Release::Trixie => ("reconnect-ms", seconds * 1000),
        }
    }

    /// The cached release, fetched first if there is none.
    ///
    /// # Errors
    /// [`LabError::Missing`] if mmdebstrap is missing or fails.
    pub fn fetch(self) -> Result<Unpacked> {
        let cache = locate::cache_folder();
        let folder = cache.join(format!("release-{}", self.name()));
        if folder.is_dir() {
            return Ok(Unpacked { folder });
        }
        let mmdebstrap = locate::system_program("mmdebstrap", "mmdebstrap")?;
        fs::create_dir_all(&cache).context(|| format!("make {}", cache.display()))?;
        let fetched = tempfile::Builder::new()
            .prefix("fetch-")
            .tempdir_in(&cache)
            .context(|| format!("make a folder in {}", cache.display()))?;
        let unpacked = fetched.path().join("unpacked");
        tracing::info!(release = self.name(), "fetching a release");
        run(Command::new(mmdebstrap)
            .args(["--quiet", "--variant=extract", &format!("--include={PACKAGES}"), self.name()])
            .arg(&unpacked))
        .map_err(|error| LabError::Missing(error.to_string()))?;
        match fs::rename(&unpacked, &folder) {
            Ok(()) => {}
            // Another program fetched it meanwhile: that one is as good.
            Err(_) if folder.is_dir() => {}
            Err(error) => return Err(LabError::io(format!("make {}", folder.display()), error)),
        }
        Ok(Unpacked { folder })
    }
}

/// A release in the cache.
#[derive(Clone, Debug)]
pub struct Unpacked {
    folder: PathBuf,
}

impl Unpacked {
    /// One of its files.
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        self.folder.join(path)
    }

    /// One of the programs in its `/usr/bin`.
    pub fn command(&self, program: &str) -> Command {
        // /lib and /lib64 became links into /usr, which no package of Debian 13 makes.
        let libraries = ["usr/lib", "lib"].map(|folder| self.join(folder).join("x86_64-linux-gnu"));
        let loader = ["usr/lib64", "lib64"].map(|folder| self.join(folder).join("ld-linux-x86-64.so.2"));
        let loader = loader.iter().find(|path| path.is_file()).unwrap_or(&loader[0]);
        let mut command = Command::new(loader);
        command
            .env("QEMU_MODULE_DIR", libraries[0].join("qemu"))
            .arg("--library-path")
            .arg(libraries.map(|path| path.display().to_string()).join(":"))
            .arg(self.join("usr/bin").join(program));
        command
    }
}
