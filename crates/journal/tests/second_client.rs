//! A client of [`Versions`] that is no file system: a guest that says itself what is committed, as over a paravirtual control disk. It
//! puts blocks into slots, commits them, and gives slots up when what they hold is home. No journal, no layout, nothing on the disk but
//! the blocks' homes.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};

use afterimage_block::{Buffers, Medium, MediumDisk, Sector};
use afterimage_journal::arena::{Arena, ArenaIdentity, VolumeId};
use afterimage_journal::versions::{Carried, Places, Room, Track, Tuple, Versions};
use afterimage_journal::{AreaBlock, Block, FsBlock, Mistake, Tid, BLOCK_BYTES, BLOCK_SECTORS};
use afterimage_order::{HomeError, HomeWriter};
use common::Memory;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const CLIENT: VolumeId = VolumeId(5);
const START: Sector = Sector(64);
const BLOCKS: u64 = 32;
const BYTES_MAX: u64 = 512 << 12;

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
    slots: Vec<(FsBlock, AreaBlock)>,
}

/// What is committed outlives the daemon at the client's, here as in the log of a journal.
#[derive(Default)]
struct Client {
    committed: Vec<Committed>,
    next_slot: u32,
    next_tid: u32,
}

impl Client {
    fn commit(&mut self, versions: &mut Versions, blocks: &BTreeMap<FsBlock, Block>) {
        let tid = Tid(self.next_tid);
        let mut slots = Vec::new();
        for (home, content) in blocks {
            let at = AreaBlock(self.next_slot);
            versions
                .store(CLIENT, at, &mut |slot| {
                    *slot = *content;
                    None
                })
                .unwrap();
            slots.push((*home, at));
            self.next_slot += 1;
        }
        self.next_tid += 1;
        let committed = Committed { tid, slots };
        versions.mprotect(CLIENT, &tuples(&committed), &[], false).unwrap();
        self.committed.push(committed);
    }

    /// Gives up the oldest transactions that nothing is needed of any more.
    fn release(&mut self, versions: &mut Versions) {
        while let Some(oldest) = self.committed.first() {
            if versions.area().open(CLIENT, oldest.tid) > 0 {
                return;
            }
            let homes: Vec<FsBlock> = oldest.slots.iter().map(|(home, _)| *home).collect();
            versions.forget(CLIENT, oldest.tid, &homes, oldest.slots.iter().map(|(_, at)| *at));
            self.committed.remove(0);
        }
    }
}

fn tuples(committed: &Committed) -> Vec<Tuple> {
    let tuple = |(home, at): &(FsBlock, AreaBlock)| Tuple {
        home: *home,
        at: *at,
        tid: committed.tid,
        escaped: false,
    };
    committed.slots.iter().map(tuple).collect()
}

fn open(memory: &Arc<Memory>, arena: Arena, applies: bool) -> Versions {
    let disk = MediumDisk::new(Arc::clone(memory) as Arc<dyn Medium>);
    let home: Option<Arc<dyn HomeWriter>> =
        if applies { Some(Arc::new(Atomic(Arc::clone(memory), Mutex::new(0)))) } else { None };
    let mut versions = Versions::new(&disk, arena, home, Mistake::default()).unwrap();
    let room = Room { start: START, blocks: BLOCKS, places: Arc::new(Slots) };
    versions.init(CLIENT, room).unwrap();
    versions
}

/// The daemon dies, and the next one is told again what is committed.
fn restarted(memory: &Arc<Memory>, path: &Path, client: &Client, applies: bool) -> Versions {
    let mut versions = open(memory, Arena::open(path, None).unwrap(), applies);
    for committed in &client.committed {
        versions.mprotect(CLIENT, &tuples(committed), &[], true).unwrap();
    }
    versions
}

fn go_home(versions: &mut Versions) {
    let tuples = versions.recover(CLIENT, false);
    match versions.make_set(CLIENT, &tuples) {
        Ok(Some(set)) => {
            let written = set.write();
            versions.set_ended(set, written.is_ok());
            written.unwrap();
        }
        Ok(None) => {}
        Err(e) => panic!("{e}"),
    }
}

