//! What the fuzzer does with its bytes: requests of a guest against a retained journal on a small disk, with transactions
//! written as jbd2 would, completions that are late, daemons that end and begin again.
//!
//! ```text
//! [disk][arena blocks][home writes at commit?] then operations: [kind][place, 2 bytes][length][fill]...
//! ```
//! What must hold: nothing panics, the arena keeps its bound, and sectors outside the file system hold what the guest wrote.

use std::path::PathBuf;
use std::sync::Arc;

use afterimage_block::{Buffers, Medium, MediumDisk, Sector, SECTOR_BYTES};
use afterimage_order::{HomeError, HomeWriter};
use parking_lot::Mutex;

use super::layout::superblock::{Features, JournalSuperblock};
use super::layout::{self, Found, Layout};
use super::log::encode::{Draft, Encoder};
use super::log::LogGeometry;
use super::{Change, FileSystems, Options, Part, ReadPart};
use crate::ids::{AreaBlock, Block, FsBlock, Tid, BLOCK_BYTES, BLOCK_SECTORS};
use crate::mutation::Mistake;
use crate::versions::arena::{Arena, ArenaIdentity};
use crate::versions::Track;

/// First of the blocks that no sample disk's journal lies over: as many as 46.
const HOMES: u64 = 2001;

#[derive(Clone)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    fn with<T>(&self, act: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        act(&mut self.0.lock())
    }
}

impl Medium for Memory {
    fn len(&self) -> u64 {
        self.with(|bytes| bytes.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.with(|bytes| buf.copy_from_slice(&bytes[offset as usize..][..buf.len()]));
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
        self.with(|bytes| bytes[offset as usize..][..buf.len()].copy_from_slice(buf));
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64, _unmap: bool) -> std::io::Result<()> {
        self.with(|bytes| bytes[offset as usize..][..len as usize].fill(0));
        Ok(())
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

impl HomeWriter for Memory {
    fn write_home(&self, blocks: &[(Sector, &[u8])]) -> Result<(), HomeError> {
        if blocks.len() > 40 {
            return Err(HomeError::TooLarge { bytes: 0, max_bytes: 0 });
        }
        for (sector, content) in blocks {
            self.with(|bytes| bytes[sector.0 as usize * 512..][..content.len()].copy_from_slice(content));
        }
        Ok(())
    }

    fn atomic_bytes_max(&self) -> Option<u64> {
        Some(u64::MAX)
    }
}

impl layout::Source for Memory {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), afterimage_block::BlockError> {
        self.read_at(buf, sector.0 * SECTOR_BYTES)
            .map_err(|e| afterimage_block::BlockError::io("reading memory", e))
    }
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn short(&mut self) -> u64 {
        u64::from(self.byte()) << 8 | u64::from(self.byte())
    }
}

/// A file of this process alone; the fuzzer runs one input at a time, tests hand in numbers of their own.
fn arena_path(number: u64) -> PathBuf {
    PathBuf::from(format!("/dev/shm/afterimage-fuzz-{}-{number}.arena", std::process::id()))
}

struct Run {
    memory: Memory,
    /// What the guest wrote, on a disk without retention.
    shadow: Vec<u8>,
    options: Options,
    retainer: Option<FileSystems>,
    path: PathBuf,
    bytes_max: u64,
    late: Vec<(Part, Option<Buffers>)>,
    layout: Layout,
    superblock: JournalSuperblock,
    head: (Tid, AreaBlock),
    commits_max: u64,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.retainer = None;
        drop(std::fs::remove_file(&self.path));
    }
}

/// Plays an input. `number` names the arena's file. Returns how many transactions were followed.
///
/// # Panics
/// Where retention does, or does what it must not: then it is broken.
pub fn fuzz_retain(input: &[u8], number: u64) -> u64 {
    let mut input = Input(input);
    let samples = layout::fuzz::samples();
    let sample = &samples[usize::from(input.byte()) % samples.len()];
    let disk = layout::fuzz::disk_of(sample);
    let bytes_max = (u64::from(input.byte() % 64) + 1) * BLOCK_BYTES as u64;
    let memory = Memory(Arc::new(Mutex::new(disk.clone())));
    let home: Option<Arc<dyn HomeWriter>> =
        if input.byte() & 1 == 1 { Some(Arc::new(memory.clone())) } else { None };
    let found = layout::find(&mut memory.clone(), disk.len() as u64 / SECTOR_BYTES);
    let Some(Found::FileSystem(layout)) = found.unwrap_or_default().pop() else { return 0 };
    let mut block = [0; BLOCK_BYTES];
    let Some(at) = layout.home_of(AreaBlock(0)) else { return 0 };
    block.copy_from_slice(&disk[at.sector(layout.start).0 as usize * 512..][..BLOCK_BYTES]);
    let Ok(superblock) = JournalSuperblock::parse(&block) else { return 0 };
    let head = (superblock.sequence().next(), superblock.first());
    let path = arena_path(number);
    drop(std::fs::remove_file(&path));
    let options = Options { home, ..Options::default() };
    let mut run = Run {
        memory,
        shadow: disk,
        options,
        retainer: None,
        path,
        bytes_max,
        late: Vec::new(),
        layout,
        superblock,
        head,
        commits_max: 0,
    };
    if run.open(true) {
        run.mount(head);
        while !input.0.is_empty() {
            run.operation(&mut input);
        }
        run.end();
    }
    run.commits_max
}

impl Run {
    fn open(&mut self, fresh: bool) -> bool {
        let identity = ArenaIdentity { uuid: [1; 16], inode: 1, size_bytes: self.shadow.len() as u64 };
        let arena = match fresh {
            true => Arena::create(&self.path, identity, self.bytes_max),
            false => Arena::open(&self.path, None),
        };
        let Ok(arena) = arena else { return false };
        let disk = MediumDisk::new(Arc::new(self.memory.clone()));
        match FileSystems::open(&disk, arena, self.options.clone(), Mistake::default()) {
            Ok(retainer) => self.retainer = Some(retainer),
            Err(e) => panic!("memory does not fail: {e}"),
        }
        true
    }

