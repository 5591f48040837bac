//! The lane of images that may wait for a device: one io_uring, owned by the thread that drives the queue.
//!
//! ```text
//! submit ─► held ──dispatch──► ring ─► answers ─► finish ─► done ─► reap
//!            ▲  └► no memory for its aligned copy: starved, until a copy is done with
//!            │                             │          └─ as if flushed ─┐
//!            └─── short, EAGAIN, other ────┘                            ▼
//!                 way of zeroing            flush ─► waiting ─► Syncs ─bell─► done
//! ```
//!
//! Syncs are not this lane's: all of a file's have one owner.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    wait_readable, Admitted, Bell, BlockError, Buffers, Completion, Geometry, Lane, Operation, Request,
    SECTOR_BYTES,
};
use io_uring::{opcode, squeue};

use crate::core::Core;
use crate::direct::Backing;
use crate::ring::{Answer, Ring, FILE};
use crate::slots::{Part, Slot, Slots, Work};
use crate::transfer::{shortened, BOUNCE_BYTES, SEGMENTS_MAX};
use crate::zero::{zeroes, Method};

/// Requests in the kernel at once; more are held back. Below the ring's completion entries.
const IN_KERNEL_MAX: usize = 2048;
/// So many held requests, or so many held bytes, are given to the kernel without waiting for the rest of the batch: the
/// device works on them meanwhile. Batches as large as the queue made device and guest take turns and cost 15 % of the
/// throughput at depth 32; single requests cost more CPU time for the same throughput.
const EAGER_REQUESTS: usize = 4;
const EAGER_BYTES: u64 = 64 << 10;
/// The longest transfer of one ring entry, in bytes: its length field has 32 bits.
const TRANSFER_MAX: usize = 1 << 30;

/// Aligned copies of one lane in bytes; who needs another one waits. Four of the largest keep a device busy.
const COPIES_BYTES_MAX: usize = 4 * BOUNCE_BYTES;

/// The most memory that a lane takes beside its requests, in bytes: these, and the copy of a lane without a ring.
pub const LANE_BYTES_MAX: usize = COPIES_BYTES_MAX + BOUNCE_BYTES;

/// What the user data of a ring entry means: a slot's index, or one of these with a number below.
const TAG_POLL: u64 = 1 << 62;
const TAG_IGNORED: u64 = 3 << 62;
const TAG_MASK: u64 = 3 << 62;

pub(crate) struct RingLane {
    core: Arc<Core>,
    shard: usize,
    ring: Ring,
    slots: Slots,
    /// Slots whose next step has not been given to the kernel.
    held: VecDeque<u32>,
    /// Slots that wait, in order, for memory for an aligned copy: they hold up nobody who needs none.
    starved: VecDeque<u32>,
    /// Bytes of aligned copies.
    copies_bytes: usize,
    /// Bytes of the requests that were held since the last submission.
    held_bytes: u64,
    /// Slots in the kernel.
    in_kernel: usize,
    flushes: Flushes,
    polls: Polls,
    done: Vec<Completion>,
    /// Buffered writes go into the page cache right in `submit`: the ring would give them to a worker thread.
    writes_inline: bool,
    /// Everything goes to worker threads at once: an image in memory is nothing to wait for, only much to copy.
    offloads: bool,
}

/// Slots that complete with a sync.
struct Flushes {
    /// What each needs, oldest first: no need is below that of one before it.
    waiting: VecDeque<(u64, u32)>,
    /// The newest need that was asked for.
    asked: u64,
    /// Rung when one of them is met.
    bell: Arc<Bell>,
}

/// The polls of the last wait.
#[derive(Default)]
struct Polls {
    /// Distinguishes this wait's polls from late answers of earlier ones.
    generation: u64,
    /// Which have not fired.
    armed: Vec<u64>,
    /// Polls of earlier waits, removed or about to be, that have yet to say so. Each does, without anybody's help.
    stale: usize,
}

