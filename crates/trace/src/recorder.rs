//! Takes events from the data path, and writes them in a thread of its own.
//!
//! ```text
//! taps, marks ─► (mutex: order, time, id) queue ─► thread: encode, compress ─► file
//! ```
//!
//! One mutex orders the events of all queues and files. A recording *is* one total order, so something has to make it;
//! the lock is held for the push of a pointer, with the data copied before and encoded, compressed and written after, and
//! what it costs is paid only while something records.
//!
//! An error of the file never reaches the data path: the recorder stops taking events, and [`Recorder::finish`] says why.
//! A crash leaves a file that ends after some event, at most about [`IDLE`] and one chunk before the crash.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::{Result, TraceError};
use crate::writer::{About, RecordWriter, Written};
use crate::{Event, EventKind, Layer, Op, Role, Run, Sparse, Tally, TargetId};

/// Data that waits to be written. Beyond that, whoever submits waits: memory is bounded, not the guest's patience.
const QUEUED_BYTES_MAX: usize = 64 << 20;
/// What an event takes beside its data, roughly.
const EVENT_BYTES: usize = 64;
/// A chunk is written at least this often while there is something to write.
const IDLE: Duration = Duration::from_millis(500);

/// The content of a target when it is first recorded.
#[derive(Clone, Debug)]
pub enum Base {
    /// This.
    Own(Arc<Sparse>),
    /// That of an earlier target of the same size.
    SameAs(TargetId),
}

/// Writes a recording as things happen. Shared by all who have something to say.
pub struct Recorder {
    shared: Arc<Shared>,
    recording: AtomicBool,
    path: PathBuf,
    now: Box<dyn Fn() -> u64 + Send + Sync>,
    thread: Mutex<Option<Writing>>,
}

type Writing = JoinHandle<Result<(Written, File)>>;

struct Shared {
    state: Mutex<State>,
    /// The thread waits here.
    news: Condvar,
    /// Those wait here who found the queue full.
    room: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Item>,
    queued_bytes: usize,
    targets: Vec<(Layer, Arc<Sparse>)>,
    next_id: u64,
    last_ns: u64,
    tally: Tally,
    ending: bool,
    /// Nobody takes from the queue any more.
    dead: bool,
}

enum Item {
    Target { layer: Layer, role: Role, base: Arc<Sparse>, same_as: Option<TargetId> },
    About(About),
    Event(Event),
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What [`Recorder::finish`] has to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// What is in the recording.
    pub tally: Tally,
    /// How large it is.
    pub written: Written,
}

impl Recorder {
    /// Begins a recording in a new file, or over an old one. Time starts now.
    ///
    /// # Errors
    /// The file or the thread cannot be made.
    pub fn create(path: &Path, about: &About) -> Result<Arc<Self>> {
        let begin = Instant::now();
        Self::over(create(path)?, path, about, Some(IDLE), move || begin.elapsed().as_nanos() as u64)
    }

