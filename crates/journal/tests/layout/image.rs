//! Images made by the real mkfs, and what e2fsprogs says about them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use afterimage_block::{BlockError, Sector, SECTOR_BYTES};
use afterimage_journal::layout::{find, Found, Layout, Source};

pub const MIB: u64 = 1 << 20;

pub struct Image {
    _folder: tempfile::TempDir,
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Image {
    pub fn empty(bytes: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.img");
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("an image");
        file.set_len(bytes).expect("room");
        Self { _folder: folder, path, file, bytes }
    }

    /// An image of `mib` MiB that `mkfs.ext4 OPTIONS` made; 4 KiB blocks unless the options say otherwise.
    pub fn mkfs(mib: u64, options: &[&str]) -> Self {
        let image = Self::empty(mib * MIB);
        image.mkfs_at(0, mib * MIB, options);
        image
    }

    /// A file system of `bytes` from byte `at` on.
    pub fn mkfs_at(&self, at: u64, bytes: u64, options: &[&str]) {
        let offset = format!("offset={at}");
        let size = format!("{}k", bytes / 1024);
        let mut words = vec!["-q", "-F"];
        if !options.contains(&"-b") {
            words.extend(["-b", "4096"]);
        }
        words.extend(options);
        if at > 0 {
            words.extend(["-E", &offset]);
        }
        let path = self.path.to_str().expect("a plain path");
        words.extend([path, &size]);
        run("mkfs.ext4", &words);
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What lies past the file's end, where e2fsprogs cut it off, is zeroes.
    pub fn read_at(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let _ = self.file.read_at(&mut bytes, at).expect("readable");
        bytes
    }

    pub fn write_at(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).expect("writable");
    }

    pub fn find(&self) -> Vec<Found> {
        find(&mut self.source(), self.bytes / SECTOR_BYTES).expect("readable")
    }

    pub fn source(&self) -> Disk<'_> {
        Disk { image: self, reads: 0 }
    }

    /// The only file system's layout.
    pub fn layout(&self) -> Layout {
        match self.find().as_slice() {
            [Found::FileSystem(layout)] => layout.clone(),
            other => panic!("not one file system: {other:?}"),
        }
    }

    /// The only finding's sentence.
    pub fn why(&self) -> String {
        match self.find().as_slice() {
            [Found::Passthrough { why, .. }] => why.clone(),
            other => panic!("not one refusal: {other:?}"),
        }
    }

    pub fn debugfs(&self, request: &str) -> String {
        run("debugfs", &["-R", request, self.path.to_str().expect("a plain path")])
    }

    /// debugfs with the right to write.
    pub fn debugfs_write(&self, request: &str) -> String {
        run("debugfs", &["-w", "-R", request, self.path.to_str().expect("a plain path")])
    }

    /// Many requests, one a line.
    pub fn debugfs_script(&self, script: &str) {
        let file = self.path.with_file_name("script");
        std::fs::write(&file, script).expect("room");
        let (script, image) =
            (file.to_str().expect("a plain path"), self.path.to_str().expect("a plain path"));
        run("debugfs", &["-w", "-f", script, image]);
    }

    /// A line of `dumpe2fs -h`.
    pub fn dumpe2fs(&self, field: &str) -> Option<String> {
        let text = run("dumpe2fs", &["-h", self.path.to_str().expect("a plain path")]);
        let line = text.lines().find(|line| line.split(':').next() == Some(field))?;
        Some(line[field.len() + 1..].trim().to_owned())
    }
}

/// Reads an image and counts; out of range is a failed test, for nothing may ever ask for it.
pub struct Disk<'a> {
    image: &'a Image,
    pub reads: u64,
}

impl Source for Disk<'_> {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError> {
        self.reads += 1;
        assert_eq!(buf.len() as u64 % SECTOR_BYTES, 0, "whole sectors");
        let at = sector.0 * SECTOR_BYTES;
        assert!(at + buf.len() as u64 <= self.image.bytes, "read past the end: {sector:?}");
        buf.copy_from_slice(&self.image.read_at(at, buf.len()));
        Ok(())
    }
}

pub fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program)
        .args(words)
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("DEBUGFS_PAGER", "cat")
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
