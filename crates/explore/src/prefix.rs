//! The oracle of the ordering contracts: what the disks of a group hold after exactly the first k of the guest's requests.
//!
//! ```text
//!   guest layer of a recording ─► requests in the order of submission ─► after each: digest of all disks ─► k
//!                              └► flushes: when asked, when answered, which requests they cover
//! ```
//!
//! Requests are counted as the redo log counts them: each write, discard and write-zeroes gets one number, and a write
//! that is larger than the log's largest record gets one for each part, so that a crash may leave its first parts only.
//! Counting starts at 0: nothing of the guest's.
//!
//! The order of submission is the order of numbers where the group has one queue in all: a queue's batch is appended in
//! its order, and a flush appends what was submitted before it. With several queues (or disks) requests in flight together
//! get their numbers in either order; then [`Prefixes::of`] takes the order from the log's own records in the storage
//! layer, as far as it is one that the guest's stream allows.

mod logged;
mod order;

use afterimage_format::log::RECORDS_OFFSET;
use afterimage_order::redo::payload_bytes_max;
use afterimage_trace::{EventKind, Layer, Op, Recording, Role, Sparse, PAGE_BYTES};
use rustc_hash::FxHashMap;
use std::ops::RangeInclusive;

pub(crate) use logged::{records, Logged};
pub(crate) use order::as_taken;

use crate::published::Publications;
use crate::state::{digest, SECTOR_BYTES};
use crate::{hash, Result};

/// One place in the guest's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// So many requests (or parts) are there, and nothing after them.
    pub k: usize,
    /// The event of the submission of the last of them; `None` for the empty prefix.
    pub event: Option<usize>,
    /// Whether the last of them is there as a whole, not its first parts only.
    pub whole: bool,
    /// Digest of all disks; a disk's index is its medium's number.
    pub digest: u128,
}

/// A guest's flush, or a write that completes as if flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// The event of its submission.
    pub submitted: usize,
    /// When it was submitted, in nanoseconds since the recording began.
    pub submitted_ns: u64,
    /// The event of its completion, and when it was.
    pub completed: Option<(usize, u64)>,
    /// What it promises: everything that had completed when it was submitted (and itself, for a write) is in the first
    /// so many requests.
    pub covers: usize,
}

/// Acknowledged flushes that a state lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// How many.
    pub count: usize,
    /// The first of them: index into [`Prefixes::flushes`].
    pub first: usize,
    /// The last of them.
    pub last: usize,
    /// From the answer to the first to the last's being asked, in nanoseconds; 0 where they overlap. The time over which
    /// acknowledgements were certainly given that are lost.
    pub spread_ns: u64,
}

/// Why a state is none that the contract allows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// The content is that of no prefix.
    #[error("the disks hold no prefix of the guest's requests")]
    NoPrefix,
    /// Journals are retained, and the content is not what the guest's own recovery makes of any prefix.
    #[error("{0}")]
    NotRecovered(String),
    /// It is that of requests that had not been made.
    #[error("the disks hold the first {k} requests, and only {submitted} had been made")]
    Future {
        /// The shortest prefix with this content.
        k: usize,
        /// Requests made before the crash.
        submitted: usize,
    },
    /// Something that had been declared durable is not there.
    #[error("the disks hold the first {k} requests, and {floor} had been declared durable")]
    Durable {
        /// What is there.
        k: usize,
        /// What has to be.
        floor: usize,
    },
    /// Acknowledgements of more than a window are lost.
    #[error(
        "the disks hold the first {k} requests: {count} acknowledged flushes are lost, given over {spread_us} µs, and the \
         window is {window_us} µs"
    )]
    Window {
        /// What is there.
        k: usize,
        /// Lost flushes.
        count: usize,
        /// Microseconds from the first lost acknowledgement to the last.
        spread_us: u64,
        /// The window in microseconds.
        window_us: u64,
    },
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Prefixes {
    prefixes: Vec<Prefix>,
    flushes: Vec<Flush>,
    /// Digest → all k with that content, ascending.
    found: FxHashMap<u128, Vec<u32>>,
    /// In the order of numbers: events of submission.
    submitted: Vec<usize>,
    /// By flush: the most that it and any earlier one covers.
    covers_most: Vec<usize>,
    events: usize,
    published: Publications,
}

