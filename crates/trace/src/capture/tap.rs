//! Disks and media that are listened to, put where [`Tap`] has them.
//!
//! ```text
//! submit, read_at, ... ─► Listen::note ─► lower
//! ```

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Completion, Disk, DiskIndex, Front, Geometry, Lane, Medium, Operation, Request,
    Tap, SECTOR_BYTES,
};

use super::line::CaptureOp;
use super::{FileId, Listen};

/// Listens to everything that a group does to its files. The disks are the files 0, 1, ... of the trace's header, by
/// their index in the group, and the log is the one behind them.
#[derive(Debug)]
pub struct CaptureTap {
    listener: Arc<dyn Listen>,
    disks: u16,
}

impl CaptureTap {
    /// For a group of so many disks.
    pub fn new(listener: Arc<dyn Listen>, disks: u16) -> Arc<Self> {
        Arc::new(Self { listener, disks })
    }

    fn medium(&self, file: FileId, lower: Arc<dyn Medium>) -> Arc<dyn Medium> {
        Arc::new(CaptureMedium { lower, listener: Arc::clone(&self.listener), file })
    }

    fn disk(&self, index: DiskIndex, lower: Arc<dyn Disk>) -> Arc<dyn Disk> {
        Arc::new(CaptureDisk { lower, listener: Arc::clone(&self.listener), file: FileId(index.0) })
    }
}

impl Tap for CaptureTap {
    fn log(&self, log: Arc<dyn Medium>) -> io::Result<Arc<dyn Medium>> {
        Ok(self.medium(FileId(self.disks), log))
    }

    fn home(&self, index: DiskIndex, home: Arc<dyn Medium>) -> io::Result<Arc<dyn Medium>> {
        Ok(self.medium(FileId(index.0), home))
    }

    fn lower(&self, index: DiskIndex, disk: Arc<dyn Disk>) -> io::Result<Arc<dyn Disk>> {
        Ok(self.disk(index, disk))
    }

    fn only_read(&self, index: DiskIndex, disk: Arc<dyn Disk>) -> io::Result<Arc<dyn Disk>> {
        Ok(self.disk(index, disk))
    }
}

struct CaptureDisk {
    lower: Arc<dyn Disk>,
    listener: Arc<dyn Listen>,
    file: FileId,
}

impl Front for CaptureDisk {
    fn lower(&self) -> &dyn Disk {
        self.lower.as_ref()
    }

    fn open_front(&self, lower: Box<dyn Lane>) -> Result<Box<dyn Lane>, BlockError> {
        Ok(Box::new(CaptureLane { lower, listener: Arc::clone(&self.listener), file: self.file }))
    }
}

struct CaptureLane {
    lower: Box<dyn Lane>,
    listener: Arc<dyn Listen>,
    file: FileId,
}

impl CaptureLane {
    fn note(&self, request: &Request) {
        let op = match request.operation {
            Operation::Read => CaptureOp::Read,
            Operation::Write { .. } => CaptureOp::Write,
            Operation::Discard { .. } | Operation::WriteZeroes { unmap: true, .. } => CaptureOp::Discard,
            Operation::WriteZeroes { unmap: false, .. } => CaptureOp::Zero,
            Operation::Flush(_) => CaptureOp::Flush,
        };
        if op == CaptureOp::Flush {
            self.listener.note(self.file, op, 0, 0);
            return;
        }
        let offset = request.sector.0.saturating_mul(SECTOR_BYTES);
        self.listener.note(self.file, op, offset, request.sectors.saturating_mul(SECTOR_BYTES));
        if request.operation.is_flushed() {
            self.listener.note(self.file, CaptureOp::Flush, 0, 0);
        }
    }
}

impl Lane for CaptureLane {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.lower.refuse(refusal);
    }

    fn take(&mut self, request: Admitted) {
        self.note(&request);
        self.lower.take(request);
    }

    fn dispatch(&mut self) {
        self.lower.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.lower.reap(completions);
    }

    fn in_flight(&self) -> usize {
        self.lower.in_flight()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        self.lower.wait(also, timeout)
    }
}

struct CaptureMedium {
    lower: Arc<dyn Medium>,
    listener: Arc<dyn Listen>,
    file: FileId,
}

impl CaptureMedium {
    fn note(&self, op: CaptureOp, offset: u64, length: u64) {
        if length > 0 && offset.checked_add(length).is_some_and(|end| end <= self.lower.len()) {
            self.listener.note(self.file, op, offset, length);
        }
    }
}

impl Medium for CaptureMedium {
    fn len(&self) -> u64 {
        self.lower.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.note(CaptureOp::Read, offset, buf.len() as u64);
        self.lower.read_at(buf, offset)
    }

    fn zeroes_from(&self, offset: u64) -> u64 {
        self.lower.zeroes_from(offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.note(CaptureOp::Write, offset, buf.len() as u64);
        self.lower.write_at(buf, offset)
    }

    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.note(if unmap { CaptureOp::Discard } else { CaptureOp::Zero }, offset, len);
        self.lower.zero_at(offset, len, unmap)
    }

    fn settle(&self) -> io::Result<()> {
        self.listener.note(self.file, CaptureOp::Flush, 0, 0);
        self.lower.settle()
    }

    fn sync(&self) -> io::Result<()> {
        self.listener.note(self.file, CaptureOp::Flush, 0, 0);
        self.lower.sync()
    }
}
