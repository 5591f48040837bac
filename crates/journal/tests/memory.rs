//! What a transaction costs the process, whatever the guest announces: memory as the system counts it. Alone in its process, for
//! what is looked at is the whole of it.

use std::path::Path;
use std::sync::Arc;

use afterimage_block::{Blocking, Disk, FlushKind, Medium, MediumDisk, Sector};
use afterimage_journal::arena::{Arena, ArenaIdentity};
use afterimage_journal::ext4::Options;
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::layout::{self, Found, Layout, Source};
use afterimage_journal::{AreaBlock, Block, FsBlock, RetainDisk, Tid, BLOCK_BYTES};
use afterimage_order::{HomeError, HomeWriter};
use afterimage_store::FileMedium;

const MIB: u64 = 1 << 20;

/// Takes sets of any size up to a bound, and keeps nothing.
struct Sets {
    bytes_max: u64,
}

impl HomeWriter for Sets {
    fn write_home(&self, blocks: &[(Sector, &[u8])]) -> Result<(), HomeError> {
        let bytes = blocks.iter().map(|(_, b)| b.len() as u64).sum();
        match bytes > self.bytes_max {
            true => Err(HomeError::TooLarge { bytes, max_bytes: self.bytes_max }),
            false => Ok(()),
        }
    }

    fn atomic_bytes_max(&self) -> Option<u64> {
        Some(self.bytes_max)
    }
}

struct On<'a>(&'a FileMedium);

impl Source for On<'_> {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), afterimage_block::BlockError> {
        self.0.read_at(buf, sector.0 * 512).map_err(|e| afterimage_block::BlockError::io("reading", e))
    }
}

/// A number in kB from `/proc/self/status`, in bytes.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).expect(name);
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// What memory at its most was more than before.
fn cost(act: impl FnOnce()) -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS:");
    act();
    status("VmHWM:") - before
}

/// A guest whose journal has no checksums.
struct Guest {
    disk: RetainDisk,
    lane: Blocking,
    layout: Layout,
    superblock: JournalSuperblock,
    tid: Tid,
    /// Where the next block of the log goes.
    at: AreaBlock,
    _folder: tempfile::TempDir,
}

impl Guest {
    /// `set_bytes_max`: what can be atomic, under `power-window`.
    fn mounted(journal_mib: u32, retain_bytes_max: u64, set_bytes_max: Option<u64>) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("disk");
        make(&path, journal_mib);
        let medium = FileMedium::open(&path, false).unwrap();
        let sectors = medium.len() / 512;
        let found = layout::find(&mut On(&medium), sectors).unwrap().remove(0);
        let Found::FileSystem(layout) = found else { panic!("{found:?}") };
        let mut block = [0; BLOCK_BYTES];
        medium.read_at(&mut block, layout.journal[0].home.sector(layout.start).0 * 512).unwrap();
        let superblock = JournalSuperblock::parse(&block).unwrap();
        let identity = ArenaIdentity { uuid: [1; 16], inode: 1, size_bytes: medium.len() };
        let arena = Arena::create(&folder.path().join("arena"), identity, retain_bytes_max).unwrap();
        let options = Options {
            home: set_bytes_max.map(|bytes_max| Arc::new(Sets { bytes_max }) as Arc<dyn HomeWriter>),
            ..Options::default()
        };
        let disk = RetainDisk::open(Arc::new(MediumDisk::new(Arc::new(medium))), arena, options).unwrap();
        let lane = Blocking::new(disk.open_lane().unwrap());
        let at = superblock.first();
        let tid = superblock.sequence();
        let mut guest = Self { disk, lane, layout, superblock, tid, at, _folder: folder };
        let superblock = guest.superblock.with_tail(guest.superblock.sequence(), Some(at));
        // As a mount does.
        let home = guest.layout.home_of(AreaBlock(0)).unwrap();
        guest.lane.read(home.sector(guest.layout.start), &mut [0; BLOCK_BYTES]).unwrap();
        guest.write(AreaBlock(0), superblock.bytes());
        assert_eq!(guest.mode(), "retain");
        guest
    }

    fn mode(&self) -> String {
        self.disk.status().file_systems[0].mode.clone()
    }

    fn write(&mut self, at: AreaBlock, block: &Block) {
        let home = self.layout.home_of(at).unwrap();
        self.lane.write(home.sector(self.layout.start), block).unwrap();
    }

    fn next(&mut self, blocks: u32) -> AreaBlock {
        let at = self.at;
        self.at.0 += blocks;
        at
    }

    fn header(&self, kind: u32) -> Block {
        let mut block = [0; BLOCK_BYTES];
        for (at, field) in [(0, 0xc03b_3998), (4, kind), (8, self.tid.0)] {
            block[at..at + 4].copy_from_slice(&u32::to_be_bytes(field));
        }
        block
    }

    /// Descriptors of a transaction that logs so many blocks, which the journal does not lie over.
    fn announce(&mut self, blocks: u32, with_content: bool) {
        const TAGS: usize = (BLOCK_BYTES - 12) / 8;
        let free =
            (10_000..self.layout.blocks).filter(|block| self.layout.area_of(FsBlock(*block)).is_none());
        let homes: Vec<u32> = free.take(blocks as usize).map(|block| block as u32).collect();
        assert_eq!(homes.len(), blocks as usize);
        for homes in homes.chunks(TAGS) {
            let mut block = self.header(1);
            for (n, home) in homes.iter().enumerate() {
                let flags = if n + 1 == homes.len() { 2 | 8 } else { 2 };
                block[12 + n * 8..][..4].copy_from_slice(&home.to_be_bytes());
                block[12 + n * 8 + 4..][..4].copy_from_slice(&u32::to_be_bytes(flags));
            }
            let at = self.next(1);
            self.write(at, &block);
            let logged = self.next(homes.len() as u32);
            if with_content {
                (0..homes.len() as u32).for_each(|n| self.write(AreaBlock(logged.0 + n), &[7; BLOCK_BYTES]));
            }
        }
    }

    fn commit(&mut self) {
        let (at, block) = (self.next(1), self.header(2));
        self.write(at, &block);
        self.tid = self.tid.next();
        self.lane.flush(FlushKind::Order).unwrap();
    }
}