    /// As [`Recorder::create`], by somebody's own clock, in nanoseconds. How quickly it is written leaves nothing in the file: the same
    /// events at the same times are the same bytes. (So a crash costs a whole chunk, however long ago that was begun.)
    ///
    /// # Errors
    /// As [`Recorder::create`].
    pub fn create_timed(
        path: &Path,
        about: &About,
        now: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<Arc<Self>> {
        Self::over(create(path)?, path, about, None, now)
    }

    /// `idle`: a chunk is written at least this often.
    fn over(
        file: File,
        path: &Path,
        about: &About,
        idle: Option<Duration>,
        now: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<Arc<Self>> {
        let what = path.display().to_string();
        let mut writer = RecordWriter::new(file, what.clone(), u64::MAX)?;
        writer.about(about)?;
        let shared = Arc::new(Shared { state: Mutex::default(), news: Condvar::new(), room: Condvar::new() });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || {
                let _last = Last(&theirs);
                write_all(&theirs, writer, idle)
            })
            .map_err(TraceError::io(format!("starting the thread that writes {what}")))?;
        Ok(Arc::new(Self {
            shared,
            recording: AtomicBool::new(true),
            path: path.to_owned(),
            now: Box::new(now),
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// Whether events are still taken. Those that come later are dropped, so a tap may stay in place.
    pub fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Acquire)
    }

    /// Adds a target. Its base must be what it holds now, with nothing in flight to it.
    ///
    /// # Panics
    /// Where the base refers to a target that there is none of.
    pub fn target(&self, layer: Layer, role: Role, base: Base) -> TargetId {
        let mut state = self.shared.state.lock();
        let (base, same_as) = match base {
            Base::Own(base) => (base, None),
            Base::SameAs(other) => (Arc::clone(&state.targets[usize::from(other.0)].1), Some(other)),
        };
        let id = TargetId(state.targets.len() as u16);
        state.targets.push((layer, Arc::clone(&base)));
        self.push(&mut state, Item::Target { layer, role, base, same_as }, 0);
        id
    }

    /// The base content of a target.
    pub(crate) fn base(&self, target: TargetId) -> Option<Arc<Sparse>> {
        self.shared.state.lock().targets.get(usize::from(target.0)).map(|(_, base)| Arc::clone(base))
    }

    /// Adds to what is said about the recording.
    pub fn about(&self, more: About) {
        self.push(&mut self.shared.state.lock(), Item::About(more), 0);
    }

    /// A request is about to be made: call this before the layer below may act on it. Returns its name.
    pub fn submit(&self, target: TargetId, op: Op) -> u64 {
        let bytes = match &op {
            Op::Write { data, .. } => data.len(),
            Op::Zero { .. } | Op::Flush => 0,
        };
        let mut state = self.wait_for_room();
        let id = state.next_id;
        state.next_id += 1;
        self.event(&mut state, EventKind::Submit { target, id, op }, bytes);
        id
    }

    /// A request was answered: call this before the layer above may learn of it.
    pub fn complete(&self, target: TargetId, id: u64, ok: bool) {
        self.event(&mut self.shared.state.lock(), EventKind::Complete { target, id, ok }, 0);
    }

    /// Somebody has published this for `target`, in that slot: call this before anything of it is taken, and before a mark that was said behind it.
    pub fn publish(&self, target: TargetId, slot: u64, runs: Arc<[Run]>) {
        let bytes = runs.iter().map(|run| run.data.len()).sum();
        let mut state = self.wait_for_room();
        self.event(&mut state, EventKind::Publish { target, slot, runs }, bytes);
    }

    /// Somebody outside said this.
    pub fn mark(&self, text: &str) {
        self.event(&mut self.shared.state.lock(), EventKind::Mark { text: text.into() }, text.len());
    }

    /// What was recorded so far.
    pub fn tally(&self) -> Tally {
        self.shared.state.lock().tally
    }

    fn wait_for_room(&self) -> MutexGuard<'_, State> {
        let full = |state: &mut State| state.queued_bytes > QUEUED_BYTES_MAX && !state.dead;
        let mut state = self.shared.state.lock();
        self.shared.room.wait_while(&mut state, full);
        state
    }

    /// The time is taken under the lock, and never decreases.
    fn event(&self, state: &mut State, kind: EventKind, data_bytes: usize) {
        if !self.is_recording() || state.ending {
            return;
        }
        let target = match &kind {
            EventKind::Submit { target, .. } => Some(*target),
            _ => None,
        };
        let layer = target.and_then(|t| state.targets.get(usize::from(t.0))).map(|(layer, _)| *layer);
        state.tally.count(layer, &kind);
        state.last_ns = state.last_ns.max((self.now)());
        let at_ns = state.last_ns;
        self.push(state, Item::Event(Event { at_ns, kind }), data_bytes);
    }

    fn push(&self, state: &mut State, item: Item, data_bytes: usize) {
        if state.dead || state.ending {
            return;
        }
        state.queued_bytes += data_bytes + EVENT_BYTES;
        // Otherwise it was woken before, and has not looked yet.
        if state.queue.is_empty() {
            self.shared.news.notify_one();
        }
        state.queue.push_back(item);
    }

    /// Stops recording, writes what is left and syncs the file. What comes later is dropped. A second call says nothing.
    ///
    /// # Errors
    /// The first thing that went wrong since the beginning. What the file holds before that is readable.
    pub fn finish(&self) -> Result<Finished> {
        self.recording.store(false, Ordering::Release);
        let tally = {
            let mut state = self.shared.state.lock();
            state.ending = true;
            self.shared.news.notify_one();
            state.tally
        };
        let thread = self.thread.lock().take();
        let Some(thread) = thread else { return Ok(Finished { tally, ..Finished::default() }) };
        let (written, _file) = thread.join().unwrap_or_else(|_| {
            Err(TraceError::Unsupported(format!("the thread that writes {} panicked", self.path.display())))
        })?;
        Ok(Finished { tally, written })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!(%error, "a recording was not finished");
        }
    }
}

/// However the thread ends: nobody waits for it any more.
struct Last<'a>(&'a Shared);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.dead = true;
        state.queue.clear();
        self.0.room.notify_all();
    }
}

fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(TraceError::io(format!("creating {}", path.display())))
}

/// Until the recorder ends.
fn write_all(
    shared: &Shared,
    mut writer: RecordWriter<File>,
    idle: Option<Duration>,
) -> Result<(Written, File)> {
    let mut chunk_closed = Instant::now();
    loop {
        let mut state = shared.state.lock();
        let is_idle = |state: &mut State| state.queue.is_empty() && !state.ending;
        shared.news.wait_while_for(&mut state, is_idle, IDLE);
        let items = std::mem::take(&mut state.queue);
        let ending = state.ending;
        state.queued_bytes = 0;
        drop(state);
        shared.room.notify_all();
        for item in items {
            match item {
                Item::Target { layer, role, base, same_as } => writer.target(layer, role, &base, same_as)?,
                Item::About(about) => writer.about(&about)?,
                Item::Event(event) => writer.event(&event)?,
            }
        }
        if ending {
            break;
        }
        if idle.is_some_and(|idle| chunk_closed.elapsed() >= idle) {
            writer.close_chunk()?;
            chunk_closed = Instant::now();
        }
    }
    let (written, file) = writer.end()?;
    crate::file::sync(&file).map_err(TraceError::io("syncing the recording"))?;
    Ok((written, file))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn by_a_clock_of_its_own_the_same_events_are_the_same_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let record = |name: &str, pause: Duration| {
            let path = folder.path().join(name);
            let times = Mutex::new([5, 9, 8, 20].into_iter());
            let now = move || times.lock().next().expect("four events");
            let recorder = Recorder::create_timed(&path, &About::new(), now).expect("a recorder");
            let target =
                recorder.target(Layer::Guest, Role::Disk(0), Base::Own(Arc::new(Sparse::new(1 << 20))));
            let data: Arc<[u8]> = Arc::from(vec![3; 4096]);
            let id = recorder.submit(target, Op::Write { offset: 0, data, flushed: false });
            std::thread::sleep(pause);
            recorder.complete(target, id, true);
            recorder.mark("said");
            recorder.submit(target, Op::Flush);
            recorder.finish().expect("written");
            std::fs::read(path).expect("it is there")
        };
        let bytes = record("first", Duration::ZERO);
        assert_eq!(bytes, record("second", IDLE + Duration::from_millis(100)));
        let recording = crate::Recording::load(&folder.path().join("first")).expect("readable");
        let times: Vec<u64> = recording.events.iter().map(|event| event.at_ns).collect();
        assert_eq!(times, [5, 9, 9, 20], "a clock that goes back is not followed");
    }

    #[test]
    fn a_file_that_takes_no_more_is_told_at_the_end_and_stops_nobody() {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let file = File::from(OwnedFd::from(ours));
        let recorder =
            Recorder::over(file, Path::new("gone.afrec"), &About::new(), None, || 7).expect("a recorder");
        let base = Base::Own(Arc::new(Sparse::new(1 << 20)));
        let target = recorder.target(Layer::Guest, Role::Disk(0), base);
        drop(theirs);
        // More than may wait: without a reader the first of these that does not fit would wait for ever.
        let data: Arc<[u8]> = Arc::from(vec![1; 1 << 20]);
        for _ in 0..3 * (QUEUED_BYTES_MAX >> 20) {
            let op = Op::Write { offset: 0, data: Arc::clone(&data), flushed: false };
            let id = recorder.submit(target, op);
            recorder.complete(target, id, true);
        }
        let error = recorder.finish().expect_err("nobody read it").to_string();
        assert!(error.contains("gone.afrec"), "{error}");
        assert!(recorder.finish().is_ok(), "said once");
    }
}
