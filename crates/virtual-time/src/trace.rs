//! What guests asked of their disks, and when: one line a request, in the order of the answers.
//!
//! ```text
//! asked(ns) guest operation sector sectors content answered(ns) [error]
//! ```
//!
//! Content is the xxh3 sum of what was written or read. Two runs were the same if their traces are.
//!
//! Guests that are to die at a byte die here: what they send after it reaches nobody.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{
    Admitted, BlockError, Buffers, Completion, Disk, Front, Geometry, Lane, Operation, Token, SECTOR_BYTES,
};
use parking_lot::Mutex;
use twox_hash::XxHash3_64;

use crate::calendar::Ns;
use crate::machine::Machine;

/// What of a request is whole, whenever its guest dies.
const PAGE_BYTES: u64 = 4096;

/// What a guest has asked for in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// And their bytes.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// And their bytes.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards and write-zeroes.
    pub others: u64,
}

struct Inside {
    out: io::BufWriter<std::fs::File>,
    sum: XxHash3_64,
    counts: Vec<Counts>,
    /// How many bytes guests may still write, all together, if they are to die of it.
    left_bytes: Option<u64>,
    /// A write of the trace failed.
    failed: Option<io::Error>,
}

/// See the module.
pub struct Trace(Mutex<Inside>);

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace")
    }
}

impl Trace {
    /// An empty one, for so many guests.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path, guests: usize) -> io::Result<Arc<Self>> {
        let out = io::BufWriter::new(std::fs::File::create(path)?);
        let inside = Inside {
            out,
            sum: XxHash3_64::with_seed(0),
            counts: vec![Counts::default(); guests],
            left_bytes: None,
            failed: None,
        };
        Ok(Arc::new(Self(Mutex::new(inside))))
    }

    /// A disk whose requests are listened to.
    pub fn listen(self: &Arc<Self>, guest: usize, machine: &Arc<Machine>, disk: Arc<dyn Disk>) -> impl Front {
        Listening { guest, disk, machine: Arc::clone(machine), trace: Arc::clone(self) }
    }

    /// What a guest has asked for so far.
    pub fn counts(&self, guest: usize) -> Counts {
        self.0.lock().counts[guest]
    }

    /// Something else happens, which is a part of the trace: a comment.
    pub fn say(&self, at: Ns, what: &str) {
        self.0.lock().write(&format!("# {at} {what}\n"));
    }

    /// Guests die when they have written so many more bytes: of the request that reaches beyond it whole pages are written up to there.
    pub fn die_after(&self, bytes: u64) {
        self.0.lock().left_bytes = Some(bytes);
    }

    /// Whether they have.
    pub fn are_dead(&self) -> bool {
        self.0.lock().left_bytes == Some(0)
    }

    /// How many sectors of a request are still sent; `None` where nothing is.
    fn still_sent(&self, operation: Operation, sectors: u64) -> Option<u64> {
        let mut inside = self.0.lock();
        let Some(left) = &mut inside.left_bytes else { return Some(sectors) };
        let bytes = match operation {
            _ if *left == 0 => return None,
            Operation::Write { .. } => sectors * SECTOR_BYTES,
            _ => return Some(sectors),
        };
        let sent = if bytes < *left { bytes } else { *left / PAGE_BYTES * PAGE_BYTES };
        *left = left.saturating_sub(bytes);
        Some(sent / SECTOR_BYTES).filter(|sectors| *sectors > 0)
    }

    /// All of it is in the file; its sum.
    ///
    /// # Errors
    /// It could not all be written.
    pub fn finish(&self) -> io::Result<u64> {
        use std::hash::Hasher;
        let mut inside = self.0.lock();
        inside.out.flush()?;
        match inside.failed.take() {
            Some(error) => Err(error),
            None => Ok(inside.sum.finish()),
        }
    }

    fn note(&self, guest: usize, asked: &Asked, answered: Ns, failed: bool) {
        let mut inside = self.0.lock();
        let bytes = asked.sectors * SECTOR_BYTES;
        let counts = &mut inside.counts[guest];
        let name = match asked.operation {
            Operation::Read => {
                (counts.reads, counts.read_bytes) = (counts.reads + 1, counts.read_bytes + bytes);
                "read"
            }
            Operation::Write { .. } => {
                (counts.writes, counts.written_bytes) = (counts.writes + 1, counts.written_bytes + bytes);
                "write"
            }
            Operation::Flush(_) => {
                counts.flushes += 1;
                "flush"
            }
            Operation::Discard { .. } => {
                counts.others += 1;
                "discard"
            }
            Operation::WriteZeroes { .. } => {
                counts.others += 1;
                "zeroes"
            }
        };
        let (sector, sectors, content) = (asked.sector, asked.sectors, asked.content);
        let failed = if failed { " error" } else { "" };
        let line =
            format!("{} {guest} {name} {sector} {sectors} {content:016x} {answered}{failed}\n", asked.at);
        inside.write(&line);
    }
}

