//! One layer of a recording, prepared for crash states: who wrote what where, and from which event on it is durable.
//!
//! ```text
//!   write:  submitted ───── completed ─────────────────────────┐
//!   flush:                       submitted ───── completed ───► durable
//!   may be there: from its submission on      must be there: from there on
//! ```
//!
//! What a guest has published ([`crate::published`]) is written, completed and durable at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use afterimage_trace::{EventKind, Layer, Op, Recording, Role, Run, Sparse, PAGE_BYTES};

use crate::layers::hands_over;
use crate::marks::{bounds, marks, Mark};
use crate::state::{Content, SECTORS_PER_PAGE, SECTOR_BYTES};
use crate::tags::{tag, Tag};
use crate::{ExploreError, Result};

/// Zeroed sectors that are kept at most, of those that ever held anything: 8 GiB of disk, 900 MB of memory.
const ZEROED_SECTORS_MAX: u64 = 1 << 24;

/// One disk or file of the layer.
#[derive(Clone, Debug)]
pub struct Medium {
    /// What it is.
    pub role: Role,
    /// Content before the first write of [`Stream::writes`].
    pub base: Arc<Sparse>,
}

/// One write, discard or write-zeroes.
#[derive(Clone, Debug)]
pub struct Write {
    /// Index into [`Stream::media`].
    pub medium: usize,
    /// First sector touched.
    pub first: u64,
    /// How many are, from there on.
    pub count: u64,
    /// What each sector holds after it, where everything submitted before is there, too.
    pub sectors: Vec<Content>,
    /// Whose content that is, counted from the first; `None`: every sector's. Zeroes are kept only where the disk ever held
    /// anything else. The rest of a disk that is discarded as a whole holds zeroes in each state.
    pub places: Option<Vec<u32>>,
    /// The event of its submission.
    pub submitted: usize,
    /// The event of its completion.
    pub completed: Option<usize>,
    /// The completion of the first flush that covers it.
    pub durable: Option<usize>,
    /// When it was submitted, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// What it is to somebody who looks for trouble.
    pub tag: Tag,
    /// Not a write of data.
    pub zero: bool,
    /// There is all of it after a crash, or nothing: a part of a commit that was handed over (docs/control-disk.md).
    pub whole: bool,
}

impl Write {
    /// The sectors that matter, by place in the write.
    pub fn places(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.sectors.len()).map(|n| self.place(n))
    }

    /// The same with their content.
    pub fn contents(&self) -> impl Iterator<Item = (u32, &Content)> {
        self.places().zip(&self.sectors)
    }

    /// The place of the `n`th of [`Write::sectors`].
    pub fn place(&self, n: usize) -> u32 {
        self.places.as_ref().map_or(n as u32, |places| places[n])
    }

    /// The same without the sectors outside of a range.
    fn part(&self, from: u64, to: u64) -> Self {
        let (first, end) = ((from - self.first) as u32, (to - self.first) as u32);
        let before = |place: u32| match &self.places {
            Some(places) => places.partition_point(|at| *at < place),
            None => place as usize,
        };
        let range = before(first)..before(end);
        let places = self.places.as_ref().map(|all| all[range.clone()].iter().map(|at| at - first).collect());
        let sectors = self.sectors[range].to_vec();
        Self { first: from, count: to - from, sectors, places, ..self.clone() }
    }

    /// In which piece, of those that a crash leaves all or none of, its sectors are, by place in the write. `atomic_sectors` is
    /// [`Stream::atomic_sectors`].
    pub fn unit_of(&self, atomic_sectors: u64) -> impl Fn(u32) -> u64 {
        let (first, whole) = (self.first, self.whole);
        move |sector| if whole { 0 } else { (first + u64::from(sector)) / atomic_sectors.max(1) }
    }
}