    fn retainer(&mut self) -> &mut FileSystems {
        match &mut self.retainer {
            Some(retainer) => retainer,
            None => unreachable!("it is open but while it is opened"),
        }
    }

    fn sector(&self, at: AreaBlock) -> u64 {
        self.layout.home_of(at).map_or(0, |home| home.sector(self.layout.start).0)
    }

    fn mount(&mut self, tail: (Tid, AreaBlock)) {
        let superblock = self.superblock.with_tail(tail.0, Some(tail.1));
        let sector = self.sector(AreaBlock(0));
        // Kernels read it first.
        self.retainer().superblock_read(Sector(sector), BLOCK_SECTORS);
        let read = self.retainer().read(
            Sector(sector),
            BLOCK_SECTORS,
            &Buffers::allocate(BLOCK_BYTES),
            &mut Vec::new(),
        );
        assert!(read.is_ok());
        self.write(sector, superblock.bytes(), false);
    }

    fn write(&mut self, sector: u64, bytes: &[u8], late: bool) {
        let buffers = Buffers::from_bytes(bytes);
        self.change(sector, bytes.len() as u64 / SECTOR_BYTES, Some(buffers), late);
    }

    /// A request is in the shadow when it is taken; what is to come later comes when what is in flight has completed.
    fn change(&mut self, sector: u64, sectors: u64, buffers: Option<Buffers>, late: bool) {
        let disk_sectors = self.shadow.len() as u64 / SECTOR_BYTES;
        if sectors == 0 || sector + sectors > disk_sectors {
            return;
        }
        let mut parts = Vec::new();
        let change = buffers.as_ref().map_or(Change::Clear, Change::Write);
        let submitted = self.retainer().submit(change, Sector(sector), sectors, &mut parts);
        let taken = match submitted {
            Ok(taken) => taken,
            Err(e) => panic!("memory does not fail: {e}"),
        };
        if let Err(e) = self.retainer().sets_home() {
            panic!("memory does not fail: {e}");
        }
        let at = sector as usize * 512..(sector + sectors) as usize * 512;
        match &buffers {
            Some(buffers) => buffers.copy_to(0, &mut self.shadow[at]),
            None => self.shadow[at].fill(0),
        }
        for part in parts {
            let own = match (&part, &buffers) {
                (Part::Below { sector: s, sectors: n, copy: None, .. }, Some(buffers)) => {
                    Some(buffers.slice((s.0 - sector) as usize * 512, *n as usize * 512))
                }
                (Part::Below { copy: Some(copy), .. }, _) => Some(copy.share()),
                _ => None,
            };
            match late {
                true => self.late.push((part, own)),
                false => self.complete(part, own),
            }
        }
        if let Some(buffers) = buffers.filter(|_| taken < sectors) {
            self.complete_late();
            let rest = buffers.slice(taken as usize * 512, (sectors - taken) as usize * 512);
            self.change(sector + taken, sectors - taken, Some(rest), false);
        }
    }

