//! The lane of images in memory (tmpfs): every request is one system call of the thread that drives the queue.
//!
//! ```text
//! submit ─► held ──dispatch, reap: as much as TURN_BYTES──► done ─► reap
//! ```
//!
//! A turn is bounded so that the guest hears of the first requests of a long queue, and works on them, while the others
//! are being copied.
//!
//! Nothing there waits for a device, and io_uring would hand each request to a worker thread: a plain pwritev is
//! twice as fast. It is also what remains where the kernel has no io_uring; a sync then holds up its queue.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    wait_readable, Admitted, BlockError, Completion, Geometry, Lane, Operation, SECTOR_BYTES,
};

use crate::core::Core;

/// Bytes moved between two chances to answer; a single larger request is not split. Small beside a queue's depth: with all of 32 requests of
/// 4 KiB in one turn guest and daemon worked by turns, at half the rate (bench/serve/README.md).
const TURN_BYTES: u64 = 32 << 10;

pub(crate) struct InlineLane {
    core: Arc<Core>,
    shard: usize,
    held: VecDeque<Admitted>,
    done: Vec<Completion>,
}

impl InlineLane {
    pub fn new(core: Arc<Core>) -> Self {
        let shard = core.counters.assign();
        Self { core, shard, held: VecDeque::with_capacity(64), done: Vec::with_capacity(64) }
    }

    /// Serves held requests, in the order of their submission, until a turn is over.
    fn turn(&mut self) {
        let mut moved = 0;
        while moved < TURN_BYTES {
            let Some(request) = self.held.pop_front() else { return };
            moved += request.buffers.len() as u64;
            let result = self.serve(&request);
            self.done.push(Completion { token: request.token, result });
        }
    }

    fn serve(&self, request: &Admitted) -> Result<(), BlockError> {
        let core = &*self.core;
        core.health.admit(request.operation)?;
        let offset = request.sector.0.wrapping_mul(SECTOR_BYTES);
        let target = core.target(self.shard);
        match request.operation {
            Operation::Read => {
                return target.read(&request.buffers, offset).map_err(|e| core.read_failed(offset, e));
            }
            Operation::Write { .. } => {
                let len = request.buffers.len() as u64;
                core.syncs.begin_write(offset, len);
                let written = target.write(&request.buffers, offset);
                // A failed write may have changed something.
                core.syncs.note_write(offset, len);
                written.map_err(|e| core.change_failed("writing", offset, e))?;
            }
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                let unmap = !matches!(request.operation, Operation::WriteZeroes { unmap: false, .. });
                let len = request.sectors * SECTOR_BYTES;
                core.syncs.begin_write(offset, len);
                let zeroed = core.methods.zero(&target, offset, len, unmap);
                core.syncs.note_write(offset, len);
                zeroed.map_err(|e| core.change_failed("zeroing", offset, e))?;
            }
            Operation::Flush(_) => {}
        }
        if matches!(request.operation, Operation::Flush(_)) || request.operation.is_flushed() {
            return core.sync();
        }
        Ok(())
    }
}

impl Lane for InlineLane {
    fn geometry(&self) -> Geometry {
        self.core.geometry
    }

    fn refuse(&mut self, refusal: Completion) {
        self.done.push(refusal);
    }

    fn take(&mut self, request: Admitted) {
        self.held.push_back(request);
    }

    fn dispatch(&mut self) {
        if self.done.is_empty() {
            self.turn();
        }
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.dispatch();
        completions.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.done.len()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        if self.in_flight() == 0 {
            wait_readable(also, timeout)
        } else {
            Ok(())
        }
    }
}