/// A flush.
#[derive(Clone, Copy, Debug)]
pub struct Flush {
    /// Index into [`Stream::media`].
    pub medium: usize,
    /// The event of its submission.
    pub submitted: usize,
    /// The event of its completion.
    pub completed: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The layer.
    pub layer: Layer,
    /// Its disks or files. At the storage layer the log, where there is one, is the last.
    pub media: Vec<Medium>,
    /// In the order of submission. What was durable before `begin` is in the media's bases instead.
    pub writes: Vec<Write>,
    /// In the order of completion.
    pub flushes: Vec<Flush>,
    /// What the guest said, in order.
    pub marks: Vec<Mark>,
    /// Crashes are looked for after this event…
    pub begin: usize,
    /// … and up to this one.
    pub end: usize,
    /// Sectors that a disk never tears apart, aligned: see [`crate::model`].
    pub atomic_sectors: u64,
    /// When each event of the recording was.
    pub times_ns: Vec<u64>,
}

/// A request that has not been answered yet.
struct Open {
    /// Its place among the writes, where it is one.
    write: Option<usize>,
    /// Where it flushes: the writes of its medium that had completed when it was submitted.
    covers: Option<Vec<usize>>,
    submitted: usize,
}

struct Pending {
    target: usize,
    op: Op,
    submitted: usize,
    completed: Option<usize>,
    durable: Option<usize>,
}

impl Stream {
    /// Prepares one layer of a recording.
    ///
    /// # Errors
    /// The recording does not have the layer, or contradicts itself.
    pub fn new(recording: &Recording, layer: Layer) -> Result<Self> {
        let mut targets: Vec<_> = recording.of_layer(layer).collect();
        if targets.is_empty() {
            return Err(ExploreError::Usage(format!(
                "the recording has no {} layer: nothing was recorded there",
                match layer {
                    Layer::Guest => "guest",
                    Layer::Storage => "storage",
                }
            )));
        }
        // Disks first, so that a medium's index is its disk's.
        targets.sort_by_key(|(id, target)| match target.role {
            Role::Disk(index) => (0, index, *id),
            Role::Log => (1, 0, *id),
        });
        let index: BTreeMap<_, _> = targets.iter().enumerate().map(|(i, (id, _))| (*id, i)).collect();
        let marks = marks(recording)?;
        let (begin, end) = bounds(&marks, recording.events.len());
        let (pending, flushes) = pair(recording, &index)?;
        let mut media: Vec<Medium> = targets
            .iter()
            .map(|(_, target)| Medium { role: target.role, base: Arc::clone(&target.base) })
            .collect();
        let writes = build(&mut media, pending, begin, recording, layer)?;
        let times_ns = recording.events.iter().map(|event| event.at_ns).collect();
        Ok(Self { layer, media, writes, flushes, marks, begin, end, atomic_sectors: 1, times_ns })
    }

    /// The time of an event; of the last one where it is past the end.
    pub fn at_ns(&self, event: usize) -> u64 {
        self.times_ns.get(event).or(self.times_ns.last()).copied().unwrap_or_default()
    }

    /// Index of the log among the media.
    pub fn log(&self) -> Option<usize> {
        self.media.iter().position(|medium| medium.role == Role::Log)
    }
}