    fn complete(&mut self, part: Part, content: Option<Buffers>) {
        if let Part::Elided(track) = part {
            self.retainer().posted([track]);
        }
        let Part::Below { sector, sectors, track, .. } = part else { return };
        let at = sector.0 as usize * 512..(sector.0 + sectors) as usize * 512;
        self.memory.with(|bytes| match &content {
            Some(content) => content.copy_to(0, &mut bytes[at]),
            None => bytes[at].fill(0),
        });
        self.completed(track);
    }

    fn completed(&mut self, track: Option<Track>) {
        let Some(track) = track else { return };
        if let Err(e) = self.retainer().completed(track, true) {
            panic!("memory does not fail: {e}");
        }
        self.retainer().posted([track]);
    }

    /// In the order in which they were submitted: what overlaps is then as the shadow has it.
    fn complete_late(&mut self) {
        for (part, content) in std::mem::take(&mut self.late) {
            self.complete(part, content);
        }
    }

    fn operation(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        let late = kind & 0x80 != 0 && self.late.len() < 16;
        if !late {
            self.complete_late();
        }
        let (place, length, fill) = (input.short(), u64::from(input.byte()), input.byte());
        let usable = u64::from(self.superblock.maxlen() - self.superblock.first().0);
        let area = AreaBlock(self.superblock.first().0 + (place % usable) as u32);
        let home = self.layout.start.0 + (HOMES + place % 46) * 8;
        let bytes = vec![fill; (length as usize % 40 + 1) * 512];
        match kind & 0x1f {
            0 => self.write(place % 17_000, &bytes, late),
            1 => self.write(self.sector(area) + length % 8, &bytes, late),
            2 => self.write(home, &vec![fill; (length as usize % 4 + 1) * BLOCK_BYTES], late),
            3 => self.write(home + length % 8, &bytes, late),
            4 => self.change(place % 17_000, length * 64, None, late),
            5 => self.change(home, length, None, late),
            6..=12 => self.commit(input, length, fill),
            13 => self.mount((Tid(self.head.0 .0.wrapping_sub(length as u32)), area)),
            14 => self.mount(self.head),
            15 => {
                let block = *self.superblock.with_tail(self.head.0, None).bytes();
                self.write(self.sector(AreaBlock(0)), &block, late);
            }
            16 => {
                let mut block: Block = *self.superblock.with_tail(self.head.0, Some(area)).bytes();
                block[length as usize % 96] = fill;
                self.write(self.sector(AreaBlock(0)), &block, late);
            }
            17 => self.act(FileSystems::settle_all),
            18 => {
                let goal_bytes = self.retainer().room_goal_bytes();
                self.act(|retainer| retainer.make_room(goal_bytes));
            }
            19 => self.act(FileSystems::materialise),
            20 => {
                self.complete_late();
                self.retainer = None;
                assert!(self.open(false), "an arena can be opened again");
            }
            21 => {
                self.complete_late();
                self.act(|retainer| retainer.finish(length & 1 == 1).map(|_| ()));
            }
            22 => self.head = (Tid(self.head.0 .0.wrapping_add(length as u32)), area),
            23 => {
                // A byte of what the layout rests on.
                let at = self.layout.start.0 * 512 + 1024 + place % 1024;
                let mut sector = self.shadow[at as usize / 512 * 512..][..512].to_vec();
                sector[at as usize % 512] = fill;
                self.write(at / 512, &sector, late);
            }
            24 => self.act(FileSystems::flushes),
            _ => {
                let buffers = Buffers::allocate(bytes.len());
                let mut parts: Vec<ReadPart> = Vec::new();
                let sectors = buffers.len() as u64 / 512;
                let sector = Sector(self.sector(area));
                let read = self.retainer().read(sector, sectors, &buffers, &mut parts);
                assert!(read.is_ok());
            }
        }
        let status = self.retainer().status();
        assert!(status.arena_used_bytes <= self.bytes_max);
        let commits = status.file_systems.iter().map(|f| f.classes.journal_commits).max();
        self.commits_max = self.commits_max.max(commits.unwrap_or(0));
    }

