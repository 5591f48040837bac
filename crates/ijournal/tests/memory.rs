//! What a small file system says of itself does not decide how much memory recovery takes: alone in its process, which is measured.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use afterimage_format::ijournal::*;
use afterimage_ijournal::{recover, Error, FileStorage, Report, REPLAY_BYTES_MAX};
use common::*;
use zerocopy::IntoBytes as _;

/// Blocks of the file system: 200 GiB, of which next to nothing is written.
const BLOCKS: u64 = 1600 * 32768;
/// A tree's blocks, and the entries of each.
const NODES: [u64; 4] = [30_000, 30_001, 30_002, 30_003];
const ENTRIES: u64 = 340;
/// Of each of the groups behind the first, an extent has what is behind its descriptors and tables.
const EXTENT: u64 = 31744;
const FIRST: u64 = 32768 + 1024;

/// One after the other: the peak is the process's.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // The peak begins anew (proc_pid_clear_refs(5)).
    fs::write("/proc/self/clear_refs", "5").unwrap();
    alone
}

/// The most memory that this process has had, in KiB.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A node of an extent tree.
fn node(max: u16, depth: u16, entries: &[[u8; 12]]) -> Vec<u8> {
    let head = [0xF30A, entries.len() as u16, max, depth, 0, 0];
    [head.map(u16::to_le_bytes).concat(), entries.concat()].concat()
}

/// Its entry, of an extent where it has a length.
fn entry(logical: u64, len: u64, block: u64) -> [u8; 12] {
    let (low, parts) = (block as u32, logical as u32);
    let words = if len == 0 { [parts, low, 0] } else { [parts, len as u32, low] };
    let mut bytes = [0; 12];
    bytes.copy_from_slice(&words.map(u32::to_le_bytes).concat());
    bytes
}

struct Image {
    path: String,
    file: File,
}

impl Image {
    fn put(&self, bytes: &[u8], at: u64) {
        self.file.write_all_at(bytes, at).unwrap();
    }

    /// Where a path's inode is, and its number; while there is no bit that debugfs does not know.
    fn place(&self, name: &str) -> (u64, u32) {
        let said = run("debugfs", &["-R", &format!("imap /{name}"), &self.path]);
        let numbers: Vec<u64> = said
            .split(|c: char| c.is_whitespace() || c == ',')
            .filter_map(|word| match word.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).ok(),
                None => word.parse().ok(),
            })
            .collect();
        // Number, group, block, offset.
        let &[ino, _, block, offset] = &numbers[..] else { panic!("{said}") };
        (block * 4096 + offset, ino as u32)
    }

    /// Gives an inode at a place all those blocks, and a size.
    fn grow(&self, (at, _): (u64, u32), size: u64) {
        let root: Vec<_> = (0..4).map(|i| entry(i * ENTRIES * EXTENT, 0, NODES[i as usize])).collect();
        self.put(&node(4, 1, &root), at + 0x28);
        self.put(&(size as u32).to_le_bytes(), at + 4);
        self.put(&((size >> 32) as u32).to_le_bytes(), at + 0x6C);
    }

    fn recover(&self) -> Result<Report, Error> {
        // The bit, and that the journal has to be replayed.
        let mut incompat = [0; 4];
        self.file.read_exact_at(&mut incompat, 1024 + 0x60).unwrap();
        let incompat = u32::from_le_bytes(incompat) | INCOMPAT_IJOURNAL | 4;
        self.put(&incompat.to_le_bytes(), 1024 + 0x60);
        recover(&mut FileStorage::open(self.path.as_ref()).unwrap(), 0)
    }
}

