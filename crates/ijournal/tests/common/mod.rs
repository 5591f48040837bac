//! File systems made by e2fsprogs, and i-transactions written for what debugfs did to a copy of them.
//!
//! ```text
//! committed image A ── copy ──► B: debugfs does what the running transaction has done
//!      │                        │
//!      │ ◄── data and runs ─────┘   of the files that were fsynced
//!      ▼
//!   recover ─► e2fsck -fn; rdump: A's tree, and of the fsynced files B's
//! ```
//!
//! What is read of B for a run is read here, and not with recovery's code.
#![allow(dead_code, clippy::missing_panics_doc)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use afterimage_format::ijournal::*;
use afterimage_ijournal::Storage;
use zerocopy::IntoBytes as _;

pub const EPOCH: [u8; 16] = *b"0123456789abcdef";
pub const AREAS: u32 = 2;
pub const AREA_BLOCKS: u32 = 64;
const BLOCK: usize = 4096;

/// Runs a program that has to succeed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}{said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

/// An image in memory, with what e2fsprogs can do to it.
#[derive(Clone, PartialEq, Eq)]
pub struct Disk(pub Vec<u8>);

fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// What is in a tree: content of files, nothing of folders.
pub type Content = BTreeMap<PathBuf, Option<Vec<u8>>>;

fn content_of(folder: &Path) -> Content {
    let (mut content, mut left) = (Content::new(), vec![folder.to_owned()]);
    while let Some(here) = left.pop() {
        for entry in fs::read_dir(&here).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().to_owned();
            if path.is_dir() {
                left.push(path);
                content.insert(name, None);
            } else {
                content.insert(name, Some(fs::read(&path).unwrap()));
            }
        }
    }
    content
}

/// Content that tells its place.
pub fn pattern(tag: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (tag as usize + i / 512 + i % 7) as u8 | 1).collect()
}

