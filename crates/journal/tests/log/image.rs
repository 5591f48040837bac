//! File system images made by e2fsprogs, and their journals, read with nothing of this crate's but the log.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use afterimage_block::BlockError;
use afterimage_journal::layout::superblock::Features;
use afterimage_journal::log::{AreaView, LogGeometry};
use afterimage_journal::{AreaBlock, Block, FsBlock, Tid, BLOCK_BYTES};

/// Runs a program of e2fsprogs, or fails with what it said.
pub fn run(program: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}; install e2fsprogs"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // e2fsck: 1 is "errors corrected".
    assert!(matches!(output.status.code(), Some(0 | 1)), "{program} {arguments:?}: {said}");
    said
}

pub struct Image {
    pub path: PathBuf,
}

impl Image {
    /// A new file system of 64 MiB with a journal of 4 MiB.
    pub fn make(path: &Path, features: &str) -> Self {
        let file = File::create(path).unwrap();
        file.set_len(64 << 20).unwrap();
        run(
            "mkfs.ext4",
            &["-q", "-F", "-b", "4096", "-J", "size=4", "-O", features, path.to_str().unwrap()],
            "",
        );
        Self { path: path.to_owned() }
    }

    pub fn debugfs(&self, script: &str) -> String {
        run("debugfs", &["-w", "-f", "-", self.path.to_str().unwrap()], script)
    }

    /// What debugfs says about it. Bitmaps need not be sound before the log is replayed (-c).
    pub fn ask(&self, request: &str) -> String {
        run("debugfs", &["-c", "-R", request, self.path.to_str().unwrap()], "")
    }

    pub fn copy(&self, name: &str) -> Self {
        let path = self.path.with_file_name(name);
        std::fs::copy(&self.path, &path).unwrap();
        Self { path }
    }

    pub fn block(&self, at: FsBlock) -> Box<Block> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        File::open(&self.path).unwrap().read_exact_at(&mut block[..], at.0 * BLOCK_BYTES as u64).unwrap();
        block
    }

    /// The journal as debugfs lists its blocks.
    pub fn journal(&self) -> Journal {
        let said = self.ask("blocks <8>");
        let said = said.lines().find(|line| line.starts_with(|c: char| c.is_ascii_digit())).unwrap();
        let homes: Vec<FsBlock> = said
            .split_whitespace()
            .map(|n| FsBlock(n.parse().unwrap_or_else(|e| panic!("{said}: {e}"))))
            .collect();
        Journal { file: File::open(&self.path).unwrap(), homes }
    }
}

/// A journal in an image.
pub struct Journal {
    file: File,
    homes: Vec<FsBlock>,
}

impl AreaView for Journal {
    fn block<'a>(&'a mut self, at: AreaBlock, scratch: &'a mut Block) -> Result<&'a Block, BlockError> {
        let home = self.homes[at.0 as usize].0 * BLOCK_BYTES as u64;
        self.file
            .read_exact_at(&mut scratch[..], home)
            .map_err(|e| BlockError::io("reading a journal", e))?;
        Ok(scratch)
    }
}

impl Journal {
    /// Geometry and tail from the superblock; no tail where the log is empty.
    pub fn superblock(&mut self) -> (LogGeometry, Option<(AreaBlock, Tid)>) {
        let mut block = [0; BLOCK_BYTES];
        self.block(AreaBlock(0), &mut block).unwrap();
        let word = |at: usize| u32::from_be_bytes(block[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), 0xc03b_3998);
        let (compat, incompat) = (word(0x24), word(0x28));
        let features = Features {
            checksum: compat & 1 != 0,
            revoke: incompat & 1 != 0,
            bits64: incompat & 2 != 0,
            async_commit: incompat & 4 != 0,
            csum_v2: incompat & 8 != 0,
            csum_v3: incompat & 16 != 0,
        };
        let maxlen = word(0x10);
        assert_eq!(self.homes.len(), maxlen as usize);
        let geometry = LogGeometry {
            first: AreaBlock(word(0x14)),
            maxlen,
            features,
            uuid: block[0x30..0x40].try_into().unwrap(),
            fs_blocks: self.file.metadata().unwrap().len() / BLOCK_BYTES as u64,
            forbidden: self.homes.iter().map(|home| (*home, FsBlock(home.0 + 1))).collect(),
        };
        let start = word(0x1c);
        (geometry, (start != 0).then_some((AreaBlock(start), Tid(word(0x18)))))
    }
}
