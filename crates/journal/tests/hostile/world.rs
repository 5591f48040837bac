//! A disk served with its journals retained over [`DelayedDisk`], and what may be read from it.
//!
//! Per sector the model knows what a read may return: what was written last, or, while writes overlap in flight, any of
//! them. Per block it knows what the guest committed: a committed version may come home whenever the guest has not
//! written there since.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use afterimage_block::{
    Buffers, Completion, Disk, FlushKind, Lane, Medium, Operation, Quiesced, Request, Sector, Token,
};
use afterimage_journal::arena::{Arena, ArenaIdentity};
use afterimage_journal::ext4::Options;
use afterimage_journal::{DiskStatus, Mutation, RetainDisk};
use afterimage_order::{HomeError, HomeWriter};

use crate::below::{DelayedDisk, Faults};
use crate::common::{replayed, Memory};

pub const LANES: usize = 3;

/// Two checksums of a sector's halves: enough to tell a few versions apart.
fn hash(bytes: &[u8]) -> u64 {
    let (low, high) = bytes.split_at(bytes.len() / 2);
    u64::from(crc32c::crc32c(low)) << 32 | u64::from(crc32c::crc32c(high))
}

#[derive(Default, Clone)]
struct SectorModel {
    /// What a read may return.
    now: Vec<u64>,
    flights: u32,
    mixed: bool,
}

/// A block's committed versions, each as its sectors' hashes.
#[derive(Default, Clone)]
struct BlockModel {
    /// Committed since the guest last wrote there.
    live: Vec<[u64; 8]>,
    /// Committed at all, in this file system.
    ever: Vec<[u64; 8]>,
    /// A sound guest's newest committed version, and what it wrote there since: nothing older may be found after recovery.
    floor: Option<Vec<[u64; 8]>>,
    /// Counts commits: a write that was submitted before the last one is older, whenever it completes.
    commits: u64,
}

struct Flight {
    sector: u64,
    /// Hashes of what is written; empty for a flush.
    hashes: Vec<u64>,
    /// Per block that is written whole, [`BlockModel::commits`] when it was submitted.
    commits: Vec<u64>,
}

struct Now(Arc<Memory>);

impl HomeWriter for Now {
    fn write_home(&self, blocks: &[(Sector, &[u8])]) -> Result<(), HomeError> {
        let bytes: usize = blocks.iter().map(|(_, b)| b.len()).sum();
        if bytes > 600 << 10 {
            return Err(HomeError::TooLarge { bytes: bytes as u64, max_bytes: 600 << 10 });
        }
        for (sector, content) in blocks {
            self.0.write_at(content, sector.0 * 512).unwrap();
        }
        Ok(())
    }

    fn atomic_bytes_max(&self) -> Option<u64> {
        Some(u64::MAX)
    }
}

pub struct World {
    pub memory: Arc<Memory>,
    pub faults: Arc<Faults>,
    disk: Option<RetainDisk>,
    lanes: Vec<Box<dyn Lane>>,
    arena: PathBuf,
    folder: tempfile::TempDir,
    bytes_max: u64,
    applies: bool,
    /// The next daemon's contract is another one.
    switched: bool,
    mutation: Option<Mutation>,
    pub seed: u64,
    token: u64,
    flights: HashMap<u64, Flight>,
    sectors: Vec<SectorModel>,
    blocks: HashMap<u64, BlockModel>,
    /// Blocks of the disk in which the journal lies.
    pub journal: Vec<Range<u64>>,
}

fn hashes(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(512).map(hash).collect()
}

fn block_hashes(bytes: &[u8]) -> [u64; 8] {
    hashes(bytes).try_into().unwrap()
}

