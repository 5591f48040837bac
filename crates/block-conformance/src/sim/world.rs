//! The media and their trace.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use afterimage_block::Medium;
use parking_lot::{Mutex, MutexGuard};

use super::content::{Content, PAGE_BYTES};

pub(super) const SECTOR_BYTES: usize = 512;

/// What an injected error hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Writes and zeroing.
    Write,
    /// Syncs.
    Sync,
    /// Reads.
    Read,
}

/// One entry of the trace.
#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) medium: usize,
    pub(super) effect: Effect,
}

#[derive(Clone, Debug)]
pub(super) enum Effect {
    Write {
        offset: usize,
        data: Arc<[u8]>,
    },
    Zero {
        offset: usize,
        len: usize,
    },
    Sync,
    /// A sync failed: what these pages had got since the last good one stays in the cache, clean.
    Lose {
        pages: BTreeSet<usize>,
    },
}

#[derive(Default)]
pub(super) struct State {
    /// Content at the start of the trace, all durable.
    pub(super) base: Vec<Content>,
    /// What a read sees.
    pub(super) cached: Vec<Content>,
    pub(super) trace: Vec<Op>,
    /// By medium: clean pages of the cache with sectors that storage does not hold, and which.
    lost: Vec<BTreeMap<usize, BTreeSet<usize>>>,
    /// By medium: whether the host's memory says that a sync failed, or that a process died in one.
    noted: Vec<bool>,
    /// Operations that may still happen before the process is dead.
    budget: Option<usize>,
    faults: Vec<(usize, Fault, usize, io::ErrorKind)>,
}

/// Several media with one history. Cheap to clone: a handle.
#[derive(Clone, Default)]
pub struct SimWorld(Arc<Mutex<State>>);

impl SimWorld {
    /// Media with this content, all durable.
    pub fn new(contents: Vec<Vec<u8>>) -> Self {
        Self::of(contents.iter().map(|bytes| Content::new(bytes)).collect())
    }

