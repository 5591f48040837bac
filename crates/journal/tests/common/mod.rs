//! A guest's disk twice: as any disk would have it, and with its journal retained.
#![allow(dead_code)]

pub mod control;
pub mod stream;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use afterimage_block::{Blocking, Disk, FlushKind, Medium, MediumDisk, Sector};
pub use afterimage_block_conformance::Bytes as Memory;
use afterimage_journal::arena::{Arena, ArenaIdentity};
use afterimage_journal::ext4::Options;
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::layout::{self, Found, Layout, Source};
use afterimage_journal::log::oracle::replay;
use afterimage_journal::log::{AreaView, LogGeometry};
use afterimage_journal::{AreaBlock, Block, Mutation, RetainDisk, BLOCK_BYTES};
use afterimage_order::{HomeError, HomeWriter};

struct Bytes<'a>(&'a [u8]);

impl Source for Bytes<'_> {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), afterimage_block::BlockError> {
        buf.copy_from_slice(&self.0[sector.0 as usize * 512..][..buf.len()]);
        Ok(())
    }
}

/// A journal as it stands on a disk.
struct On<'a>(&'a [u8], &'a Layout);

impl AreaView for On<'_> {
    fn block<'a>(
        &'a mut self,
        at: AreaBlock,
        scratch: &'a mut Block,
    ) -> Result<&'a Block, afterimage_block::BlockError> {
        let home = self.1.home_of(at).expect("a block of the journal");
        let offset = home.sector(self.1.start).0 as usize * 512;
        scratch.copy_from_slice(&self.0[offset..offset + BLOCK_BYTES]);
        Ok(scratch)
    }
}

/// The file systems of a disk whose journals could be retained.
pub fn layouts(disk: &[u8]) -> Vec<Layout> {
    let found = layout::find(&mut Bytes(disk), disk.len() as u64 / 512).unwrap();
    found
        .into_iter()
        .filter_map(|f| match f {
            Found::FileSystem(layout) => Some(layout),
            Found::Passthrough { .. } => None,
        })
        .collect()
}

/// Where the journals of a disk's file systems lie, in bytes.
pub fn journal_ranges(disk: &[u8]) -> Vec<std::ops::Range<usize>> {
    let of = |l: &Layout| {
        let start = l.start;
        let range = move |e: &layout::AreaExtent| {
            let at = e.home.sector(start).0 as usize * 512;
            at..at + e.blocks as usize * BLOCK_BYTES
        };
        l.journal.iter().map(range).collect::<Vec<_>>()
    };
    layouts(disk).iter().flat_map(of).collect()
}

/// Where the superblocks of its journals are.
fn journal_superblocks(disk: &[u8]) -> Vec<Sector> {
    layouts(disk).iter().filter_map(|l| Some(l.home_of(AreaBlock(0))?.sector(l.start))).collect()
}

pub fn journal_superblock(disk: &[u8], layout: &Layout) -> Option<JournalSuperblock> {
    let mut scratch = [0; BLOCK_BYTES];
    let mut view = On(disk, layout);
    JournalSuperblock::parse(view.block(AreaBlock(0), &mut scratch).ok()?).ok()
}

/// What a guest's own recovery makes of a disk (the naive oracle's replay).
pub struct Recovered {
    /// The journal itself is zeroed: it is nobody's business afterwards.
    pub disk: Vec<u8>,
    /// Blocks of the disk that were replayed.
    pub homes: BTreeMap<u64, Box<Block>>,
    pub transactions: u32,
}

pub fn recovered(mut disk: Vec<u8>) -> Recovered {
    let (homes, transactions) = replayed(&disk);
    for (block, content) in &homes {
        disk[*block as usize * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&content[..]);
    }
    for layout in layouts(&disk) {
        forget_journal(&mut disk, &layout);
    }
    Recovered { disk, homes, transactions }
}

/// What a guest's own recovery would write, by block of the disk, and how many transactions it would replay.
pub fn replayed(disk: &[u8]) -> (BTreeMap<u64, Box<Block>>, u32) {
    let mut transactions = 0;
    let mut homes = BTreeMap::new();
    for layout in layouts(disk) {
        let Some(superblock) = journal_superblock(disk, &layout) else { continue };
        let Some(start) = superblock.start() else { continue };
        let geometry = LogGeometry { fs_blocks: layout.blocks, ..LogGeometry::new(&superblock, &layout) };
        let replay = replay(&mut On(disk, &layout), &geometry, start, superblock.sequence()).unwrap();
        transactions += replay.transactions;
        for (home, content) in replay.writes {
            homes.insert(home.sector(layout.start).0 / 8, content);
        }
    }
    (homes, transactions)
}

