//! A log that is followed: what is in it, where it begins and ends, and what the guest's writes to it mean. A state machine, to which
//! events come one by one; it knows no disk, no memory and no other file system.
//!
//! ```text
//! guest's tail ───────────────────── head
//!   │ committed transactions, all held │ the next one is expected
//! ```
//!
//! Only the guest moves its tail. Of a log that an earlier version left, the first transactions may have been given up: it is served with a
//! tail behind them, until the guest's own has passed them.

use std::cmp::Ordering;
use std::collections::VecDeque;

use super::layout::superblock::{Features, JournalSuperblock};
use super::layout::Layout;
use super::log::{AreaView, LogGeometry, Transaction, Walk, Walked};
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, Tid};
use crate::versions::arena::VolumeId;
use crate::versions::Tuple;

/// A place in a log: a transaction's id and its first block.
pub(super) type Position = (Tid, AreaBlock);

/// See the module.
#[derive(Debug)]
pub(super) struct Log {
    /// Whose it is.
    pub(super) id: VolumeId,
    pub(super) geometry: LogGeometry,
    /// The guest's newest superblock.
    pub(super) superblock: JournalSuperblock,
    /// The guest's own tail; where an earlier version gave transactions up, the first one behind them.
    pub(super) tail: Position,
    /// Where the next transaction is expected.
    pub(super) head: Position,
    /// Committed transactions, oldest first, with consecutive ids.
    pub(super) transactions: VecDeque<Committed>,
    /// Blocks of the log that they take.
    held_blocks: u64,
    /// Home blocks in their lists.
    listed: usize,
    /// When the newest was committed, by the guest's clock: `h_commit_sec`.
    pub(super) commit_sec: u64,
    /// The next transaction's commit block is there, but not yet all its other blocks (`journal_async_commit`).
    pub(super) commit_seen: bool,
    /// What was read of the next transaction, which was not complete.
    pub(super) read: Option<Read>,
    /// A commit block that came by, and the transaction that was expected then: see [`Log::judge`].
    pub(super) came_by: Option<(Tid, Tid)>,
    /// The superblock was read since the guest last wrote one: whoever writes one now may be a mount.
    pub(super) superblock_read: bool,
    /// Of so many of the oldest transactions no block is in memory any more.
    pub(super) spilled: usize,
    /// Of so many nothing is pending any more, and what is home is served from there.
    pub(super) homed: usize,
    /// It may begin elsewhere: see [`super::orphan`].
    pub(super) unproven: bool,
}

/// How far a transaction was read.
#[derive(Debug)]
pub(super) struct Read {
    /// It is not complete before this block, or an earlier one, is written.
    to: AreaBlock,
    /// What goes on from there.
    walk: Option<Box<Walk>>,
    /// That block was written since.
    has_come: bool,
}

/// A committed transaction.
#[derive(Debug)]
pub(super) struct Committed {
    pub(super) tid: Tid,
    pub(super) start: AreaBlock,
    pub(super) blocks: u32,
    /// Home blocks that it logged, each once.
    pub(super) homes: Vec<FsBlock>,
}

/// Blocks that may be known of a transaction of which the beginning was read, to be read on from there: of a larger one it is read again.
/// Each journal of the disk may have one.
const WALK_BLOCKS_MAX: usize = 1 << 13;

/// Transactions for which a list keeps its room.
const SPARE: usize = 1024;

/// Memory that a list of so many transactions takes which logged so many blocks, in bytes. It doubles when it is full; an
/// allocation takes 32 bytes at least.
pub(super) fn list_bytes(transactions: usize, logged: usize) -> u64 {
    (transactions * (2 * size_of::<Committed>() + 32) + logged * size_of::<FsBlock>()) as u64
}

