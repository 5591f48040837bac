//! A guest's ext4 without a guest: a file system made by mke2fs, and a journal written as jbd2 writes it.

use std::path::Path;
use std::process::Command;

use super::guest::Guest;

/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// Blocks of the images that are made here.
const BLOCKS: u64 = 8192;
/// jbd2's magic number (include/linux/jbd2.h, JBD2_MAGIC_NUMBER).
const MAGIC: u32 = 0xc03b_3998;

/// The journal of one file system.
pub struct Journal {
    /// The file system block of its superblock; the next ones follow.
    pub first: u64,
    /// A block that no file has: any content is right for it.
    pub free: u64,
    /// Where its file system begins on the disk, in bytes.
    offset: u64,
    next: u32,
    tid: u32,
    /// Its last extent: the first block, and how many.
    tail: (u64, u64),
}

/// Runs a tool of e2fsprogs and returns what it says.
#[track_caller]
pub fn e2fs(program: &str, args: &[&str], image: &Path) -> String {
    // Debian keeps them where only root looks.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).env("PATH", path).args(args).arg(image).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

impl Journal {
    /// Makes an image with a file system on it, as mke2fs makes one by default: whatever guards it has to see through its checksums.
    #[track_caller]
    pub fn make(image: &Path) -> Self {
        std::fs::File::create(image).unwrap().set_len(BLOCKS * BLOCK).unwrap();
        let options = ["-q", "-F", "-b", "4096", "-J", "size=4"];
        e2fs("mke2fs", &[&options[..], &["-t", "ext4"]].concat(), image);
        Self::find(image)
    }

    /// The journal of an image that [`Journal::make`] made and nobody has mounted since.
    #[track_caller]
    pub fn find(image: &Path) -> Self {
        let place = |block: u64| -> u64 {
            e2fs("debugfs", &["-R", &format!("bmap <8> {block}")], image).trim().parse().unwrap()
        };
        let first = place(0);
        assert_eq!(place(9), first + 9, "the journal's first blocks lie together");
        // 1024 blocks of journal, of which the last 900 lie together.
        let tail = (place(1024 - 900), 900);
        assert_eq!(place(1023), tail.0 + 899, "the journal's last blocks lie together");
        Self { first, free: BLOCKS - 1, offset: 0, next: 1, tid: 1, tail }
    }

    /// Makes an image with as many partitions of an MBR, a file system on each.
    #[track_caller]
    pub fn make_partitions(image: &Path, count: u64) -> Vec<Self> {
        use std::os::unix::fs::FileExt;
        const FIRST: u64 = 1 << 20;
        let disk = std::fs::File::create_new(image).unwrap();
        disk.set_len(FIRST + count * BLOCKS * BLOCK).unwrap();
        disk.write_all_at(&[0x55, 0xaa], 510).unwrap();
        (0..count)
            .map(|n| {
                let offset = FIRST + n * BLOCKS * BLOCK;
                let part = image.with_extension(format!("part{n}"));
                let journal = Self::make(&part);
                disk.write_all_at(&std::fs::read(&part).unwrap(), offset).unwrap();
                std::fs::remove_file(&part).unwrap();
                let mut entry = [0; 16];
                entry[4] = 0x83;
                entry[8..12].copy_from_slice(&u32::try_from(offset / 512).unwrap().to_le_bytes());
                entry[12..].copy_from_slice(&u32::try_from(BLOCKS * BLOCK / 512).unwrap().to_le_bytes());
                disk.write_all_at(&entry, 446 + 16 * n).unwrap();
                Self { offset, ..journal }
            })
            .collect()
    }

    /// Where a block of its file system lies on the disk, in bytes.
    pub fn place(&self, block: u64) -> u64 {
        self.offset + block * BLOCK
    }

    /// The rest of the journal's blocks, as they lie in the file system.
    pub fn tail_blocks(&self) -> impl Iterator<Item = u64> + use<> {
        let (from, blocks) = self.tail;
        from..from + blocks
    }

    /// A mount: the journal's superblock says that the log begins.
    pub fn mount(&mut self, guest: &mut Guest) {
        let mut block = guest.read(self.place(self.first), BLOCK as usize);
        // s_sequence and s_start.
        block[24..28].copy_from_slice(&self.tid.to_be_bytes());
        block[28..32].copy_from_slice(&self.next.to_be_bytes());
        guest.write(self.place(self.first), &block);
        guest.flush();
    }

    /// An unmount: the log is empty.
    pub fn unmount(&mut self, guest: &mut Guest) {
        let mut block = guest.read(self.place(self.first), BLOCK as usize);
        self.tid += 1;
        self.next = 1;
        block[24..28].copy_from_slice(&self.tid.to_be_bytes());
        block[28..32].fill(0);
        guest.write(self.place(self.first), &block);
        guest.flush();
    }

    /// ext4 writes its superblock: another count of mounts, and the checksum that belongs to it.
    pub fn write_file_systems_superblock(&self, guest: &mut Guest) {
        let mut block = guest.read(self.place(0), BLOCK as usize);
        block[1024 + 0x34] ^= 1;
        let sum = !afterimage_format::checksum(&block[1024..2044]);
        block[2044..2048].copy_from_slice(&sum.to_le_bytes());
        guest.write(self.place(0), &block);
    }

    /// Commits one block with a content of that byte.
    pub fn commit(&mut self, guest: &mut Guest, home: u64, byte: u8) {
        self.begin(guest, home, byte);
        self.end(guest);
    }

    /// A transaction of that block but for its commit block.
    pub fn begin(&self, guest: &mut Guest, home: u64, byte: u8) {
        assert!(self.next + 3 <= 10, "the blocks that are known to lie together");
        let mut descriptor = self.header(1);
        // One tag, the last one, with the journal's UUID behind it.
        descriptor.extend(u32::try_from(home).unwrap().to_be_bytes());
        descriptor.extend(8u32.to_be_bytes());
        descriptor.resize(BLOCK as usize, 0);
        let at = self.place(self.first + u64::from(self.next));
        guest.write(at, &descriptor);
        guest.write(at + BLOCK, &vec![byte; BLOCK as usize]);
        guest.flush();
    }

    /// The commit block of the transaction that was begun.
    pub fn end(&mut self, guest: &mut Guest) {
        let mut commit = self.header(2);
        commit.resize(BLOCK as usize, 0);
        guest.write(self.place(self.first + u64::from(self.next) + 2), &commit);
        guest.flush();
        self.next += 3;
        self.tid += 1;
    }

    fn header(&self, kind: u32) -> Vec<u8> {
        [MAGIC, kind, self.tid].map(u32::to_be_bytes).concat()
    }
}