impl World {
    pub fn new(
        base: Vec<u8>,
        journal: Vec<Range<u64>>,
        bytes_max: u64,
        applies: bool,
        seed: u64,
        mutation: Option<Mutation>,
    ) -> Self {
        let folder = tempfile::Builder::new().prefix("hostile-").tempdir_in("/dev/shm").unwrap();
        let arena = folder.path().join("a.arena");
        let identity = ArenaIdentity { uuid: [7; 16], inode: 1, size_bytes: base.len() as u64 };
        let held = Arena::create(&arena, identity, bytes_max).unwrap();
        let now = hashes(&base);
        let sectors = now.into_iter().map(|h| SectorModel { now: vec![h], ..Default::default() }).collect();
        let mut world = Self {
            memory: Memory::new(base),
            faults: Arc::default(),
            disk: None,
            lanes: Vec::new(),
            arena,
            folder,
            bytes_max,
            applies,
            switched: false,
            mutation,
            seed,
            token: 0,
            flights: HashMap::new(),
            sectors,
            blocks: HashMap::new(),
            journal,
        };
        world.open(held);
        world
    }

    fn lower(&self, memory: &Arc<Memory>) -> DelayedDisk {
        DelayedDisk::new(Arc::clone(memory), self.seed + self.token, Arc::clone(&self.faults))
    }

    fn opened(&self, memory: &Arc<Memory>, arena: Arena) -> RetainDisk {
        let home: Option<Arc<dyn HomeWriter>> =
            if self.applies { Some(Arc::new(Now(Arc::clone(memory)))) } else { None };
        let options = Options { home, vflush_at_truncation: self.seed % 2 == 1, ..Options::default() };
        let lower = Arc::new(self.lower(memory));
        let opened = match self.mutation {
            Some(mutation) => RetainDisk::open_mutated(lower, arena, options, mutation),
            None => RetainDisk::open(lower, arena, options),
        };
        opened.unwrap()
    }

    fn open(&mut self, arena: Arena) {
        let disk = self.opened(&self.memory, arena);
        if std::mem::take(&mut self.switched) && self.applies {
            disk.hand_back_overwritten().unwrap();
        }
        self.lanes = (0..LANES).map(|_| disk.open_lane().unwrap()).collect();
        self.disk = Some(disk);
    }

    pub fn disk(&self) -> &RetainDisk {
        self.disk.as_ref().unwrap()
    }

    /// `None` of another server's.
    pub fn status(&self) -> Option<DiskStatus> {
        let status = self.disk.as_ref()?.status();
        assert!(status.arena_used_bytes <= self.bytes_max, "{status:?}");
        Some(status)
    }

    /// The other contract from the next restart on.
    pub fn switch_contract(&mut self) {
        self.applies = !self.applies;
        self.switched = true;
    }

    /// Submits a change and goes on.
    pub fn submit(
        &mut self,
        lane: usize,
        operation: Operation,
        sector: u64,
        sectors: u64,
        bytes: &[u8],
    ) -> u64 {
        let written = match operation {
            Operation::Write { .. } => hashes(bytes),
            Operation::Flush(_) => Vec::new(),
            _ => vec![hash(&[0; 512]); sectors as usize],
        };
        for (model, hash) in self.sectors[sector as usize..].iter_mut().zip(&written) {
            model.mixed |= model.flights > 0;
            model.flights += 1;
            model.now.push(*hash);
        }
        for block in sector / 8..(sector + written.len() as u64).div_ceil(8) {
            let Some(model) = self.blocks.get_mut(&block) else { continue };
            // Until now a version may have come home, to those sectors, too, that are not written now.
            for version in model.live.drain(..) {
                for (i, hash) in version.into_iter().enumerate() {
                    self.sectors[block as usize * 8 + i].now.push(hash);
                }
            }
            let whole = sector <= block * 8 && block * 8 + 8 <= sector + written.len() as u64;
            if !whole || sector % 8 != 0 {
                model.floor = None;
            }
        }
        self.token += 1;
        let token = self.token;
        let commits_of = |i| self.blocks.get(&(sector / 8 + i as u64)).map_or(0, |b| b.commits);
        let commits = (0..written.len() / 8).map(commits_of).collect();
        self.flights.insert(token, Flight { sector, hashes: written, commits });
        let buffers = if bytes.is_empty() { Buffers::empty() } else { Buffers::from_bytes(bytes) };
        self.lanes[lane].submit(Request {
            token: Token(token),
            operation,
            sector: Sector(sector),
            sectors,
            buffers,
        });
        token
    }

