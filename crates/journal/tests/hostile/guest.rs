//! A guest that keeps a journal as jbd2 does, and one that does not.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex};

use afterimage_block::{BlockError, Operation};
use afterimage_journal::layout::superblock::{Features, JournalSuperblock};
use afterimage_journal::layout::Layout;
use afterimage_journal::log::encode::{Draft, Encoder, MAGIC_BYTES};
use afterimage_journal::log::oracle::replay;
use afterimage_journal::log::{AreaView, LogGeometry};
use afterimage_journal::Mutation;
use afterimage_journal::{AreaBlock, Block, FsBlock, Tid, BLOCK_BYTES};
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{journal_superblock, layouts};
use crate::world::{World, LANES};

/// The partition's first sector, and its blocks.
pub const START: u64 = 2048;
pub const BLOCKS: u64 = 4096;
/// Its last blocks, which the guest's files take.
const HOMES: u64 = 200;
const DISK_BYTES: usize = 18 << 20;

/// A disk of random bytes with one partition in which `mkfs.ext4` was run.
pub fn base(uuid: u8, seed: u64) -> Vec<u8> {
    let mut disk = vec![0; DISK_BYTES];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut disk);
    disk[..512].fill(0);
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&(START as u32).to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&(BLOCKS as u32 * 8).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[START as usize * 512..][..BLOCKS as usize * BLOCK_BYTES].copy_from_slice(&file_system(uuid));
    disk
}

/// Made once.
pub fn file_system(uuid: u8) -> Arc<Vec<u8>> {
    static MADE: LazyLock<Mutex<HashMap<u8, Arc<Vec<u8>>>>> = LazyLock::new(Mutex::default);
    Arc::clone(MADE.lock().unwrap().entry(uuid).or_insert_with(|| Arc::new(make_file_system(uuid))))
}

fn make_file_system(uuid: u8) -> Vec<u8> {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(BLOCKS * BLOCK_BYTES as u64).unwrap();
    let uuid = uuid::Uuid::from_bytes([uuid; 16]).to_string();
    let made = std::process::Command::new("mkfs.ext4")
        .args(["-q", "-F", "-b", "4096", "-J", "size=4", "-U", &uuid])
        .args(["-O", "^resize_inode,metadata_csum_seed"])
        .arg(image.path())
        .status()
        .unwrap();
    assert!(made.success());
    // Files are there: what the guests write to is in use.
    let used = std::process::Command::new("debugfs")
        .args(["-w", "-R", &format!("setb {} {HOMES}", BLOCKS - HOMES)])
        .arg(image.path())
        .output()
        .unwrap();
    assert!(used.status.success());
    std::fs::read(image.path()).unwrap()
}

struct Live {
    tid: Tid,
    start: AreaBlock,
    blocks: u32,
    homes: Vec<FsBlock>,
}

/// What of a transaction was written when the tail moves to it.
#[derive(Clone, Copy, PartialEq)]
pub enum Within {
    /// Its first blocks are on their way.
    OnTheWay,
    /// Some of its last ones are on the disk, and none before them.
    There,
}

pub struct Guest {
    pub world: World,
    pub rng: ChaCha8Rng,
    pub(super) geometry: LogGeometry,
    pub(super) superblock: JournalSuperblock,
    /// The journal's first block in the file system.
    pub(super) journal: u64,
    layout: Layout,
    pub(super) head: AreaBlock,
    pub(super) tid: Tid,
    transactions: VecDeque<Live>,
    /// Newest committed content.
    newest: BTreeMap<FsBlock, (Tid, Box<Block>)>,
    /// What it did last cannot be expected of a file system.
    pub sound: bool,
    mounted: bool,
    pub(super) homes: Range<u64>,
    uuid: u8,
    superblock_before: Vec<u8>,
    /// The tail moves to the next transaction while some of its blocks are being written.
    pub tail_within: Option<Within>,
}

impl Guest {
    pub fn new(seed: u64, bytes_max: u64, applies: bool) -> Self {
        Self::with(seed, bytes_max, applies, None)
    }