/// A transaction's versions, by their homes: of several of one block the last one counts, of a block that it revokes none. And what it
/// revokes, ascending.
pub(super) fn versions_of(transaction: &mut Transaction) -> (Vec<Tuple>, Vec<FsBlock>) {
    let mut revokes = std::mem::take(&mut transaction.revokes);
    revokes.sort_unstable();
    let tid = transaction.tid;
    let mut protect: Vec<Tuple> = std::mem::take(&mut transaction.tags)
        .into_iter()
        .filter(|tag| revokes.binary_search(&tag.home).is_err())
        .map(|tag| Tuple { home: tag.home, at: tag.at, tid, escaped: tag.escaped })
        .collect();
    protect.sort_by_key(|tuple| tuple.home);
    protect.reverse();
    protect.dedup_by_key(|tuple| tuple.home);
    protect.reverse();
    (protect, revokes)
}

impl Log {
    /// With nothing in it.
    pub(super) fn new(id: VolumeId, layout: &Layout, superblock: JournalSuperblock, tail: Position) -> Self {
        Self {
            id,
            geometry: LogGeometry::new(&superblock, layout),
            superblock,
            tail,
            head: tail,
            transactions: VecDeque::new(),
            held_blocks: 0,
            listed: 0,
            commit_sec: 0,
            commit_seen: false,
            read: None,
            came_by: None,
            superblock_read: false,
            spilled: 0,
            homed: 0,
            unproven: false,
        }
    }

    /// The wrapped block `n` blocks after `at`.
    pub(super) fn after(&self, at: AreaBlock, n: u32) -> AreaBlock {
        let usable = u64::from(self.geometry.maxlen - self.geometry.first.0);
        let offset = (u64::from(at.0 - self.geometry.first.0) + u64::from(n)) % usable;
        AreaBlock(self.geometry.first.0 + offset as u32)
    }

    /// The oldest transaction that is held; where there is none, the next one.
    pub(super) fn oldest(&self) -> Position {
        self.transactions.front().map_or(self.head, |t| (t.tid, t.start))
    }

    /// Blocks from the guest's own tail up to the oldest transaction that is held: an earlier version gave them up.
    fn passed_blocks(&self) -> u64 {
        let (tid, at) = self.oldest();
        match self.superblock.start() {
            Some(start) if tid.is_after(self.superblock.sequence()) => {
                self.geometry.distance(start, at).into()
            }
            _ => 0,
        }
    }

    /// Whether a block belongs to a committed transaction that the guest's own tail has not passed, held or not.
    pub(super) fn holds(&self, at: AreaBlock) -> bool {
        let passed_blocks = self.passed_blocks();
        let from = match (self.superblock.start(), self.transactions.front()) {
            (Some(start), _) if passed_blocks > 0 => start,
            (_, Some(front)) => front.start,
            _ => return false,
        };
        let distance = |at| u64::from(self.geometry.distance(from, at));
        self.geometry.contains(at) && distance(at) < passed_blocks + self.held_blocks
    }

    /// Whether another transaction of so many blocks fits beside those that the guest has in its log: where it does not, the log
    /// runs over itself.
    pub(super) fn has_room(&self, blocks: u32) -> bool {
        self.passed_blocks() + self.held_blocks + u64::from(blocks) <= u64::from(self.geometry.log_blocks())
    }

    /// The transaction that was expected is committed, with the newest versions of these blocks.
    pub(super) fn push(&mut self, transaction: &Transaction, homes: Vec<FsBlock>) {
        let Transaction { tid, start, next, blocks, commit_sec, .. } = *transaction;
        self.held_blocks += u64::from(blocks);
        self.listed += homes.len();
        self.transactions.push_back(Committed { tid, start, blocks, homes });
        self.head = (tid.next(), next);
        self.commit_sec = commit_sec;
        self.commit_seen = false;
        self.read = None;
    }

    /// How a block lies to the one up to which something was read.
    fn lies(&self, at: AreaBlock, to: AreaBlock) -> Ordering {
        let distance = |at| self.geometry.distance(self.head.1, at);
        match self.geometry.contains(at) {
            true => distance(at).cmp(&distance(to)),
            false => Ordering::Greater,
        }
    }

