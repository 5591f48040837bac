//! A file between its readers' view of it and its device: where crashes are to come, what a power cut may leave of it.
//!
//! The fault model is the one of `afterimage_block_conformance::sim`, with times: a write is there from one time on and may be covered by
//! a sync from another, a sync covers what was done when it began, and counts when it is over. Until then a cut leaves of each sector
//! any of its versions, the last one torn. What a sync has covered is kept no more than once, so that the memory of a long run is that of its
//! files and of what is not synced; what is too much of that is taken for written back, which a host may do at any time.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use afterimage_block::Medium;
use parking_lot::Mutex;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use twox_hash::XxHash3_64;

use crate::calendar::Ns;
use crate::content::Content;

const SECTOR_BYTES: usize = 512;
/// The page cache's.
const PAGE_BYTES: usize = 4096;
/// A device's smallest atomic unit when sectors tear.
const TEAR_BYTES: usize = 8;
/// How much may wait to be synced.
const UNSYNCED_BYTES_MAX: usize = 24 << 20;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fails {
    /// A read.
    Read,
    /// A write or zeroing.
    Write,
    /// A sync: what it was to cover looks clean, and is not all on the device.
    Sync,
}

/// A device that breaks its word, so that it can be shown that somebody notices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Breaks {
    /// It keeps it.
    #[default]
    Nothing,
    /// It answers syncs at once, and nothing becomes durable by them.
    Syncs,
    /// Each power cut takes a page that had been synced last.
    SyncedPage,
    /// A process's death takes what it had written last, as if it had never been handed to the kernel.
    LastWrites,
    /// What a failed sync has lost is found nowhere when it is to be written again.
    Rewrites,
    /// A start writes back what the cache holds of a device: what somebody read there before it was changed.
    StaleCache,
}

/// A write or zeroing that is not known to be on the device.
struct Piece {
    from: Ns,
    done: Ns,
    offset: usize,
    len: usize,
    /// `None`: zeroes.
    data: Option<Vec<u8>>,
    /// A sync of it has failed: it is in the cache only, and no sync writes it again.
    lost: bool,
}

impl Piece {
    /// Does what it does to a part of a content, which begins at `start`.
    fn apply(&self, target: &mut [u8], start: usize) {
        let (from, to) = (self.offset.max(start), (self.offset + self.len).min(start + target.len()));
        if from >= to {
            return;
        }
        match &self.data {
            Some(data) => {
                target[from - start..to - start].copy_from_slice(&data[from - self.offset..to - self.offset])
            }
            None => target[from - start..to - start].fill(0),
        }
    }

    /// Does all of what it does.
    fn do_to(&self, target: &Content) {
        let done = match &self.data {
            Some(data) => target.write_at(data, self.offset as u64),
            None => target.zero_at(self.offset as u64, self.len as u64, true),
        };
        done.expect("memory");
    }

    /// A piece of each page: a failed sync loses whole ones.
    fn by_page(self) -> impl Iterator<Item = Piece> {
        let (start, end) = (self.offset, self.offset + self.len);
        (start / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(move |page| {
            let (from, to) = (start.max(page * PAGE_BYTES), end.min((page + 1) * PAGE_BYTES));
            let data = self.data.as_ref().map(|data| data[from - start..to - start].to_vec());
            Piece { offset: from, len: to - from, data, ..self }
        })
    }
}

/// Makes one content the same as another of the same length.
fn copy(from: &Content, to: &Content) {
    let mut part = vec![0; 1 << 20];
    for at in (0..from.len()).step_by(part.len()) {
        let part = &mut part[..(from.len() - at).min(1 << 20) as usize];
        from.read_at(part, at).and_then(|()| to.write_at(part, at)).expect("memory");
    }
}

#[derive(Default)]
struct Inside {
    /// What is durable, where crashes are to come.
    base: Option<Arc<Content>>,
    pieces: Vec<Piece>,
    unsynced_bytes: usize,
    /// When each sync began, and when it is over.
    syncs: Vec<(Ns, Ns)>,
    /// Of what is written next: from when on it is there, and when a sync may cover it.
    moment: (Ns, Ns),
    fails: Option<Fails>,
    failed: u64,
    breaks: Breaks,
    /// A cut leaves sectors of so many bytes whole; smaller ones are torn.
    whole_bytes: Option<usize>,
    /// Where the newest page is that was synced.
    last_synced: Option<usize>,
    /// Whether the host's memory says that a sync has failed.
    noted: bool,
    /// What somebody read, past this file's readers, before it was changed.
    stale: Option<(u64, Vec<u8>)>,
}

/// See the module.
pub struct Volatile {
    cached: Arc<Content>,
    inside: Mutex<Inside>,
}

impl std::fmt::Debug for Volatile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a file and what of it is durable")
    }
}