    pub(super) fn of(contents: Vec<Content>) -> Self {
        let (lost, noted) = (vec![BTreeMap::new(); contents.len()], vec![false; contents.len()]);
        Self(Arc::new(Mutex::new(State {
            cached: contents.clone(),
            base: contents,
            lost,
            noted,
            ..State::default()
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// One of the media, as its user sees it.
    pub fn medium(&self, index: usize) -> Arc<SimMedium> {
        let len = self.state().cached[index].len();
        Arc::new(SimMedium { world: self.clone(), index, len })
    }

    /// How many operations the trace has: cut points are `0..=ops()`.
    pub fn ops(&self) -> usize {
        self.state().trace.len()
    }

    /// What a read of the medium sees now.
    pub fn cached(&self, index: usize) -> Vec<u8> {
        self.state().cached[index].to_vec()
    }

    /// The process dies in its `ops`-th operation from now, and is dead at once where that is 0: that one and all later ones
    /// answer an error; a write is done up to a page boundary within it (the kernel stops copying there when a process is killed).
    pub fn halt_after(&self, ops: usize) {
        self.state().budget = Some(ops);
    }

    /// Whether the process has died.
    pub fn halted(&self) -> bool {
        self.state().budget == Some(0)
    }

    /// A new process may act.
    pub fn revive(&self) {
        self.state().budget = None;
    }

    /// Makes the operation of that kind on a medium after `skip` more of them fail with `error`, once.
    pub fn fail(&self, medium: usize, fault: Fault, skip: usize, error: io::ErrorKind) {
        self.state().faults.push((medium, fault, skip, error));
    }

    /// Takes back the errors that have not hit yet.
    pub fn heal(&self) {
        self.state().faults.clear();
    }

    /// The state before the trace's first operation, as a world of its own.
    pub fn rewound(&self) -> Self {
        Self::of(self.state().base.clone())
    }

    /// What reads show now, all durable, as a world of its own.
    pub fn settled(&self) -> Self {
        Self::of(self.state().cached.clone())
    }

    /// One line per operation from `from` on, for the report of a failure.
    pub fn describe(&self, from: usize) -> String {
        let state = self.state();
        let lines = state.trace.iter().enumerate().skip(from).map(|(i, op)| match &op.effect {
            Effect::Write { offset, data } => {
                format!("{i}: medium {} write {offset}+{}\n", op.medium, data.len())
            }
            Effect::Zero { offset, len } => format!("{i}: medium {} zero {offset}+{len}\n", op.medium),
            Effect::Sync => format!("{i}: medium {} sync\n", op.medium),
            Effect::Lose { pages } => format!("{i}: medium {} sync failed, lost {pages:?}\n", op.medium),
        });
        lines.collect()
    }
}

impl State {
    fn fault(&mut self, medium: usize, kind: Fault) -> io::Result<()> {
        let mut hit = None;
        for (i, (m, k, skip, error)) in self.faults.iter_mut().enumerate() {
            if *m == medium && *k == kind {
                if *skip == 0 {
                    hit = Some((i, *error));
                    break;
                }
                *skip -= 1;
            }
        }
        match hit {
            None => Ok(()),
            Some((i, error)) => {
                self.faults.remove(i);
                Err(error.into())
            }
        }
    }

    /// Spends one operation; `Some(true)`: the process dies in this one.
    fn spend(&mut self) -> io::Result<bool> {
        match &mut self.budget {
            None => Ok(false),
            Some(0) => Err(io::Error::other("the process is dead")),
            Some(left) => {
                *left -= 1;
                Ok(*left == 0)
            }
        }
    }

    fn record(&mut self, medium: usize, effect: Effect) {
        let target = &mut self.cached[medium];
        match &effect {
            Effect::Write { offset, data } => target.write(*offset, data),
            Effect::Zero { offset, len } => target.zero(*offset, *len),
            Effect::Sync => {}
            Effect::Lose { .. } => {}
        }
        let touched = effect.touches();
        self.trace.push(Op { medium, effect });
        // A page that is written in part is dirty as a whole.
        let pages = touched.start / PAGE_BYTES..touched.end.div_ceil(PAGE_BYTES);
        for page in pages.filter(|_| !touched.is_empty()) {
            self.dirty(medium, page);
        }
    }

    /// What storage does not hold of a page is to be written again.
    fn dirty(&mut self, medium: usize, page: usize) {
        for sector in self.lost[medium].remove(&page).unwrap_or_default() {
            let offset = sector * SECTOR_BYTES;
            let content = &self.cached[medium];
            let mut data = vec![0; SECTOR_BYTES.min(content.len() - offset)];
            content.read(offset, &mut data);
            let data = data.into();
            self.trace.push(Op { medium, effect: Effect::Write { offset, data } });
        }
    }

    /// A sync of a medium fails, as on Linux: what was to be written is clean afterwards, and storage has some of it.
    fn lose(&mut self, medium: usize) {
        let mut lost: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let since = self.trace.iter().rev().filter(|op| op.medium == medium);
        for op in since.take_while(|op| !matches!(op.effect, Effect::Sync)) {
            let touched = op.effect.touches();
            for sector in touched.start / SECTOR_BYTES..touched.end.div_ceil(SECTOR_BYTES) {
                lost.entry(sector * SECTOR_BYTES / PAGE_BYTES).or_default().insert(sector);
            }
        }
        // Which pages, follows from the trace, so that a seed repeats.
        lost.retain(|page, _| (page + self.trace.len()) % 4 > 0);
        self.record(medium, Effect::Lose { pages: lost.keys().copied().collect() });
        for (page, sectors) in lost {
            self.lost[medium].entry(page).or_default().extend(sectors);
        }
    }
}

impl Effect {
    /// The bytes that it changes.
    fn touches(&self) -> Range<usize> {
        match self {
            Self::Write { offset, data } => *offset..offset + data.len(),
            Self::Zero { offset, len } => *offset..offset + len,
            Self::Sync | Self::Lose { .. } => 0..0,
        }
    }
}

/// One medium of a [`SimWorld`].
pub struct SimMedium {
    world: SimWorld,
    index: usize,
    len: usize,
}

impl SimMedium {
    fn range(&self, offset: u64, len: u64) -> io::Result<(usize, usize)> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len as u64 => Ok((offset as usize, len as usize)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "outside the medium")),
        }
    }
}

impl Medium for SimMedium {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let (offset, len) = self.range(offset, buf.len() as u64)?;
        let mut state = self.world.state();
        state.fault(self.index, Fault::Read)?;
        debug_assert_eq!(buf.len(), len);
        state.cached[self.index].read(offset, buf);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let (offset, len) = self.range(offset, buf.len() as u64)?;
        let mut state = self.world.state();
        state.fault(self.index, Fault::Write)?;
        if state.spend()? {
            // Somewhere in the middle, at a page of the file; which one follows from the trace, so that a seed repeats.
            let pages = len.div_ceil(PAGE_BYTES) + 1;
            let keep = state.trace.len() % pages * PAGE_BYTES;
            let kept = (keep.saturating_sub(offset % PAGE_BYTES)).min(len);
            if kept > 0 {
                state.record(self.index, Effect::Write { offset, data: buf[..kept].into() });
            }
            return Err(io::Error::other("the process died here"));
        }
        state.record(self.index, Effect::Write { offset, data: buf.into() });
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64, _unmap: bool) -> io::Result<()> {
        let (offset, len) = self.range(offset, len)?;
        let mut state = self.world.state();
        state.fault(self.index, Fault::Write)?;
        if state.spend()? {
            return Err(io::Error::other("the process died here"));
        }
        state.record(self.index, Effect::Zero { offset, len });
        Ok(())
    }

    fn settle(&self) -> io::Result<()> {
        let noted: Vec<usize> = {
            let state = self.world.state();
            let newest = state.trace.iter().rev().find(|op| op.medium == self.index);
            if !state.noted[self.index] && newest.is_none_or(|op| matches!(op.effect, Effect::Sync)) {
                // A sync of nothing.
                return Ok(());
            }
            let lost = state.lost[self.index].keys();
            lost.copied().filter(|_| state.noted[self.index]).collect()
        };
        for page in noted {
            let mut state = self.world.state();
            state.fault(self.index, Fault::Write)?;
            if state.spend()? {
                return Err(io::Error::other("the process died here"));
            }
            state.dirty(self.index, page);
        }
        self.sync()?;
        self.world.state().noted[self.index] = false;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.world.state();
        let failed = state.fault(self.index, Fault::Sync);
        if failed.is_err() {
            state.lose(self.index);
            // Before anybody hears of it, in the host's memory.
            state.noted[self.index] = true;
        }
        // A process that dies in a sync may have taken its error with it.
        if state.budget == Some(1) {
            state.noted[self.index] = true;
        } else {
            failed?;
        }
        if state.spend()? {
            return Err(io::Error::other("the process died here"));
        }
        state.record(self.index, Effect::Sync);
        Ok(())
    }
}