    /// A guest of a daemon that makes a mistake.
    pub fn with(seed: u64, bytes_max: u64, applies: bool, mutation: Option<Mutation>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut disk = base(1, seed);
        let layout = layouts(&disk).remove(0);
        assert_eq!(layout.start.0, START);
        let journal = layout.journal[0].home.0;
        let superblock = journal_superblock(&disk, &layout).unwrap();
        let kind = rng.random_range(0..4);
        let features = Features {
            revoke: true,
            bits64: kind % 2 == 1,
            csum_v3: kind > 0,
            async_commit: kind == 3,
            ..Features::default()
        };
        let geometry = LogGeometry { features, fs_blocks: BLOCKS, ..LogGeometry::new(&superblock, &layout) };
        let forbidden = &geometry.forbidden;
        let on_disk = forbidden.iter().map(|(from, to)| START / 8 + from.0..START / 8 + to.0).collect();
        let homes = BLOCKS - HOMES..BLOCKS;
        assert!(layout.journal.iter().all(|e| e.home.0 + u64::from(e.blocks) <= homes.start));
        let first = geometry.first;
        // Ids that wrap are as good as others.
        let tid = Tid(if rng.random_ratio(1, 3) { u32::MAX - 5 } else { 10 });
        let superblock = with_features(&superblock, features);
        let at = layout.home_of(AreaBlock(0)).unwrap().sector(layout.start).0 as usize * 512;
        disk[at..at + BLOCK_BYTES].copy_from_slice(superblock.with_tail(tid, None).bytes());
        let world = World::new(disk, on_disk, bytes_max, applies, seed, mutation);
        let mut guest = Self {
            world,
            rng,
            geometry,
            superblock,
            journal,
            layout,
            head: first,
            tid,
            transactions: VecDeque::new(),
            newest: BTreeMap::new(),
            sound: true,
            mounted: false,
            homes,
            uuid: 1,
            superblock_before: Vec::new(),
            tail_within: None,
        };
        guest.read_superblock();
        guest
    }

    /// As a mount does first.
    fn read_superblock(&mut self) {
        self.world.read(self.area_sector(AreaBlock(0)), 8);
    }

    pub fn sector_of(&self, home: FsBlock) -> u64 {
        START + home.0 * 8
    }

    pub fn area_sector(&self, at: AreaBlock) -> u64 {
        self.layout.home_of(at).unwrap().sector(self.layout.start).0
    }

    pub fn retained(&self) -> bool {
        self.world.status().is_some_and(|s| s.file_systems.iter().any(|f| f.mode == "retain"))
    }

    /// How many commits were followed, where the journal is retained.
    fn followed(&self) -> Option<u64> {
        let status = self.world.status()?;
        let retained = status.file_systems.iter().find(|f| f.mode == "retain");
        retained.map(|f| f.classes.journal_commits)
    }

    pub(super) fn unsound(&mut self) {
        self.sound = false;
        self.world.forget_floors();
    }

    pub(super) fn write_superblock(&mut self, superblock: &JournalSuperblock) {
        let sector = self.area_sector(AreaBlock(0));
        self.world.write(sector, superblock.bytes());
    }

    /// A mount of a clean journal.
    pub fn mount(&mut self) {
        self.world.drain();
        self.read_superblock();
        self.mount_at_once();
    }

    /// As above, whatever is still under way.
    pub fn mount_at_once(&mut self) {
        self.head = self.geometry.first;
        self.transactions.clear();
        self.newest.clear();
        let superblock = self.superblock.with_tail(self.tid, Some(self.head));
        self.write_superblock(&superblock);
        self.mounted = true;
        self.sound = true;
    }

    pub fn unmount(&mut self) {
        self.checkpoint(usize::MAX);
        let superblock = self.superblock.with_tail(self.tid, None);
        self.write_superblock(&superblock);
        // It may not have been true.
        if !self.sound {
            self.world.forget_floors();
        }
        self.tid = self.tid.next();
        self.mounted = false;
        self.transactions.clear();
    }

    pub fn home(&mut self) -> FsBlock {
        FsBlock(self.rng.random_range(self.homes.clone()).min(self.homes.start + 120))
    }

    pub fn content(&mut self) -> Box<Block> {
        let mut content = Box::new([0; BLOCK_BYTES]);
        self.rng.fill_bytes(&mut content[..64]);
        if self.rng.random_ratio(1, 8) {
            content[..4].copy_from_slice(&MAGIC_BYTES);
        }
        content
    }

