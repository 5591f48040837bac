//! One queue's reads: what the log has is copied at once, what it has not is read below.
//!
//! A guest decides how scattered a range is and how much it reads at once, so a read becomes parts below only as long as
//! there are fewer than [`PARTS_MAX`] of the lane; the others take turns, a [`Step`] each, and none waits for the whole of
//! another.

use std::collections::VecDeque;
use std::sync::Arc;

use afterimage_block::{Admitted, BlockError, Completion, Lane, Sector, Token, SECTOR_BYTES};
use slab::Slab;

use super::engine::Redo;
use super::extents::Source;
use super::log::RedoLog;
use crate::sequence::LoggedDisk;

/// Parts of reads that one lane has below before further reads wait. As many as the largest queue has requests: reads of
/// one part never wait.
const PARTS_MAX: usize = 1024;
/// What one step of a read may add to them, and how many entries of the index it looks at with the shard locked, which it is while
/// [`STEP_BYTES`] of the log are read, too: who appends waits that long, and nobody's flush.
const STEP_PARTS: usize = 64;
const STEP_EXTENTS: usize = 256;
/// What one step reads from the log: the lane's scratch memory.
const STEP_BYTES: usize = 256 << 10;
/// Steps between two chances to answer, as long as there is something to answer.
const TURN_STEPS: usize = 16;
/// What a request of the layer below takes there and here, in bytes, roughly, without its segments.
const PART_BYTES: usize = 768;

/// The most memory that reads of a lane take, in bytes: scratch and parts.
pub(super) const BYTES_MAX: usize = STEP_BYTES + (PARTS_MAX + STEP_PARTS) * PART_BYTES;

/// A guest read on its way.
struct Reading {
    token: Token,
    /// Parts below.
    parts_left: usize,
    /// What nobody has looked at yet.
    rest: Option<Rest>,
    result: Result<(), BlockError>,
}

/// The end of a read's range.
struct Rest {
    next: u64,
    end: u64,
    whole: Admitted,
}

/// The reads of a lane.
pub(super) struct Reads {
    redo: Arc<Redo>,
    disk: LoggedDisk,
    reading: Slab<Reading>,
    /// Parts of all reads below.
    parts: usize,
    /// Reads with a rest, in the order of their turns.
    waiting: VecDeque<usize>,
    step: Step,
}

impl Reads {
    pub fn new(redo: Arc<Redo>, disk: LoggedDisk) -> Self {
        Self { redo, disk, reading: Slab::new(), parts: 0, waiting: VecDeque::new(), step: Step::default() }
    }

    /// Reads that have not been answered.
    pub fn len(&self) -> usize {
        self.reading.len()
    }

    /// Whether one waits for its turn.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A read begins.
    pub fn take(&mut self, request: Admitted, lower: &mut dyn Lane, done: &mut Vec<Completion>) {
        if self.redo.log.newest(self.disk).is_empty() {
            let (token, result) = (request.token, Ok(()));
            let read = self.reading.insert(Reading { token, parts_left: 1, rest: None, result });
            self.parts += 1;
            lower.take(request.with_token(Token(read as u64)));
            return;
        }
        let start = request.sector.0;
        let end = start + request.sectors;
        let (token, result) = (request.token, Ok(()));
        let rest = Some(Rest { next: start, end, whole: request });
        let read = self.reading.insert(Reading { token, parts_left: 0, rest, result });
        self.waiting.push_back(read);
        self.go_on(lower, done);
    }

    /// Gives waiting reads their turns while there is room for parts. Where it stops before that, there is something to
    /// answer, and the next [`Lane::reap`] goes on.
    pub fn go_on(&mut self, lower: &mut dyn Lane, done: &mut Vec<Completion>) {
        let mut steps = 0;
        while self.parts < PARTS_MAX && (steps < TURN_STEPS || done.is_empty()) {
            let Some(read) = self.waiting.pop_front() else { break };
            steps += 1;
            if self.read_on(read, lower) {
                self.waiting.push_back(read);
            } else {
                self.finish(read, done);
            }
        }
    }

