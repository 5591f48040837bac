//! A guest's journal reads back as the guest wrote it until its own tail has passed it, whatever the daemon does; and a journal that was put
//! in place (`dd`, a restored backup) is content, of which nothing goes home before somebody mounts it.

mod common;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use afterimage_block::{Disk as _, Medium, MediumDisk, Quiesced, Sector};
use afterimage_journal::ext4::Options;
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::layout::Layout;
use afterimage_journal::log::encode::{Draft, Encoder};
use afterimage_journal::log::LogGeometry;
use afterimage_journal::{AreaBlock, Block, FsBlock, Mutation, Tid, BLOCK_BYTES};
use common::{
    at_commit, differences, ext4, ext4_of, journal_superblock, layouts, recovered, wait_for_home, Memory,
    Served,
};

const PLENTY: u64 = 32 << 20;
const SHORT: u64 = 64 << 10;
/// Blocks that the file system does not use.
const DATA: u64 = 2500;

/// A guest with one mounted file system.
struct Guest {
    layout: Layout,
    superblock: JournalSuperblock,
    log: Encoder,
    /// What it committed to each of its blocks.
    committed: Vec<(FsBlock, Box<Block>)>,
}

impl Guest {
    /// Mounts a file system whose journal is empty, or was replayed up to there.
    fn mount(disk: &[u8], tid: Tid) -> Self {
        let layout = layouts(disk).remove(0);
        let found = journal_superblock(disk, &layout).unwrap();
        let first = found.first();
        let superblock = found.with_tail(tid, Some(first));
        let log = Encoder::new(&LogGeometry::new(&superblock, &layout), first, tid);
        Self { layout, superblock, log, committed: Vec::new() }
    }

    fn of_empty(disk: &[u8]) -> Self {
        let layout = layouts(disk).remove(0);
        let found = journal_superblock(disk, &layout).unwrap();
        Self::mount(disk, found.sequence().next())
    }

    fn sector(&self, at: AreaBlock) -> Sector {
        self.layout.home_of(at).unwrap().sector(self.layout.start)
    }

    fn read(&self, served: &mut Served, at: AreaBlock) -> Block {
        let mut block = [0; BLOCK_BYTES];
        served.lane().read(self.sector(at), &mut block).unwrap();
        block
    }

    /// As the kernel does it: the superblock is read, and then written.
    fn begin(&self, served: &mut Served) {
        self.read(served, AreaBlock(0));
        served.lane().write(self.sector(AreaBlock(0)), self.superblock.bytes()).unwrap();
    }

    /// Commits so many blocks.
    fn commit(&mut self, served: &mut Served, blocks: std::ops::Range<u64>, byte: u8) {
        let logged: Vec<(FsBlock, Box<Block>)> = blocks
            .map(|n| (FsBlock(DATA + n), Box::new([byte.wrapping_add(n as u8) | 1; BLOCK_BYTES])))
            .collect();
        let mut at = self.log.at;
        self.log.transaction(&Draft { logged: logged.clone(), ..Draft::default() });
        while at != self.log.at {
            served.lane().write(self.sector(at), &self.log.blocks[&at][..]).unwrap();
            at = AreaBlock(at.0 + 1);
        }
        self.committed.retain(|(home, _)| !logged.iter().any(|(other, _)| other == home));
        self.committed.extend(logged);
    }

    fn write_home(&self, served: &mut Served) {
        for (home, content) in &self.committed {
            served.lane().write(home.sector(self.layout.start), &content[..]).unwrap();
        }
        served.flush();
    }

    /// Compares all of its log, and its superblock, with what it wrote.
    fn assert_log(&self, served: &mut Served, what: &str) {
        assert_eq!(&self.read(served, AreaBlock(0)), self.superblock.bytes(), "{what}: the superblock");
        let wrong: Vec<AreaBlock> = self
            .log
            .blocks
            .iter()
            .filter(|(at, b)| self.read(served, **at) != ***b)
            .map(|(at, _)| *at)
            .collect();
        assert!(wrong.is_empty(), "{what}: {} blocks, {wrong:?}", wrong.len());
    }
}

type Contract = fn() -> Options;

