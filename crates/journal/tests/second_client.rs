//! A client of [`Versions`] that is no file system: a guest that says itself what is committed, as over a paravirtual control disk. It
//! puts blocks into slots, commits them, and gives slots up when what they hold is home. No journal, no layout, nothing on the disk but
//! the blocks' homes.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};

use afterimage_block::{Buffers, Medium, MediumDisk, Sector};
use afterimage_journal::arena::{Arena, ArenaIdentity, VolumeId};
use afterimage_journal::versions::{Carried, HomeSet, Places, Room, Track, Tuple, VersionState, Versions};
use afterimage_journal::{AreaBlock, Block, FsBlock, Mistake, Tid, BLOCK_BYTES, BLOCK_SECTORS};
use afterimage_order::{HomeError, HomeWriter};
use common::Memory;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const CLIENT: VolumeId = VolumeId(5);
const START: Sector = Sector(64);
const BLOCKS: u64 = 32;
const BYTES_MAX: u64 = 512 << 12;
/// JBD2_MAGIC_NUMBER: what begins with it is logged without it.
const MAGIC: [u8; 4] = 0xc03b_3998_u32.to_be_bytes();

/// Slots are in memory only.
#[derive(Debug)]
struct Slots;

impl Places for Slots {
    fn sector_of(&self, _at: AreaBlock) -> Option<Sector> {
        None
    }
}

/// Writes sets as one, as a redo log would.
struct Atomic(Arc<Memory>, Mutex<u32>);

impl HomeWriter for Atomic {
    fn write_home(&self, blocks: &[(Sector, &[u8])]) -> Result<(), HomeError> {
        *self.1.lock().unwrap() += 1;
        for (sector, bytes) in blocks {
            self.0.write_at(bytes, sector.0 * 512).unwrap();
        }
        Ok(())
    }

    fn atomic_bytes_max(&self) -> Option<u64> {
        Some(1 << 20)
    }
}

/// A transaction as the client keeps it: which slot is which block's.
struct Committed {
    tid: Tid,
    tuples: Vec<Tuple>,
    revoked: Vec<FsBlock>,
}

/// What is committed outlives the daemon at the client's, here as in the log of a journal.
#[derive(Default)]
struct Client {
    committed: Vec<Committed>,
    next_slot: u32,
    next_tid: u32,
}

impl Client {
    fn commit(
        &mut self,
        versions: &mut Versions,
        blocks: &BTreeMap<FsBlock, Block>,
        revoked: Option<FsBlock>,
    ) {
        let tid = Tid(self.next_tid);
        let mut tuples = Vec::new();
        for (home, content) in blocks {
            let at = AreaBlock(self.next_slot);
            let escaped = content.starts_with(&MAGIC);
            let mut fill = |slot: &mut Block| {
                *slot = *content;
                if escaped {
                    slot[..4].fill(0);
                }
                None
            };
            versions.store(CLIENT, at, &mut fill).unwrap();
            tuples.push(Tuple { home: *home, at, tid, escaped });
            self.next_slot += 1;
        }
        self.next_tid += 1;
        let committed = Committed { tid, tuples, revoked: Vec::from_iter(revoked) };
        versions.mprotect(CLIENT, &committed.tuples, &committed.revoked, false).unwrap();
        self.committed.push(committed);
    }

    /// Gives up the oldest transactions that nothing is needed of any more.
    fn release(&mut self, versions: &mut Versions) {
        while let Some(oldest) = self.committed.first() {
            if versions.area().open(CLIENT, oldest.tid) > 0 {
                return;
            }
            let homes: Vec<FsBlock> = oldest.tuples.iter().map(|tuple| tuple.home).collect();
            versions.forget(CLIENT, oldest.tid, &homes, oldest.tuples.iter().map(|tuple| tuple.at));
            self.committed.remove(0);
        }
    }
}