impl RingLane {
    pub fn new(core: Arc<Core>) -> io::Result<Self> {
        let ring = Ring::new(&core.file)?;
        let shard = core.counters.assign();
        let offloads = core.backing == Backing::Memory;
        let writes_inline = core.alignment.is_none() && core.backing == Backing::PageCache;
        Ok(Self {
            core,
            shard,
            ring,
            slots: Slots::default(),
            held: VecDeque::new(),
            starved: VecDeque::new(),
            copies_bytes: 0,
            held_bytes: 0,
            in_kernel: 0,
            flushes: Flushes { waiting: VecDeque::new(), asked: 0, bell: Arc::new(Bell::new()?) },
            polls: Polls::default(),
            done: Vec::with_capacity(64),
            writes_inline,
            offloads,
        })
    }

    fn serve(&mut self, request: Request) {
        if let Err(error) = self.core.health.admit(request.operation) {
            self.done.push(Completion { token: request.token, result: Err(error) });
            return;
        }
        let unmap = !matches!(request.operation, Operation::WriteZeroes { unmap: false, .. });
        let work = match request.operation {
            Operation::Read => Work::Read,
            Operation::Write { .. } => Work::Write,
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                Work::Zero { unmap, method: self.core.methods.best(unmap) }
            }
            Operation::Flush(_) => Work::Flush,
        };
        let slot = Slot {
            token: request.token,
            work,
            offset: request.sector.0.wrapping_mul(SECTOR_BYTES),
            len: request.sectors.wrapping_mul(SECTOR_BYTES),
            done: 0,
            flushed: request.operation.is_flushed(),
            offload: self.offloads,
            buffers: request.buffers,
            part: None,
        };
        if work == Work::Flush {
            let index = self.slots.insert(slot);
            if self.core.geometry.read_only {
                self.complete(index, Ok(()));
            } else {
                self.flushes.waiting.push_back((self.core.syncs.need(), index));
            }
        } else if slot.len == 0 {
            let index = self.slots.insert(slot);
            self.finish(index, Ok(()));
        } else if work == Work::Write && self.writes_inline {
            self.core.syncs.begin_write(slot.offset, slot.len);
            let written = self.core.target(self.shard).write(&slot.buffers, slot.offset);
            let result = written.map_err(|e| self.core.change_failed("writing", slot.offset, e));
            let index = self.slots.insert(slot);
            self.finish(index, result);
        } else {
            if work != Work::Read {
                self.core.syncs.begin_write(slot.offset, slot.len);
            }
            self.held_bytes += slot.len;
            let index = self.slots.insert(slot);
            self.held.push_back(index);
            if self.held.len() >= EAGER_REQUESTS || self.held_bytes >= EAGER_BYTES {
                let submitted = self.push_held().and_then(|()| self.ring.submit());
                submitted.unwrap_or_else(|error| self.ring_failed(&error));
            }
        }
    }

    /// A slot's part is done with.
    fn drop_part(&mut self, index: u32) {
        if let Some(Part::Copy(copy)) = self.slots.get(index).part.take() {
            self.copies_bytes -= copy.len();
        }
    }

    /// A slot's request is over, but for a sync that it may still need.
    fn finish(&mut self, index: u32, result: Result<(), BlockError>) {
        self.drop_part(index);
        let slot = self.slots.get(index);
        if slot.work != Work::Read {
            // Also where it failed: something may have changed.
            self.core.syncs.note_write(slot.offset, slot.len);
        }
        if result.is_ok() && slot.flushed {
            slot.work = Work::Flush;
            self.flushes.waiting.push_back((self.core.syncs.need(), index));
            return;
        }
        self.complete(index, result);
    }

    fn complete(&mut self, index: u32, result: Result<(), BlockError>) {
        let slot = self.slots.remove(index);
        self.done.push(Completion { token: slot.token, result });
    }

    /// Queues ring entries for what is held, and looks after the flushes.
    fn push_held(&mut self) -> io::Result<()> {
        self.held_bytes = 0;
        while self.in_kernel < IN_KERNEL_MAX {
            let Some(index) = self.starved.front().copied() else { break };
            if !self.push_slot(index)? {
                break;
            }
            self.starved.pop_front();
        }
        while self.in_kernel < IN_KERNEL_MAX {
            let Some(index) = self.held.pop_front() else { break };
            if !self.push_slot(index)? {
                self.starved.push_back(index);
            }
        }
        self.look_after_flushes();
        Ok(())
    }

    /// Completes flushes that can be, and asks for the syncs that the others need.
    fn look_after_flushes(&mut self) {
        while let Some((need, index)) = self.flushes.waiting.front().copied() {
            let Some(verdict) = self.core.syncs.verdict(need) else { break };
            self.flushes.waiting.pop_front();
            self.complete(index, verdict);
        }
        let Flushes { waiting, asked, bell } = &mut self.flushes;
        for (need, _) in waiting {
            if *need > *asked {
                *asked = *need;
                self.core.syncs.ask(*need, bell);
            }
        }
    }

    /// Queues a slot's next ring entry. `false` where it needs an aligned copy and has to wait for the memory.
    fn push_slot(&mut self, index: u32) -> io::Result<bool> {
        let alignment = self.core.alignment;
        let slot = self.slots.get(index);
        let entry = match slot.work {
            Work::Read | Work::Write => {
                let is_write = slot.work == Work::Write;
                let fits = |b: &Buffers| alignment.is_none_or(|a| a.fits(b));
                let next = self.starved.front().is_none_or(|first| *first == index);
                let room = if next { COPIES_BYTES_MAX - self.copies_bytes } else { 0 };
                let Some(copied) = prepare_part(slot, fits, room) else { return Ok(false) };
                self.copies_bytes += copied;
                let memory = match &slot.part {
                    None => &slot.buffers,
                    Some(Part::Rest(memory) | Part::Copy(memory)) => memory,
                };
                transfer_entry(is_write, memory.segments(), slot.offset + slot.done)
            }
            Work::Zero { method, .. } => match method.mode() {
                Some(mode) => opcode::Fallocate::new(FILE, slot.len)
                    .offset(slot.offset)
                    .mode(mode.bits() as i32)
                    .build(),
                None => {
                    let n = (slot.len - slot.done).min(zeroes().len() as u64) as u32;
                    opcode::Write::new(FILE, zeroes().as_ptr(), n).offset(slot.offset + slot.done).build()
                }
            },
            Work::Flush => unreachable!("a flush is never held"),
        };
        let flags = if slot.offload { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let entry = entry.flags(flags).user_data(u64::from(index));
        // SAFETY: the memory belongs to the slot's buffers, to its aligned copy or to a static; the slot lives until
        // the answer is taken, and `Drop` waits for all answers. The iovec array lies in the slot (or on
        // the heap), and a taken slot never moves, so it is also good where a submission is put off.
        unsafe { self.ring.push(&entry)? };
        self.in_kernel += 1;
        Ok(true)
    }

    fn take_answers(&mut self) {
        while let Some(answer) = self.ring.next_answer() {
            match answer.user_data & TAG_MASK {
                TAG_POLL => match self.polls.armed.iter().position(|poll| *poll == answer.user_data) {
                    Some(fired) => drop(self.polls.armed.swap_remove(fired)),
                    None => self.polls.stale -= 1,
                },
                TAG_IGNORED => {}
                _ => {
                    self.in_kernel -= 1;
                    self.answered(answer);
                }
            }
        }
    }

    fn answered(&mut self, answer: Answer) {
        let index = answer.user_data as u32;
        if answer.result < 0 {
            return self.refused(index, io::Error::from_raw_os_error(-answer.result));
        }
        let moved = answer.result as u64;
        let counters = self.core.counters.shard(self.shard);
        let slot = self.slots.get(index);
        match slot.work {
            Work::Read => {
                counters.read(moved);
                if let Some(Part::Copy(copy)) = &slot.part {
                    copy.copy_between(0, &slot.buffers, slot.done as usize, moved as usize);
                }
            }
            Work::Write | Work::Zero { method: Method::Write, .. } => counters.wrote(moved),
            Work::Zero { method, .. } => {
                match method {
                    Method::Punch => counters.discarded(),
                    _ => counters.zeroed(),
                }
                return self.finish(index, Ok(()));
            }
            Work::Flush => unreachable!("a flush has no entry of its own"),
        }
        if slot.done + moved == slot.len {
            return self.finish(index, Ok(()));
        }
        self.moved_short(index, moved);
    }

    /// Goes on after a part of a transfer.
    fn moved_short(&mut self, index: u32, moved: u64) {
        let grain = self.core.alignment.map_or(1, |a| u64::from(a.offset));
        let slot = self.slots.get(index);
        // A direct transfer goes on at a whole block only.
        let moved = moved - moved % grain;
        slot.done += moved;
        let at = slot.offset + slot.done;
        self.drop_part(index);
        let slot = self.slots.get(index);
        if slot.work == Work::Read {
            let end = self.core.target(self.shard).check_end(at);
            let end = end.and_then(|()| if moved == 0 { Err(shortened(at)) } else { Ok(()) });
            if let Err(error) = end {
                let error = self.core.read_failed(at, error);
                return self.finish(index, Err(error));
            }
        } else if moved == 0 {
            let error = io::Error::new(io::ErrorKind::WriteZero, "the file takes no more bytes");
            let error = self.core.change_failed("writing", at, error);
            return self.finish(index, Err(error));
        }
        self.held.push_back(index);
    }

    /// The kernel answered with an error.
    fn refused(&mut self, index: u32, error: io::Error) {
        let slot = self.slots.get(index);
        let at = slot.offset + slot.done;
        match error.raw_os_error() {
            Some(libc::EINTR) => return self.held.push_back(index),
            Some(libc::EAGAIN) if !slot.offload => {
                slot.offload = true;
                return self.held.push_back(index);
            }
            _ => {}
        }
        let error = match slot.work {
            Work::Read => self.core.read_failed(at, error),
            Work::Zero { unmap, method } if self.core.methods.learn(method, &error) => {
                slot.work = Work::Zero { unmap, method: self.core.methods.best(unmap) };
                return self.held.push_back(index);
            }
            Work::Zero { .. } => self.core.change_failed("zeroing", at, error),
            Work::Write | Work::Flush => self.core.change_failed("writing", at, error),
        };
        self.finish(index, Err(error));
    }

    /// The ring itself failed: nothing can be promised about what it holds, so nobody is told anything. The queue's
    /// thread ends with the panic and the disk stays read-only.
    fn ring_failed(&self, error: &io::Error) -> ! {
        let reason = format!("io_uring of {} failed: {error}", self.core.path.display());
        self.core.health.fail(reason.as_str());
        panic!("{reason}");
    }

    /// Takes what is there and follows up on it until nothing moves, entering the kernel only where that is due.
    fn advance(&mut self) {
        loop {
            self.take_answers();
            let pushed = self.push_held();
            let due = pushed.map(|()| self.ring.is_due());
            match due.and_then(|due| if due { self.ring.submit() } else { Ok(()) }) {
                // Work that the kernel left to a thread that has ended since stays due for ever.
                Ok(()) if !self.ring.has_answers() => return,
                Ok(()) => {}
                Err(error) => self.ring_failed(&error),
            }
        }
    }
}

