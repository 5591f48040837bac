//! Debian's stock kernel for QEMU guests, fetched once and unpacked into a cache folder.
//!
//! ```text
//!   apt-get download ─► cache/fetch-(random) ─► dpkg -x ─► rename to cache/linux-image-VERSION
//! ```
//! A cut leaves a `fetch-` folder that nobody reads; the final name appears only when everything is in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Context, LabError, Result};
use crate::locate;

/// A kernel and its modules.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The bootable image.
    pub image: PathBuf,
    /// The folder with its modules (`.../lib/modules/VERSION`).
    pub modules: PathBuf,
}

const PREFIX: &str = "linux-image-6.1.0-";

/// The build number in `linux-image-6.1.0-N-amd64`, signed, neither cloud nor rt.
fn build_number(package: &str) -> Option<u32> {
    package.strip_prefix(PREFIX)?.strip_suffix("-amd64")?.parse().ok()
}

/// The cached kernel, fetched first if there is none.
///
/// # Errors
/// [`LabError::Missing`] if apt can not fetch it.
pub fn fetch_kernel() -> Result<Kernel> {
    let cache = locate::cache_folder();
    fs::create_dir_all(&cache).context(|| format!("make {}", cache.display()))?;
    if let Some(kernel) = newest_cached(&cache)? {
        return Ok(kernel);
    }
    let listing = Command::new("apt-cache")
        .args(["search", "--names-only", "^linux-image-6\\.1\\.0-[0-9]+-amd64$"])
        .output()
        .context(|| "run apt-cache".to_owned())?;
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    let newest = listing
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter_map(build_number)
        .max()
        .ok_or_else(|| {
            LabError::Missing(
                "apt knows no linux-image-6.1.0-*-amd64: run apt-get update on a Debian 12".to_owned(),
            )
        })?;
    let package = format!("{PREFIX}{newest}-amd64");
    tracing::info!(package, "fetching the guests' kernel");
    let folder = tempfile::Builder::new()
        .prefix("fetch-")
        .tempdir_in(&cache)
        .context(|| format!("make a folder in {}", cache.display()))?;
    run(Command::new("apt-get").args(["download", "-q", &package]).current_dir(folder.path()))?;
    let archive = fs::read_dir(folder.path())
        .context(|| format!("read {}", folder.path().display()))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .find(|path| path.extension().is_some_and(|e| e == "deb"))
        .ok_or_else(|| LabError::Missing(format!("apt-get download {package} brought nothing")))?;
    let unpacked = folder.path().join("unpacked");
    run(Command::new("dpkg").arg("-x").args([&archive, &unpacked]))?;
    match fs::rename(&unpacked, cache.join(&package)) {
        Ok(()) => {}
        // Somebody else fetched it meanwhile: theirs is as good.
        Err(_) if cache.join(&package).is_dir() => {}
        Err(error) => return Err(LabError::io(format!("move {package} into {}", cache.display()), error)),
    }
    newest_cached(&cache)?.ok_or_else(|| LabError::Missing(format!("{package} holds no kernel")))
}

fn newest_cached(cache: &Path) -> Result<Option<Kernel>> {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir(cache)
        .context(|| format!("read {}", cache.display()))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter_map(|path| Some((build_number(path.file_name()?.to_str()?)?, path)))
        .collect();
    found.sort();
    let Some((build, folder)) = found.pop() else { return Ok(None) };
    let version = format!("6.1.0-{build}-amd64");
    let modules = ["lib/modules", "usr/lib/modules"]
        .iter()
        .map(|place| folder.join(place).join(&version))
        .find(|path| path.is_dir());
    let image = folder.join("boot").join(format!("vmlinuz-{version}"));
    Ok(modules.filter(|_| image.is_file()).map(|modules| Kernel { image, modules }))
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().context(|| format!("run {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = text.lines().last().unwrap_or("no reason given");
    Err(LabError::Missing(format!("{name} failed while fetching the guests' kernel: {last}")))
}