fn make(path: &Path, journal_mib: u32) {
    std::fs::File::create(path).unwrap().set_len((u64::from(journal_mib) * 2 + 512) * MIB).unwrap();
    let journal = format!("size={journal_mib}");
    let program = if Path::new("/sbin/mke2fs").exists() { "/sbin/mke2fs" } else { "mke2fs" };
    let made = std::process::Command::new(program)
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-J", &journal, "-O", "^metadata_csum,^64bit"])
        .args(["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", "-N", "1024"])
        .arg(path)
        .status()
        .unwrap();
    assert!(made.success());
}

#[test]
fn a_transaction_costs_no_more_than_what_is_known_of_it() {
    // A megabyte of descriptors announces half a gigabyte.
    let mut guest = Guest::mounted(512, MIB, Some(8 * MIB));
    guest.announce(130_000, false);
    let bytes = cost(|| guest.commit());
    assert!(bytes < 24 * MIB, "a forged transaction costs {} MiB", bytes / MIB);
    assert_ne!(guest.mode(), "retain", "it is larger than what can be atomic");

    // An honest one, of which all content is retained already.
    let mut guest = Guest::mounted(256, 80 * MIB, Some(u64::MAX));
    guest.announce(16_000, true);
    let bytes = cost(|| guest.commit());
    assert!(bytes < 12 * MIB, "an honest transaction of 63 MiB costs {} MiB", bytes / MIB);
    let status = guest.disk.status();
    assert_eq!((guest.mode().as_str(), status.file_systems[0].versions_pending), ("retain", 0), "{status:?}");

    // What guests keep announcing is bounded as well.
    let mut guest = Guest::mounted(1024, MIB, Some(u64::MAX));
    guest.announce(200_000, false);
    let bytes = cost(|| guest.commit());
    assert!(bytes < 24 * MIB, "a forged transaction without a bound costs {} MiB", bytes / MIB);
    assert_ne!(guest.mode(), "retain");

    // The same blocks again and again, while nothing may be given up: few versions, and long lists.
    let mut guest = Guest::mounted(24 << 10, MIB, None);
    let mut superblock = [0; BLOCK_BYTES];
    guest.lane.read(guest.layout.journal[0].home.sector(guest.layout.start), &mut superblock).unwrap();
    let bytes = cost(|| {
        for _ in 0..45 {
            guest.announce(130_000, false);
            guest.commit();
        }
    });
    assert!(bytes < 40 * MIB, "transactions that log the same cost {} MiB", bytes / MIB);
    assert_ne!(guest.mode(), "retain");
}