/// One number: a request or a part of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub disk: usize,
    op: &'a Op,
    pub offset: u64,
    pub len: u64,
    pub submitted: usize,
    /// The event from which on it counts: its submission, where nobody knows better.
    pub taken: (usize, u64),
    id: u64,
    last: bool,
}

impl Prefixes {
    /// All prefixes of a recording's guest layer.
    ///
    /// # Errors
    /// The guest layer is not the disks of one group, or contradicts itself.
    pub fn of(recording: &Recording) -> Result<Self> {
        let disks = crate::layers::guest_disks(recording)?;
        let log = recording.of_layer(Layer::Storage).find(|(_, target)| target.role == Role::Log);
        let area_bytes = log.map(|(_, target)| target.bytes.saturating_sub(RECORDS_OFFSET));
        let mut steps = steps(recording, &disks, area_bytes.map(payload_bytes_max));
        if let Some((id, _)) = log {
            order::as_logged(&mut steps, recording, id);
        }
        Self::of_steps(recording, &disks, &steps)
    }

    /// The same of requests whose order is known.
    pub(crate) fn of_steps(
        recording: &Recording,
        disks: &[afterimage_trace::TargetId],
        steps: &[Step<'_>],
    ) -> Result<Self> {
        let bases = disks.iter().map(|id| (*recording.targets[id.0 as usize].base).clone()).collect();
        let prefixes = digests(steps, bases);
        let mut found: FxHashMap<u128, Vec<u32>> = FxHashMap::default();
        for prefix in &prefixes {
            found.entry(prefix.digest).or_default().push(prefix.k as u32);
        }
        let flushes = flushes(recording, disks, steps);
        let submitted = steps.iter().map(|step| step.submitted).collect();
        let covers_most = flushes
            .iter()
            .scan(0, |most: &mut usize, flush| {
                *most = flush.covers.max(*most);
                Some(*most)
            })
            .collect();
        let (events, published) = (recording.events.len(), Publications::of(recording)?);
        Ok(Self { prefixes, flushes, found, submitted, covers_most, events, published })
    }

    /// How many requests there are: the greatest k.
    pub fn last(&self) -> usize {
        self.submitted.len()
    }

    /// The prefix of the first `k` requests.
    ///
    /// # Panics
    /// Where `k` is more than [`Prefixes::last`].
    pub fn prefix(&self, k: usize) -> &Prefix {
        &self.prefixes[k]
    }

    /// All k whose content has that digest, ascending; none: it is no prefix.
    pub fn find(&self, digest: u128) -> impl DoubleEndedIterator<Item = usize> + Clone + '_ {
        self.found.get(&digest).into_iter().flatten().map(|k| *k as usize)
    }

    /// The guest's flushes, in the order of submission.
    pub fn flushes(&self) -> &[Flush] {
        &self.flushes
    }

    /// The submission of the first request that prefix `k` lacks: all writes submitted before that event are in the
    /// prefix. The number of events, where it lacks none.
    pub fn covered(&self, k: usize) -> usize {
        self.submitted[k..].iter().copied().min().unwrap_or(self.events)
    }

    /// Marks before that event must be there where a crash before `crash` leaves prefix `k`, and may: those before anything that it lacks was asked for, or
    /// published.
    pub fn promised(&self, k: usize, crash: usize) -> usize {
        let lacking = self.submitted[k..].iter().filter(|submitted| **submitted < crash);
        let told = lacking.map(|submitted| self.published.told(*submitted)).min().unwrap_or(crash);
        told.min(self.published.required(crash))
    }

    /// The submissions of the requests that prefix `k` lacks (in part or whole), in the order of numbers.
    pub fn lacking(&self, k: usize) -> &[usize] {
        &self.submitted[k..]
    }

    /// How many of the requests could be there at a crash before `event`: all numbers up to the last one submitted.
    pub fn submitted(&self, event: usize) -> usize {
        self.submitted.iter().rposition(|submitted| *submitted < event).map_or(0, |at| at + 1)
    }