    /// One step of a read. Returns whether there is a rest.
    fn read_on(&mut self, read: usize, lower: &mut dyn Lane) -> bool {
        let Some(Reading { rest: Some(rest), parts_left, result, .. }) = self.reading.get_mut(read) else {
            return false;
        };
        if result.is_ok() {
            *result = self.step.look(&self.redo.log, self.disk, rest);
        }
        if result.is_err() {
            // Also that of a part: the rest would change nothing.
            self.reading[read].rest = None;
            return false;
        }
        let mut from = 0;
        for (offset, len, source) in &self.step.copies {
            match source {
                Copied::Zeroes => rest.whole.buffers.fill_zero(*offset, *len),
                Copied::Log => {
                    rest.whole.buffers.copy_from(*offset, &self.step.scratch[from..from + len]);
                    from += len;
                }
            }
        }
        for (sector, sectors) in self.step.gaps.drain(..) {
            *parts_left += 1;
            self.parts += 1;
            lower.take(rest.whole.part(Token(read as u64), Sector(sector), sectors));
        }
        let more = rest.next < rest.end;
        if !more {
            self.reading[read].rest = None;
        }
        more
    }

    /// Completes a read of which nothing is left.
    fn finish(&mut self, read: usize, done: &mut Vec<Completion>) {
        if self.reading.get(read).is_some_and(|r| r.parts_left == 0 && r.rest.is_none()) {
            let reading = self.reading.remove(read);
            done.push(Completion { token: reading.token, result: reading.result });
        }
    }

    /// The layer below has answered a part.
    pub fn part_done(&mut self, part: Completion, done: &mut Vec<Completion>) {
        let read = part.token.0 as usize;
        let reading = self.reading.get_mut(read).expect("the layer below answers what it was asked, once");
        self.parts -= 1;
        reading.parts_left -= 1;
        if reading.result.is_ok() {
            reading.result = part.result;
        }
        self.finish(read, done);
    }
}

/// What a part of a read that is not below gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    Log,
    Zeroes,
}

/// One look into the index on behalf of a read. The memory is kept.
#[derive(Default)]
struct Step {
    /// What is not in the log: first sector and how many.
    gaps: Vec<(u64, u64)>,
    /// What is: offset in the read's memory and length in bytes; the bytes of `Log` are in `scratch`, one after another.
    copies: Vec<(usize, usize, Copied)>,
    scratch: Vec<u8>,
}

impl Step {
    /// Looks at the rest of a read, as far as a step goes, and moves its begin. What the log has not is newest at home, and
    /// stays so for this read: a version that comes later belongs to a write that is in flight together with it.
    fn look(&mut self, log: &RedoLog, disk: LoggedDisk, rest: &mut Rest) -> Result<(), BlockError> {
        self.gaps.clear();
        self.copies.clear();
        let mut extents_left = STEP_EXTENTS;
        let mut used = 0;
        let index = log.newest(disk);
        for piece in index.pieces(rest.next, rest.end - rest.next) {
            // Held while the log is read: who brings the version home takes the entry away, under the same lock, before
            // it gives the space up.
            let map = index.read(&piece);
            for (sector, extent) in map.overlapping(piece.start, piece.sectors) {
                self.gap(rest.next, sector);
                rest.next = sector;
                if extents_left == 0 || self.gaps.len() >= STEP_PARTS || used == STEP_BYTES {
                    return Ok(());
                }
                extents_left -= 1;
                let offset = ((sector - rest.whole.sector.0) * SECTOR_BYTES) as usize;
                let mut len = (extent.sectors * SECTOR_BYTES) as usize;
                let copied = match extent.source {
                    Source::Zero { .. } => Copied::Zeroes,
                    Source::Log(position) => {
                        len = len.min(STEP_BYTES - used);
                        let end = used + len;
                        if self.scratch.len() < end {
                            self.scratch.resize(end.next_power_of_two(), 0);
                        }
                        log.area
                            .read(position, &mut self.scratch[used..end])
                            .map_err(|e| BlockError::io("reading the redo log", e))?;
                        used = end;
                        Copied::Log
                    }
                };
                self.copy(offset, len, copied);
                rest.next = sector + len as u64 / SECTOR_BYTES;
                if len as u64 / SECTOR_BYTES < extent.sectors {
                    return Ok(());
                }
            }
            self.gap(rest.next, piece.start + piece.sectors);
            rest.next = piece.start + piece.sectors;
        }
        Ok(())
    }

    fn gap(&mut self, from: u64, to: u64) {
        match self.gaps.last_mut() {
            _ if from == to => {}
            Some((start, sectors)) if *start + *sectors == from => *sectors += to - from,
            _ => self.gaps.push((from, to - from)),
        }
    }

    fn copy(&mut self, offset: usize, len: usize, source: Copied) {
        match self.copies.last_mut() {
            Some((o, l, s)) if *s == source && *o + *l == offset => *l += len,
            _ => self.copies.push((offset, len, source)),
        }
    }
}