fn play(seed: u64, applies: bool) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("a.arena");
    let memory = Memory::new(vec![0; (START.0 as usize + 8 * BLOCKS as usize) * 512]);
    let identity = ArenaIdentity { uuid: [3; 16], inode: 1, size_bytes: memory.len() };
    let mut versions = open(&memory, Arena::create(&path, identity, BYTES_MAX).unwrap(), applies);
    let mut client = Client::default();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // What was committed last of each block, and whether something else was written there since.
    let mut newest: HashMap<FsBlock, Block> = HashMap::new();
    let mut flying: Vec<(Track, FsBlock, Block)> = Vec::new();
    let land = |versions: &mut Versions, (track, home, content): (Track, FsBlock, Block)| {
        memory.write_at(&content, home.sector(START).0 * 512).unwrap();
        let landed = versions.landed(track).unwrap();
        assert!(versions.arrived(&landed).iter().all(|client| *client == CLIENT));
    };
    for _ in 0..400 {
        match rng.random_range(0..10) {
            0..3 => {
                let blocks: BTreeMap<FsBlock, Block> = (0..rng.random_range(1..6))
                    .map(|_| (FsBlock(rng.random_range(0..BLOCKS)), [rng.random(); BLOCK_BYTES]))
                    .collect();
                client.commit(&mut versions, &blocks);
                newest.extend(blocks);
            }
            3..7 => {
                // A write home, of the newest version or of something else.
                let home = FsBlock(rng.random_range(0..BLOCKS));
                let content = match newest.get(&home) {
                    Some(content) if rng.random_ratio(3, 4) => *content,
                    _ => [rng.random(); BLOCK_BYTES],
                };
                let buffers = Buffers::from_bytes(&content);
                let carried = match versions.touches(home.sector(START), BLOCK_SECTORS) {
                    true => versions.compare(home.sector(START), BLOCK_SECTORS, &buffers).unwrap(),
                    false => Carried::default(),
                };
                let track = versions.track(home.sector(START), BLOCK_SECTORS, carried, false);
                flying.push((track, home, content));
                // A guest waits for one before it writes there again.
                let again =
                    flying.iter().position(|(_, other, _)| *other == home).filter(|i| i + 1 < flying.len());
                if let Some(first) = again {
                    let write = flying.remove(first);
                    land(&mut versions, write);
                }
            }
            7 if !flying.is_empty() => {
                let write = flying.swap_remove(rng.random_range(0..flying.len()));
                land(&mut versions, write);
            }
            8 => go_home(&mut versions),
            _ => {
                flying.drain(..).for_each(|write| land(&mut versions, write));
                drop(versions);
                versions = restarted(&memory, &path, &client, applies);
            }
        }
        client.release(&mut versions);
    }
    flying.drain(..).for_each(|write| land(&mut versions, write));
    // The guest is dead: what it committed and nobody gave up goes home.
    let held: Vec<(FsBlock, AreaBlock)> = client.committed.iter().flat_map(|c| c.slots.clone()).collect();
    let tuples = versions.recover(CLIENT, true);
    versions.write_home(CLIENT, &tuples, |_, _| {}).unwrap();
    for home in
        held.iter().map(|(home, _)| home).filter(|home| versions.area().version(CLIENT, **home).is_some())
    {
        let mut found = [0; BLOCK_BYTES];
        memory.read_at(&mut found, home.sector(START).0 * 512).unwrap();
        assert!(found == newest[home], "seed {seed}: block {home} is not what was committed last");
    }
    assert_eq!(versions.query(CLIENT).pending, 0, "seed {seed}");
    client.release(&mut versions);
    assert!(client.committed.is_empty());
    assert_eq!(versions.query(CLIENT).versions, 0, "seed {seed}");
    versions.cleanup(CLIENT);
}

#[test]
fn a_client_without_a_journal_loses_nothing_that_it_committed() {
    for seed in 0..40 {
        play(seed, seed % 2 == 0);
    }
}
