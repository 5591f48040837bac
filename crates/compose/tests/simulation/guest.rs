//! The guest: its files, and its file system as jbd2 keeps it: transactions, checkpoints, and recovery at a boot.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use afterimage_block::BlockError;
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::log::encode::{Draft, Encoder};
use afterimage_journal::log::oracle::replay;
use afterimage_journal::log::AreaView;
use afterimage_journal::{AreaBlock, Block, FileSystemStatus, FsBlock, Tid, BLOCK_BYTES};
use rand::RngExt as _;

use crate::disk::{content, home, versions, Kind, DATA_BLOCKS, DISK, STATE_BLOCKS};
use crate::driver::{Ask, Ticket, DATA_BYTES};
use crate::oracle::{Crash, Found};
use crate::run::{End, Goes};
use crate::turn::{Pending, Turn};

/// The guest's file system in its memory.
pub struct FileSystem {
    head: AreaBlock,
    tid: Tid,
    /// Transactions that are in the journal, the oldest first.
    live: VecDeque<Transaction>,
    /// Blocks of files with a request in flight.
    pub busy: BTreeSet<usize>,
    /// The next version of a block of the file system.
    next: u32,
}

pub struct Transaction {
    tid: Tid,
    start: AreaBlock,
    blocks: BTreeSet<usize>,
}

impl FileSystem {
    pub fn new() -> Self {
        Self { head: DISK.geometry.first, tid: Tid(1), live: VecDeque::new(), busy: BTreeSet::new(), next: 1 }
    }
}

impl Turn<'_, '_> {
    fn sector(&self, block: FsBlock) -> u64 {
        block.sector(DISK.layout.start).0
    }

    pub fn data(&mut self) -> Goes {
        let count = self.rng.random_range(1..=DATA_BYTES / BLOCK_BYTES);
        let first = self.rng.random_range(0..=DATA_BLOCKS - count);
        let blocks: Vec<usize> = (first..first + count).collect();
        while blocks.iter().any(|block| self.sim.fs.busy.contains(block)) {
            self.turn()?;
        }
        let how = self.rng.random_range(0..10);
        let written: Vec<_> =
            blocks.iter().map(|block| (*block, self.sim.oracle.write(*block, how < 3))).collect();
        self.sim.fs.busy.extend(blocks);
        let sector = self.sector(home(Kind::Data, first));
        let sectors = (count * 8) as u32;
        let bytes: Vec<u8> =
            written.iter().flat_map(|(block, version)| *content(Kind::Data, *block, *version)).collect();
        let ask = match how {
            0 => Ask::Discard { sector, sectors },
            1 | 2 => Ask::WriteZeroes { sector, sectors, unmap: how == 1 },
            _ => Ask::Write { sector, bytes: &bytes },
        };
        self.submit(ask, Pending::Data(written)).map(|_| ())
    }

    pub fn look(&mut self) -> Goes {
        let block = self.rng.random_range(0..DATA_BLOCKS);
        let submitted = self.sim.oracle.moment();
        let sector = self.sector(home(Kind::Data, block));
        let ask = Ask::Read { sector, bytes: BLOCK_BYTES };
        self.submit(ask, Pending::Read { block, submitted }).map(|_| ())
    }

    pub fn flush(&mut self) -> Goes<Ticket> {
        let submitted = self.sim.oracle.moment();
        self.submit(Ask::Flush, Pending::Flush { submitted })
    }