impl Volatile {
    /// A file of which no crash is to come.
    pub fn new(cached: &Arc<Content>) -> Arc<Self> {
        Arc::new(Self { cached: Arc::clone(cached), inside: Mutex::default() })
    }

    /// A file of zeroes, all of them durable.
    pub fn zeroes(bytes: u64) -> Arc<Self> {
        let inside = Mutex::new(Inside { base: Some(Content::new(bytes)), ..Inside::default() });
        Arc::new(Self { cached: Content::new(bytes), inside })
    }

    /// What readers see.
    pub fn cached(&self) -> &Arc<Content> {
        &self.cached
    }

    /// A device that breaks its word.
    pub fn break_word(&self, breaks: Breaks) {
        self.inside.lock().breaks = breaks;
    }

    /// The device's physical sectors have so many bytes, and a cut leaves them whole, as disks do.
    pub fn keep_sectors_whole(&self, bytes: usize) {
        self.inside.lock().whole_bytes = Some(bytes);
    }

    /// When what is written next is there, and when a sync may cover it.
    pub fn at(&self, from: Ns, done: Ns) {
        self.inside.lock().moment = (from, done);
    }

    /// A sync was asked for, and will be over then.
    pub fn synced(&self, from: Ns, until: Ns) {
        let mut inside = self.inside.lock();
        inside.noted = false;
        if inside.base.is_some() && inside.breaks != Breaks::Syncs {
            inside.syncs.push((from, until));
        }
    }

    /// The next operation of that kind fails; `None`: none does any more.
    pub fn fail(&self, fails: Option<Fails>) {
        self.inside.lock().fails = fails;
    }

    /// How many operations have failed.
    pub fn failed(&self) -> u64 {
        self.inside.lock().failed
    }

    /// What a start does before its sync: where it is noted that one failed, what that lost is to be written. The bytes of it. What
    /// somebody has read of the device before it was changed lies in a cache, too, and is left there.
    pub fn write_lost_again(&self) -> u64 {
        let mut inside = self.inside.lock();
        if let (Breaks::StaleCache, Some((offset, stale))) = (inside.breaks, inside.stale.take()) {
            inside.write(offset, stale.len() as u64, Some(&stale));
            self.cached.write_at(&stale, offset).expect("memory");
        }
        match inside.noted && inside.breaks != Breaks::Rewrites {
            true => inside.dirty(0..self.cached.len() as usize),
            false => 0,
        }
    }

    /// What was over by then need not be known any more.
    pub fn settle(&self, now: Ns) {
        let mut inside = self.inside.lock();
        while let Some(at) = inside.syncs.iter().position(|(_, until)| *until <= now) {
            let (from, _) = inside.syncs.remove(at);
            inside.keep(|piece| piece.done <= from);
        }
        if inside.unsynced_bytes > UNSYNCED_BYTES_MAX {
            let half = inside.pieces.len() / 2;
            let written_back: Vec<Ns> = inside.pieces.iter().take(half).map(|piece| piece.done).collect();
            let newest = written_back.into_iter().max().unwrap_or(0).min(now);
            inside.keep(|piece| piece.done <= newest);
        }
    }

    /// The process that wrote has died at that time: what it would have done later has not happened.
    pub fn die(&self, at: Ns) {
        self.settle(at);
        let mut inside = self.inside.lock();
        inside.syncs.clear();
        let last = match inside.breaks {
            Breaks::LastWrites => inside.pieces.iter().map(|piece| piece.from).max(),
            _ => None,
        };
        let before = inside.pieces.len();
        inside.pieces.retain(|piece| piece.from <= at && last != Some(piece.from));
        if inside.pieces.len() < before {
            let Inside { base, pieces, unsynced_bytes, .. } = &mut *inside;
            copy(base.as_ref().expect("crashes are to come"), &self.cached);
            pieces.iter().for_each(|piece| piece.do_to(&self.cached));
            *unsynced_bytes = pieces.iter().map(|piece| piece.len).sum();
        }
        inside.fails = None;
    }