    pub fn draft(&mut self) -> Draft {
        let mut draft = Draft { commit_sec: 5, ..Draft::default() };
        let logged = if self.rng.random_ratio(1, 12) { 120 } else { self.rng.random_range(1..12) };
        let mut homes = BTreeMap::new();
        for _ in 0..logged {
            homes.insert(self.home(), self.content());
        }
        draft.logged = homes.into_iter().collect();
        for _ in 0..self.rng.random_range(0..3) {
            let home = self.home();
            if draft.logged.iter().all(|(h, _)| *h != home) {
                draft.revokes.push(home);
            }
        }
        draft.tags_max = Some(self.rng.random_range(1..40));
        draft
    }

    /// The log's blocks as requests: neighbours go together, the commit block after them, or with `async_commit` with them.
    fn send(&mut self, encoder: &Encoder, commit: AreaBlock) {
        let mut at: Vec<AreaBlock> = encoder.blocks.keys().copied().filter(|at| *at != commit).collect();
        let together = self.geometry.features.async_commit;
        if together {
            at.push(commit);
        }
        let mut tail_within = self.tail_within.take();
        if tail_within == Some(Within::There) {
            // Disks sort what they are given, and a log wraps.
            let half = at.len() / 2;
            at.rotate_left(half);
        }
        let mut tokens = Vec::new();
        let mut i = 0;
        while i < at.len() {
            let most = self.rng.random_range(1..9);
            let run = (1..most.min(at.len() - i))
                .take_while(|n| self.area_sector(at[i + n]) == self.area_sector(at[i]) + *n as u64 * 8)
                .count()
                + 1;
            let bytes: Vec<u8> =
                at[i..i + run].iter().flat_map(|at| encoder.blocks[at].iter().copied()).collect();
            let lane = self.rng.random_range(0..LANES);
            let sector = self.area_sector(at[i]);
            let sectors = bytes.len() as u64 / 512;
            tokens.push(self.world.submit(
                lane,
                Operation::Write { flushed: false },
                sector,
                sectors,
                &bytes,
            ));
            match tail_within.take() {
                Some(Within::OnTheWay) => self.write_tail(),
                Some(Within::There) => {
                    self.world.wait_for(tokens[0]);
                    self.write_tail();
                }
                None => {}
            }
            i += run;
        }
        if !together {
            // The log's blocks are there before the commit block is written; what else is under way goes on.
            tokens.into_iter().for_each(|t| self.world.wait_for(t));
            if let Some(block) = encoder.blocks.get(&commit) {
                let sector = self.area_sector(commit);
                self.world.write(sector, &block[..]);
            }
        } else {
            tokens.into_iter().for_each(|t| self.world.wait_for(t));
        }
    }

    fn used(&self) -> u32 {
        self.transactions.iter().map(|t| t.blocks).sum()
    }

    /// A transaction as jbd2 writes it.
    pub fn commit(&mut self) {
        if !self.mounted {
            self.mount();
        }
        if self.used() > 600 {
            self.checkpoint(self.transactions.len() / 2 + 1);
        }
        let draft = self.draft();
        let slowly = self.rng.random_ratio(1, 4);
        if slowly {
            self.write_slowly(draft.logged[0].0);
        }
        self.commit_of(&draft, true);
        if slowly && self.rng.random_ratio(1, 2) {
            self.world.check_power("after a commit of what was being written");
        }
    }

    /// An older content of a block goes home, and takes its time.
    fn write_slowly(&mut self, home: FsBlock) {
        let content = match self.newest.get(&home) {
            Some((_, content)) => content.clone(),
            None => self.content(),
        };
        self.world.faults.slow.set(self.sector_of(home), self.rng.random_range(20..200));
        self.write_home(home, &content[..]);
    }

    /// A transaction of any content. `sound`: a file system may have written it.
    pub fn commit_of(&mut self, draft: &Draft, sound: bool) {
        if !sound {
            self.unsound();
        }
        let mut encoder = Encoder::new(&self.geometry, self.head, self.tid);
        let blocks = encoder.transaction(draft);
        let end = if encoder.at == self.geometry.first { self.geometry.maxlen } else { encoder.at.0 };
        for (home, content) in &draft.logged {
            if home.0 < BLOCKS {
                self.world.committed(START / 8 + home.0, &content[..], false);
            }
        }
        let followed = self.followed();
        self.send(&encoder, AreaBlock(end - 1));
        let sound = sound && self.sound;
        if let (true, Some(before), Some(after)) = (sound, followed, self.followed()) {
            assert_eq!(
                after,
                before + 1,
                "seed {}: transaction {} at {} ({:?}) was not followed: {:?}",
                self.world.seed,
                self.tid,
                self.head,
                self.geometry.features,
                self.world.status()
            );
        }
        for home in &draft.revokes {
            self.newest.remove(home);
            self.world.revoked(START / 8 + home.0);
        }
        for (home, content) in &draft.logged {
            if sound {
                self.world.committed(START / 8 + home.0, &content[..], true);
            }
            self.newest.insert(*home, (self.tid, content.clone()));
        }
        let homes = draft.logged.iter().map(|(h, _)| *h).collect();
        self.transactions.push_back(Live { tid: self.tid, start: self.head, blocks, homes });
        (self.head, self.tid) = (encoder.at, encoder.tid);
    }