    /// A transaction as jbd2 writes it: its blocks, a flush, the commit block, a flush.
    pub fn commit(&mut self) -> Goes {
        if self.sim.fs.live.len() > 40 {
            self.checkpoint()?;
        }
        let mut state = self.sim.oracle.state().to_vec();
        let blocks: BTreeSet<usize> =
            (0..self.rng.random_range(1..6)).map(|_| self.rng.random_range(0..STATE_BLOCKS)).collect();
        let mut draft = Draft { commit_sec: 5, ..Draft::default() };
        for block in blocks.iter().copied() {
            let version = self.sim.fs.next;
            self.sim.fs.next += 1;
            state[block] = version;
            draft.logged.push((home(Kind::State, block), content(Kind::State, block, version)));
        }
        let (head, tid) = (self.sim.fs.head, self.sim.fs.tid);
        let mut encoder = Encoder::new(&DISK.geometry, head, tid);
        encoder.transaction(&draft);
        let end = if encoder.at == DISK.geometry.first { DISK.geometry.maxlen } else { encoder.at.0 };
        let commit = AreaBlock(end - 1);
        let mut tickets = Vec::new();
        for (at, block) in encoder.blocks.iter().filter(|(at, _)| **at != commit) {
            let sector = self.area_sector(*at);
            tickets.push(self.submit(Ask::Write { sector, bytes: &block[..] }, Pending::Plain)?);
        }
        self.wait_all(tickets)?;
        let flush = self.flush()?;
        self.wait(flush)?;
        let transaction = self.sim.oracle.commit(state);
        let sector = self.area_sector(commit);
        let ask = Ask::Write { sector, bytes: &encoder.blocks[&commit][..] };
        let commit = self.submit(ask, Pending::Commit(transaction))?;
        self.wait(commit)?;
        let flush = self.flush()?;
        self.wait(flush)?;
        self.sim.fs.live.push_back(Transaction { tid, start: head, blocks });
        (self.sim.fs.head, self.sim.fs.tid) = (encoder.at, encoder.tid);
        self.sim.tally.commits += 1;
        let status = self.group.status();
        self.sim.tally.held += status.held_flushes;
        self.sim.tally.full += status.throttled;
        let retained = self.group.disk_status(0);
        let systems = retained.map_or(Vec::new(), |disk| disk.file_systems);
        let retains = |f: &FileSystemStatus| f.mode == "retain";
        self.sim.tally.retained += u64::from(systems.iter().any(retains));
        self.sim.tally.from_home += u64::from(systems.iter().any(|f| f.served_from_home > 0));
        self.sim.tally.saved += systems.iter().map(|f| f.classes.saved_blocks).sum::<u64>();
        Ok(())
    }

    fn area_sector(&self, at: AreaBlock) -> u64 {
        self.sector(DISK.layout.home_of(at).expect("a block of the journal"))
    }

    /// The newest committed versions of what the oldest transactions hold go home; then the tail moves.
    pub fn checkpoint(&mut self) -> Goes {
        if self.sim.fs.live.is_empty() {
            return Ok(());
        }
        let count = self.rng.random_range(1..=self.sim.fs.live.len());
        let live = self.sim.fs.live.iter().take(count);
        let blocks: BTreeSet<usize> = live.flat_map(|t| t.blocks.iter().copied()).collect();
        let mut tickets = Vec::new();
        for block in blocks {
            let version = self.sim.oracle.state()[block];
            let bytes = content(Kind::State, block, version);
            let sector = self.sector(home(Kind::State, block));
            tickets.push(self.submit(Ask::Write { sector, bytes: &bytes[..] }, Pending::Plain)?);
        }
        self.wait_all(tickets)?;
        let flush = self.flush()?;
        self.wait(flush)?;
        self.sim.fs.live.drain(..count);
        self.write_tail()
    }

    fn write_tail(&mut self) -> Goes {
        let fs = &self.sim.fs;
        let (tid, start) = fs.live.front().map_or((fs.tid, fs.head), |t| (t.tid, t.start));
        let superblock = DISK.superblock.with_tail(tid, Some(start));
        let sector = self.area_sector(AreaBlock(0));
        let write = self.submit(Ask::Write { sector, bytes: superblock.bytes() }, Pending::Plain)?;
        self.wait(write)?;
        let flush = self.flush()?;
        self.wait(flush)
    }

    fn fetch(&mut self, sector: u64, bytes: usize) -> Goes<Vec<u8>> {
        let ticket = self.submit(Ask::Read { sector, bytes }, Pending::Plain)?;
        self.wait(ticket)?;
        Ok(std::mem::take(&mut self.read))
    }