/// Brings submissions and completions together.
fn pair(
    recording: &Recording,
    index: &BTreeMap<afterimage_trace::TargetId, usize>,
) -> Result<(Vec<Pending>, Vec<Flush>)> {
    let mut writes: Vec<Pending> = Vec::new();
    let mut flushes = Vec::new();
    let mut open: BTreeMap<u64, Open> = BTreeMap::new();
    let mut volatile: Vec<Vec<usize>> = vec![Vec::new(); index.len()];
    for (event, entry) in recording.events.iter().enumerate() {
        match &entry.kind {
            EventKind::Submit { target, id, op } => {
                let Some(&target) = index.get(target) else { continue };
                let flushed = match op {
                    Op::Flush => true,
                    Op::Write { flushed, .. } | Op::Zero { flushed, .. } => *flushed,
                };
                let covers = flushed.then(|| volatile[target].clone());
                let write = (*op != Op::Flush).then(|| {
                    writes.push(Pending {
                        target,
                        op: op.clone(),
                        submitted: event,
                        completed: None,
                        durable: None,
                    });
                    writes.len() - 1
                });
                open.insert(*id, Open { write, covers, submitted: event });
            }
            EventKind::Complete { target, id, ok } => {
                let Some(&target) = index.get(target) else { continue };
                let Some(Open { write, covers, submitted }) = open.remove(id) else {
                    return Err(ExploreError::Corrupt(format!(
                        "event {event} of the recording completes request {id}, which is not open"
                    )));
                };
                if !ok {
                    continue;
                }
                if let Some(write) = write {
                    writes[write].completed = Some(event);
                    if covers.is_some() {
                        writes[write].durable = Some(event);
                    } else {
                        volatile[target].push(write);
                    }
                }
                if let Some(covers) = covers {
                    for write in &covers {
                        writes[*write].durable.get_or_insert(event);
                    }
                    volatile[target].retain(|write| writes[*write].durable.is_none());
                    if write.is_none() {
                        flushes.push(Flush { medium: target, submitted, completed: event });
                    }
                }
            }
            // The daemon will take it, whoever dies beside it: it is there from here on, all of it.
            EventKind::Publish { target, runs, .. } => {
                let Some(&target) = index.get(target) else { continue };
                writes.extend(runs.iter().map(|Run { offset, data }| Pending {
                    target,
                    op: Op::Write { offset: *offset, data: Arc::clone(data), flushed: true },
                    submitted: event,
                    completed: Some(event),
                    durable: Some(event),
                }));
            }
            EventKind::Mark { .. } => {}
        }
    }
    Ok((writes, flushes))
}

/// What each sector holds after each write, where it matters.
fn build(
    media: &mut [Medium],
    pending: Vec<Pending>,
    begin: usize,
    recording: &Recording,
    layer: Layer,
) -> Result<Vec<Write>> {
    let written = written(media, &pending)?;
    // As a reader sees it, every write applied in the order of submission.
    let mut cached: Vec<Sparse> = media.iter().map(|m| (*m.base).clone()).collect();
    let mut bases = cached.clone();
    let mut writes = Vec::new();
    let mut last_log_offset = 0;
    let hands_over = layer == Layer::Guest && hands_over(recording);
    for request in pending {
        let medium = request.target;
        let (offset, len, data) = match &request.op {
            Op::Write { offset, data, .. } => (*offset, data.len() as u64, Some(data)),
            Op::Zero { offset, len, .. } => (*offset, *len, None),
            Op::Flush => continue,
        };
        if offset.checked_add(len).is_none_or(|end| end > media[medium].base.len()) {
            return Err(ExploreError::Corrupt(format!(
                "the recording's request at event {} reaches past the end of its disk",
                request.submitted
            )));
        }
        if len == 0 {
            continue;
        }
        let apply = |sparse: &mut Sparse| match data {
            Some(data) => sparse.write_at(data, offset),
            None => sparse.zero_at(offset, len),
        };
        apply(&mut cached[medium]);
        // Durable before anybody looks: part of the base. An older write that is not durable yet must stay below it.
        if request.durable.is_some_and(|durable| durable <= begin) {
            apply(&mut bases[medium]);
            supersede(&mut writes, medium, offset, len);
            continue;
        }
        let first = offset / SECTOR_BYTES as u64;
        let end = (offset + len).div_ceil(SECTOR_BYTES as u64);
        let log = media[medium].role == Role::Log;
        let wrapped = log && offset < last_log_offset;
        if log {
            last_log_offset = offset;
        }
        let places = data.is_none().then(|| written[medium].places(first, end).collect());
        writes.push(Write {
            medium,
            first,
            count: end - first,
            sectors: match (&places, data) {
                (None, Some(data)) => contents(&cached[medium], data, offset, first, end),
                // Whole sectors are zeroes; a part of one keeps its rest.
                (places, _) => places
                    .iter()
                    .flatten()
                    .map(|n: &u32| sector_of(&cached[medium], first + u64::from(*n)))
                    .collect(),
            },
            places,
            submitted: request.submitted,
            completed: request.completed,
            durable: request.durable,
            at_ns: recording.events[request.submitted].at_ns,
            tag: tag(media[medium].role, offset, data.map(|d| &d[..]), wrapped),
            zero: data.is_none(),
            whole: hands_over && matches!(request.op, Op::Write { flushed: true, .. }),
        });
    }
    for (medium, base) in media.iter_mut().zip(bases) {
        medium.base = Arc::new(base);
    }
    Ok(writes)
}

