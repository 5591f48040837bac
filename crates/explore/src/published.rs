//! Commits that a guest publishes in memory which it has lent (docs/control-disk.md), as a recording has them.
//!
//! ```text
//!   guest    published ─── syncs return, marks ───┐ at most the bound later: they wait for
//!   daemon        └──── looks ─► write, write ─► taken
//! ```
//!
//! | who dies | what is left of it |
//! |---|---|
//! | the guest, and not its daemon | all, from the publication on: the daemon looks once more |
//! | both, before it is taken | of its runs the first ones, as far as they were written: the state is a recovered prefix without it, and marks behind it that are no older than the bound may be missing |
//! | both, later | as of any write that completes as if flushed |
//!
//! A file system publishes one at a time, so only the newest can be missing. That it was taken is a fact of the recording: flushed writes of its runs,
//! byte for byte, in its order.

use std::collections::HashMap;
use std::sync::Arc;

use afterimage_control_disk::PUBLISHED_US_MAX;
use afterimage_trace::{EventKind, Op, Recording, Run, TargetId};

use crate::layers::LAYERS;
use crate::{ExploreError, Result};

/// One.
#[derive(Clone, Debug)]
pub struct Publication {
    /// Its event: behind the guest's store, and in front of every mark that relies on it.
    pub event: usize,
    /// The guest's disk.
    pub target: TargetId,
    /// In which slot its memory was lent: whose it is.
    pub slot: u64,
    /// What belongs where.
    pub runs: Arc<[Run]>,
    /// The daemon's writes of its runs so far: events of submission.
    writes: Vec<usize>,
    /// The event with which the last of them completed.
    taken: Option<usize>,
}

impl Publication {
    /// Whether it was there before that event, and the daemon had not begun to write the last of it.
    pub fn is_pending(&self, event: usize) -> bool {
        let is_to_come = |submitted: &usize| *submitted >= event;
        self.event < event && (self.next().is_some() || self.writes.last().is_some_and(is_to_come))
    }

    fn is_untaken(&self, event: usize) -> bool {
        self.event < event && self.taken.is_none_or(|taken| taken >= event)
    }

    fn next(&self) -> Option<&Run> {
        self.runs.get(self.writes.len())
    }
}

/// Those of a recording.
#[derive(Clone, Debug)]
pub struct Publications {
    all: Vec<Publication>,
    /// Submission of a write by which one is taken → the event of its publication.
    told: HashMap<usize, usize>,
    times_ns: Vec<u64>,
    /// How late somebody may be told at most of what was not taken; `None` where the recording's times are not those of a daemon.
    bound_ns: Option<u64>,
}

impl Publications {
    /// In their order.
    ///
    /// # Errors
    /// The daemon has not taken one before its file system published the next, or before the recording ended in order.
    pub fn of(recording: &Recording) -> Result<Self> {
        let mut all: Vec<Publication> = Vec::new();
        // Of each file system the newest, while it is not taken.
        let mut open: Vec<usize> = Vec::new();
        let (mut told, mut last_writes) = (HashMap::new(), HashMap::new());
        for (event, entry) in recording.events.iter().enumerate() {
            match &entry.kind {
                EventKind::Publish { target, slot, runs } => {
                    if let Some(before) =
                        open.iter().map(|at| &all[*at]).find(|p| (p.target, p.slot) == (*target, *slot))
                    {
                        return Err(forgotten(
                            before,
                            &format!("when the next one was published at event {event}"),
                        ));
                    }
                    open.push(all.len());
                    let (runs, writes) = (Arc::clone(runs), Vec::new());
                    all.push(Publication { event, target: *target, slot: *slot, runs, writes, taken: None });
                }
                EventKind::Submit { target, id, op: Op::Write { offset, data, flushed: true } } => {
                    let is_next = |run: &Run| run.offset == *offset && run.data == *data;
                    let of =
                        |at: &&usize| all[**at].target == *target && all[**at].next().is_some_and(is_next);
                    let Some(at) = open.iter().find(of).copied() else { continue };
                    let publication = &mut all[at];
                    publication.writes.push(event);
                    told.insert(event, publication.event);
                    if publication.next().is_none() {
                        last_writes.insert(*id, at);
                    }
                }
                EventKind::Complete { id, ok: true, .. } => {
                    if let Some(at) = last_writes.remove(id) {
                        all[at].taken = Some(event);
                        open.retain(|open| *open != at);
                    }
                }
                _ => {}
            }
        }
        let is_whole = !recording.about.contains_key("cut");
        let unwritten = |at: &&usize| all[**at].next().is_some();
        if let Some(at) = open.iter().find(unwritten).filter(|_| is_whole) {
            return Err(forgotten(&all[*at], "when the recording ended, its guest dead"));
        }
        let bound_ns = u64::from(PUBLISHED_US_MAX) * 1000;
        Ok(Self {
            all,
            told,
            times_ns: recording.events.iter().map(|event| event.at_ns).collect(),
            bound_ns: (!recording.about.contains_key(LAYERS)).then_some(bound_ns),
        })
    }

    /// All of them.
    pub fn all(&self) -> &[Publication] {
        &self.all
    }

    /// From which event on the guest may have been told that what was submitted at `submitted` is committed, if it publishes it.
    pub fn told(&self, submitted: usize) -> usize {
        self.told.get(&submitted).copied().unwrap_or(submitted)
    }

    /// Marks before that event must be there where guest and daemon die before `crash`: all, where nothing was published that the daemon had not taken;
    /// else those before that was published, and those that were said earlier than the bound before the death.
    pub fn required(&self, crash: usize) -> usize {
        let untaken = self.all.iter().filter(|publication| publication.is_untaken(crash));
        let Some(told) = untaken.map(|publication| publication.event).min() else { return crash };
        let (Some(bound_ns), Some(crash_ns)) =
            (self.bound_ns, self.times_ns.get(crash).or(self.times_ns.last()))
        else {
            return told;
        };
        let recent = self.times_ns.partition_point(|at_ns| at_ns.saturating_add(bound_ns) < *crash_ns);
        told.max(recent).min(crash)
    }
}

fn forgotten(publication: &Publication, when: &str) -> ExploreError {
    ExploreError::Corrupt(format!(
        "the daemon had not taken what was published at event {} in slot {} {when}",
        publication.event, publication.slot
    ))
}