    /// The acknowledged flushes that prefix `k` lacks, at a crash before `event`.
    pub fn lost(&self, k: usize, event: usize) -> Option<Lost> {
        let lost = |flush: &Flush| flush.covers > k && flush.completed.is_some_and(|(at, _)| at < event);
        // A crash loses recent ones: from the end, as far as any can be lost.
        let known = self.flushes.partition_point(|flush| flush.submitted < event);
        let mut found: Option<Lost> = None;
        let (mut answered_ns, mut asked_ns) = (u64::MAX, 0);
        for (index, flush) in self.flushes[..known].iter().enumerate().rev() {
            if self.covers_most[index] <= k {
                break;
            }
            if !lost(flush) {
                continue;
            }
            answered_ns = answered_ns.min(flush.completed.map_or(u64::MAX, |(_, at_ns)| at_ns));
            asked_ns = asked_ns.max(flush.submitted_ns);
            let entry = found.get_or_insert(Lost { count: 0, first: index, last: index, spread_ns: 0 });
            entry.count += 1;
            entry.first = index;
        }
        found.map(|lost| Lost { spread_ns: asked_ns.saturating_sub(answered_ns), ..lost })
    }

    /// Judges what a crash before any of the events `crash` would have left, after recovery: which prefix it is. Where several
    /// have the same content, the longest that could be there counts, since nobody can tell them apart.
    ///
    /// `floor` is what has to be there at least; `window_ns` what may be lost of acknowledgements: 0 for nothing at all.
    ///
    /// # Errors
    /// How the contract is broken.
    pub fn judge(
        &self,
        digest: u128,
        crash: RangeInclusive<usize>,
        floor: usize,
        window_ns: u64,
    ) -> std::result::Result<usize, Breach> {
        let k = self.longest(self.find(digest), crash.clone())?;
        if k < floor {
            return Err(Breach::Durable { k, floor });
        }
        self.within(k, *crash.end(), window_ns)
    }

    /// Of prefixes that look the same, ascending, the longest that could be there at the last of those crashes; one of them could
    /// at the first.
    pub(crate) fn longest(
        &self,
        mut ks: impl DoubleEndedIterator<Item = usize> + Clone,
        crash: RangeInclusive<usize>,
    ) -> std::result::Result<usize, Breach> {
        let shortest = ks.clone().next().ok_or(Breach::NoPrefix)?;
        let submitted = self.submitted(*crash.start());
        if shortest > submitted {
            return Err(Breach::Future { k: shortest, submitted });
        }
        let submitted = self.submitted(*crash.end());
        Ok(ks.rfind(|k| *k <= submitted).unwrap_or(shortest))
    }

    /// The window rule, for a crash before `event` that leaves prefix `k`.
    pub(crate) fn within(
        &self,
        k: usize,
        event: usize,
        window_ns: u64,
    ) -> std::result::Result<usize, Breach> {
        match self.lost(k, event) {
            Some(lost) if lost.spread_ns > window_ns || window_ns == 0 => Err(Breach::Window {
                k,
                count: lost.count,
                spread_us: lost.spread_ns / 1000,
                window_us: window_ns / 1000,
            }),
            _ => Ok(k),
        }
    }
}

/// The parts that get numbers of their own, as offset and length in bytes.
pub(crate) fn parts(op: &Op, part_bytes: Option<u64>) -> impl Iterator<Item = (u64, u64)> {
    let (offset, len, part) = match op {
        Op::Write { offset, data, .. } => {
            let len = data.len() as u64;
            (*offset, len, part_bytes.unwrap_or(len))
        }
        Op::Zero { offset, len, .. } => (*offset, *len, *len),
        Op::Flush => (0, 0, 0),
    };
    let part = part.max(1);
    (0..len.div_ceil(part)).map(move |i| (offset + i * part, part.min(len - i * part)))
}

impl<'a> Step<'a> {
    /// The bytes that it stores; `None`: zeroes.
    pub fn data(&self) -> Option<&'a [u8]> {
        match self.op {
            Op::Write { offset, data, .. } => {
                let from = (self.offset - offset) as usize;
                Some(&data[from..from + self.len as usize])
            }
            _ => None,
        }
    }
}

