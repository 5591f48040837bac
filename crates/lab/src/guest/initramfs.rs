//! The initial RAM disk of a QEMU guest: busybox, the modules in dependency order, a first stage.
//!
//! The archive format is cpio "newc" (the kernel's `Documentation/driver-api/early-userspace/buffer-format`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cpio::newc;

use super::kernel::Kernel;
use super::script;
use crate::error::{Context, LabError, Result};
use crate::locate;

/// What every guest gets. crc32c and quota_v2 are asked for by ext4 at mount time, which no dependency field
/// names.
const MODULES: [&str; 10] = [
    "virtio_pci",
    "virtio_blk",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "crc32c_generic",
    "ext4",
    "quota_v2",
    "loop",
];

/// Writes the archive.
pub(super) fn write(kernel: &Kernel, extra: &[String], path: &Path) -> Result<()> {
    let story = || "make the initial RAM disk".to_owned();
    let mut archive = Archive::default();
    for folder in ["bin", "dev", "proc", "sys", "run", "host", "modules"] {
        archive.entry(folder, 0o040_755, &[]).context(story)?;
    }
    // The kernel opens the console before anything could mount a devtmpfs.
    archive.node("dev/console", 0o020_600, 5, 1).context(story)?;
    let busybox = locate::system_program("busybox", "busybox-static")?;
    archive.entry("bin/busybox", 0o100_755, &read(&busybox)?).context(story)?;
    let index = index_modules(&kernel.modules)?;
    let wanted = MODULES.iter().map(|m| (*m).to_owned()).chain(extra.iter().cloned());
    let mut inserts = String::new();
    for (name, content) in in_order(&index, wanted)? {
        archive.entry(&format!("modules/{name}.ko"), 0o100_644, &content).context(story)?;
        inserts.push_str(&format!("insmod /modules/{name}.ko\n"));
    }
    archive.entry("init", 0o100_755, first_stage(&inserts).as_bytes()).context(story)?;
    let bytes = archive.finish().context(story)?;
    let mut file = fs::File::create(path).context(|| format!("create {}", path.display()))?;
    file.write_all(&bytes).context(|| format!("write {}", path.display()))
}

fn first_stage(inserts: &str) -> String {
    let mut text = String::from(
        "#!/bin/busybox sh\n\
         /bin/busybox --install -s /bin\n\
         export PATH=/bin\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sysfs /sys\n\
         mount -t devtmpfs devtmpfs /dev\n\
         mount -t tmpfs run /run\n\
         OFF=off\n\
         off() { poweroff -f; sleep 10; }\n",
    );
    text.push_str(inserts);
    text.push_str(
        "for word in $(cat /proc/cmdline); do case $word in\n\
         afterimage.run=*) RUN=${word#*=};;\n\
         afterimage.probe) off;;\n\
         esac; done\n\
         [ -n \"${RUN:-}\" ] || read -r RUN < /sys/class/dmi/id/product_serial\n\
         HOST=/host\n\
         mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 host /host ||\n\
         { echo 'afterimage: no host root over 9p'; off; }\n",
    );
    text.push_str(script::ENTER);
    text.push_str("chroot $R /bin/sh $RUN/inside.sh\noff\n");
    text
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).context(|| format!("read {}", path.display()))
}

/// Module names (with `_` for `-`, as the kernel has them) and their files.
fn index_modules(folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut index = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).context(|| format!("read {}", folder.display()))? {
            let entry = entry.context(|| format!("read {}", folder.display()))?;
            let path = entry.path();
            let kind = entry.file_type().context(|| format!("read {}", folder.display()))?;
            if kind.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "ko") {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy().replace('-', "_");
                index.insert(stem, path);
            }
        }
    }
    Ok(index)
}

/// The `depends=` entry of a module's `.modinfo` section: NUL-terminated `key=value` strings.
fn dependencies(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|window| window == key) else { return Vec::new() };
    let value = &module[at + key.len()..];
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    let text = String::from_utf8_lossy(&value[..end]).into_owned();
    text.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

/// The modules and all they need, each after what it needs.
fn in_order(
    index: &BTreeMap<String, PathBuf>,
    wanted: impl Iterator<Item = String>,
) -> Result<Vec<(String, Vec<u8>)>> {
    let mut order = Vec::new();
    let mut done = BTreeSet::new();
    // (name, already expanded): a name is emitted the second time it comes up, after its dependencies.
    let mut stack: Vec<(String, bool)> = wanted.map(|name| (name, false)).collect();
    stack.reverse();
    while let Some((name, expanded)) = stack.pop() {
        if done.contains(&name) {
            continue;
        }
        let path = index.get(&name).ok_or_else(|| {
            LabError::Missing(format!(
                "the guests' kernel has no module {name}: remove it from the cache to fetch it anew"
            ))
        })?;
        let content = read(path)?;
        if expanded {
            done.insert(name.clone());
            order.push((name, content));
        } else {
            let needed = dependencies(&content);
            stack.push((name, true));
            stack.extend(needed.into_iter().map(|name| (name, false)));
        }
    }
    Ok(order)
}

/// A cpio archive under construction.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    fn builder(&mut self, name: &str, mode: u32) -> newc::Builder {
        self.inode += 1;
        newc::Builder::new(name).ino(self.inode).mode(mode)
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let mut entry = self.builder(name, mode).write(&mut self.bytes, content.len() as u32);
        entry.write_all(content)?;
        entry.finish().map(drop)
    }

    fn node(&mut self, name: &str, mode: u32, major: u32, minor: u32) -> io::Result<()> {
        let node = self.builder(name, mode).rdev_major(major).rdev_minor(minor);
        node.write(&mut self.bytes, 0).finish().map(drop)
    }

    fn finish(mut self) -> io::Result<Vec<u8>> {
        newc::trailer(&mut self.bytes)?;
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_modules_dependencies() {
        let section = b"junk\0license=GPL\0depends=mbcache,crc16,libcrc32c-x\0retpoline=Y\0";
        assert_eq!(dependencies(section), ["mbcache", "crc16", "libcrc32c_x"]);
        assert!(dependencies(b"a\0depends=\0").is_empty());
    }

    #[test]
    fn the_archive_is_readable_by_cpio_rules() {
        let mut archive = Archive::default();
        archive.entry("abc", 0o100_644, b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(&bytes[..6], b"070701");
        // Header 110 + "abc\0" = 114, padded to 116; the content follows, padded to 124.
        assert_eq!(&bytes[116..121], b"hello");
        assert_eq!(&bytes[124..130], b"070701");
    }
}