    /// The power fails at that time. Which of the possible contents is left, the generator decides.
    pub fn cut(&self, at: Ns, rng: &mut ChaCha8Rng) {
        self.die(at);
        let mut inside = self.inside.lock();
        // A file of no length has nothing to lose.
        let Some(base) = inside.base.clone() else { return };
        let pieces = std::mem::take(&mut inside.pieces);
        (inside.unsynced_bytes, inside.noted, inside.stale) = (0, false, None);
        let sector_bytes = inside.whole_bytes.unwrap_or(SECTOR_BYTES);
        let mut bytes = vec![0; sector_bytes];
        let mut versions: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (i, piece) in pieces.iter().enumerate().filter(|(_, piece)| !piece.lost) {
            let sectors = piece.offset / sector_bytes..(piece.offset + piece.len).div_ceil(sector_bytes);
            sectors.for_each(|sector| versions.entry(sector).or_default().push(i));
        }
        let keep_percent: u32 = [0, 10, 50, 90, 100, 100][rng.random_range(0..6)];
        // Of each write either all, nothing, or a random part: whole survivors and holes between them matter most.
        let fate: Vec<Option<bool>> = pieces
            .iter()
            .map(|_| (rng.random_range(0..3) == 0).then(|| rng.random_range(0..100) < keep_percent))
            .collect();
        for (sector, versions) in versions {
            let keep = |i: &usize| fate[*i].unwrap_or_else(|| rng.random_range(0..100) < keep_percent);
            let Some(newest) = versions.iter().rposition(keep) else { continue };
            let start = sector * sector_bytes;
            let target = &mut bytes[..(base.len() as usize - start).min(sector_bytes)];
            base.read_at(target, start as u64).expect("memory");
            let torn = rng.random_range(0..16) == 0 && inside.whole_bytes.is_none();
            let whole = newest + usize::from(!torn);
            versions[..whole].iter().for_each(|i| pieces[*i].apply(target, start));
            if torn && rng.random_ratio(1, 2) {
                rng.fill(target);
            } else if torn {
                let part = (rng.random_range(1..sector_bytes / TEAR_BYTES) * TEAR_BYTES).min(target.len());
                pieces[versions[newest]].apply(&mut target[..part], start);
            }
            base.write_at(target, start as u64).expect("memory");
        }
        if let (Breaks::SyncedPage, Some(page)) = (inside.breaks, inside.last_synced) {
            let bytes = (base.len() - page as u64).min(PAGE_BYTES as u64);
            base.zero_at(page as u64, bytes, true).expect("memory");
        }
        copy(&base, &self.cached);
    }
}

impl Inside {
    /// What is covered, and was not lost, is durable.
    fn keep(&mut self, covered: impl Fn(&Piece) -> bool) {
        let Self { base, pieces, unsynced_bytes, last_synced, .. } = self;
        let Some(base) = base else { return };
        pieces.retain(|piece| {
            let keeps = !piece.lost && covered(piece);
            if keeps {
                piece.do_to(base);
                *unsynced_bytes -= piece.len;
                *last_synced = Some(piece.offset / PAGE_BYTES * PAGE_BYTES);
            }
            !keeps
        });
    }

    fn write(&mut self, offset: u64, len: u64, data: Option<&[u8]>) {
        let (from, done) = self.moment;
        let (offset, len) = (offset as usize, len as usize);
        if self.base.is_some() {
            self.dirty(offset..offset + len);
            self.unsynced_bytes += len;
            self.pieces.push(Piece { from, done, offset, len, data: data.map(<[u8]>::to_vec), lost: false });
        }
    }

    /// The pages of a range are to be written, each as a whole, with what had been lost of it. The bytes that had been.
    fn dirty(&mut self, range: Range<usize>) -> u64 {
        let pages = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
        let mut bytes = 0;
        let lost = self.pieces.iter_mut().filter(|piece| piece.lost);
        for piece in lost.filter(|piece| pages.contains(&(piece.offset / PAGE_BYTES))) {
            (piece.lost, piece.done) = (false, self.moment.1);
            bytes += piece.len as u64;
        }
        bytes
    }

    fn fault(&mut self, kind: Fails) -> io::Result<()> {
        if self.fails.take_if(|fails| *fails == kind).is_none() {
            return Ok(());
        }
        self.failed += 1;
        if kind == Fails::Sync {
            self.noted = true;
            // Which pages are lost follows from where they are and when, so that a seed repeats. What a sync covers that is under way, that one
            // answers for.
            self.pieces = std::mem::take(&mut self.pieces).into_iter().flat_map(Piece::by_page).collect();
            for piece in &mut self.pieces {
                let page = (piece.offset / PAGE_BYTES).to_le_bytes();
                let loses = XxHash3_64::oneshot_with_seed(self.moment.0, &page) % 4 > 0;
                piece.lost |= loses && !self.syncs.iter().any(|(from, _)| piece.done <= *from);
            }
        }
        Err(io::Error::other("the modelled device fails"))
    }
}

