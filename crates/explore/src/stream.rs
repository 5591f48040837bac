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

use afterimage_trace::{EventKind, Layer, Op, Recording, Role, Run, Sparse};

use crate::layers::hands_over;
use crate::marks::{bounds, marks, Mark};
use crate::state::{Content, SECTOR_BYTES};
use crate::tags::{tag, Tag};
use crate::{ExploreError, Result};

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
    /// What each sector holds after it, where everything submitted before is there, too.
    pub sectors: Vec<Content>,
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
        writes.push(Write {
            medium,
            first,
            sectors: contents(&cached[medium], data, offset, first, end),
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
        let end = write.first + write.sectors.len() as u64;
        if write.medium != medium || write.first >= to || end <= from {
            writes.push(write);
            continue;
        }
        let part = |from: u64, to: u64| {
            let sectors = write.sectors[(from - write.first) as usize..(to - write.first) as usize].to_vec();
            Write { first: from, sectors, ..write.clone() }
        };
        if write.first < from {
            writes.push(part(write.first, from));
        }
        if to < end {
            writes.push(part(to, end));
        }
    }
}

fn contents(cached: &Sparse, data: Option<&Arc<[u8]>>, offset: u64, first: u64, end: u64) -> Vec<Content> {
    let Some(data) = data else {
        // Whole sectors are zeroes; a part of one keeps its rest.
        return (first..end).map(|sector| sector_of(cached, sector)).collect();
    };
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
