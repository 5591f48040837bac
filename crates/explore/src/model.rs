//! Which states a crash may leave: the storage models.
//!
//! A crash happens between two events. Everything that the model calls durable then is there. Of what had been submitted
//! and is not durable:
//!
//! | model | what is durable | of the rest |
//! |---|---|---|
//! | `disk` | what a completed flush of that disk or file covers: it was submitted after the write had completed | for each 512-byte sector the content after any one of the writes to it, or none of them: any subset, any order, multi-sector writes torn anywhere |
//! | `prefix` | every write before one, in the order of submission | nothing |
//! | `guest` | every write that completed | as `disk`: what was in flight when the guest died |
//!
//! The unit that storage keeps or loses is a 512-byte sector, or a larger, aligned one: [`Stream::atomic_sectors`]. Disks
//! promise not to tear a sector, and file systems rely on it. Some rely on more: ext4 writes its superblock in place with
//! the checksum in its second sector, and before Linux 6.10 refuses a commit block that is torn (`jbd2_journal_load`: *journal
//! transaction is corrupt*), so that it needs its 4 KiB blocks whole, as a disk with physical blocks of 4 KiB writes
//! them. That is what the daemon reports to its guests, and what is looked at where a guest's own sectors are passed on. The
//! daemon's log needs nothing but sectors, and below it everything is torn between any two.
//!
//! Disks and files are independent of each other. A cache keeps one version of a unit, so no older version comes back once a
//! newer one is durable.
//!
//! Between two events that make something durable the set of possible states only grows. So a cut right before each of
//! them has all states of the earlier ones, and asks the most of them: all acknowledgements so far.

use std::collections::BTreeMap;
use std::sync::Arc;

use afterimage_trace::Sparse;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::hash;
use crate::state::{digest, Image, SECTOR_BYTES};
use crate::stream::{Stream, Write};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// A disk with a volatile cache.
    Disk,
    /// A disk that keeps the order.
    Prefix,
    /// The death of the guest.
    Guest,
}

impl Model {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Prefix => "prefix",
            Self::Guest => "guest",
        }
    }
}

/// A write that may be lost at a cut.
#[derive(Clone, Debug)]
pub struct Volatile {
    /// Index into [`Stream::writes`].
    pub write: usize,
    /// Sectors of it under something newer that is durable, ascending: they do not matter. Mostly none.
    pub dead: Vec<u32>,
}

/// A moment at which a crash is looked at: right before an event.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The event that does not happen any more.
    pub event: usize,
    /// When it would have happened, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// From this event on everything that is durable here had been submitted.
    pub since: usize,
    /// What is durable, by medium, with its digest.
    pub durable: Vec<(Arc<Sparse>, u128)>,
    /// What may be there, in the order of submission.
    pub volatile: Vec<Volatile>,
    /// Share of the budget: more around commits, superblocks, log headers and wraps.
    pub weight: u32,
}

/// Shares of a cut with something interesting in its volatile writes.
const WEIGHT_INTERESTING: u32 = 4;

/// All cuts of a stream between its begin and its end.
pub fn cuts(stream: &Stream, model: Model) -> Vec<Cut> {
    let becomes_durable = |write: &Write| match model {
        Model::Disk => write.durable,
        Model::Prefix => Some(write.submitted),
        Model::Guest => write.completed,
    };
    // Event → what becomes durable at it.
    let mut steps: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, write) in stream.writes.iter().enumerate() {
        if let Some(event) = becomes_durable(write) {
            steps.entry(event).or_default().push(index);
        }
    }
    steps.entry(stream.end).or_default();
    let mut cursor = Cursor::new(stream);
    let mut cuts = Vec::new();
    for (event, writes) in steps {
        if event > stream.begin && event <= stream.end {
            cuts.push(cursor.cut(event, model, becomes_durable));
        }
        for write in writes {
            cursor.make_durable(write);
        }
    }
    cuts
}

/// What is durable so far.
struct Cursor<'a> {
    stream: &'a Stream,
    durable: Vec<(Arc<Sparse>, u128)>,
    /// The newest durable write of each sector.
    newest: FxHashMap<(usize, u64), usize>,
    /// Writes before this one are durable: nothing to look at again.
    settled: usize,
    /// The event after the newest submission of a durable write.
    since: usize,
}

impl<'a> Cursor<'a> {
    fn new(stream: &'a Stream) -> Self {
        let durable = stream
            .media
            .iter()
            .enumerate()
            .map(|(index, medium)| (Arc::clone(&medium.base), digest(index, &medium.base)))
            .collect();
        Self { stream, durable, newest: FxHashMap::default(), settled: 0, since: stream.begin }
    }