    /// A block was written. Whether the next transaction may be complete now.
    pub(super) fn wrote(&mut self, at: AreaBlock) -> bool {
        let lies = self.read.as_ref().map(|read| self.lies(at, read.to));
        let Some((lies, read)) = lies.zip(self.read.as_mut()) else { return true };
        match (lies, &read.walk) {
            (Ordering::Greater, _) => return read.has_come,
            (Ordering::Equal, Some(_)) => read.has_come = true,
            (Ordering::Equal, None) | (Ordering::Less, _) => self.read = None,
        }
        true
    }

    /// The next transaction, to be read together with a block that is written; `None` where it cannot be complete with that.
    pub(super) fn walk_with(&self, at: AreaBlock) -> Option<Result<Walk, JournalError>> {
        let walk = match &self.read {
            Some(read) => match self.lies(at, read.to) {
                Ordering::Greater if !read.has_come => return None,
                Ordering::Greater | Ordering::Equal => read.walk.as_deref().cloned(),
                Ordering::Less => None,
            },
            None => None,
        };
        Some(walk.map_or_else(|| Walk::new(&self.geometry, self.head.1, self.head.0), Ok))
    }

    /// The next transaction, if it is complete; read on from where it was read to, if no block of what was read is another one.
    ///
    /// # Errors
    /// As [`super::log::parse`].
    pub(super) fn read_next(&mut self, view: &mut dyn AreaView) -> Result<Option<Transaction>, JournalError> {
        let walk = match self.read.take() {
            Some(Read { walk: Some(walk), .. }) => *walk,
            Some(nothing_new) => {
                self.read = Some(nothing_new);
                return Ok(None);
            }
            None => Walk::new(&self.geometry, self.head.1, self.head.0)?,
        };
        let (to, walk) = match walk.go_on(view, &self.geometry)? {
            Walked::Complete(transaction) => return Ok(Some(transaction)),
            Walked::Stopped(walk) => (Some(walk.awaits()), Some(walk)),
            Walked::Incomplete { read } => (read, None),
        };
        let walk = walk.filter(|walk| walk.known() <= WALK_BLOCKS_MAX).map(Box::new);
        self.read = to.map(|to| Read { to, walk, has_come: false });
        Ok(None)
    }

    /// Whether all is there that the guest believes in.
    pub(super) fn is_complete(&self) -> bool {
        self.passed_blocks() == 0
    }

    /// Gives up the oldest transaction.
    pub(super) fn pop(&mut self) -> Option<Committed> {
        let oldest = self.transactions.pop_front()?;
        self.spilled = self.spilled.saturating_sub(1);
        self.homed = self.homed.saturating_sub(1);
        self.held_blocks -= u64::from(oldest.blocks);
        self.listed -= oldest.homes.len();
        // Many a journal may have been long.
        if self.transactions.capacity() > SPARE && self.transactions.len() < self.transactions.capacity() / 4
        {
            self.transactions.shrink_to(self.transactions.capacity() / 2);
        }
        Some(oldest)
    }

    /// Memory that the list of transactions takes, in bytes.
    pub(super) fn listed_bytes(&self) -> u64 {
        list_bytes(self.transactions.len(), self.listed)
    }

    /// A commit block came by, and whatever is complete with it was taken in: whether that transaction was, or is yet to be.
    ///
    /// # Errors
    /// A guest commits one transaction after the other: its log is elsewhere than was believed, and whatever it commits from now on would
    /// be followed by nobody.
    pub(super) fn judge(&mut self) -> Result<(), String> {
        let Some((tid, expected)) = self.came_by.take() else { return Ok(()) };
        if self.head.0 == tid {
            self.commit_seen = true;
        } else if tid.is_after(self.head.0) || expected.is_after(tid) {
            return Err(format!("transaction {tid} was committed where {} was expected", self.head.0));
        }
        Ok(())
    }

    /// The superblock that a reader of an absorbed journal is shown: the guest's own.
    pub(super) fn served(&self) -> JournalSuperblock {
        match self.tail.0.is_after(self.superblock.sequence()) {
            true => self.superblock.with_tail(self.tail.0, Some(self.tail.1)),
            false => self.superblock.clone(),
        }
    }