/// Chooses the memory of the next part: the request's own, what is left of it, or an aligned copy. Says how many bytes of
/// copy it made; `None` where there is no room for it.
fn prepare_part(slot: &mut Slot, fits: impl Fn(&Buffers) -> bool, room: usize) -> Option<usize> {
    if slot.part.is_some() {
        // The same part again, after EAGAIN.
        return Some(0);
    }
    let (done, len) = (slot.done as usize, slot.len as usize);
    if done == 0 && fits(&slot.buffers) {
        return Some(0);
    }
    let rest = slot.buffers.slice(done, len - done);
    if fits(&rest) {
        slot.part = Some(Part::Rest(rest));
        return Some(0);
    }
    let n = rest.len().min(BOUNCE_BYTES);
    if n > room {
        return None;
    }
    let copy = Buffers::allocate(n);
    if slot.work == Work::Write {
        rest.copy_between(0, &copy, 0, n);
    }
    slot.part = Some(Part::Copy(copy));
    Some(n)
}

fn transfer_entry(is_write: bool, segments: &[libc::iovec], offset: u64) -> squeue::Entry {
    match segments {
        [one] => {
            let (base, len) = (one.iov_base.cast::<u8>(), one.iov_len.min(TRANSFER_MAX) as u32);
            if is_write {
                opcode::Write::new(FILE, base, len).offset(offset).build()
            } else {
                opcode::Read::new(FILE, base, len).offset(offset).build()
            }
        }
        many => {
            let (base, n) = (many.as_ptr().cast(), many.len().min(SEGMENTS_MAX) as u32);
            if is_write {
                opcode::Writev::new(FILE, base, n).offset(offset).build()
            } else {
                opcode::Readv::new(FILE, base, n).offset(offset).build()
            }
        }
    }
}