fn open(memory: &Arc<Memory>, arena: Arena, applies: bool) -> Versions {
    let disk = MediumDisk::new(Arc::clone(memory) as Arc<dyn Medium>);
    let home: Option<Arc<dyn HomeWriter>> =
        if applies { Some(Arc::new(Atomic(Arc::clone(memory), Mutex::new(0)))) } else { None };
    let mut versions = Versions::new("disk", &disk, arena, home, Mistake::default()).unwrap();
    let room = Room { start: START, blocks: BLOCKS, places: Arc::new(Slots) };
    versions.init(CLIENT, room).unwrap();
    versions
}

/// The daemon dies, and the next one is told again what is committed.
fn restarted(memory: &Arc<Memory>, path: &Path, client: &Client, applies: bool) -> Versions {
    let mut versions = open(memory, Arena::open(path, None).unwrap(), applies);
    for Committed { tuples, revoked, .. } in &client.committed {
        versions.mprotect(CLIENT, tuples, revoked, true).unwrap();
    }
    versions
}

/// Where each block stands.
fn states(versions: &Versions) -> Vec<Option<(AreaBlock, VersionState)>> {
    let area = versions.area();
    (0..BLOCKS).map(|home| area.version(CLIENT, FsBlock(home)).map(|v| (v.at, v.state))).collect()
}

/// A guest's write that is on its way.
struct Flight {
    track: Track,
    sector: Sector,
    bytes: Vec<u8>,
    /// Transactions of this and later ids were committed after it was sent.
    before: u32,
    /// Blocks of which it brings the newest version home, and no other was on its way to them when it was sent.
    carries: Vec<FsBlock>,
    /// It is done, and nobody was told.
    is_there: bool,
}

impl Flight {
    /// The blocks that it touches.
    fn homes(&self) -> impl Iterator<Item = FsBlock> {
        homes(self.sector, self.bytes.len())
    }
}

fn homes(sector: Sector, bytes: usize) -> impl Iterator<Item = FsBlock> {
    let end = sector.0 + bytes as u64 / 512 - START.0;
    ((sector.0 - START.0) / BLOCK_SECTORS..end.div_ceil(BLOCK_SECTORS)).map(FsBlock)
}

/// A guest, its disk, and what it may count on.
struct World {
    memory: Arc<Memory>,
    client: Client,
    flying: Vec<Flight>,
    /// A set that is being written, and blocks that may be in it.
    set: Option<(HomeSet, Vec<FsBlock>)>,
    /// What was committed last of each block, and by which transaction.
    newest: HashMap<FsBlock, (u32, Block)>,
    /// What writes left of a block of which one was sent after its newest commit: while the guest lives it stays there.
    relied: HashMap<FsBlock, Block>,
    /// The write of each block that was sent last.
    sent: HashMap<FsBlock, Track>,
}

impl World {
    fn below(&self, home: FsBlock) -> Block {
        let mut found = [0; BLOCK_BYTES];
        self.memory.read_at(&mut found, home.sector(START).0 * 512).unwrap();
        found
    }

    /// Something that was sent before that transaction was committed is there.
    fn reached(&mut self, home: FsBlock, before: u32) {
        let newer = self.newest.get(&home).is_none_or(|(tid, _)| *tid < before);
        if newer || self.relied.contains_key(&home) {
            self.relied.insert(home, self.below(home));
        }
    }

    fn judge(&self, versions: &Versions) {
        for (home, content) in &self.relied {
            assert!(self.below(*home) == *content, "block {home} is not what the guest wrote");
        }
        for (home, (_, content)) in &self.newest {
            let state = versions.area().version(CLIENT, *home).map(|version| version.state);
            let is_home = self.below(*home) == *content;
            assert!(is_home || state != Some(VersionState::Home), "block {home} is not home");
        }
    }