/// Four blocks name 165 GiB.
#[test]
fn a_tree_of_a_few_blocks_is_not_mapped_to_its_end() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (path, tree) = (folder.path().join("image"), folder.path().join("tree"));
    fs::create_dir_all(tree.join("folder")).unwrap();
    let header = Areas::new(AREAS, AREA_BLOCKS, EPOCH, 1);
    fs::write(
        tree.join(FILE_NAME),
        [header.as_bytes(), &[0xFF; (AREAS * AREA_BLOCKS) as usize * 4096]].concat(),
    )
    .unwrap();
    let path = path.to_str().unwrap().to_owned();
    let options = ["-q", "-F", "-t", "ext4", "-b", "4096", "-N", "25600", "-J", "size=4,location=2000", "-O"];
    let features = "^metadata_csum,^64bit,^resize_inode,^flex_bg";
    let blocks = BLOCKS.to_string();
    run("mke2fs", &[&options[..], &[features, "-d", tree.to_str().unwrap(), &path, &blocks]].concat());
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let image = Image { path, file };
    for (i, &home) in (0..).zip(&NODES) {
        let leaf = (i * ENTRIES..(i + 1) * ENTRIES).map(|n| entry(n * EXTENT, EXTENT, FIRST + n * 32768));
        image.put(&node(340, 0, &leaf.collect::<Vec<_>>()), home * 4096);
    }

    let (areas, small, root) = (image.place(FILE_NAME), image.place("folder"), image.place(""));
    let mut sound = [0; 256];
    image.file.read_exact_at(&mut sound, areas.0).unwrap();
    image.grow(areas, 4096);
    assert!(matches!(image.recover(), Err(Error::Corrupt(_))), "areas without a header");
    image.put(header.as_bytes(), FIRST * 4096);
    assert!(image.recover().unwrap().had_bit);

    image.put(&sound, areas.0);
    let home = u64::from(u32_at(&sound, 0x28 + 12 + 8));
    for (tid, size, why) in [
        (11, 4096, "directory 13 has blocks behind its end"),
        (12, (1 << 32) + 1, "directory 13 has 1048577 blocks"),
        (13, 1 << 44, "directory 13 has 4294967296 blocks"),
    ] {
        let mut inode = [0; 256];
        image.file.read_exact_at(&mut inode, small.0).unwrap();
        let run = RunBuilder::new(KIND_DIRECTORY, small.1, &inode, tid, 1).entry(2, 0, 2, b"name");
        image.put(&run.seal(EPOCH, 0, 0), (home + 1) * 4096);
        image.grow(small, size);
        let report = image.recover().unwrap();
        let refused: Vec<&str> = report.refused.iter().map(|refused| refused.why.as_str()).collect();
        assert_eq!((report.valid, refused), (1, vec![why]));
    }
    image.grow(root, 1 << 40);
    assert!(matches!(image.recover(), Err(Error::Unsupported(_))), "a large root");
    assert!(peak_kib() < 128 << 10, "{} KiB", peak_kib());
}

/// A block of a journal without checksums.
fn journal_block(kind: u32, tid: u32, rest: &[u32]) -> Vec<u8> {
    let words = [&[0xc03b_3998, kind, tid], rest].concat();
    let mut block: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    block.resize(4096, 0);
    block
}

/// A journal of 64 MiB that revokes sixteen million blocks. Of two that it logs before one is revoked, and of two behind that one is logged again.
#[test]
fn revokes_take_no_memory() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image").to_str().unwrap().to_owned();
    let options =
        ["-q", "-F", "-t", "ext4", "-b", "4096", "-N", "25600", "-J", "size=80,location=2000", "-O"];
    let blocks = BLOCKS.to_string();
    run(
        "mke2fs",
        &[&options[..], &["^metadata_csum,^64bit,^resize_inode,^flex_bg", &path, &blocks]].concat(),
    );
    let place = |block: u32| -> u64 {
        run("debugfs", &["-R", &format!("bmap <8> {block}"), &path]).trim().parse().unwrap()
    };
    let first = place(0);
    assert_eq!(place(16_100), first + 16_100, "the journal lies in one piece");
    let image = Image { file: File::options().read(true).write(true).open(&path).unwrap(), path };

    const HOMES: [u32; 3] = [40_000, 50_000, 60_000];
    let content = |byte: u8| vec![byte; 4096];
    let mut log = Vec::new();
    // Flags: the last one; with the same UUID as the one before.
    let tags = [HOMES[0], 0, 0, 0, 0, 0, HOMES[1], 2, HOMES[2], 2 | 8];
    log.extend(
        [journal_block(1, 1, &tags), content(1), content(2), content(3), journal_block(2, 1, &[])].concat(),
    );
    let mut next = 100_000;
    for tid in 2..=9 {
        if tid == 3 {
            log.extend([journal_block(1, tid, &[HOMES[1], 8]), content(4)].concat());
        }
        for n in 0..if tid == 3 { 0 } else { 2000 } {
            let mut revoked: Vec<u32> = (next..next + 1020).collect();
            next += 1020;
            if (tid, n) == (2, 0) {
                revoked[..2].copy_from_slice(&HOMES[..2]);
            }
            log.extend(journal_block(5, tid, &[&[4096][..], &revoked].concat()));
        }
        log.extend(journal_block(2, tid, &[]));
    }
    image.put(&log, (first + 1) * 4096);
    drop(log);
    // s_sequence and s_start; s_feature_incompat: revokes.
    image.put(&[1u32, 1].map(u32::to_be_bytes).concat(), first * 4096 + 0x18);
    image.put(&1u32.to_be_bytes(), first * 4096 + 0x28);
    let _ = fs::write("/proc/self/clear_refs", "5");
    let before = peak_kib();
    let report = recover(&mut FileStorage::open(image.path.as_ref()).unwrap(), 0).unwrap();
    assert_eq!((report.transactions, report.blocks), (9, 2));
    let taken = (peak_kib() - before) << 10;
    assert!(taken <= REPLAY_BYTES_MAX as u64, "{taken} bytes");
    for (home, byte) in HOMES.into_iter().zip([0, 4, 3]) {
        let mut found = [0; 4096];
        image.file.read_exact_at(&mut found, u64::from(home) * 4096).unwrap();
        assert_eq!(found, [byte; 4096], "block {home}");
    }
}