    /// Writes what the oldest transactions committed home and moves the tail.
    pub fn checkpoint(&mut self, count: usize) {
        for _ in 0..count.min(self.transactions.len()) {
            let oldest = self.transactions.pop_front().unwrap();
            for home in oldest.homes {
                let Some((tid, content)) = self.newest.get(&home) else { continue };
                if *tid == oldest.tid {
                    let content = content.clone();
                    self.write_home(home, &content[..]);
                }
            }
        }
        self.world.drain();
        self.write_tail();
    }

    /// Moves the tail past transactions of which not everything is home, as Linux 6.1 may with `data=journal`. The daemon has
    /// what is missing, and the bitmaps say that it is needed.
    pub fn early_tail(&mut self, count: usize) {
        if !self.sound || !self.retained() {
            return;
        }
        let mut count = count.min(self.transactions.len());
        if self.rng.random_ratio(1, 2) {
            let draft = self.draft();
            self.write_slowly(draft.logged[0].0);
            self.commit_of(&draft, true);
            self.world.drain();
            count = self.transactions.len();
        }
        self.transactions.drain(..count);
        self.write_tail();
    }

    /// As a kernel: never two writes of one block at once.
    pub fn write_home(&mut self, home: FsBlock, bytes: &[u8]) {
        if home.0 >= BLOCKS {
            return;
        }
        self.world.drain_range(self.sector_of(home), 8);
        self.write_home_now(home, bytes);
    }

    pub fn write_home_now(&mut self, home: FsBlock, bytes: &[u8]) {
        if home.0 >= BLOCKS {
            return;
        }
        let lane = self.rng.random_range(0..LANES);
        let sector = self.sector_of(home);
        self.world.submit(lane, Operation::Write { flushed: false }, sector, bytes.len() as u64 / 512, bytes);
        if self.rng.random_ratio(1, 2) {
            self.world.reap(lane);
        }
    }

    /// Writes a committed block home, long before the tail moves.
    pub fn write_back(&mut self) {
        let Some(nth) = self.newest.len().checked_sub(1) else { return };
        let nth = self.rng.random_range(0..=nth);
        let Some((home, content)) = self.newest.iter().nth(nth).map(|(h, (_, c))| (*h, c.clone())) else {
            return;
        };
        self.write_home(home, &content[..]);
    }

    /// A write to a block that the journal does not know of any more, or never did.
    pub fn write_data(&mut self) {
        let home = self.home();
        if self.newest.contains_key(&home) {
            return;
        }
        let content = self.content();
        self.write_home(home, &content[..]);
    }

    /// The guest dies, another one mounts the file system: its own recovery, then a journal that begins anew.
    pub fn crash(&mut self) {
        if !self.sound {
            return self.recover_by_mkfs();
        }
        // It dies at work.
        (0..self.rng.random_range(0..4)).for_each(|_| self.commit());
        self.world.drain();
        if self.rng.random_ratio(1, 4) {
            self.world.disk().settle().unwrap();
        }
        let meddling = [0, 30, 100, 500][self.rng.random_range(0..4)];
        self.recover(meddling);
    }

    /// The guest's own recovery, as jbd2 does it: the superblock is read, the log is walked three times, a block a read,
    /// what it says is written, and the journal begins anew with the id that the walk ended at. Between any two of these
    /// requests the daemon may do what it does to a disk that rests: in `meddling` of a thousand cases it does.
    pub fn recover(&mut self, meddling: u32) {
        self.recover_behind(meddling, &[]);
    }

    /// The same of a mount that has a part of its file system in memory before it looks at the journal.
    pub fn read_and_recover(&mut self, meddling: u32) {
        let mut homes: Vec<FsBlock> = self.newest.keys().copied().collect();
        homes.shuffle(&mut self.rng);
        self.recover_behind(meddling, &homes);
    }