fn forget_journal(disk: &mut [u8], layout: &Layout) {
    for extent in &layout.journal {
        let at = extent.home.sector(layout.start).0 as usize * 512;
        disk[at..at + extent.blocks as usize * BLOCK_BYTES].fill(0);
    }
}

/// Blocks in which two disks differ.
pub fn differences(a: &[u8], b: &[u8]) -> Vec<u64> {
    let blocks = a.chunks(BLOCK_BYTES).zip(b.chunks(BLOCK_BYTES)).enumerate();
    blocks.filter(|(_, (a, b))| a != b).map(|(i, _)| i as u64).collect()
}

/// A disk with an ext4 of 4 KiB blocks and a journal of 4 MiB.
pub fn ext4() -> Vec<u8> {
    ext4_of(16, 4)
}

/// A disk of so many MiB with an ext4 of 4 KiB blocks and a journal of so many.
pub fn ext4_of(mib: u64, journal_mib: u32) -> Vec<u8> {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(mib << 20).unwrap();
    let made = std::process::Command::new("mkfs.ext4")
        .args(["-q", "-F", "-b", "4096", "-J", &format!("size={journal_mib}")])
        .arg(image.path())
        .status()
        .unwrap();
    assert!(made.success());
    std::fs::read(image.path()).unwrap()
}

/// One disk, served with its journals retained, over memory that outlives the "daemon".
pub struct Served {
    pub below: Arc<Memory>,
    pub disk: Option<Arc<RetainDisk>>,
    lane: Option<Blocking>,
    arena: PathBuf,
    folder: Arc<tempfile::TempDir>,
    bytes_max: u64,
    options: Options,
    over: Over,
    mutation: Option<Mutation>,
}

/// So many reads are never reached.
pub const NEVER: u64 = 1 << 40;

/// Fails the read that comes when so many have gone well; until then the number says how many have.
struct Reads(Arc<Memory>, Arc<AtomicU64>);

impl Medium for Reads {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self.1.fetch_sub(1, Ordering::SeqCst) {
            0 => Err(io::ErrorKind::Other.into()),
            _ => self.0.read_at(buf, offset),
        }
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(buf, offset)
    }

    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.0.zero_at(offset, len, unmap)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// A disk of memory, and after how many reads the next one fails: [`NEVER`], until somebody says so.
pub fn reads(base: &[u8], bytes_max: u64, options: Options) -> (Served, Arc<AtomicU64>) {
    let reads = Arc::new(AtomicU64::new(NEVER));
    let told = Arc::clone(&reads);
    let over = Arc::new(move |memory| at_once_on(Arc::new(Reads(memory, Arc::clone(&told)))));
    (Served::over(base.to_vec(), bytes_max, options, over, None), reads)
}

/// Makes a disk of memory.
pub type Over = Arc<dyn Fn(Arc<Memory>) -> Arc<dyn Disk>>;

fn at_once_on(medium: Arc<dyn Medium>) -> Arc<dyn Disk> {
    Arc::new(MediumDisk::new(medium))
}

fn at_once(memory: Arc<Memory>) -> Arc<dyn Disk> {
    at_once_on(memory)
}

pub fn wait_for_home() -> Options {
    Options::default()
}

/// Home writes at each commit, as under `power-window`; which disk they go to is said later.
pub fn at_commit() -> Options {
    Options { home: Some(Arc::new(Now(Mutex::new(None)))), ..wait_for_home() }
}

/// Writes home at once, all of it: nothing here is cut.
struct Now(Mutex<Option<Arc<Memory>>>);

impl HomeWriter for Now {
    fn write_home(&self, blocks: &[(Sector, &[u8])]) -> Result<(), HomeError> {
        let memory = self.0.lock().unwrap();
        for (sector, content) in blocks {
            memory.as_ref().unwrap().write_at(content, sector.0 * 512).unwrap();
        }
        Ok(())
    }

    fn atomic_bytes_max(&self) -> Option<u64> {
        Some(u64::MAX)
    }
}

fn shm() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("retained-journal-").tempdir_in("/dev/shm").unwrap()
}

impl Served {
    pub fn new(base: Vec<u8>, bytes_max: u64, options: Options) -> Self {
        Self::over(base, bytes_max, options, Arc::new(at_once), None)
    }