    fn make_durable(&mut self, index: usize) {
        let write = &self.stream.writes[index];
        self.since = self.since.max(write.submitted + 1);
        let (content, digest) = &mut self.durable[write.medium];
        for (place, new) in write.contents() {
            let sector = write.first + u64::from(place);
            let newest = self.newest.entry((write.medium, sector)).or_insert(index);
            if *newest > index {
                continue;
            }
            *newest = index;
            let offset = sector * SECTOR_BYTES as u64;
            let mut old = [0; SECTOR_BYTES];
            content.read_at(&mut old, offset);
            *digest ^= hash::placed(write.medium, sector, hash::content(&old))
                ^ hash::placed(write.medium, sector, new.hash());
            let content = Arc::make_mut(content);
            match new.bytes() {
                Some(bytes) => content.write_at(bytes, offset),
                None => content.zero_at(offset, SECTOR_BYTES as u64),
            }
        }
    }

    fn cut(&mut self, event: usize, model: Model, becomes_durable: impl Fn(&Write) -> Option<usize>) -> Cut {
        let writes = &self.stream.writes;
        let is_durable = |write: &Write| becomes_durable(write).is_some_and(|at| at < event);
        while writes.get(self.settled).is_some_and(is_durable) {
            self.settled += 1;
        }
        let mut volatile = Vec::new();
        if model != Model::Prefix {
            for (index, write) in writes.iter().enumerate().skip(self.settled) {
                if write.submitted >= event {
                    break;
                }
                if is_durable(write) {
                    continue;
                }
                let newer = |sector: u64| {
                    self.newest.get(&(write.medium, sector)).is_some_and(|newest| *newest > index)
                };
                let dead: Vec<u32> = write.places().filter(|n| newer(write.first + u64::from(*n))).collect();
                if dead.len() < write.sectors.len() {
                    volatile.push(Volatile { write: index, dead });
                }
            }
        }
        let interesting = volatile.iter().any(|v| writes[v.write].tag.is_interesting());
        Cut {
            event,
            at_ns: self.stream.at_ns(event),
            since: self.since.min(event),
            durable: self.durable.clone(),
            volatile,
            weight: if interesting { WEIGHT_INTERESTING } else { 1 },
        }
    }
}

/// What a state lacks of a cut's volatile writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Choice {
    /// In the order of submission.
    pub lost: Vec<LostWrite>,
}

/// A write that is not there, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LostWrite {
    /// Index into [`Stream::writes`].
    pub write: usize,
    /// Which sectors of it, as half-open ranges counted from its first; `None`: all.
    pub sectors: Option<Vec<(u32, u32)>>,
}

impl LostWrite {
    /// Whether a sector of the write is lost.
    pub fn contains(&self, sector: u32) -> bool {
        match &self.sectors {
            None => true,
            Some(ranges) => ranges.iter().any(|(from, to)| (*from..*to).contains(&sector)),
        }
    }
}

impl Cut {
    /// The media of a state, for a crash right before the cut's event.
    pub fn state(&self, stream: &Stream, choice: &Choice) -> Vec<Image> {
        self.state_at(stream, choice, self.event)
    }

    /// The volatile writes that had been submitted when the crash came; an earlier one than the cut's has fewer.
    pub fn volatile_at<'a>(
        &'a self,
        stream: &'a Stream,
        crash: usize,
    ) -> impl DoubleEndedIterator<Item = &'a Volatile> {
        self.volatile.iter().filter(move |volatile| stream.writes[volatile.write].submitted < crash)
    }

    /// The earliest event before which a crash can leave the same as one before `crash` with that choice: whatever is there has
    /// been submitted, and nothing else happened on the media until `crash`.
    pub fn since(&self, stream: &Stream, choice: &Choice, crash: usize) -> usize {
        let is_there = |volatile: &Volatile| {
            let lost = choice.lost.binary_search_by_key(&volatile.write, |lost| lost.write);
            lost.map_or(true, |at| choice.lost[at].sectors.is_some())
        };
        let newest = self.volatile_at(stream, crash).rfind(|volatile| is_there(volatile));
        let submitted = newest.map_or(0, |volatile| stream.writes[volatile.write].submitted + 1);
        self.since.max(submitted).min(crash)
    }

    /// The media of a state, for a crash right before an event that is no later than the cut's: what is submitted from there
    /// on is never there, whatever the choice says.
    pub fn state_at(&self, stream: &Stream, choice: &Choice, crash: usize) -> Vec<Image> {
        let mut images: Vec<Image> = self
            .durable
            .iter()
            .enumerate()
            .map(|(medium, (content, digest))| Image::new(medium, Arc::clone(content), *digest))
            .collect();
        let mut lost = choice.lost.iter().peekable();
        for volatile in self.volatile_at(stream, crash) {
            while lost.peek().is_some_and(|l| l.write < volatile.write) {
                lost.next();
            }
            let lost = lost.peek().filter(|l| l.write == volatile.write);
            if lost.is_some_and(|l| l.sectors.is_none()) {
                continue;
            }
            let write = &stream.writes[volatile.write];
            for (n, content) in write.contents() {
                let gone = lost.is_some_and(|l| l.contains(n)) || volatile.dead.binary_search(&n).is_ok();
                if !gone {
                    images[write.medium].set(write.first + u64::from(n), content.clone());
                }
            }
        }
        images
    }
}

/// Digest of a whole state: equal for states with the same bytes.
pub fn state_digest(images: &[Image]) -> u128 {
    images.iter().fold(0, |digest, image| digest ^ image.digest())
}
