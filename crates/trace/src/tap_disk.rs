//! A disk that is listened to.
//!
//! ```text
//! submit ─► copy the data ─► Recorder::submit ─► lower.submit, of the copy
//! reap   ◄─ Recorder::complete ◄─ lower.reap
//! ```
//!
//! The layer below is given the copy: a guest may change its memory while a write is in flight, and then two readers of
//! it would see two writes.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Buffers, Completion, Disk, Front, Geometry, Lane, Operation, Token, SECTOR_BYTES,
};

use crate::{Op, Recorder, TargetId};

/// Records writes, discards, zeroings and flushes; reads pass unseen, and so do requests that the layer below must refuse
/// because of what they are.
pub struct TapDisk {
    lower: Arc<dyn Disk>,
    recorder: Arc<Recorder>,
    target: TargetId,
}

impl TapDisk {
    /// Listens to `lower`, which is that target of the recording.
    pub fn new(lower: Arc<dyn Disk>, recorder: Arc<Recorder>, target: TargetId) -> Self {
        Self { lower, recorder, target }
    }
}

impl Front for TapDisk {
    fn lower(&self) -> &dyn Disk {
        self.lower.as_ref()
    }

    fn open_front(&self, lower: Box<dyn Lane>) -> Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(TapLane {
            lower,
            recorder: Arc::clone(&self.recorder),
            target: self.target,
            names: HashMap::new(),
        }))
    }
}

struct TapLane {
    lower: Box<dyn Lane>,
    recorder: Arc<Recorder>,
    target: TargetId,
    /// The recorded requests in flight.
    names: HashMap<Token, u64>,
}

impl TapLane {
    /// Writes a request down, and gives it back to be handed down.
    fn record(&mut self, mut request: Admitted) -> Admitted {
        if request.operation == Operation::Read || !self.recorder.is_recording() {
            return request;
        }
        let offset = request.sector.0.saturating_mul(SECTOR_BYTES);
        let len = request.sectors.saturating_mul(SECTOR_BYTES);
        let op = match request.operation {
            Operation::Write { flushed } => {
                let data = copy(&request.buffers);
                request = request.with_buffers(Buffers::from_bytes(&data));
                Op::Write { offset, data, flushed }
            }
            Operation::Discard { flushed } => Op::Zero { offset, len, unmap: true, flushed },
            Operation::WriteZeroes { unmap, flushed } => Op::Zero { offset, len, unmap, flushed },
            Operation::Flush(_) => Op::Flush,
            Operation::Read => return request,
        };
        self.names.insert(request.token, self.recorder.submit(self.target, op));
        request
    }
}

/// One allocation, one copy.
fn copy(buffers: &Buffers) -> Arc<[u8]> {
    let mut data: Arc<[u8]> = std::iter::repeat_n(0, buffers.len()).collect();
    if let Some(target) = Arc::get_mut(&mut data) {
        buffers.copy_to(0, target);
    }
    data
}

impl Lane for TapLane {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.lower.refuse(refusal);
    }

    fn take(&mut self, request: Admitted) {
        let request = self.record(request);
        self.lower.take(request);
    }

    fn dispatch(&mut self) {
        self.lower.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        let before = completions.len();
        self.lower.reap(completions);
        for completion in &completions[before..] {
            if let Some(id) = self.names.remove(&completion.token) {
                self.recorder.complete(self.target, id, completion.result.is_ok());
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.lower.in_flight()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        self.lower.wait(also, timeout)
    }
}