    fn commit(&mut self, versions: &mut Versions, rng: &mut ChaCha8Rng) {
        self.end_set(versions, true);
        let mut blocks = BTreeMap::new();
        for _ in 0..rng.random_range(1..6) {
            let mut content = [rng.random(); BLOCK_BYTES];
            if rng.random_ratio(1, 4) {
                content[..4].copy_from_slice(&MAGIC);
            }
            blocks.insert(FsBlock(rng.random_range(0..BLOCKS)), content);
        }
        let revoked = FsBlock(rng.random_range(0..BLOCKS));
        let revoked = Some(revoked).filter(|home| rng.random_ratio(1, 3) && !blocks.contains_key(home));
        let tid = self.client.next_tid;
        self.client.commit(versions, &blocks, revoked);
        if let Some(home) = revoked {
            self.newest.remove(&home);
        }
        for (home, content) in blocks {
            self.relied.remove(&home);
            self.newest.insert(home, (tid, content));
        }
    }

    /// A write home, of the newest versions or of something else, not always of whole blocks; or a discard.
    fn write(&mut self, versions: &mut Versions, rng: &mut ChaCha8Rng) {
        let whole = rng.random_ratio(3, 4);
        let within = if whole { 0 } else { rng.random_range(0..8) };
        let from = BLOCK_SECTORS * rng.random_range(0..BLOCKS) + within;
        let sectors = if whole { BLOCK_SECTORS * rng.random_range(1..4) } else { rng.random_range(1..20) };
        let (sector, sectors) = (Sector(START.0 + from), sectors.min(BLOCK_SECTORS * BLOCKS - from));
        let len = sectors as usize * 512;
        let touched: Vec<FsBlock> = homes(sector, len).collect();
        if self.set.as_ref().is_some_and(|(_, going)| touched.iter().any(|home| going.contains(home))) {
            self.end_set(versions, true);
        }
        let mut content = |home| match self.newest.get(home) {
            Some((_, content)) if rng.random_ratio(3, 4) => *content,
            _ => [rng.random(); BLOCK_BYTES],
        };
        let contents: Vec<u8> = touched.iter().flat_map(&mut content).collect();
        let mut bytes = contents[within as usize * 512..][..len].to_vec();
        let mut carried = Carried::default();
        let is_discard = rng.random_ratio(1, 10);
        if is_discard {
            bytes.fill(0);
            versions.overwrite(sector, sectors).unwrap();
        } else if versions.touches(sector, sectors) {
            carried = versions.compare(sector, sectors, &Buffers::from_bytes(&bytes)).unwrap();
        }
        let before = self.client.next_tid;
        if carried.is_home {
            let mut found = vec![0; len];
            self.memory.read_at(&mut found, sector.0 * 512).unwrap();
            assert!(found == bytes, "what is not handed down would have changed something");
            touched.iter().for_each(|home| self.reached(*home, before));
            return;
        }
        let carries = |home: &FsBlock| {
            let at = (home.0 * BLOCK_SECTORS).checked_sub(from).map(|n| n as usize * 512);
            let block = at.and_then(|at| bytes.get(at..at + BLOCK_BYTES));
            let newest = self.newest.get(home).map(|(_, content)| &content[..]);
            !is_discard
                && block.is_some_and(|block| Some(block) == newest)
                && !self.flying.iter().any(|flight| flight.homes().any(|other| other == *home))
        };
        let carries = touched.iter().copied().filter(carries).collect();
        let track = versions.track(sector, sectors, carried, false);
        self.sent.extend(touched.into_iter().map(|home| (home, track)));
        self.flying.push(Flight { track, sector, bytes, before, carries, is_there: false });
    }

    /// A write is done, perhaps long before that is told.
    fn reach(&mut self, n: usize) {
        let flight = &mut self.flying[n];
        if !std::mem::replace(&mut flight.is_there, true) {
            let (before, touched) = (flight.before, flight.homes());
            self.memory.write_at(&flight.bytes, flight.sector.0 * 512).unwrap();
            touched.for_each(|home| self.reached(home, before));
        }
    }