    /// What the guest writes over its superblock, as long as it is one of the same journal.
    ///
    /// # Errors
    /// It is not: why.
    pub(super) fn newer(&self, block: &Block) -> Result<JournalSuperblock, String> {
        let known = &self.superblock;
        match JournalSuperblock::parse(block) {
            Ok(newer)
                if newer.uuid() == known.uuid()
                    && newer.maxlen() == known.maxlen()
                    && newer.first() == known.first() =>
            {
                Ok(newer)
            }
            Ok(_) => Err("its journal became another one".to_owned()),
            Err(e) => Err(format!("its journal's superblock was overwritten ({e})")),
        }
    }

    /// How many of the held transactions the guest's own tail passes there; `None` where it lags behind what an earlier version gave up.
    ///
    /// # Errors
    /// No log of a sound guest has its tail there.
    pub(super) fn passes(&self, tail: Position) -> Result<Option<usize>, &'static str> {
        let (tid, _) = tail;
        if self.oldest().0.is_after(tid) {
            if self.superblock.sequence().is_after(tid) {
                return Err("its journal begins anew, behind what was committed");
            }
            return Ok(None);
        }
        let passed = self.transactions.iter().take_while(|t| tid.is_after(t.tid)).count();
        if self.transactions.get(passed).is_some_and(|t| (t.tid, t.start) != tail) {
            return Err("its journal's tail is not where the transaction of that id begins");
        }
        if passed == self.transactions.len() && tail != self.head && !self.superblock_read {
            // A mount reads it first.
            return Err("its journal was put in place");
        }
        Ok(Some(passed))
    }

    /// Where nothing is left, a log begins anew at the guest's tail, as after a recovery.
    pub(super) fn begin_anew(&mut self, tail: Position) {
        self.head = tail;
        self.commit_seen = false;
        self.read = None;
    }

    /// Whether blocks written under other features read the same: or else none may be in the log. A journal says that it may hold
    /// revoke blocks when it writes its first one.
    pub(super) fn may_become(&self, features: Features) -> bool {
        let plain = |features: Features| Features { revoke: false, ..features };
        self.transactions.is_empty() || plain(features) == plain(self.geometry.features)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use afterimage_block::Sector;
    use proptest::prelude::*;

    use super::*;
    use crate::ext4::layout::AreaExtent;
    use crate::ext4::log::encode::{Draft, Encoder};
    use crate::ext4::log::{parse, Parsed, Tag};
    use crate::ids::BLOCK_BYTES;

    const BLOCKS: u32 = 1030;

    /// A journal's superblock, of version 2 and without checksums.
    pub(in crate::ext4) fn superblock(sequence: u32, start: u32) -> JournalSuperblock {
        let mut block = [0; BLOCK_BYTES];
        let mut put = |at: usize, value: u32| block[at..at + 4].copy_from_slice(&value.to_be_bytes());
        for (at, value) in
            [(0, 0xc03b_3998), (4, 4), (12, 4096), (16, BLOCKS), (20, 1), (24, sequence), (28, start)]
        {
            put(at, value);
        }
        JournalSuperblock::parse(&block).unwrap()
    }

    pub(in crate::ext4) fn log(tid: u32, start: u32) -> Log {
        let layout = Layout {
            start: Sector(0),
            uuid: [0; 16],
            blocks: 1 << 20,
            room_blocks: 1 << 20,
            bitmaps: None,
            journal: vec![AreaExtent { at: AreaBlock(0), home: FsBlock(1000), blocks: BLOCKS }],
            watched: Vec::new(),
        };
        let tail = (Tid(tid), AreaBlock(start));
        Log::new(VolumeId(0), &layout, superblock(tid, start), tail)
    }

    /// The next transaction of so many blocks.
    pub(in crate::ext4) fn next(log: &Log, blocks: u32) -> Transaction {
        let (tid, start) = log.head;
        let next = log.after(start, blocks);
        Transaction { tid, start, next, blocks, tags: Vec::new(), revokes: Vec::new(), commit_sec: 0 }
    }

    #[test]
    fn of_a_block_the_last_tag_counts_and_a_revoke_more() {
        let tag = |home, at| Tag { home: FsBlock(home), at: AreaBlock(at), escaped: false };
        let mut transaction = next(&log(7, 1), 9);
        transaction.tags = vec![tag(30, 1), tag(10, 2), tag(30, 3), tag(20, 4)];
        transaction.revokes = vec![FsBlock(99), FsBlock(20)];
        let (protect, revokes) = versions_of(&mut transaction);
        let found: Vec<_> = protect.iter().map(|t| (t.home.0, t.at.0, t.tid)).collect();
        assert_eq!(found, [(10, 2, Tid(7)), (30, 3, Tid(7))]);
        assert_eq!(revokes, [FsBlock(20), FsBlock(99)]);
    }

    #[test]
    fn a_commit_comes_when_it_can_be_the_next_one() {
        for (came, expected, fits) in [(7, 7, true), (8, 7, false), (6, 7, false), (6, 6, true)] {
            let mut log = log(7, 1);
            log.came_by = Some((Tid(came), Tid(expected)));
            assert_eq!(log.judge().is_ok(), fits, "{came} where {expected} was expected");
            assert_eq!(log.commit_seen, came == 7);
            assert!(log.judge().is_ok(), "it is judged once");
        }
    }

    #[test]
    fn another_journal_is_not_a_newer_superblock_of_this_one() {
        let log = log(7, 1);
        assert_eq!(log.newer(superblock(9, 5).bytes()).unwrap().sequence(), Tid(9));
        let mut other = *superblock(9, 5).bytes();
        other[0x30] = 1;
        assert_eq!(log.newer(&other).unwrap_err(), "its journal became another one");
        assert!(log.newer(&[0; BLOCK_BYTES]).unwrap_err().contains("overwritten"));
    }

    #[test]
    fn a_list_that_was_long_gives_its_room_back() {
        let mut log = log(7, 1);
        let transaction = next(&log, 0);
        (0..40_000).for_each(|_| log.push(&transaction, vec![FsBlock(1)]));
        let (transactions, homes) = (log.transactions.capacity() * size_of::<Committed>(), 40_000 * 32);
        assert!(log.listed_bytes() >= (transactions + homes) as u64);
        while log.pop().is_some() {}
        assert_eq!(log.listed_bytes(), 0);
        assert!(log.transactions.capacity() <= 2 * SPARE, "{}", log.transactions.capacity());
    }

    /// The format of a log, by its number, and a transaction of it.
    fn drafted(kind: u8, logged: u64, revokes: u64) -> (Log, Encoder) {
        let mut log = log(7, BLOCKS - 20);
        log.geometry.features = Features {
            checksum: kind == 1 || kind == 4,
            revoke: true,
            bits64: kind % 2 == 0,
            async_commit: kind < 3,
            csum_v2: false,
            csum_v3: kind % 3 == 2,
        };
        let mut encoder = Encoder::new(&log.geometry, log.head.1, log.head.0);
        encoder.transaction(&Draft {
            logged: (0..logged)
                .map(|n| (FsBlock(5000 + n * 3), Box::new([n as u8 + 1; BLOCK_BYTES])))
                .collect(),
            revokes: (0..revokes).map(|n| FsBlock(9000 + n)).collect(),
            tags_max: Some(7),
            revokes_max: Some(5),
            ..Draft::default()
        });
        (log, encoder)
    }

    proptest! {
        /// A log that is read on from where it was read to is as one that is read again with every block.
        #[test]
        fn a_log_is_complete_when_its_last_block_has_come(
            kind in 0u8..6,
            size in (0u64..40, 0u64..20),
            order in proptest::collection::vec((any::<proptest::sample::Index>(), 0u8..6), 0..80),
            rest in 0u8..3,
        ) {
            let (mut log, mut whole) = drafted(kind, size.0, size.1);
            let mut blocks: Vec<(AreaBlock, Box<Block>)> = whole.blocks.iter().map(|(at, b)| (*at, b.clone())).collect();
            let commit = log.after(log.head.1, blocks.len() as u32 - 1);
            blocks.sort_by_key(|(at, _)| (*at != commit, log.geometry.distance(log.head.1, *at)));
            let mut writes = vec![(blocks[0].clone(), true)];
            for (index, what) in order {
                let (at, mut block) = blocks[index.index(blocks.len())].clone();
                match what {
                    0 => block.fill(7),
                    1 => block[100] ^= 1,
                    2 => block[3] ^= 1,
                    _ => {}
                }
                writes.push(((at, block), what != 3));
            }
            // In the end all is there: as it stands, or from behind; or all but the last.
            if rest == 1 {
                blocks[1..].reverse();
            }
            writes.extend(blocks.iter().skip(usize::from(rest == 2)).map(|write| (write.clone(), true)));
            whole.blocks.clear();
            for ((at, block), is_followed) in writes {
                whole.blocks.insert(at, block);
                if !is_followed {
                    log.wrote(at);
                    continue;
                }
                let anew = parse(&mut whole, &log.geometry, log.head.1, log.head.0);
                // It can be told before the block is kept.
                let with = log.walk_with(at).is_some_and(|walk| {
                    let walked = walk.and_then(|walk| walk.go_on(&mut whole, &log.geometry));
                    matches!(walked, Ok(Walked::Complete(_)))
                });
                prop_assert_eq!(with, matches!(anew, Ok(Parsed::Complete(_))));
                let wrote = log.wrote(at);
                match (anew, if wrote { log.read_next(&mut whole) } else { Ok(None) }) {
                    (Ok(Parsed::Complete(anew)), Ok(Some(found))) => {
                        prop_assert_eq!(anew, found);
                        return Ok(());
                    }
                    (Ok(Parsed::Incomplete), Ok(None)) => {}
                    (Err(_), Err(_)) => return Ok(()),
                    (anew, found) => prop_assert!(false, "{:?} {:?}", anew, found),
                }
            }
            prop_assert!(rest == 2);
        }

        /// A guest that commits and moves its tail, against one that remembers every block.
        #[test]
        fn a_log_holds_what_its_guest_believes_in(
            first in prop_oneof![1u32..50, (u32::MAX - 20)..u32::MAX],
            start in 1..BLOCKS,
            steps in proptest::collection::vec((0u8..3, 1u32..300, any::<u16>()), 1..80),
        ) {
            let mut log = log(first, start);
            // Every transaction from the guest's own tail on, and its blocks.
            let mut believed: VecDeque<(Tid, AreaBlock, Vec<AreaBlock>)> = VecDeque::new();
            for (kind, blocks, chance) in steps {
                let used: usize = believed.iter().map(|(_, _, blocks)| blocks.len()).sum();
                prop_assert_eq!(log.has_room(blocks), used + (blocks as usize) < BLOCKS as usize);
                if kind < 2 && log.has_room(blocks) {
                    let transaction = next(&log, blocks);
                    let places = (0..blocks).map(|i| log.after(transaction.start, i)).collect();
                    believed.push_back((transaction.tid, transaction.start, places));
                    log.push(&transaction, Vec::new());
                } else if kind == 2 {
                    // To any transaction that it believes in, or to none of them.
                    let keep = chance as usize % (believed.len() + 1);
                    let tail = believed.get(keep).map_or(log.head, |(tid, at, _)| (*tid, *at));
                    let elsewhere = (tail.0, log.after(tail.1, 1));
                    prop_assert!(log.passes(elsewhere).is_err());
                    log.superblock_read = true;
                    prop_assert!(keep == believed.len() || log.passes(elsewhere).is_err());
                    log.superblock_read = false;
                    prop_assert_eq!(log.passes(tail), Ok(Some(keep)));
                    (0..keep).for_each(|_| drop(log.pop()));
                    believed.drain(..keep);
                    log.superblock = log.superblock.with_tail(tail.0, Some(tail.1));
                    log.tail = tail;
                }
                let held: Vec<AreaBlock> = believed.iter().flat_map(|(_, _, blocks)| blocks.clone()).collect();
                for at in (0..=BLOCKS).map(AreaBlock) {
                    prop_assert_eq!(log.holds(at), held.contains(&at), "block {}", at);
                }
                prop_assert!(log.is_complete());
                prop_assert_eq!(log.served(), log.superblock.clone());
            }
        }
    }
}