    /// Takes in what has completed on a lane.
    pub fn reap(&mut self, lane: usize) {
        let mut done: Vec<Completion> = Vec::new();
        self.lanes[lane].reap(&mut done);
        for completion in done {
            let flight = self.flights.remove(&completion.token.0).expect("completed once");
            let failed = completion.result.is_err();
            for (model, hash) in self.sectors[flight.sector as usize..].iter_mut().zip(&flight.hashes) {
                model.flights -= 1;
                if !model.mixed && !failed {
                    model.now = vec![*hash];
                }
                model.mixed &= model.flights > 0;
            }
            for (i, eight) in flight.hashes.chunks_exact(8).enumerate().filter(|_| flight.sector % 8 == 0) {
                let Some(block) = self.blocks.get_mut(&(flight.sector / 8 + i as u64)) else { continue };
                let newer = flight.commits[i] == block.commits;
                if let Some(floor) = block.floor.as_mut().filter(|_| newer) {
                    floor.push(eight.try_into().unwrap());
                }
            }
        }
    }

    pub fn wait_for(&mut self, token: u64) {
        for _ in 0..100_000 {
            if !self.flights.contains_key(&token) {
                return;
            }
            // Each lane has its thread: what one waits for may be another one's.
            for lane in 0..LANES {
                self.reap(lane);
                if self.lanes[lane].in_flight() > 0 {
                    self.lanes[lane].wait(&[], None).unwrap();
                }
            }
        }
        panic!("a request hangs");
    }

    /// Waits for what is being written to a range.
    pub fn drain_range(&mut self, sector: u64, sectors: u64) {
        let touches = |f: &Flight| f.sector < sector + sectors && sector < f.sector + f.hashes.len() as u64;
        let tokens: Vec<u64> = self.flights.iter().filter(|(_, f)| touches(f)).map(|(t, _)| *t).collect();
        tokens.into_iter().for_each(|t| self.wait_for(t));
    }

    pub fn drain(&mut self) {
        let tokens: Vec<u64> = self.flights.keys().copied().collect();
        tokens.into_iter().for_each(|t| self.wait_for(t));
    }

    pub fn write(&mut self, sector: u64, bytes: &[u8]) {
        let lane = self.token as usize % LANES;
        let flushed = self.token % 7 == 0;
        let token = self.submit(lane, Operation::Write { flushed }, sector, bytes.len() as u64 / 512, bytes);
        self.wait_for(token);
    }

    pub fn flush(&mut self) {
        let token = self.submit(0, Operation::Flush(FlushKind::Order), 0, 0, &[]);
        self.wait_for(token);
    }

    /// What the guest reads, unchecked.
    pub fn read(&mut self, sector: u64, sectors: u64) -> Vec<u8> {
        let buffers = Buffers::allocate(sectors as usize * 512);
        self.token += 1;
        let token = Token(self.token);
        let lane = &mut self.lanes[0];
        let kept = buffers.share();
        lane.submit(Request { token, operation: Operation::Read, sector: Sector(sector), sectors, buffers });
        for _ in 0..1_000_000 {
            let mut done = Vec::new();
            lane.reap(&mut done);
            let ours = done.iter().position(|c| c.token == token).map(|i| done.swap_remove(i));
            assert!(done.is_empty(), "reads are made with nothing of this lane in flight");
            if let Some(completion) = ours {
                completion.result.unwrap();
                return kept.to_vec();
            }
            lane.wait(&[], None).unwrap();
        }
        panic!("a read hangs");
    }

    pub fn read_all(&mut self) -> Vec<u8> {
        let chunk = 2048;
        (0..self.sectors.len() as u64 / chunk).flat_map(|i| self.read(i * chunk, chunk)).collect()
    }

    /// The guest's commit of a version is about to complete. `sound`: nothing older may be found after it.
    pub fn committed(&mut self, block: u64, content: &[u8], sound: bool) {
        let hashes = block_hashes(content);
        let model = self.blocks.entry(block).or_default();
        model.live.push(hashes);
        model.ever.push(hashes);
        if sound {
            model.commits += 1;
            model.floor = Some(vec![hashes]);
        }
    }

    /// The guest has committed that it has no use for a block's versions any more.
    pub fn revoked(&mut self, block: u64) {
        if let Some(model) = self.blocks.get_mut(&block) {
            model.floor = None;
        }
    }

