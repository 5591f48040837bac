//! A medium that is listened to.

use std::io;
use std::sync::Arc;

use afterimage_block::Medium;

use crate::{Op, Recorder, TargetId};

/// Records writes, zeroings and syncs; reads pass unseen, and so do requests past the end.
pub struct TapMedium {
    lower: Arc<dyn Medium>,
    recorder: Arc<Recorder>,
    target: TargetId,
}

impl TapMedium {
    /// Listens to `lower`, which is that target of the recording.
    pub fn new(lower: Arc<dyn Medium>, recorder: Arc<Recorder>, target: TargetId) -> Self {
        Self { lower, recorder, target }
    }

    fn recorded(
        &self,
        offset: u64,
        len: u64,
        op: impl FnOnce() -> Op,
        serve: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.lower.len());
        if !inside || !self.recorder.is_recording() {
            return serve();
        }
        let id = self.recorder.submit(self.target, op());
        let served = serve();
        self.recorder.complete(self.target, id, served.is_ok());
        served
    }
}

impl Medium for TapMedium {
    fn len(&self) -> u64 {
        self.lower.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.lower.read_at(buf, offset)
    }

    fn zeroes_from(&self, offset: u64) -> u64 {
        self.lower.zeroes_from(offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let op = || Op::Write { offset, data: Arc::from(buf), flushed: false };
        self.recorded(offset, buf.len() as u64, op, || self.lower.write_at(buf, offset))
    }

    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        let op = || Op::Zero { offset, len, unmap, flushed: false };
        self.recorded(offset, len, op, || self.lower.zero_at(offset, len, unmap))
    }

    fn settle(&self) -> io::Result<()> {
        self.recorded(0, 0, || Op::Flush, || self.lower.settle())
    }

    fn sync(&self) -> io::Result<()> {
        self.recorded(0, 0, || Op::Flush, || self.lower.sync())
    }
}