    fn land(&mut self, versions: &mut Versions, n: usize) {
        self.reach(n);
        let flight = self.flying.swap_remove(n);
        let landed = versions.landed(flight.track).unwrap();
        assert!(versions.arrived(&landed).iter().all(|client| *client == CLIENT));
        versions.posted(flight.track);
        for home in flight.carries.iter().filter(|home| self.sent[home] == flight.track) {
            let version = versions.area().version(CLIENT, *home);
            let newest = self.newest.get(home).is_some_and(|(tid, _)| *tid < flight.before);
            if let Some(version) = version.filter(|_| newest) {
                assert_eq!(version.state, VersionState::Home, "block {home} was brought home");
            }
        }
    }

    /// Of all that is committed goes home what may.
    fn begin_set(&mut self, versions: &mut Versions) {
        let tuples: Vec<Tuple> = self.client.committed.iter().flat_map(|c| c.tuples.clone()).collect();
        let set = versions.make_set(CLIENT, &tuples).unwrap();
        self.set = set.map(|set| (set, tuples.iter().map(|tuple| tuple.home).collect()));
    }

    /// The set is written, or was not.
    fn end_set(&mut self, versions: &mut Versions, written: bool) {
        if let Some((set, _)) = self.set.take() {
            if written {
                set.write().unwrap();
            }
            versions.set_ended(set, written);
        }
    }

    fn come_to_rest(&mut self, versions: &mut Versions) {
        while !self.flying.is_empty() {
            self.land(versions, 0);
        }
        self.end_set(versions, true);
    }
}

fn play(seed: u64, applies: bool) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("a.arena");
    let memory = Memory::new(vec![0; (START.0 as usize + 8 * BLOCKS as usize) * 512]);
    let identity = ArenaIdentity { uuid: [3; 16], inode: 1, size_bytes: memory.len() };
    let mut versions = open(&memory, Arena::create(&path, identity, BYTES_MAX).unwrap(), applies);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut world = World {
        memory: Arc::clone(&memory),
        client: Client::default(),
        flying: Vec::new(),
        set: None,
        newest: HashMap::new(),
        relied: HashMap::new(),
        sent: HashMap::new(),
    };
    for _ in 0..400 {
        match rng.random_range(0..10) {
            0..2 => world.commit(&mut versions, &mut rng),
            2..5 => world.write(&mut versions, &mut rng),
            5..8 if !world.flying.is_empty() => {
                let n = rng.random_range(0..world.flying.len());
                match rng.random() {
                    true => world.land(&mut versions, n),
                    false => world.reach(n),
                }
            }
            8 if world.set.is_none() => world.begin_set(&mut versions),
            8 => world.end_set(&mut versions, rng.random_ratio(3, 4)),
            _ => {
                world.come_to_rest(&mut versions);
                let known = states(&versions);
                drop(versions);
                versions = restarted(&memory, &path, &world.client, applies);
                assert_eq!(states(&versions), known, "seed {seed}: the next daemon knows as much");
            }
        }
        world.judge(&versions);
        world.client.release(&mut versions);
    }
    world.come_to_rest(&mut versions);
    // The guest is dead: what it committed and nobody gave up goes home.
    let tuples = versions.recover(CLIENT, true);
    versions.write_home(CLIENT, &tuples, |_, _| {}).unwrap();
    for (home, (_, content)) in &world.newest {
        if versions.area().version(CLIENT, *home).is_some() {
            assert!(
                world.below(*home) == *content,
                "seed {seed}: block {home} is not what was committed last"
            );
        }
    }
    assert_eq!(versions.query(CLIENT).pending, 0, "seed {seed}");
    world.client.release(&mut versions);
    assert!(world.client.committed.is_empty());
    assert_eq!(versions.query(CLIENT).versions, 0, "seed {seed}");
    versions.cleanup(CLIENT);
}

#[test]
fn a_client_without_a_journal_loses_nothing_that_it_committed() {
    for seed in 0..40 {
        play(seed, seed % 2 == 0);
    }
}
