//! A guest's journal reads back as the guest wrote it until its own tail has passed it, whatever the daemon does; and a journal that was put
//! in place (`dd`, a restored backup) is content, of which nothing goes home before somebody mounts it.

mod common;

use afterimage_block::{Disk as _, Quiesced, Sector};
use afterimage_journal::ext4::Options;
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::layout::Layout;
use afterimage_journal::log::encode::{Draft, Encoder};
use afterimage_journal::log::LogGeometry;
use afterimage_journal::{AreaBlock, Block, FsBlock, Mutation, Tid, BLOCK_BYTES};
use common::{at_commit, differences, ext4, journal_superblock, layouts, recovered, wait_for_home, Served};

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
    for mutation in [Mutation::ReleaseHome, Mutation::ReleaseEarly] {
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