    fn recover_behind(&mut self, meddling: u32, homes: &[FsBlock]) {
        self.world.drain();
        let mut recovery =
            Recovery { world: &mut self.world, rng: &mut self.rng, layout: self.layout.clone(), meddling };
        let mut memory = BTreeMap::new();
        for home in homes {
            memory.insert(*home, recovery.world.read(START + home.0 * 8, 8));
            recovery.meddle();
        }
        let mut block = [0; BLOCK_BYTES];
        recovery.block(AreaBlock(0), &mut block).unwrap();
        let found = JournalSuperblock::parse(&block).expect("a guest is served a sound superblock");
        let geometry = LogGeometry { features: found.features(), ..self.geometry.clone() };
        let mut end = found.sequence();
        if let Some(start) = found.start() {
            let replayed = replay(&mut recovery, &geometry, start, found.sequence())
                .unwrap_or_else(|e| panic!("seed {}: the guest's recovery failed: {e}", recovery.world.seed));
            assert!(replayed.damaged.is_empty(), "seed {}: {:?}", recovery.world.seed, replayed.damaged);
            for (home, content) in &replayed.writes {
                recovery.world.write(START + home.0 * 8, &content[..]);
                memory.entry(*home).and_modify(|block| block.copy_from_slice(&content[..]));
                recovery.meddle();
            }
            end = replayed.end;
        }
        recovery.world.flush();
        recovery.meddle();
        for (home, block) in &memory {
            self.world.judge_floor(START / 8 + home.0, block, "in memory after the guest's own recovery");
        }
        self.world.judge_recovered("after the guest's own recovery");
        // As the kernel has it, whatever the log was before.
        self.tid = end.next();
        self.mount();
        // One that found all of its log goes on behind it.
        let status = self.world.status();
        let astray = |why: &String| why.contains("begins anew");
        let found = status.iter().flat_map(|s| &s.file_systems).all(|f| !f.why.as_ref().is_some_and(astray));
        assert!(found, "seed {}: {status:?}", self.world.seed);
    }

    /// The daemon ends in order, and the guest goes on with another server for a while, which knows nothing of retained journals.
    /// It may die there, and mount again with a daemon.
    pub fn through_another_server(&mut self) {
        self.world.stop();
        for _ in 0..self.rng.random_range(0..8) {
            match self.rng.random_range(0..5) {
                0 => self.write_back(),
                1 => self.checkpoint(1),
                2 if self.mounted => {
                    self.world.drain();
                    self.write_tail();
                }
                _ => self.commit(),
            }
            if self.sound {
                self.world.check_plain("with another server");
            }
        }
        self.world.drain();
        if self.sound && self.rng.random_ratio(1, 3) {
            self.recover(0);
        }
        self.world.start();
    }

    /// Makes another file system over this one, as writes in any order.
    pub fn mkfs(&mut self) {
        self.world.drain();
        self.uuid = self.uuid % 3 + 1;
        let image = file_system(self.uuid);
        let partition = BLOCKS * 8;
        match self.rng.random_range(0..3) {
            0 => {
                let token =
                    self.world.submit(0, Operation::Discard { flushed: false }, START, partition, &[]);
                self.world.wait_for(token);
            }
            1 => {
                let whole = Operation::WriteZeroes { unmap: true, flushed: false };
                let token = self.world.submit(0, whole, START, partition, &[]);
                self.world.wait_for(token);
            }
            _ => {}
        }
        let mut chunks: Vec<usize> = (0..BLOCKS as usize).step_by(16).collect();
        let in_use = |chunk: &usize| {
            let content = &image[chunk * BLOCK_BYTES..][..16 * BLOCK_BYTES];
            let journal = self.layout.journal.iter().any(|e| {
                let (from, to) = (e.home.0 as usize, e.home.0 as usize + e.blocks as usize);
                from < chunk + 16 && *chunk < to
            });
            journal || content.iter().any(|b| *b != 0)
        };
        chunks.retain(in_use);
        if self.rng.random_ratio(1, 2) {
            for i in 0..chunks.len() {
                let other = self.rng.random_range(0..chunks.len());
                chunks.swap(i, other);
            }
        }
        let mut tokens = Vec::new();
        for chunk in chunks {
            let lane = self.rng.random_range(0..LANES);
            let bytes = &image[chunk * BLOCK_BYTES..][..16 * BLOCK_BYTES];
            let sector = START + chunk as u64 * 8;
            tokens.push(self.world.submit(lane, Operation::Write { flushed: false }, sector, 128, bytes));
            if self.rng.random_ratio(1, 20) {
                self.world.disk().settle().unwrap();
            }
        }
        tokens.into_iter().for_each(|t| self.world.wait_for(t));
        self.world.flush();
        self.world.forget_versions();
        let block: Block = image[self.journal as usize * BLOCK_BYTES..][..BLOCK_BYTES].try_into().unwrap();
        let fresh = JournalSuperblock::parse(&block).unwrap();
        self.superblock = with_features(&fresh, self.geometry.features);
        self.geometry.uuid = fresh.uuid();
        self.tid = Tid(1);
        self.mounted = false;
        self.sound = true;
        self.transactions.clear();
        self.newest.clear();
    }

