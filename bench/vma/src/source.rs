//! The Linux source tree: fetched once with apt, unpacked into the cache folder, and cut to the paper's size.
//!
//! ```text
//!   apt-get download ─► dpkg -x ─► tree (to build from) ─┬► a choice of directories ─► tar.bz2 (to unpack)
//!                                                        └► a build under strace ─► operations (to do again)
//! ```
//! The paper unpacks Linux 2.6.11: 17 090 files of at most 853 kB in 1083 directories, 231 MB. A tree of today has
//! five times as many; so whole directories are drawn by the hash of their names until there are as many files.

use std::fs;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::build_files::{self, BUILD_FOLDER};
use crate::catalog::Workload;
use crate::scale::Scale;
use afterimage_bench_kit::process::run;
use afterimage_bench_kit::{BenchError, Context, Result};
use afterimage_lab::process::{quote, Workdir};
use afterimage_report::note;

const PACKAGE: &str = "linux-source-6.1";
/// The paper's largest file.
const FILE_BYTES_MAX: u64 = 853_000;

/// Where things are; guests see them under the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The unpacked tree.
    pub tree: PathBuf,
    /// A part of it, compressed.
    pub tarball: PathBuf,
    /// What a build does to its files.
    pub operations: PathBuf,
}

impl Sources {
    /// Where they are or will be.
    pub fn at(cache: &Path, scale: &Scale) -> Sources {
        let folder = cache.join(PACKAGE);
        Sources {
            tree: folder.join("tree"),
            tarball: folder.join(format!("untar-{}.tar.bz2", scale.untar_files)),
            operations: folder
                .join(format!("build-{}.jsonl", scale.build_target.trim_matches('/').replace('/', "-"))),
        }
    }

    /// Fetches and makes what the workload needs and is not there.
    ///
    /// # Errors
    /// apt can not fetch the package, or there is no space.
    pub fn prepare(&self, workload: Workload, scale: &Scale) -> Result<()> {
        match workload {
            Workload::Build => self.unpack(),
            Workload::BuildFiles => {
                self.unpack()?;
                if self.operations.exists() {
                    return Ok(());
                }
                note("recording what a build does to its files (once, minutes)\n");
                let work = Workdir::new_in(Path::new("/dev/shm"), "vma-build")?;
                let folder = work.path().join("folder");
                fs::create_dir(&folder).context(|| format!("make {}", folder.display()))?;
                self.configure(&folder)?;
                build_files::record(
                    work.path(),
                    &format!("{} {}", self.make(), scale.build_target),
                    &self.operations,
                )
            }
            Workload::Untar if !self.tarball.exists() => {
                self.unpack()?;
                self.pack(scale.untar_files)
            }
            _ => Ok(()),
        }
    }

    /// make, with all that a build is told but its target.
    pub fn make(&self) -> String {
        format!("make -s -C {} O={BUILD_FOLDER} ARCH=um SUBARCH=x86_64", quote(&self.tree.to_string_lossy()))
    }

    /// Makes a configured folder to build in, in `folder`: under the name that it has in the guest, in a mount namespace of its own.
    ///
    /// # Errors
    /// make failed.
    pub fn configure(&self, folder: &Path) -> Result<()> {
        let (folder, make) = (quote(&folder.to_string_lossy()), self.make());
        let script = format!(
            "set -e; mount --bind {folder} /mnt; mkdir -p {BUILD_FOLDER}; {make} tinyconfig; {make} prepare scripts"
        );
        run(Command::new("unshare").args(["-m", "sh", "-c", &script]))
    }