/// Everything that gets a number, in the order of submission.
pub(crate) fn steps<'a>(
    recording: &'a Recording,
    disks: &[afterimage_trace::TargetId],
    part_bytes: Option<u64>,
) -> Vec<Step<'a>> {
    let refused = crate::layers::refused_ids(recording);
    let mut steps = Vec::new();
    for (submitted, event) in recording.events.iter().enumerate() {
        let EventKind::Submit { target, id, op } = &event.kind else { continue };
        let Some(disk) = disks.iter().position(|disk| disk == target) else { continue };
        if refused.contains(id) {
            continue;
        }
        for (offset, len) in parts(op, part_bytes) {
            steps.push(Step {
                disk,
                op,
                offset,
                len,
                submitted,
                taken: (submitted, 0),
                id: *id,
                last: false,
            });
        }
        if let Some(step) = steps.last_mut().filter(|step| step.id == *id) {
            step.last = true;
        }
    }
    steps
}

fn digests(steps: &[Step<'_>], mut disks: Vec<Sparse>) -> Vec<Prefix> {
    let mut now = disks.iter().enumerate().fold(0, |all, (index, base)| all ^ digest(index, base));
    let mut prefixes = vec![Prefix { k: 0, event: None, whole: true, digest: now }];
    for (k, step) in (1..).zip(steps) {
        now ^= change(&mut disks[step.disk], step.disk, step.offset, step.len, step.data());
        prefixes.push(Prefix { k, event: Some(step.submitted), whole: step.last, digest: now });
    }
    prefixes
}

/// Stores bytes (`None`: zeroes) and says by what the disk's digest changes.
pub(crate) fn change(content: &mut Sparse, disk: usize, offset: u64, len: u64, data: Option<&[u8]>) -> u128 {
    if data.is_some() {
        return replace(content, disk, offset, len, data);
    }
    // Page by page of what is there: a whole disk may be discarded, and most of it holds nothing.
    let (mut digest, page, end) = (0, PAGE_BYTES as u64, offset + len);
    let mut next = content.next_page(offset / page);
    while let Some(index) = next.filter(|index| index * page < end) {
        let (from, to) = (offset.max(index * page), end.min((index + 1) * page));
        digest ^= replace(content, disk, from, to - from, None);
        next = content.next_page(index + 1);
    }
    digest
}

fn replace(content: &mut Sparse, disk: usize, offset: u64, len: u64, data: Option<&[u8]>) -> u128 {
    let mut old = vec![0; len as usize];
    content.read_at(&mut old, offset);
    match data {
        Some(data) => content.write_at(data, offset),
        None => content.zero_at(offset, len),
    }
    let first = offset / SECTOR_BYTES as u64;
    let sectors = (first..).zip(old.chunks(SECTOR_BYTES)).enumerate();
    sectors.fold(0, |digest, (i, (sector, old))| {
        let new = data.map_or(0, |data| hash::content(&data[i * SECTOR_BYTES..][..old.len()]));
        digest ^ hash::placed(disk, sector, hash::content(old)) ^ hash::placed(disk, sector, new)
    })
}

/// What each flush promises, by what had completed when it was submitted.
fn flushes(recording: &Recording, disks: &[afterimage_trace::TargetId], steps: &[Step<'_>]) -> Vec<Flush> {
    let mut ends: FxHashMap<u64, usize> = FxHashMap::default();
    for (k, step) in (1..).zip(steps) {
        let end = ends.entry(step.id).or_default();
        *end = k.max(*end);
    }
    let mut flushes: Vec<Flush> = Vec::new();
    let mut open: FxHashMap<u64, usize> = FxHashMap::default();
    let mut completed = 0;
    for (event, entry) in recording.events.iter().enumerate() {
        match &entry.kind {
            EventKind::Submit { target, id, op } if disks.contains(target) => {
                let flushed = match op {
                    Op::Flush => true,
                    Op::Write { flushed, .. } | Op::Zero { flushed, .. } => *flushed,
                };
                if flushed {
                    let covers = completed.max(ends.get(id).copied().unwrap_or(0));
                    open.insert(*id, flushes.len());
                    flushes.push(Flush {
                        submitted: event,
                        submitted_ns: entry.at_ns,
                        completed: None,
                        covers,
                    });
                }
            }
            EventKind::Complete { target, id, ok: true } if disks.contains(target) => {
                completed = completed.max(ends.get(id).copied().unwrap_or(0));
                if let Some(flush) = open.remove(id) {
                    flushes[flush].completed = Some((event, entry.at_ns));
                }
            }
            _ => {}
        }
    }
    flushes
}