    /// The guest's own recovery is over: what is read must not be older than what was committed.
    pub fn judge_recovered(&mut self, what: &str) {
        self.check(what);
        let content = self.read_all();
        self.judge_floors(&content, what);
    }

    /// The guest was not sound: what recovery makes of its journal is not foreseen.
    pub fn forget_floors(&mut self) {
        self.blocks.values_mut().for_each(|b| b.floor = None);
    }

    /// Another file system was made: nothing of the older one may come home from now on.
    pub fn forget_versions(&mut self) {
        self.check("before another file system");
        let below = self.memory.bytes();
        for block in self.blocks.keys() {
            if self.journal.iter().any(|j| j.contains(block)) {
                continue;
            }
            for (i, sector) in below[*block as usize * 4096..][..4096].chunks(512).enumerate() {
                self.sectors[*block as usize * 8 + i].now = vec![hash(sector)];
            }
        }
        self.blocks.clear();
    }

    fn judge(&self, content: &[u8], end: bool, what: &str) {
        for (i, sector) in content.chunks(512).enumerate() {
            let (block, found) = (i as u64 / 8, hash(sector));
            if self.journal.iter().any(|j| j.contains(&block)) || self.sectors[i].now.contains(&found) {
                continue;
            }
            let versions = self.blocks.get(&block).map(|b| if end { &b.ever } else { &b.live });
            let version = versions.is_some_and(|v| v.iter().any(|v| v[i % 8] == found));
            assert!(
                version,
                "seed {}, {what}: sector {i} (block {block}) holds what nobody wrote there",
                self.seed
            );
        }
    }

    /// What the guest reads is what it wrote, or what it committed since.
    pub fn check(&mut self, what: &str) {
        self.drain();
        let content = self.read_all();
        self.judge(&content, false, what);
    }

    /// Nothing older than what a sound guest committed is left.
    pub fn judge_floors(&self, content: &[u8], what: &str) {
        for block in self.blocks.keys() {
            self.judge_floor(*block, &content[*block as usize * 4096..][..4096], what);
        }
    }

    /// So it is of one block.
    pub fn judge_floor(&self, block: u64, content: &[u8], what: &str) {
        let Some(floor) = self.blocks.get(&block).and_then(|model| model.floor.as_ref()) else { return };
        assert!(
            floor.contains(&block_hashes(content)),
            "seed {}, {what}: block {block} lost what was committed: {:?}",
            self.seed,
            self.status()
        );
    }

    /// The power is cut here, under `power-window`, with everything in the redo log: the image alone is what the guest's own
    /// recovery would leave.
    pub fn check_power(&mut self, what: &str) {
        if self.applies {
            self.check_plain(what);
        }
    }

    /// The guest dies here: what comes of the image.
    pub fn check_end(&mut self, what: &str) {
        self.drain();
        let memory = Memory::new(self.memory.bytes());
        let arena = self.folder.path().join("copy.arena");
        let copied =
            std::process::Command::new("cp").arg("--sparse=always").arg(&self.arena).arg(&arena).status();
        assert!(copied.unwrap().success());
        let disk = self.opened(&memory, Arena::open(&arena, None).unwrap());
        disk.finish(false).unwrap();
        drop(disk);
        std::fs::remove_file(&arena).unwrap();
        let mut bytes = memory.bytes();
        self.judge(&bytes, true, what);
        if self.blocks.values().any(|b| b.floor.is_some()) {
            // Where it is not retained just now, the guest's own recovery finds it on the disk.
            for (block, content) in replayed(&bytes).0 {
                bytes[block as usize * 4096..][..4096].copy_from_slice(&content[..]);
            }
            self.judge_floors(&bytes, what);
        }
    }

    /// What a daemon does to a disk of which no request is in flight: because somebody asks it to, because the guest seems
    /// to have gone, because memory is short, or because it dies.
    pub fn meddle(&mut self, what: u32) {
        match what {
            0 => self.restart(),
            1 => self.disk().make_room().unwrap(),
            2 => {
                self.disk().pause().unwrap();
                self.disk().resume();
            }
            3 => {
                self.disk().quiesced(Quiesced::Stopped);
                while self.disk().settle_after_guest().unwrap() {}
            }
            _ => self.disk().settle().unwrap(),
        }
    }