impl Medium for Volatile {
    fn len(&self) -> u64 {
        self.cached.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inside.lock().fault(Fails::Read)?;
        self.cached.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut inside = self.inside.lock();
        inside.fault(Fails::Write)?;
        if inside.breaks == Breaks::StaleCache {
            let mut stale = vec![0; buf.len().min(PAGE_BYTES)];
            self.cached.read_at(&mut stale, offset)?;
            inside.stale = Some((offset, stale));
        }
        inside.write(offset, buf.len() as u64, Some(buf));
        self.cached.write_at(buf, offset)
    }

    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        let mut inside = self.inside.lock();
        inside.fault(Fails::Write)?;
        inside.write(offset, len, None);
        self.cached.zero_at(offset, len, unmap)
    }

    /// Whether it fails: when it is over is told apart ([`Volatile::synced`]).
    fn sync(&self) -> io::Result<()> {
        self.inside.lock().fault(Fails::Sync)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng as _;

    use super::*;

    fn bytes(content: &Volatile) -> Vec<u8> {
        let mut bytes = vec![0; content.len() as usize];
        content.read_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// Writes a sector of that byte.
    fn write(content: &Volatile, at: Ns, sector: u64, byte: u8) {
        content.at(at, at + 5);
        content.write_at(&[byte; 512], sector * 512).unwrap();
    }

    fn rng(seed: u64) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(seed)
    }

    /// What cuts at that time may leave of the first bytes of sectors, where a sector is whole.
    fn left(at: Ns, make: impl Fn() -> Arc<Volatile>) -> BTreeSet<Vec<u8>> {
        let mut found = BTreeSet::new();
        for seed in 0..300 {
            let content = make();
            content.cut(at, &mut rng(seed));
            let all = bytes(&content);
            if all.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])) {
                found.insert(all.chunks(512).map(|sector| sector[0]).collect());
            }
        }
        found
    }

    #[test]
    fn a_sync_covers_what_was_done_before_it_and_counts_when_it_is_over() {
        let make = || {
            let content = Volatile::zeroes(1024);
            write(&content, 10, 0, 1);
            // Still on its way when the sync begins.
            write(&content, 17, 1, 2);
            content.synced(20, 30);
            content
        };
        let one = |sectors: [u8; 2]| sectors.to_vec();
        assert_eq!(left(29, make), [[0, 0], [0, 2], [1, 0], [1, 2]].map(one).into());
        assert_eq!(left(30, make), [[1, 0], [1, 2]].map(one).into());
        assert_eq!(left(12, make), [[0, 0], [1, 0]].map(one).into(), "nothing of what came later");
    }

    #[test]
    fn a_cut_leaves_any_version_of_a_sector_and_torn_ones() {
        let make = || {
            let content = Volatile::zeroes(512);
            (1..4).for_each(|n| write(&content, n, 0, n as u8));
            content
        };
        assert_eq!(left(50, make), (0..4).map(|n| vec![n]).collect());
        let torn = |whole_bytes: Option<usize>| {
            (0..300).any(|seed| {
                let content = make();
                whole_bytes.into_iter().for_each(|bytes| content.keep_sectors_whole(bytes));
                content.cut(50, &mut rng(seed));
                let all = bytes(&content);
                all.iter().any(|byte| *byte != all[0])
            })
        };
        assert!(torn(None) && !torn(Some(512)));
    }

    /// One write, and what cuts leave of it.
    #[test]
    fn a_write_of_several_sectors_is_torn_between_those_of_the_device() {
        let left = |whole_bytes: usize| {
            let left = (0..300).map(|seed| {
                let content = Volatile::zeroes(8192);
                content.keep_sectors_whole(whole_bytes);
                content.at(1, 5);
                content.write_at(&[1; 8192], 0).unwrap();
                content.cut(50, &mut rng(seed));
                bytes(&content).chunks(512).map(|sector| sector[0]).collect::<Vec<_>>()
            });
            left.collect::<BTreeSet<_>>()
        };
        let halves = |pages: [u8; 2]| pages.iter().flat_map(|page| [*page; 8]).collect();
        assert_eq!(left(4096), [[0, 0], [0, 1], [1, 0], [1, 1]].map(halves).into());
        assert!(left(512).len() > 4);
    }

    #[test]
    fn a_death_takes_only_what_had_not_happened() {
        let content = Volatile::zeroes(1024);
        write(&content, 10, 0, 1);
        write(&content, 20, 1, 2);
        content.die(15);
        assert_eq!((bytes(&content)[0], bytes(&content)[512]), (1, 0));
        content.cut(40, &mut rng(1));
    }

    /// Whole pages, as images and logs are written, and a sync of them that fails; another one follows `then`, and a cut: of which pages
    /// there is what.
    fn left_by_a_failed_sync(breaks: Breaks, then: impl Fn(&Volatile)) -> Vec<u8> {
        let content = Volatile::zeroes(16 * 4096);
        content.break_word(breaks);
        content.at(1, 1);
        content.write_at(&[1; 8 * 4096], 0).unwrap();
        (8..16).for_each(|page| content.write_at(&[1; 4096], page * 4096).unwrap());
        content.fail(Some(Fails::Sync));
        assert!(content.sync().is_err());
        assert_eq!((content.failed(), bytes(&content)), (1, vec![1; 16 * 4096]));
        content.at(40, 40);
        then(&content);
        content.sync().unwrap();
        content.synced(50, 60);
        content.cut(70, &mut rng(1));
        bytes(&content).chunks(4096).map(|page| page[0]).collect()
    }

    #[test]
    fn what_a_failed_sync_has_lost_is_in_the_cache_only() {
        let lost = |left: &[u8]| left.iter().filter(|byte| **byte == 0).count();
        let left = left_by_a_failed_sync(Breaks::Nothing, |_| {});
        // Of one large write some pages, and of small ones some.
        assert!((1..8).contains(&lost(&left[..8])) && (1..8).contains(&lost(&left[8..])), "{left:?}");
        let rewrite = |content: &Volatile| content.write_lost_again();
        let again = |content: &Volatile| assert_eq!(rewrite(content), 4096 * lost(&left) as u64);
        assert_eq!(left_by_a_failed_sync(Breaks::Nothing, again), [1; 16]);
        assert_eq!(left_by_a_failed_sync(Breaks::Rewrites, |content| assert_eq!(rewrite(content), 0)), left);
    }

    #[test]
    fn what_is_written_after_a_failed_sync_stays_the_newest() {
        // The rest of the page goes with it.
        let newer = |content: &Volatile| {
            (0..16).for_each(|page| content.write_at(&[2; 512], page * 4096).unwrap());
            content.synced(50, 60);
            content.settle(60);
            assert_eq!(content.write_lost_again(), 0);
            content.die(65);
            assert!(bytes(content)
                .chunks(4096)
                .all(|page| page[..512] == [2; 512] && page[512..] == [1; 3584]));
        };
        assert_eq!(left_by_a_failed_sync(Breaks::Nothing, newer), [2; 16]);
    }

    #[test]
    fn a_failed_sync_loses_nothing_of_what_an_earlier_one_answers_for() {
        let content = Volatile::zeroes(16 * 4096);
        content.at(1, 1);
        content.write_at(&[1; 16 * 4096], 0).unwrap();
        content.synced(10, 30);
        content.fail(Some(Fails::Sync));
        assert!(content.sync().is_err());
        content.cut(40, &mut rng(1));
        assert_eq!(bytes(&content), vec![1; 16 * 4096]);
    }

    #[test]
    fn a_device_that_breaks_its_word_loses_what_it_promised() {
        for (breaks, kept) in [(Breaks::Nothing, true), (Breaks::Syncs, false), (Breaks::SyncedPage, false)] {
            let all_kept = (0..20).all(|seed| {
                let content = Volatile::zeroes(4096);
                content.break_word(breaks);
                write(&content, 1, 0, 1);
                content.synced(10, 20);
                content.settle(25);
                content.cut(30, &mut rng(seed));
                bytes(&content)[..512] == [1; 512]
            });
            assert_eq!(all_kept, kept, "{breaks:?}");
        }
        let content = Volatile::zeroes(1024);
        content.break_word(Breaks::LastWrites);
        write(&content, 1, 0, 1);
        write(&content, 2, 1, 2);
        content.die(10);
        assert_eq!((bytes(&content)[0], bytes(&content)[512]), (1, 0));
    }

    #[test]
    fn what_is_unsynced_for_long_is_written_back() {
        let content = Volatile::zeroes(1 << 20);
        for at in 0..40 {
            content.at(at, at);
            content.write_at(&vec![1; 1 << 20], 0).unwrap();
            content.settle(at);
        }
        assert!(content.inside.lock().unsynced_bytes <= UNSYNCED_BYTES_MAX);
    }
}
