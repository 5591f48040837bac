//! The recording that grows while a stream is driven, and media that write themselves down on it.

use std::io;
use std::sync::Arc;

use afterimage_block::Medium;
use afterimage_order::{Clock as _, VirtualClock};
use afterimage_trace::{Event, EventKind, Op, Sparse, TargetId};
use parking_lot::Mutex;

/// Events in the order in which they became true, with the virtual clock's time.
pub(super) struct Tape {
    clock: Arc<VirtualClock>,
    inner: Mutex<Inner>,
}

struct Inner {
    events: Vec<Event>,
    next_id: u64,
}

impl Tape {
    /// `next_id` and above name the storage requests.
    pub(super) fn new(clock: Arc<VirtualClock>, next_id: u64) -> Arc<Self> {
        Arc::new(Self { clock, inner: Mutex::new(Inner { events: Vec::new(), next_id }) })
    }

    pub(super) fn push(&self, kind: EventKind) {
        let at_ns = self.clock.now().as_nanos() as u64;
        self.inner.lock().events.push(Event { at_ns, kind });
    }

    pub(super) fn len(&self) -> usize {
        self.inner.lock().events.len()
    }

    fn submit(&self, target: TargetId, op: Op) -> u64 {
        let id = {
            let mut inner = self.inner.lock();
            inner.next_id += 1;
            inner.next_id
        };
        self.push(EventKind::Submit { target, id, op });
        id
    }

    fn complete(&self, target: TargetId, id: u64) {
        self.push(EventKind::Complete { target, id, ok: true });
    }

    pub(super) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.inner.lock().events)
    }
}

/// A file in memory: reads see every write at once, as through a page cache.
pub(super) struct TapeMedium {
    tape: Arc<Tape>,
    target: TargetId,
    state: Mutex<State>,
}

struct State {
    content: Sparse,
    /// A sync that has begun: its submission is on the tape.
    begun: Option<u64>,
    /// The next sync is the end of that one.
    ends: Option<u64>,
}

impl TapeMedium {
    pub(super) fn new(tape: &Arc<Tape>, target: TargetId, content: Sparse) -> Arc<Self> {
        let state = Mutex::new(State { content, begun: None, ends: None });
        Arc::new(Self { tape: Arc::clone(tape), target, state })
    }

    pub(super) fn content(&self) -> Sparse {
        self.state.lock().content.clone()
    }

    /// A sync is handed to the device, which takes its time: what is written from now on is not covered.
    pub(super) fn begin_sync(&self) {
        let id = self.tape.submit(self.target, Op::Flush);
        self.state.lock().begun = Some(id);
    }

    /// The device answers: the call of `sync` within `wait` is the end of the sync that has begun.
    pub(super) fn end_sync<T>(&self, wait: impl FnOnce() -> T) -> T {
        {
            let mut state = self.state.lock();
            state.ends = state.begun.take();
        }
        let result = wait();
        self.state.lock().ends = None;
        result
    }

    /// Nobody waits for the sync that has begun any more: the process is dead.
    pub(super) fn abandon_sync(&self) {
        self.state.lock().begun = None;
    }
}

impl Medium for TapeMedium {
    fn len(&self) -> u64 {
        self.state.lock().content.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.state.lock();
        check(&state.content, offset, buf.len() as u64)?;
        state.content.read_at(buf, offset);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        check(&self.state.lock().content, offset, buf.len() as u64)?;
        let op = Op::Write { offset, data: Arc::from(buf), flushed: false };
        let id = self.tape.submit(self.target, op);
        self.state.lock().content.write_at(buf, offset);
        self.tape.complete(self.target, id);
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        check(&self.state.lock().content, offset, len)?;
        let id = self.tape.submit(self.target, Op::Zero { offset, len, unmap, flushed: false });
        self.state.lock().content.zero_at(offset, len);
        self.tape.complete(self.target, id);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let begun = self.state.lock().ends.take();
        let id = begun.unwrap_or_else(|| self.tape.submit(self.target, Op::Flush));
        self.tape.complete(self.target, id);
        Ok(())
    }
}

fn check(content: &Sparse, offset: u64, len: u64) -> io::Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= content.len() => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "outside the medium")),
    }
}