    /// A daemon that makes a mistake.
    pub fn mutated(base: Vec<u8>, bytes_max: u64, options: Options, mutation: Option<Mutation>) -> Self {
        Self::over(base, bytes_max, options, Arc::new(at_once), mutation)
    }

    /// Over another disk, perhaps with a mistake. What becomes of copies is a disk as any.
    pub fn over(
        base: Vec<u8>,
        bytes_max: u64,
        options: Options,
        over: Over,
        mutation: Option<Mutation>,
    ) -> Self {
        let folder = Arc::new(shm());
        let arena = folder.path().join("a.arena");
        let identity = ArenaIdentity { uuid: [7; 16], inode: 1, size_bytes: base.len() as u64 };
        let held = Arena::create(&arena, identity, bytes_max).unwrap();
        let below = Memory::new(base);
        let mut served =
            Self { below, disk: None, lane: None, arena, folder, bytes_max, options, over, mutation };
        served.open(held);
        for superblock in journal_superblocks(&served.below.bytes()) {
            // A mount reads it first.
            served.read_block(superblock);
        }
        served
    }

    /// Reads a block, whatever comes of it.
    pub fn read_block(&mut self, at: Sector) {
        drop(self.lane().read(at, &mut [0; BLOCK_BYTES]));
    }

    pub fn applies(&self) -> bool {
        self.options.home.is_some()
    }

    fn open(&mut self, arena: Arena) {
        if self.options.home.is_some() {
            self.options.home = Some(Arc::new(Now(Mutex::new(Some(Arc::clone(&self.below))))));
        }
        let lower = (self.over)(Arc::clone(&self.below));
        let opened = match self.mutation {
            Some(mutation) => RetainDisk::open_mutated(lower, arena, self.options.clone(), mutation),
            None => RetainDisk::open(lower, arena, self.options.clone()),
        };
        let disk = Arc::new(opened.unwrap());
        self.lane = Some(Blocking::new(disk.open_lane().unwrap()));
        self.disk = Some(disk);
    }

    pub fn lane(&mut self) -> &mut Blocking {
        self.lane.as_mut().unwrap()
    }

    pub fn disk(&self) -> &RetainDisk {
        self.disk.as_ref().unwrap()
    }

    /// The daemon dies and another one goes on.
    pub fn restart(&mut self) {
        self.lane = None;
        self.disk = None;
        let arena = Arena::open(&self.arena, None).unwrap();
        self.open(arena);
    }

    /// The next daemon makes no mistake.
    pub fn restart_without_mistake(&mut self) {
        self.mutation = None;
        self.restart();
    }

    /// The same state, of which anything can be made.
    pub fn copy(&self) -> Served {
        self.opened(self.below.bytes(), |arena| copy_sparse(&self.arena, arena))
    }

    /// The arena's file as it is: what a daemon that dies now leaves.
    pub fn arena(&self) -> Vec<u8> {
        std::fs::read(&self.arena).unwrap()
    }

    /// What another daemon makes of a disk and of an arena's file.
    pub fn after(&self, below: Vec<u8>, arena: &[u8]) -> Served {
        self.opened(below, |path| std::fs::write(path, arena).unwrap())
    }

    fn opened(&self, below: Vec<u8>, put_arena: impl FnOnce(&Path)) -> Served {
        let folder = Arc::new(shm());
        let arena = folder.path().join("a.arena");
        put_arena(&arena);
        let mut opened = Served {
            below: Memory::new(below),
            disk: None,
            lane: None,
            arena,
            folder,
            bytes_max: self.bytes_max,
            options: self.options.clone(),
            over: Arc::new(at_once),
            mutation: self.mutation,
        };
        let held = Arena::open(&opened.arena, None).unwrap();
        opened.open(held);
        opened
    }

    /// What a guest reads, all of it.
    pub fn read_all(&mut self) -> Vec<u8> {
        let mut disk = vec![0; self.below.len() as usize];
        for (i, chunk) in disk.chunks_mut(1 << 20).enumerate() {
            self.lane().read(Sector(i as u64 * 2048), chunk).unwrap();
        }
        disk
    }

    /// The orderly end without a guest: what is left is the image.
    pub fn finish(mut self, attached: bool) -> Vec<u8> {
        self.lane = None;
        self.disk().finish(attached).unwrap();
        drop(self.disk.take());
        self.below.bytes()
    }

    pub fn flush(&mut self) {
        self.lane().flush(FlushKind::Order).unwrap();
    }
}

fn copy_sparse(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp").arg("--sparse=always").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}