fn debugfs(image: &str, options: &[&str], commands: &[String]) -> String {
    let script = tempfile::NamedTempFile::new().unwrap();
    fs::write(script.path(), commands.join("\n") + "\n").unwrap();
    let script = script.path().to_str().unwrap();
    let output = Command::new("debugfs").args(options).args(["-f", script, image]).output().expect("debugfs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let complaints: Vec<&str> = said.lines().filter(|line| !line.starts_with("debugfs 1.")).collect();
    assert!(complaints.is_empty(), "{commands:?}: {complaints:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Disk {
    /// What `mke2fs` makes, with a tree of files in it and the areas' file, checked and indexed. Options behind `tune2fs` are its; `unsigned`, in front,
    /// is how names are hashed.
    pub fn mkfs(mib: u64, options: &[&str], files: &[(&str, Vec<u8>)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).unwrap();
        for (name, content) in files {
            let path = tree.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        // Garbage where nothing was written yet.
        let mut areas = vec![0xFF; (1 + AREAS * AREA_BLOCKS) as usize * BLOCK];
        areas[..BLOCK].copy_from_slice(Areas::new(AREAS, AREA_BLOCKS, EPOCH, 1).as_bytes());
        fs::write(tree.join(FILE_NAME), &areas).unwrap();
        let image = folder.path().join("image");
        let (image, tree) = (image.to_str().unwrap(), tree.to_str().unwrap());
        let size = format!("{}M", mib);
        let mut words = vec!["-q", "-F", "-t", "ext4", "-b", "4096", "-d", tree];
        let (options, unsigned) = match options {
            ["unsigned", rest @ ..] => (rest, true),
            _ => (options, false),
        };
        let (options, tuned) = match options.iter().position(|word| *word == "tune2fs") {
            Some(at) => (&options[..at], &options[at + 1..]),
            None => (options, &[][..]),
        };
        words.extend_from_slice(options);
        words.extend([image, &size]);
        run("mke2fs", &words);
        if !tuned.is_empty() {
            run("tune2fs", &[tuned, &[image]].concat());
        }
        if unsigned {
            debugfs(image, &["-w"], &["ssv flags 2".into()]);
        }
        let _ = Command::new("e2fsck").args(["-fyD", image]).output().unwrap();
        Self(fs::read(image).unwrap()).checked("as it was made")
    }

    /// With the image as a file.
    pub fn as_file<T>(&mut self, work: impl FnOnce(&str) -> T) -> T {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &self.0).unwrap();
        let result = work(file.path().to_str().unwrap());
        self.0 = fs::read(file.path()).unwrap();
        result
    }

    /// debugfs does these commands.
    pub fn debugfs(&mut self, commands: &[String]) {
        self.as_file(|image| debugfs(image, &["-w"], commands));
    }

    /// What debugfs answers.
    pub fn ask(&self, command: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &self.0).unwrap();
        debugfs(file.path().to_str().unwrap(), &[], &[command.to_owned()])
    }

    /// e2fsck has nothing to say.
    pub fn check(&self) -> Result<(), String> {
        self.clone().as_file(|image| {
            let output = Command::new("e2fsck").args(["-fn", image]).output().expect("e2fsck");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            (output.status.code() == Some(0)).then_some(()).ok_or(said)
        })
    }

    #[track_caller]
    pub fn checked(self, when: &str) -> Self {
        if let Err(said) = self.check() {
            panic!("{when}: {said}");
        }
        self
    }

    /// The whole tree but the areas, as debugfs reads it.
    pub fn tree(&self) -> Content {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().to_str().unwrap().to_owned();
        self.ask(&format!("rdump / {to}"));
        let mut content = content_of(folder.path());
        content.remove(Path::new(FILE_NAME));
        content.remove(Path::new("lost+found"));
        content
    }

    pub fn block(&self, block: u64) -> &[u8] {
        &self.0[block as usize * BLOCK..][..BLOCK]
    }

    pub fn put(&mut self, block: u64, content: &[u8]) {
        self.0[block as usize * BLOCK..][..content.len()].copy_from_slice(content);
    }

    /// Where an inode is.
    fn place(&self, ino: u32) -> usize {
        let sb = &self.0[1024..2048];
        let (per_group, bytes) = (u32_at(sb, 0x28), usize::from(u16_at(sb, 0x58)));
        let wide = u32_at(sb, 0x60) & 0x80 != 0;
        let descriptor_bytes = if wide { usize::from(u16_at(sb, 0xFE)) } else { 32 };
        let (group, index) = (((ino - 1) / per_group) as usize, ((ino - 1) % per_group) as usize);
        let descriptor = &self.0[BLOCK + group * descriptor_bytes..];
        u32_at(descriptor, 8) as usize * BLOCK + index * bytes
    }

    pub fn inode(&self, ino: u32) -> &[u8] {
        let bytes = usize::from(u16_at(&self.0[1024..2048], 0x58));
        &self.0[self.place(ino)..][..bytes]
    }

    /// A path's inode number.
    pub fn ino(&self, path: &str) -> u32 {
        let said = self.ask(&format!("imap /{path}"));
        let number = said.lines().find_map(|line| line.strip_prefix("Inode "));
        number.and_then(|n| n.split(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{path}: {said}"))
    }

    /// Extents (block, blocks), and blocks of the tree, of an inode.
    fn blocks_of(&self, ino: u32) -> (Vec<(u64, u64)>, Vec<u64>) {
        let (mut extents, mut nodes) = (Vec::new(), Vec::new());
        let mut left = vec![self.inode(ino)[0x28..0x28 + 60].to_vec()];
        while let Some(node) = left.pop() {
            assert_eq!(u16_at(&node, 0), 0xF30A);
            for entry in node[12..].chunks(12).take(u16_at(&node, 2).into()) {
                if u16_at(&node, 6) == 0 {
                    let len = u64::from(u16_at(entry, 4));
                    extents.push((u32_at(entry, 8).into(), if len > 32768 { len - 32768 } else { len }));
                } else {
                    nodes.push(u32_at(entry, 4).into());
                    left.push(self.block(u32_at(entry, 4).into()).to_vec());
                }
            }
        }
        (extents, nodes)
    }

    /// The bit, as a kernel that was killed leaves it: in the journal's superblock, and needs_recovery in the file system's.
    pub fn set_bit(&mut self) {
        self.set_incompat(0x4);
        let home = self.journal_superblock();
        let mut block = self.block(home).to_vec();
        let be32 = |block: &[u8], at: usize| u32::from_be_bytes(block[at..at + 4].try_into().unwrap());
        let incompat = be32(&block, 0x28) | INCOMPAT_IJOURNAL;
        block[0x28..0x2C].copy_from_slice(&incompat.to_be_bytes());
        if incompat & 0x18 != 0 {
            block[0xFC..0x100].fill(0);
            let sum = crc32c(!0, &block[..1024]);
            block[0xFC..0x100].copy_from_slice(&sum.to_be_bytes());
        }
        self.put(home, &block);
    }

    /// The block of the journal's superblock.
    pub fn journal_superblock(&self) -> u64 {
        self.blocks_of(8).0[0].0
    }

    /// Incompatible features of the file system.
    pub fn set_incompat(&mut self, bits: u32) {
        let sb = &mut self.0[1024..2048];
        let incompat = u32_at(sb, 0x60) | bits;
        sb[0x60..0x64].copy_from_slice(&incompat.to_le_bytes());
        if u32_at(sb, 0x64) & 0x400 != 0 {
            let sum = crc32c(!0, &sb[..0x3FC]);
            sb[0x3FC..].copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// The number of multi-mount protection, in its block.
    pub fn set_mmp(&mut self, block: usize, sequence: u32) {
        self.0[block + 4..block + 8].copy_from_slice(&sequence.to_le_bytes());
        let sb = &self.0[1024..2048];
        if u32_at(sb, 0x64) & 0x400 != 0 {
            let seed =
                if u32_at(sb, 0x60) & 0x2000 == 0 { crc32c(!0, &sb[0x68..0x78]) } else { u32_at(sb, 0x270) };
            let sum = crc32c(seed, &self.0[block..block + 0x3FC]);
            self.0[block + 0x3FC..block + 0x400].copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// An index's root as the kernel leaves it (`make_indexed_dir`): the block was a leaf, and the tail's head stays behind the
    /// entries, in `dx_tail.dt_reserved`. e2fsprogs write zeroes there.
    pub fn leave_a_leafs_tail(&mut self, path: &str) {
        let sb = &self.0[1024..2048];
        if u32_at(sb, 0x64) & 0x400 == 0 {
            return;
        }
        let seed =
            if u32_at(sb, 0x60) & 0x2000 == 0 { crc32c(!0, &sb[0x68..0x78]) } else { u32_at(sb, 0x270) };
        let ino = self.ino(path);
        let seed = crc32c(crc32c(seed, &ino.to_le_bytes()), &self.inode(ino)[100..104]);
        let home = self.blocks_of(ino).0[0].0;
        let mut root = self.block(home).to_vec();
        let (limit, count) = (usize::from(u16_at(&root, 32)), usize::from(u16_at(&root, 34)));
        assert_eq!(32 + limit * 8, BLOCK - 8, "{path} has an index");
        root[BLOCK - 8..BLOCK - 4].copy_from_slice(&[12, 0, 0, 0xDE]);
        let sum = crc32c(seed, &root[..32 + count * 8]);
        let sum = crc32c(crc32c(sum, &root[BLOCK - 8..BLOCK - 4]), &[0; 4]);
        root[BLOCK - 4..].copy_from_slice(&sum.to_le_bytes());
        self.put(home, &root);
    }

    /// Where the blocks of the areas' file are.
    fn area_blocks(&self) -> Vec<u64> {
        let mut extents = self.blocks_of(self.ino(FILE_NAME)).0;
        extents.sort_unstable();
        extents.into_iter().flat_map(|(start, len)| start..start + len).collect()
    }
}

impl Storage for Disk {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        let from = self.0.get(offset as usize..).and_then(|b| b.get(..buf.len()));
        buf.copy_from_slice(from.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&mut self, buf: &[u8], offset: u64) -> std::io::Result<()> {
        self.0[offset as usize..][..buf.len()].copy_from_slice(buf);
        Ok(())
    }

    fn sync(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A committed image to which fsyncs write.
#[derive(Clone)]
pub struct Writer {
    pub disk: Disk,
    pub sub_id: u64,
    committed: Disk,
    area_blocks: Vec<u64>,
    /// The next block of each area.
    pub next: [u32; AREAS as usize],
}

impl Writer {
    pub fn new(mut disk: Disk) -> Self {
        let (committed, area_blocks) = (disk.clone(), disk.area_blocks());
        disk.set_bit();
        Self { disk, sub_id: 0, committed, area_blocks, next: [0; AREAS as usize] }
    }

    pub fn id(&mut self) -> u64 {
        self.sub_id += 1;
        self.sub_id
    }

    /// Puts a run behind the last one of an area; its first block.
    pub fn put(&mut self, run: RunBuilder, area: u32) -> u64 {
        let at = self.next[area as usize];
        let bytes = run.seal(EPOCH, area, at);
        let first = 1 + area * AREA_BLOCKS + at;
        for (i, block) in bytes.chunks(BLOCK).enumerate() {
            let home = self.area_blocks[first as usize + i];
            self.disk.put(home, block);
        }
        self.next[area as usize] += (bytes.len() / BLOCK) as u32;
        self.area_blocks[first as usize]
    }

    /// A file's run, as it stands in `from`.
    pub fn file_run(&mut self, from: &Disk, ino: u32, tid: u32) -> RunBuilder {
        let id = self.id();
        let run = RunBuilder::new(KIND_FILE, ino, from.inode(ino), tid, id);
        from.blocks_of(ino).1.iter().fold(run, |run, &home| {
            let node = from.block(home);
            let entries = usize::from(u16_at(node, 2));
            run.extent_block(home, &node[..12 * (1 + entries)])
        })
    }

    /// A directory's run with one entry.
    pub fn directory_run(&mut self, from: &Disk, ino: u32, name: &str, child: u32, tid: u32) -> RunBuilder {
        let (id, inode) = (self.id(), from.inode(child));
        let file_type = if u16_at(inode, 0) & 0xF000 == 0x4000 { 2 } else { 1 };
        RunBuilder::new(KIND_DIRECTORY, ino, from.inode(ino), tid, id).entry(
            child,
            u32_at(inode, 100),
            file_type,
            name.as_bytes(),
        )
    }

    /// What the kernel does for an fsync of a path in `from`, of which the parents in `uncommitted` are new (the file itself is,
    /// if `fresh`).
    pub fn fsync(&mut self, from: &Disk, path: &str, fresh: bool, tid: u32, area: u32) {
        let ino = from.ino(path);
        for (start, len) in from.blocks_of(ino).0 {
            for block in start..start + len {
                self.disk.put(block, from.block(block));
            }
        }
        let names: Vec<&str> = path.split('/').collect();
        let mut parent = String::new();
        for name in &names {
            let child = format!("{parent}{name}");
            // The uncommitted way down: an entry that the committed image has needs none.
            let committed = self.disk_has(&child);
            if !committed && (fresh || child != path) {
                let (dir, child) = (from.ino(&parent), from.ino(&child));
                let run = self.directory_run(from, dir, name, child, tid);
                self.put(run, area);
            }
            parent = format!("{child}/");
        }
        let run = self.file_run(from, ino, tid);
        self.put(run, area);
    }

    fn disk_has(&self, path: &str) -> bool {
        let mut committed = self.committed.clone();
        committed.as_file(|image| {
            let output =
                Command::new("debugfs").args(["-R", &format!("imap /{path}"), image]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).contains("Inode ")
        })
    }
}

/// A's tree, with these files (and their folders) as B has them.
pub fn expected(committed: &Disk, running: &Disk, fsynced: &[&str]) -> Content {
    let (mut expected, running) = (committed.tree(), running.tree());
    for path in fsynced {
        for part in Path::new(path).ancestors().filter(|part| !part.as_os_str().is_empty()) {
            expected.insert(part.to_owned(), running[part].clone());
        }
    }
    expected
}