    fn act(&mut self, act: impl FnOnce(&mut FileSystems) -> Result<(), crate::JournalError>) {
        let retainer = self.retainer();
        let done = retainer.all_home().and_then(|()| act(retainer)).and_then(|()| retainer.sets_home());
        if let Err(e) = done {
            panic!("memory does not fail: {e}");
        }
    }

    fn commit(&mut self, input: &mut Input<'_>, length: u64, fill: u8) {
        let geometry = LogGeometry {
            features: Features { revoke: true, ..Features::default() },
            ..LogGeometry::new(&self.superblock, &self.layout)
        };
        let mut draft = Draft { tags_max: Some(length as usize % 7 + 1), ..Draft::default() };
        for _ in 0..length % 12 {
            // Mostly what may be logged, sometimes anything of the file system or behind it.
            let home = input.short();
            let home = if home < 0xf000 { HOMES + home % 46 } else { home - 0xf000 };
            draft.logged.push((FsBlock(home), Box::new([fill ^ home as u8; BLOCK_BYTES])));
        }
        if fill & 1 == 1 {
            draft.revokes.push(FsBlock(HOMES + input.short() % 46));
        }
        let mut encoder = Encoder::new(&geometry, self.head.1, self.head.0);
        encoder.transaction(&draft);
        let commit = encoder.blocks.len() - 1;
        let first = self.head.1;
        let blocks: Vec<(AreaBlock, Box<Block>)> =
            encoder.blocks.iter().map(|(at, b)| (*at, b.clone())).collect();
        // In the log's order, which may go round.
        let (wrapped, plain): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|(at, _)| *at < first);
        for (i, (at, block)) in plain.into_iter().chain(wrapped).enumerate() {
            if i == commit && fill & 6 == 6 {
                return;
            }
            self.write(self.sector(at), &block[..], false);
        }
        self.head = (encoder.tid, encoder.at);
    }

    fn end(&mut self) {
        self.complete_late();
        self.act(|retainer| retainer.finish(false).map(|_| ()));
        let (from, to) =
            (self.layout.start.0 as usize * 512, FsBlock(self.layout.room_blocks).sector(self.layout.start));
        let to = to.0 as usize * 512;
        let shadow = &self.shadow;
        self.memory.with(|bytes| {
            assert!(bytes[..from] == shadow[..from], "written before the file system");
            assert!(bytes[to..] == shadow[to..], "written behind the file system");
        });
    }
}

/// Inputs to begin with: guests that commit, check point, die and come again on each kind of disk.
pub fn samples() -> Vec<Vec<u8>> {
    let mut samples = Vec::new();
    for disk in 0..4 {
        for (arena, home) in [(63, 0), (2, 0), (63, 1), (2, 1)] {
            let mut sample = vec![disk, arena, home];
            for round in 0..3 {
                // A transaction of four blocks, one of them written home, late.
                sample.extend([6, 0, 0, 4, 8 + 8 * round, 0, 1, 0, 2, 0, 3, 0, round]);
                sample.extend([0x82, 0, 1, 0, 8 + 8 * round]);
                sample.extend([2, 0, 2, 0, 8 + 8 * round]);
                sample.extend([6, 0, 0, 3, 9 + 8 * round, 0, 2, 0, 2, 0, 5, 0, 1]);
                sample.extend([[17, 18, 19][round as usize], 0, 0, 0, 0]);
                sample.extend([20, 0, 0, 0, 0]);
            }
            sample.extend([14, 0, 0, 0, 0, 7, 0, 0, 2, 4, 0, 8, 0, 9]);
            samples.push(sample.clone());
            if disk != 2 || arena == 2 {
                continue;
            }
            for attack in [0, 1, 4, 13, 16, 21, 22, 23] {
                let mut attacked = sample.clone();
                attacked.extend([attack, 0, 12, 9, 7, 7, 0, 0, 3, 4, 0, 8, 0, 9, 0xf0, 3]);
                samples.push(attacked);
            }
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn samples_and_damaged_samples() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        for sample in samples() {
            assert!(fuzz_retain(&sample, 1) >= 1, "a guest that is let alone is retained: {sample:?}");
            let mut damaged = sample.clone();
            for _ in 0..4 {
                let at = random.random_range(3..damaged.len());
                damaged[at] = random.random_range(0..=255) as u8;
                fuzz_retain(&damaged, 1);
            }
        }
    }
}
