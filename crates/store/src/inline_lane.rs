//! The lane of images in memory (tmpfs): every request is one system call inside [`Lane::submit`].
//!
//! Nothing there waits for a device, and io_uring would hand each request to a worker thread: a plain pwritev is
//! twice as fast. It is also what remains where the kernel has no io_uring; a sync then holds up its queue.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    admit, wait_readable, BlockError, Completion, Lane, Operation, Request, SECTOR_BYTES,
};

use crate::core::Core;

pub(crate) struct InlineLane {
    core: Arc<Core>,
    shard: usize,
    done: Vec<Completion>,
}

impl InlineLane {
    pub fn new(core: Arc<Core>) -> Self {
        let shard = core.counters.assign();
        Self { core, shard, done: Vec::with_capacity(64) }
    }

    fn serve(&self, request: &Request) -> Result<(), BlockError> {
        let core = &*self.core;
        admit(request, &core.geometry, &core.health)?;
        // In range, as was just checked.
        let offset = request.sector.0.wrapping_mul(SECTOR_BYTES);
        let target = core.target(self.shard);
        match request.operation {
            Operation::Read => {
                return target.read(&request.buffers, offset).map_err(|e| core.read_failed(offset, e));
            }
            Operation::Write { .. } => {
                let written = target.write(&request.buffers, offset);
                // A failed write may have changed something.
                core.unsynced.note_write();
                written.map_err(|e| core.change_failed("writing", offset, e))?;
            }
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                let unmap = !matches!(request.operation, Operation::WriteZeroes { unmap: false, .. });
                let zeroed = core.methods.zero(&target, offset, request.sectors * SECTOR_BYTES, unmap);
                core.unsynced.note_write();
                zeroed.map_err(|e| core.change_failed("zeroing", offset, e))?;
            }
            Operation::Flush(_) => {}
        }
        if matches!(request.operation, Operation::Flush(_)) || request.operation.is_flushed() {
            return core.sync(self.shard);
        }
        Ok(())
    }
}

impl Lane for InlineLane {
    fn submit(&mut self, request: Request) {
        let result = self.serve(&request);
        self.done.push(Completion { token: request.token, result });
    }

    fn dispatch(&mut self) {}

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        if self.done.is_empty() {
            wait_readable(also, timeout)
        } else {
            Ok(())
        }
    }
}