type Beside = (&'static str, fn(&mut Served));

/// What the daemon does beside.
const BESIDE: [Beside; 7] = [
    ("nothing", |_| {}),
    ("a flush", |served| served.disk().settle_to_flush().unwrap()),
    ("room", |served| (0..20).for_each(|_| served.disk().make_room().unwrap())),
    ("a pause", |served| {
        served.disk().pause().unwrap();
        served.disk().resume();
    }),
    ("another daemon", Served::restart),
    ("a guest that seems to be gone", |served| {
        served.disk().quiesced(Quiesced::Disconnected);
        while served.disk().settle_after_guest().unwrap() {}
    }),
    ("room and another daemon", |served| {
        served.disk().make_room().unwrap();
        served.restart();
    }),
];

/// A cache between a file system and the disk (a loop device, another VM) keeps the superblock, and reads any block again at any time.
#[test]
fn a_log_reads_back_as_it_was_written() {
    reads_back(None);
    for mutation in [Mutation::ReleaseHome, Mutation::ReleaseEarly, Mutation::ForgetSave] {
        assert!(
            std::panic::catch_unwind(|| reads_back(Some(mutation))).is_err(),
            "{mutation:?} was not noticed"
        );
    }
}

fn reads_back(mutation: Option<Mutation>) {
    let base = ext4();
    for contract in [wait_for_home as Contract, at_commit] {
        for bytes_max in [PLENTY, SHORT] {
            for home in [false, true] {
                for (beside, act) in BESIDE {
                    let what =
                        format!("{beside}, {bytes_max} bytes, home {home}, {}", contract().home.is_some());
                    let mut served = Served::mutated(base.clone(), bytes_max, contract(), mutation);
                    let mut guest = Guest::of_empty(&base);
                    guest.begin(&mut served);
                    for n in 0..6 {
                        guest.commit(&mut served, n * 3..n * 3 + 12, n as u8 * 16);
                        if home {
                            guest.write_home(&mut served);
                        }
                        if n % 2 == 1 {
                            act(&mut served);
                            guest.assert_log(&mut served, &what);
                        }
                    }
                    // Its own recovery, from the superblock that it has.
                    let after = recovered(served.read_all()).disk;
                    for (block, content) in &guest.committed {
                        assert_eq!(
                            after[block.0 as usize * BLOCK_BYTES..][..BLOCK_BYTES],
                            content[..],
                            "{what}"
                        );
                    }
                    let image = served.copy().finish(true);
                    assert!(differences(&recovered(image).disk, &after).is_empty(), "{what}: with a guest");
                    assert!(
                        differences(&recovered(served.finish(false)).disk, &after).is_empty(),
                        "{what}: without"
                    );
                }
            }
        }
    }
}

/// What is served from home is written over, by whatever comes. The daemon may die before any of that lands.
#[test]
fn what_is_served_from_home_is_saved_first() {
    type Over = fn(&mut Served, Sector);
    let over: [(&str, Over); 4] = [
        ("another content", |served, at| served.lane().write(at, &[0xee; BLOCK_BYTES]).unwrap()),
        ("a part", |served, at| served.lane().write(Sector(at.0 + 3), &[0xee; 512]).unwrap()),
        ("zeroes", |served, at| served.lane().write_zeroes(Sector(at.0 - 1), 12, true).unwrap()),
        ("a discard", |served, at| served.lane().discard(at, 40).unwrap()),
    ];
    let base = ext4();
    for contract in [wait_for_home as Contract, at_commit] {
        for bytes_max in [1 << 20, SHORT] {
            for (what, write) in over {
                let what = format!("{what}, {bytes_max} bytes, {}", contract().home.is_some());
                let mut served = Served::new(base.clone(), bytes_max, contract());
                let mut guest = Guest::of_empty(&base);
                guest.begin(&mut served);
                guest.commit(&mut served, 0..8, 3);
                guest.write_home(&mut served);
                served.disk().make_room().unwrap();
                // Memory is short, or is not.
                if bytes_max == SHORT {
                    guest.commit(&mut served, 20..40, 7);
                }
                let from_home = served.disk().status().file_systems[0].served_from_home;
                assert!(from_home > 0, "{what}: nothing is served from home");
                for home in 0..8 {
                    let before = served.below.bytes();
                    write(&mut served, FsBlock(DATA + home).sector(guest.layout.start));
                    let mut below = served.below.bytes();
                    let homes = DATA as usize * BLOCK_BYTES..(DATA as usize + 16) * BLOCK_BYTES;
                    below[homes.clone()].copy_from_slice(&before[homes]);
                    guest.assert_log(
                        &mut served.after(below, &served.arena()),
                        &format!("{what}, not landed"),
                    );
                    guest.assert_log(&mut served.copy(), &what);
                }
                guest.assert_log(&mut served, &what);
                let found = served.disk().status().file_systems.remove(0);
                assert!(
                    found.served_from_home < from_home && found.classes.saved_blocks > 0,
                    "{what}: {found:?}"
                );
                // Pause, and the copy that it is for.
                served.disk().pause().unwrap();
                let copy = Guest { layout: layouts(&base).remove(0), ..guest };
                let mut image = Served::new(served.below.bytes(), PLENTY, contract());
                copy.assert_log(&mut image, &format!("{what}, a copy"));
            }
        }
    }
}

/// The disk of a guest that was mounted: what it committed is in its log, and older content at home.
fn live(base: &[u8]) -> Vec<u8> {
    let mut plain = base.to_vec();
    let mut guest = Guest::of_empty(base);
    let mut put = |sector: Sector, content: &[u8]| {
        plain[sector.0 as usize * 512..][..content.len()].copy_from_slice(content);
    };
    put(guest.sector(AreaBlock(0)), guest.superblock.bytes());
    for n in 0..20 {
        let logged = (n..n + 30).map(|m| (FsBlock(DATA + m), Box::new([n as u8 + 1; BLOCK_BYTES]))).collect();
        guest.log.transaction(&Draft { logged, ..Draft::default() });
    }
    // One of them, in the table of inodes that are not used, lies before most of the journal.
    let homes = [FsBlock(DATA + 5), FsBlock(280)];
    let logged = homes.iter().map(|home| (*home, Box::new([99; BLOCK_BYTES]))).collect();
    guest.log.transaction(&Draft { logged, ..Draft::default() });
    guest.log.blocks.iter().for_each(|(at, block)| put(guest.sector(*at), &block[..]));
    plain
}

/// A backup of a live file system is put back over the file system, through the disk that is served.
#[test]
fn a_restored_log_is_content() {
    let base = ext4();
    let backup = live(&base);
    let expected = recovered(backup.clone()).disk;
    let mut acts = BESIDE.into_iter().cycle();
    for contract in [wait_for_home as Contract, at_commit] {
        for piece in [4 << 10, 64 << 10, 1 << 20] {
            for before in ["nothing", "clean", "read", "dead"] {
                let (beside, act) = acts.next().unwrap();
                let what = format!("{before}, {piece}, {beside}, {}", contract().home.is_some());
                let mut served = Served::new(base.clone(), PLENTY, contract());
                let mut guest = Guest::of_empty(&base);
                if before == "clean" || before == "dead" {
                    guest.begin(&mut served);
                    guest.commit(&mut served, 0..40, 7);
                }
                if before == "clean" {
                    guest.write_home(&mut served);
                    let empty = guest.superblock.with_tail(guest.log.tid, None);
                    served.lane().write(guest.sector(AreaBlock(0)), empty.bytes()).unwrap();
                }
                if before == "read" {
                    // Somebody looked at the file system before.
                    guest.read(&mut served, AreaBlock(0));
                }
                for (n, content) in backup.chunks(piece).enumerate() {
                    served.lane().write(Sector((n * piece) as u64 / 512), content).unwrap();
                    if (n * piece) % (2 << 20) == 0 {
                        act(&mut served);
                    }
                }
                served.flush();
                act(&mut served);
                let different = differences(&served.read_all(), &backup);
                assert!(different.is_empty(), "{what}: {} blocks read otherwise", different.len());
                let image = served.after(served.below.bytes(), &served.arena()).finish(true);
                assert!(differences(&recovered(image).disk, &expected).is_empty(), "{what}: with a guest");
                assert!(differences(&recovered(served.finish(false)).disk, &expected).is_empty(), "{what}");
            }
        }
    }
}

/// An earlier version gave up what was home, and moved the tail that it served.
#[test]
fn what_an_earlier_version_gave_up_is_not_looked_for() {
    let base = ext4();
    let mut served = Served::mutated(base.clone(), PLENTY, wait_for_home(), Some(Mutation::ReleaseHome));
    let mut guest = Guest::of_empty(&base);
    guest.begin(&mut served);
    guest.commit(&mut served, 0..9, 1);
    guest.write_home(&mut served);
    guest.commit(&mut served, 20..29, 2);
    guest.commit(&mut served, 20..25, 3);
    served.restart_without_mistake();
    let superblock = JournalSuperblock::parse(&guest.read(&mut served, AreaBlock(0))).unwrap();
    assert!(superblock.sequence().is_after(guest.superblock.sequence()), "nothing was given up");
    let after = recovered(served.read_all()).disk;
    for (block, content) in &guest.committed {
        assert_eq!(after[block.0 as usize * BLOCK_BYTES..][..BLOCK_BYTES], content[..]);
    }
    assert!(served.disk().finish(true).unwrap(), "its arena is needed");
    // The guest's own tail passes it.
    guest.write_home(&mut served);
    guest.superblock = guest.superblock.with_tail(guest.log.tid, Some(guest.log.at));
    served.lane().write(guest.sector(AreaBlock(0)), guest.superblock.bytes()).unwrap();
    guest.log.blocks.clear();
    guest.commit(&mut served, 40..45, 4);
    guest.assert_log(&mut served, "behind it");
    assert!(!served.disk().finish(true).unwrap(), "no more");
}

/// Counts what is written.
struct Written(Arc<Memory>, Arc<AtomicU64>);

impl Medium for Written {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.1.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.0.write_at(buf, offset)
    }

    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.0.zero_at(offset, len, unmap)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// A log of several times the memory, whose blocks the guest writes home at once or much later, as its tail does not move. With so little memory that
/// where blocks stand cannot be remembered, all of it is written twice, as earlier versions wrote it.
#[test]
fn a_log_above_the_bound_costs_no_second_write() {
    let base = ext4_of(64, 16);
    for (later, bytes_max) in [(0, 2 << 20), (20, 2 << 20), (0, 200 << 10), (20, 200 << 10)] {
        let written = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&written);
        let over: common::Over =
            Arc::new(move |memory| Arc::new(MediumDisk::new(Arc::new(Written(memory, Arc::clone(&told))))));
        let mut served = Served::over(base.clone(), bytes_max, wait_for_home(), over, None);
        let mut guest = Guest::of_empty(&base);
        guest.begin(&mut served);
        let homes: Vec<u64> =
            (0..4000).filter(|n| guest.layout.area_of(FsBlock(DATA + n)).is_none()).collect();
        let transactions: Vec<&[u64]> = homes.chunks_exact(50).take(40).collect();
        written.store(0, Ordering::Relaxed);
        for n in 0..transactions.len() + later {
            if let Some(blocks) = transactions.get(n) {
                assert_eq!(blocks[49] - blocks[0], 49, "they lie in a row");
                guest.commit(&mut served, blocks[0]..blocks[0] + 50, n as u8);
            }
            for block in n.checked_sub(later).and_then(|n| transactions.get(n)).into_iter().copied().flatten()
            {
                let home = FsBlock(DATA + block);
                let (_, content) = guest.committed.iter().find(|(of, _)| *of == home).unwrap();
                served.lane().write(home.sector(guest.layout.start), &content[..]).unwrap();
            }
        }
        let bytes = written.load(Ordering::Relaxed) as f64 / (transactions.len() * 50 * BLOCK_BYTES) as f64;
        let status = served.disk().status();
        let system = &status.file_systems[0];
        println!("{bytes_max} bytes, home writes {later} transactions later: {bytes:.3} writes a block; {system:?}");
        let expected = if bytes_max < 2 << 20 { 1.8..2.2 } else { 1.0..1.06 };
        assert!(expected.contains(&bytes), "{bytes} writes a block: {system:?}");
        assert!(status.arena_used_bytes <= bytes_max, "{status:?}");
        assert_eq!(system.served_from_home > 500, bytes_max == 2 << 20, "{system:?}");
        guest.assert_log(&mut served, "above the bound");
    }
}