    /// The daemon dies with nothing of the guest's in flight, and another one goes on.
    pub fn restart(&mut self) {
        self.drain();
        self.lanes.clear();
        self.disk = None;
        self.open(Arena::open(&self.arena, None).unwrap());
    }

    /// The daemon dies, and the memory with it in which it retained journals.
    pub fn lose_arena(&mut self) {
        self.drain();
        self.lanes.clear();
        self.disk = None;
        std::fs::remove_file(&self.arena).unwrap();
        let identity = ArenaIdentity { uuid: [8; 16], inode: 1, size_bytes: self.memory.len() };
        self.open(Arena::create(&self.arena, identity, self.bytes_max).unwrap());
    }

    /// The guest is gone, and the daemon that has served it ends in order. The image.
    pub fn ended(&mut self) -> Vec<u8> {
        self.drain();
        self.disk().finish(false).unwrap();
        self.memory.bytes()
    }

    /// As [`World::restart`], but a write has arrived on the disk, and the daemon dies before it sees that.
    pub fn restart_after(&mut self, sector: u64, bytes: &[u8]) {
        self.drain();
        let mut disk = self.memory.bytes();
        disk[sector as usize * 512..][..bytes.len()].copy_from_slice(bytes);
        let write = Operation::Write { flushed: false };
        let token = self.submit(0, write, sector, bytes.len() as u64 / 512, bytes);
        let arena = std::fs::read(&self.arena).unwrap();
        self.wait_for(token);
        self.lanes.clear();
        self.disk = None;
        self.memory.write_at(&disk, 0).unwrap();
        std::fs::write(&self.arena, arena).unwrap();
        self.open(Arena::open(&self.arena, None).unwrap());
    }

    /// As [`World::restart`], but what is in flight has arrived on the disk, and the daemon dies before it sees that.
    pub fn restart_before_completions(&mut self) {
        let arena = std::fs::read(&self.arena).unwrap();
        self.drain();
        self.lanes.clear();
        self.disk = None;
        std::fs::write(&self.arena, arena).unwrap();
        self.open(Arena::open(&self.arena, None).unwrap());
    }

    /// As [`World::restart`], but nothing of what is in flight has arrived.
    pub fn restart_before_arrivals(&mut self) {
        (0..LANES).for_each(|lane| self.reap(lane));
        let (disk, arena) = (self.memory.bytes(), std::fs::read(&self.arena).unwrap());
        self.drain();
        self.lanes.clear();
        self.disk = None;
        self.memory.write_at(&disk, 0).unwrap();
        std::fs::write(&self.arena, arena).unwrap();
        self.open(Arena::open(&self.arena, None).unwrap());
    }

    /// The orderly end with a guest attached, and another daemon later.
    pub fn stop_and_start(&mut self) {
        self.stop();
        self.start();
    }

    /// The orderly end with a guest attached, which goes on with a server that knows nothing of retained journals.
    pub fn stop(&mut self) {
        self.drain();
        assert!(!self.disk().finish(true).unwrap(), "seed {}: the arena is still needed", self.seed);
        self.disk = None;
        std::fs::remove_file(&self.arena).unwrap();
        let lower = self.lower(&self.memory);
        self.lanes = (0..LANES).map(|_| lower.open_lane().unwrap()).collect();
    }

    /// A retaining daemon again.
    pub fn start(&mut self) {
        self.drain();
        self.lanes.clear();
        let identity = ArenaIdentity { uuid: [7; 16], inode: 1, size_bytes: self.memory.len() };
        self.open(Arena::create(&self.arena, identity, self.bytes_max).unwrap());
    }

    /// The guest dies here, and another one recovers what another server has left.
    pub fn check_plain(&mut self, what: &str) {
        self.drain();
        // Of what an unsound guest has made nothing is promised, and it may be no journal.
        if self.blocks.values().all(|block| block.floor.is_none()) {
            return;
        }
        let mut bytes = self.memory.bytes();
        for (block, content) in replayed(&bytes).0 {
            bytes[block as usize * 4096..][..4096].copy_from_slice(&content[..]);
        }
        self.judge_floors(&bytes, what);
    }
}