/// Takes the sectors of a range out of writes that are older than one which is in the base already.
fn supersede(writes: &mut Vec<Write>, medium: usize, offset: u64, len: u64) {
    let (from, to) = (offset / SECTOR_BYTES as u64, (offset + len).div_ceil(SECTOR_BYTES as u64));
    let older = std::mem::take(writes);
    for write in older {
        let end = write.first + write.count;
        if write.medium != medium || write.first >= to || end <= from {
            writes.push(write);
            continue;
        }
        if write.first < from {
            writes.push(write.part(write.first, from));
        }
        if to < end {
            writes.push(write.part(to, end));
        }
    }
}

/// Pages of a medium that ever hold anything but zeroes, ascending.
#[derive(Default)]
struct Written(Vec<u64>);

impl Written {
    fn pages(&self, first: u64, end: u64) -> &[u64] {
        let before = |page: u64| self.0.partition_point(|at| *at < page);
        let end = before(end.div_ceil(SECTORS_PER_PAGE));
        &self.0[before(first / SECTORS_PER_PAGE).min(end)..end]
    }

    /// Its sectors from `first` to `end`, counted from `first`.
    fn places(&self, first: u64, end: u64) -> impl Iterator<Item = u32> + '_ {
        let sectors = |page: &u64| page * SECTORS_PER_PAGE..(page + 1) * SECTORS_PER_PAGE;
        let inside = move |sector: &u64| (first..end).contains(sector);
        self.pages(first, end)
            .iter()
            .flat_map(sectors)
            .filter(inside)
            .map(move |sector| (sector - first) as u32)
    }
}

/// By medium; refuses what would not fit into memory.
fn written(media: &[Medium], pending: &[Pending]) -> Result<Vec<Written>> {
    let mut written: Vec<Written> =
        media.iter().map(|medium| Written(medium.base.pages().map(|(page, _)| page).collect())).collect();
    for request in pending {
        if let Op::Write { offset, data, .. } = &request.op {
            let end = offset.saturating_add(data.len() as u64).div_ceil(PAGE_BYTES as u64);
            written[request.target].0.extend(offset / PAGE_BYTES as u64..end);
        }
    }
    for Written(pages) in &mut written {
        pages.sort_unstable();
        pages.dedup();
    }
    let mut zeroed = 0;
    for request in pending {
        let Op::Zero { offset, len, .. } = request.op else { continue };
        // One that reaches past the end is refused as what it is.
        let end = offset.saturating_add(len).min(media[request.target].base.len());
        let (first, end) = (offset / SECTOR_BYTES as u64, end.div_ceil(SECTOR_BYTES as u64));
        zeroed += written[request.target].pages(first, end).len() as u64 * SECTORS_PER_PAGE;
        if zeroed > ZEROED_SECTORS_MAX || end.saturating_sub(first) > u64::from(u32::MAX) {
            return Err(ExploreError::Usage(format!(
                "up to event {} the recording zeroes more than {} GiB that had held something, or more than 2 TiB at once, and that \
                 does not fit into memory: record a COMMAND, or mount options, that discard less",
                request.submitted,
                (ZEROED_SECTORS_MAX * SECTOR_BYTES as u64) >> 30,
            )));
        }
    }
    Ok(written)
}

fn contents(cached: &Sparse, data: &Arc<[u8]>, offset: u64, first: u64, end: u64) -> Vec<Content> {
    (first..end)
        .map(|sector| {
            let start = sector * SECTOR_BYTES as u64;
            let whole = start >= offset && start + SECTOR_BYTES as u64 <= offset + data.len() as u64;
            if whole {
                Content::of(data, (start - offset) as usize)
            } else {
                sector_of(cached, sector)
            }
        })
        .collect()
}

fn sector_of(content: &Sparse, sector: u64) -> Content {
    let mut bytes = [0; SECTOR_BYTES];
    content.read_at(&mut bytes, sector * SECTOR_BYTES as u64);
    Content::owned(&bytes)
}