impl Lane for RingLane {
    fn geometry(&self) -> Geometry {
        self.core.geometry
    }

    fn refuse(&mut self, refusal: Completion) {
        self.done.push(refusal);
    }

    fn take(&mut self, request: Admitted) {
        self.serve(request.into_request());
    }

    fn dispatch(&mut self) {
        if !self.held.is_empty() || !self.flushes.waiting.is_empty() {
            self.advance();
        }
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.advance();
        completions.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.slots.len() + self.done.len()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        self.take_answers();
        let mut fds;
        let mut also = also;
        let bell = Arc::clone(&self.flushes.bell);
        if !self.flushes.waiting.is_empty() {
            bell.drain();
        }
        self.push_held()?;
        if !self.done.is_empty() {
            return self.ring.submit();
        }
        if !self.flushes.waiting.is_empty() {
            fds = also.to_vec();
            fds.push(bell.fd());
            also = &fds;
        }
        if self.in_kernel == 0 {
            // Nothing but these can end this wait: no need for polls that must be taken back again.
            return wait_readable(also, timeout);
        }
        self.polls.generation += 1;
        for (n, fd) in also.iter().enumerate() {
            let name = TAG_POLL | (self.polls.generation << 16 & !TAG_MASK) | n as u64;
            self.ring.push_poll(*fd, name)?;
            self.polls.armed.push(name);
        }
        // The answers of stale polls come along; without counting them in, each wait would end with them.
        let waited = self.ring.submit_and_wait(1 + self.polls.stale, timeout);
        self.take_answers();
        // The caller may close these descriptors and open others of the same number, so no poll is kept for the next
        // wait. The removals go along with the next submission.
        for poll in std::mem::take(&mut self.polls.armed) {
            self.ring.push_poll_remove(poll, TAG_IGNORED)?;
            self.polls.stale += 1;
        }
        waited
    }
}

impl Drop for RingLane {
    fn drop(&mut self) {
        // What was not given to the kernel is forgotten; what was is waited for, since it uses the buffers.
        while self.in_kernel > 0 {
            if let Err(error) = self.ring.submit_and_wait(1, None) {
                // Its buffers would be freed under the kernel's hands.
                tracing::error!(%error, "waiting for the last requests of a ring");
                std::process::abort();
            }
            while let Some(answer) = self.ring.next_answer() {
                if !matches!(answer.user_data & TAG_MASK, TAG_POLL | TAG_IGNORED) {
                    self.in_kernel -= 1;
                }
            }
        }
    }
}