    fn unpack(&self) -> Result<()> {
        if self.tree.is_dir() {
            return Ok(());
        }
        let folder = self.tree.parent().unwrap_or(Path::new("/"));
        let fresh = folder.join("unpacking");
        // What an interrupted run has left.
        let _ = fs::remove_dir_all(&fresh);
        fs::create_dir_all(&fresh).context(|| format!("make {}", fresh.display()))?;
        note(&format!("fetching and unpacking {PACKAGE} into {} (once)\n", folder.display()));
        run(Command::new("apt-get").args(["download", "-q", PACKAGE]).current_dir(&fresh))?;
        let archive = find(&fresh, |name| name.ends_with(".deb"))?;
        run(Command::new("dpkg").arg("-x").arg(&archive).arg(fresh.join("package")))?;
        let tar = find(&fresh.join("package/usr/src"), |name| name.starts_with("linux-source"))?;
        run(Command::new("tar").arg("-xf").arg(&tar).arg("-C").arg(&fresh))?;
        let unpacked = fresh.join(PACKAGE);
        fs::rename(&unpacked, &self.tree).context(|| format!("move {}", unpacked.display()))?;
        fs::remove_dir_all(&fresh).context(|| format!("remove {}", fresh.display()))
    }

    fn pack(&self, files: usize) -> Result<()> {
        note(&format!("packing {files} files of it for untar (once)\n"));
        let list = choose(&self.tree, files)?;
        let fresh = self.tarball.with_extension("new");
        let mut child = Command::new("tar")
            .args(["--no-recursion", "-cjf"])
            .arg(&fresh)
            .arg("-C")
            .arg(&self.tree)
            .args(["--null", "--verbatim-files-from", "-T", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .context(|| "run tar".to_owned())?;
        if let Some(mut input) = child.stdin.take() {
            for path in &list {
                let path = path.to_string_lossy();
                input.write_all(path.as_bytes()).context(|| "write to tar".to_owned())?;
                input.write_all(&[0]).context(|| "write to tar".to_owned())?;
            }
        }
        let status = child.wait().context(|| "wait for tar".to_owned())?;
        if !status.success() {
            let _ = fs::remove_file(&fresh);
            return Err(BenchError::Workload(format!("tar could not pack the source tree: {status}")));
        }
        fs::rename(&fresh, &self.tarball).context(|| format!("move {}", fresh.display()))
    }
}

/// So many files, in whole directories drawn by their names' hashes; relative, sorted, the last directory cut off.
fn choose(tree: &Path, files: usize) -> Result<Vec<PathBuf>> {
    let mut directories = Vec::new();
    collect(tree, Path::new(""), &mut directories)?;
    let hash = BuildHasherDefault::<DefaultHasher>::default();
    directories.sort_by_key(|(name, _)| (hash.hash_one(name), name.clone()));
    let mut chosen: Vec<PathBuf> = directories.into_iter().flat_map(|(_, files)| files).take(files).collect();
    if chosen.len() < files {
        return Err(BenchError::Workload(format!("{} holds fewer than {files} files", tree.display())));
    }
    chosen.sort();
    Ok(chosen)
}

/// Every directory with its small regular files.
fn collect(tree: &Path, directory: &Path, found: &mut Vec<(PathBuf, Vec<PathBuf>)>) -> Result<()> {
    let here = tree.join(directory);
    let mut files = Vec::new();
    for entry in fs::read_dir(&here).context(|| format!("read {}", here.display()))? {
        let entry = entry.context(|| format!("read {}", here.display()))?;
        let metadata = entry.metadata().context(|| format!("look at {}", entry.path().display()))?;
        let name = directory.join(entry.file_name());
        if metadata.is_dir() {
            collect(tree, &name, found)?;
        } else if metadata.is_file() && metadata.len() <= FILE_BYTES_MAX {
            files.push(name);
        }
    }
    files.sort();
    found.push((directory.to_owned(), files));
    Ok(())
}

fn find(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
    fs::read_dir(folder)
        .context(|| format!("read {}", folder.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.is_file() && path.file_name().is_some_and(|name| wanted(&name.to_string_lossy())))
        .ok_or_else(|| BenchError::Workload(format!("apt-get download {PACKAGE} brought nothing")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_repeats_and_has_its_number() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
        let (first, again) = (choose(&source, 40).unwrap(), choose(&source, 40).unwrap());
        assert_eq!(first.len(), 40);
        assert_eq!(first, again);
        assert!(choose(&source, 1_000_000).is_err());
    }
}