    /// Writes everything that is committed home, before its tail moves.
    pub fn write_back_all(&mut self) {
        let newest: Vec<(FsBlock, Box<Block>)> =
            self.newest.iter().map(|(home, (_, content))| (*home, content.clone())).collect();
        for (home, content) in newest {
            self.world.drain();
            self.write_home(home, &content[..]);
        }
        self.world.drain();
    }

    /// The superblock on the disk loses its checksum, or all of it, in a write of the guest that has arrived when the daemon dies,
    /// and the daemon has not seen that it has.
    pub fn restart_over_an_unsound_superblock(&mut self, whole: bool) {
        self.world.drain();
        let at = START + 2;
        let superblock = self.world.read(at, 2);
        let mut torn = superblock.clone();
        // s_mnt_count, which changes in ordinary use.
        torn[0x34] ^= 1;
        self.world.write(at, &torn);
        match whole {
            true => self.world.restart_after(at, &[0; 1024]),
            false => self.world.restart(),
        }
        self.superblock_before = superblock;
    }

    /// The superblock gets the checksum that it should have.
    pub fn sound_superblock(&mut self) {
        let superblock = std::mem::take(&mut self.superblock_before);
        self.world.write(START + 2, &superblock);
    }

    /// The tail as the guest has it.
    pub fn tail(&self) -> (Tid, AreaBlock) {
        self.transactions.front().map_or((self.tid, self.head), |t| (t.tid, t.start))
    }

    /// The journal's superblock as the guest has it.
    pub fn write_tail(&mut self) {
        let (tid, start) = self.tail();
        let superblock = self.superblock.with_tail(tid, Some(start));
        self.write_superblock(&superblock);
    }

    /// A file system again, whatever there was.
    pub fn recover_by_mkfs(&mut self) {
        self.mkfs();
        self.mount();
    }
}

/// A guest's recovery, and the daemon beside it.
struct Recovery<'a> {
    world: &'a mut World,
    rng: &'a mut ChaCha8Rng,
    layout: Layout,
    meddling: u32,
}

impl Recovery<'_> {
    fn meddle(&mut self) {
        if self.rng.random_ratio(self.meddling, 1000) {
            let what = self.rng.random_range(0..8);
            self.world.meddle(what);
        }
    }
}

impl AreaView for Recovery<'_> {
    fn block<'a>(&'a mut self, at: AreaBlock, scratch: &'a mut Block) -> Result<&'a Block, BlockError> {
        let home = self.layout.home_of(at).expect("a block of the journal");
        scratch.copy_from_slice(&self.world.read(home.sector(self.layout.start).0, 8));
        self.meddle();
        Ok(scratch)
    }
}

fn with_features(superblock: &JournalSuperblock, features: Features) -> JournalSuperblock {
    let mut block = *superblock.bytes();
    let mut incompat = 0_u32;
    for (bit, set) in
        [(1, features.revoke), (2, features.bits64), (4, features.async_commit), (0x10, features.csum_v3)]
    {
        incompat |= if set { bit } else { 0 };
    }
    block[0x28..0x2c].copy_from_slice(&incompat.to_be_bytes());
    block[0x50] = 4;
    seal(&mut block);
    JournalSuperblock::parse(&block).unwrap()
}

pub(super) fn seal(block: &mut Block) {
    block[0xfc..0x100].fill(0);
    let sum = !crc32c::crc32c(&block[..1024]);
    block[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
}
