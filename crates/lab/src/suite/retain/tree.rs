//! What is in a file system: names, contents, metadata; read by the host's kernel from an image that needs no recovery.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Context, Result};
use crate::process::{self, quote, Cleanup, Workdir};

/// One name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    inode: u64,
    mode: u32,
    links: u64,
    owner: (u32, u32),
    bytes: u64,
    sectors: u64,
    modified_s_ns: (i64, i64),
    changed_s_ns: (i64, i64),
    /// Of a file's bytes, or where a link points.
    content: u64,
}

/// A file system's names and what they name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tree {
    entries: BTreeMap<PathBuf, Entry>,
}

impl Tree {
    /// Reads the file system in `image`, without writing or replaying anything.
    ///
    /// # Errors
    /// The host's kernel does not mount it, or a file cannot be read.
    pub fn of(image: &Path) -> Result<Tree> {
        let folder = Workdir::new("tree")?;
        let mountpoint = folder.join("mnt");
        fs::create_dir(&mountpoint).context(|| format!("make {}", mountpoint.display()))?;
        let cleanup = Cleanup::arm(&format!("umount -l {}", quote(&mountpoint.to_string_lossy())))?;
        process::run(
            Command::new("mount").args(["-t", "ext4", "-o", "loop,ro,noload"]).arg(image).arg(&mountpoint),
        )?;
        let mut tree = Tree::default();
        let walked = tree.walk(&mountpoint, &mountpoint);
        let unmounted = process::run(Command::new("umount").arg(&mountpoint));
        cleanup.dismiss();
        walked?;
        unmounted?;
        Ok(tree)
    }

    fn walk(&mut self, root: &Path, path: &Path) -> Result<()> {
        let found = fs::symlink_metadata(path).context(|| format!("look at {}", path.display()))?;
        let mut content = DefaultHasher::new();
        if found.is_file() {
            content.write(&fs::read(path).context(|| format!("read {}", path.display()))?);
        } else if found.is_symlink() {
            let target = fs::read_link(path).context(|| format!("read {}", path.display()))?;
            content.write(target.as_os_str().as_bytes());
        }
        let entry = Entry {
            inode: found.ino(),
            mode: found.mode(),
            links: found.nlink(),
            owner: (found.uid(), found.gid()),
            bytes: found.size(),
            sectors: found.blocks(),
            modified_s_ns: (found.mtime(), found.mtime_nsec()),
            changed_s_ns: (found.ctime(), found.ctime_nsec()),
            content: content.finish(),
        };
        let name = path.strip_prefix(root).unwrap_or(path).to_path_buf();
        self.entries.insert(name, entry);
        if found.is_dir() {
            for entry in fs::read_dir(path).context(|| format!("list {}", path.display()))? {
                let entry = entry.context(|| format!("list {}", path.display()))?;
                self.walk(root, &entry.path())?;
            }
        }
        Ok(())
    }

    /// How many names there are.
    pub fn names(&self) -> usize {
        self.entries.len()
    }

    /// The first few differences, in words. What `other` has changed at `changed_since_s` or later may have other times: a
    /// kernel that cuts an orphan short says when.
    pub fn differences(&self, other: &Tree, changed_since_s: Option<i64>) -> Vec<String> {
        let mut found = Vec::new();
        let names: std::collections::BTreeSet<&PathBuf> =
            self.entries.keys().chain(other.entries.keys()).collect();
        for name in names {
            match (self.entries.get(name), other.entries.get(name)) {
                (Some(one), Some(two)) => {
                    let mut two = two.clone();
                    if changed_since_s.is_some_and(|since| two.changed_s_ns.0 >= since) {
                        two.modified_s_ns = one.modified_s_ns;
                        two.changed_s_ns = one.changed_s_ns;
                    }
                    if *one != two {
                        found.push(format!("{}: {one:?} against {two:?}", name.display()));
                    }
                }
                (Some(_), None) => found.push(format!("{} is only in the first", name.display())),
                (None, _) => found.push(format!("{} is only in the second", name.display())),
            }
        }
        found
    }
}