impl Inside {
    fn write(&mut self, line: &str) {
        use std::hash::Hasher;
        self.sum.write(line.as_bytes());
        if let Err(error) = self.out.write_all(line.as_bytes()) {
            self.failed.get_or_insert(error);
        }
    }
}

struct Listening {
    guest: usize,
    disk: Arc<dyn Disk>,
    machine: Arc<Machine>,
    trace: Arc<Trace>,
}

impl Front for Listening {
    fn lower(&self) -> &dyn Disk {
        &*self.disk
    }

    fn open_front(&self, lower: Box<dyn Lane>) -> Result<Box<dyn Lane>, BlockError> {
        let (machine, trace) = (Arc::clone(&self.machine), Arc::clone(&self.trace));
        Ok(Box::new(Listener {
            guest: self.guest,
            lower,
            machine,
            trace,
            asked: BTreeMap::new(),
            below: Vec::new(),
            scratch: Vec::new(),
        }))
    }
}

struct Asked {
    at: Ns,
    operation: Operation,
    sector: u64,
    sectors: u64,
    content: u64,
    /// What a read fills.
    buffers: Option<Buffers>,
}

struct Listener {
    guest: usize,
    lower: Box<dyn Lane>,
    machine: Arc<Machine>,
    trace: Arc<Trace>,
    /// By the requester's token; parts of one request have tokens of their own.
    asked: BTreeMap<Token, Asked>,
    below: Vec<Completion>,
    scratch: Vec<u8>,
}

impl Listener {
    fn sum(&mut self, buffers: &Buffers) -> u64 {
        self.scratch.resize(buffers.len(), 0);
        buffers.copy_to(0, &mut self.scratch);
        XxHash3_64::oneshot(&self.scratch)
    }
}

impl Lane for Listener {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.lower.refuse(refusal);
    }

    fn take(&mut self, request: Admitted) {
        let request = match self.trace.still_sent(request.operation, request.sectors) {
            Some(sectors) if sectors == request.sectors => request,
            Some(sectors) => request.part(request.token, request.sector, sectors),
            // The guest will not hear of it.
            None => return self.refuse(Completion { token: request.token, result: Ok(()) }),
        };
        let content = match request.operation {
            Operation::Write { .. } => self.sum(&request.buffers),
            _ => 0,
        };
        let buffers = matches!(request.operation, Operation::Read).then(|| request.buffers.share());
        let asked = Asked {
            at: self.machine.now_ns(),
            operation: request.operation,
            sector: request.sector.0,
            sectors: request.sectors,
            content,
            buffers,
        };
        self.asked.insert(request.token, asked);
        self.lower.take(request);
    }

    fn dispatch(&mut self) {
        self.lower.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        let mut below = std::mem::take(&mut self.below);
        self.lower.reap(&mut below);
        for completion in below.drain(..) {
            if let Some(mut asked) = self.asked.remove(&completion.token) {
                if let Some(buffers) = asked.buffers.take() {
                    asked.content = self.sum(&buffers);
                }
                self.trace.note(self.guest, &asked, self.machine.now_ns(), completion.result.is_err());
            }
            completions.push(completion);
        }
        self.below = below;
    }

    fn in_flight(&self) -> usize {
        self.lower.in_flight()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        self.lower.wait(also, timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_die_at_a_byte() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let trace = Trace::create(&folder.path().join("trace"), 1).unwrap();
        let write = Operation::Write { flushed: false };
        assert_eq!(trace.still_sent(write, 1 << 20), Some(1 << 20), "unless they are to live");
        trace.die_after(5 * PAGE_BYTES + 512);
        assert_eq!(trace.still_sent(write, 3 * 8), Some(3 * 8));
        assert_eq!(trace.still_sent(Operation::Read, 64), Some(64));
        assert!(!trace.are_dead());
        assert_eq!(trace.still_sent(write, 4 * 8), Some(2 * 8), "whole pages up to there");
        assert!(trace.are_dead());
        assert_eq!(trace.still_sent(Operation::Read, 8), None);
        trace.die_after(PAGE_BYTES);
        assert_eq!(trace.still_sent(write, 8), Some(8), "just enough");
        assert!(trace.are_dead());
    }
}