    /// A guest boots: its own recovery, as jbd2 does it; what it finds is judged; its journal begins anew.
    pub fn boot(&mut self, crash: Crash) -> Goes {
        let at = self.area_sector(AreaBlock(0));
        let block: Block = self.fetch(at, BLOCK_BYTES)?[..].try_into().expect("a block");
        let superblock = JournalSuperblock::parse(&block)
            .map_err(|e| format!("the guest is served an unsound journal: {e}"))?;
        let mut end = superblock.sequence();
        let mut homes = BTreeMap::new();
        if let Some(start) = superblock.start() {
            let mut view = View { turn: self, ended: None };
            let replayed = replay(&mut view, &DISK.geometry, start, superblock.sequence());
            if let Some(ended) = view.ended {
                return Err(ended);
            }
            let replayed = replayed.map_err(|e| format!("the guest's recovery failed: {e}"))?;
            if !replayed.damaged.is_empty() {
                return Err(End::Broken(format!("damaged blocks in the journal: {:?}", replayed.damaged)));
            }
            self.sim.tally.replays += u64::from(replayed.transactions > 0);
            end = replayed.end;
            homes = replayed.writes.into_iter().collect::<BTreeMap<_, _>>();
        }
        let mut found = Found { data: Vec::new(), state: Vec::new() };
        for block in 0..STATE_BLOCKS {
            let place = home(Kind::State, block);
            let bytes = match homes.get(&place) {
                Some(bytes) => bytes.to_vec(),
                None => self.fetch(self.sector(place), BLOCK_BYTES)?,
            };
            let sectors = versions(Kind::State, block, &bytes)?;
            if sectors.iter().any(|sector| *sector != sectors[0]) {
                return Err(End::Broken(format!("block {block} of the file system is torn: {sectors:?}")));
            }
            found.state.push(sectors[0].unwrap_or(0));
        }
        for first in (0..DATA_BLOCKS).step_by(DATA_BYTES / BLOCK_BYTES) {
            let bytes = self.fetch(self.sector(home(Kind::Data, first)), DATA_BYTES)?;
            for (i, bytes) in bytes.chunks(BLOCK_BYTES).enumerate() {
                found.data.push(versions(Kind::Data, first + i, bytes)?);
            }
        }
        let before = self.sim.oracle.state().to_vec();
        let state = self.sim.oracle.judge(&found, crash, &self.sim.config.contract)?;
        self.sim.trace.note(format_args!("after {crash:?}: {found:?}"));
        self.sim.tally.lost += u64::from(before != found.state);
        match crash {
            Crash::Power => self.sim.oracle.rebase(&found),
            Crash::Process => self.sim.oracle.recovered(state),
        }
        let mut tickets = Vec::new();
        for (place, bytes) in homes {
            let sector = self.sector(place);
            tickets.push(self.submit(Ask::Write { sector, bytes: &bytes[..] }, Pending::Plain)?);
        }
        self.wait_all(tickets)?;
        let flush = self.flush()?;
        self.wait(flush)?;
        let fs = &mut self.sim.fs;
        fs.live.clear();
        fs.head = DISK.geometry.first;
        fs.tid = end.next();
        self.write_tail()
    }
}

/// The journal as the guest reads it.
struct View<'t, 'a, 'p> {
    turn: &'t mut Turn<'a, 'p>,
    ended: Option<End>,
}

impl AreaView for View<'_, '_, '_> {
    fn block<'b>(&'b mut self, at: AreaBlock, scratch: &'b mut Block) -> Result<&'b Block, BlockError> {
        let sector = self.turn.area_sector(at);
        match self.turn.fetch(sector, BLOCK_BYTES) {
            Ok(bytes) => scratch.copy_from_slice(&bytes),
            Err(ended) => {
                self.ended = Some(ended);
                return Err(BlockError::Failed { reason: "the guest's read failed".into() });
            }
        }
        Ok(scratch)
    }
}
