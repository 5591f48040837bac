//! A guest in virtual time whose block stream is recorded above and below the daemon's layers, for the explorer: from one seed the same
//! recording, byte for byte.
//!
//! ```text
//!   guest ─► trace ─► tap ─► journals ─► Group ─► taps ─► image, log      marks: what the guest has said on /dev/ttyS0 by the time that it
//!     │ marks          └──────────┬────────────────┘                      waits or has made requests available, and before its daemon
//!     └──────────────────► Recorder, on the daemon's clock                or anything else takes a turn
//! ```
//!
//! What is handed over to a control disk comes to the same tap, between what the guest asks of its disk. A commit that is published in memory which was
//! lent is looked for whenever the guest has taken its turn, and before what it has said in it becomes marks: so it is in the recording before anybody
//! is told of it, and before its daemon takes it. How the two stand to each other within a turn nobody knows.
//!
//! The daemon is one thread, but for syncs of its log: in the recording such a sync is over at once, and what was appended meanwhile
//! follows it.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{Buffers, DiskIndex, Sector, SECTOR_BYTES};
use afterimage_control_disk::Published;
use afterimage_journal::group::JournalOptions;
use afterimage_lab::channel::Arrival;
use afterimage_lab::device::ModelName;
use afterimage_order::Contract;
use afterimage_protocol::recording::{End, Order, Passed, Recorded};
use afterimage_protocol::report::Mark;
use afterimage_trace::{Finished, LayerTally, Recorder, Run, Taps};

use crate::beside::HearPublished;
use crate::calendar::{GuestId, Ns};
use crate::crowd::{Crowd, Turn};
use crate::daemon::Daemon;
use crate::error::{io_error, RunError};
use crate::guest::{exit_status, GuestKernel, GuestOptions, REPORTS};
use crate::host_fs::HostFs;
use crate::machine::Machine;
use crate::meeting::GO;
use crate::options::RunOptions;
use crate::page_cache::DirtyLimits;
use crate::site::{Files, Listener, Site};
use crate::storage::Storage;
use crate::trace::Trace;

/// How long everything that a setup wrote may take to go home.
const HOME_LIMIT: Duration = Duration::from_secs(3600);
/// How long the last acknowledgement may take to become durable.
const DURABLE_LIMIT: Duration = Duration::from_secs(60);
/// How late a mark may be: a guest that nobody waits for sleeps and computes on without a word to the calendar.
const HEARD_NS: Ns = 1_000_000;
/// Dirty memory of a host that writes nothing back by itself.
const HOST_BYTES: u64 = 64 << 30;

/// Why there is no recording, or not a whole one.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The order is none.
    #[error("{0}")]
    Order(String),
    /// The run came to no end.
    #[error(transparent)]
    Run(Box<RunError>),
    /// The recording could not be written.
    #[error(transparent)]
    Trace(#[from] afterimage_trace::TraceError),
}

impl From<RunError> for RecordError {
    fn from(error: RunError) -> Self {
        Self::Run(Box::new(error))
    }
}

/// Records. `folder` is an empty one on a tmpfs, `kernel` the one with the guests' kernel; `interrupt` ends it early.
///
/// # Errors
/// It did not come to an end; one that the guest made of it by itself is told in the answer.
pub fn record(
    order: &Order,
    kernel: &Path,
    folder: &Path,
    interrupt: &AtomicBool,
    say: &mut dyn FnMut(&str),
) -> Result<Recorded, RecordError> {
    let run = run_options(order, kernel)?;
    let trace = Trace::create(&folder.join("trace"), 1).map_err(io_error("make a trace"))?;
    let storage = Storage::new(run.model, run.limits, run.host_fs);
    let files = Files::make(0, &run, folder, &storage)?;
    let machine = Machine::mortal(&storage, run.request_ns, 0);
    let guest_ns = Arc::new(AtomicU64::new(0));
    let (daemons, guests) = (Arc::clone(&machine), Arc::clone(&guest_ns));
    let now = move || daemons.outside_ns().max(guests.load(Ordering::SeqCst));
    let recorder = Recorder::create_timed(&order.out, &order.about, now)?;
    let taps = Taps::new(Arc::clone(&recorder));
    let turn_ns = Arc::new(AtomicU64::new(0));
    let published = published(Arc::clone(&taps), (Arc::clone(&turn_ns), Arc::clone(&guest_ns)));
    let listener = Listener { tap: taps, published: Some(published) };
    let site = Site::open_heard(&files, &run, &machine, &trace, Some(listener))
        .map_err(|source| RunError::Compose { guest: 0, source })?;
    storage.lock().start();
    let crowd = Crowd::new(folder, &storage, vec![Daemon::new(&site)], Instant::now(), run.limit)?;
    let mut recording = Recording {
        crowd,
        site: &site,
        recorder: &recorder,
        guest_ns,
        turn_ns,
        reports: Lines::of(folder.join(format!("guest0.{REPORTS}"))),
        console: Lines::of(folder.join("guest0.out")),
        states: Vec::new(),
        done: false,
    };
    recording.crowd.boot(0, &run.guest, folder)?;
    let end = match recording.live(order.settle_ns, interrupt, say) {
        Ok(end) => end,
        Err(RunError::Limit { .. }) => End::OutOfTime,
        Err(error) => return Err(error.into()),
    };
    recording.crowd.kill(0)?;
    recording.durable(&run.contract)?;
    let Recording { mut crowd, states, .. } = recording;
    let finished = recorder.finish()?;
    // What is left of it reaches nothing any more.
    crowd.daemons[0].die();
    let read = |kind: &str| fs::read(folder.join(format!("guest0.{kind}"))).unwrap_or_default();
    let text = |kind: &str| String::from_utf8_lossy(&read(kind)).into_owned();
    Ok(recorded(end, &finished, states, text("out"), text("err")))
}

/// What a guest has published goes into the recording as it lies in its memory.
fn published(taps: Arc<Taps>, (turn_ns, guest_ns): (Arc<AtomicU64>, Arc<AtomicU64>)) -> HearPublished {
    Arc::new(move |Published { slot, runs }| {
        guest_ns.fetch_max(turn_ns.load(Ordering::SeqCst), Ordering::SeqCst);
        let run = |(sector, content): &(Sector, Buffers)| Run {
            offset: sector.0 * SECTOR_BYTES,
            data: content.to_vec().into(),
        };
        taps.published(DiskIndex(0), slot as u64, runs.iter().map(run).collect());
    })
}

fn recorded(
    end: End,
    finished: &Finished,
    states: Vec<String>,
    output: String,
    last_words: String,
) -> Recorded {
    let passed = |layer: LayerTally| Passed {
        writes: layer.writes,
        write_bytes: layer.write_bytes,
        zeroes: layer.zeroes,
        flushes: layer.flushes,
    };
    let (tally, written) = (finished.tally, finished.written);
    Recorded {
        end,
        events: tally.events,
        guest: passed(tally.guest),
        storage: passed(tally.storage),
        marks: tally.marks,
        published: tally.published,
        states,
        raw_bytes: written.raw_bytes,
        file_bytes: written.file_bytes,
        output,
        last_words,
    }
}

fn run_options(order: &Order, kernel: &Path) -> Result<RunOptions, RecordError> {
    let model = serde_json::from_value::<ModelName>(order.model.clone().into());
    let host_fs = serde_json::from_value::<HostFs>(order.host_fs.clone().into());
    let contract =
        order.contract.parse().map_err(|e| RecordError::Order(format!("{}: {e}", order.contract)))?;
    let guest = GuestOptions {
        kernel: GuestKernel::of(kernel).map_err(RunError::from)?,
        memory_mib: order.memory_mib,
        seed: order.seed,
        script: order.script.clone(),
        append: Vec::new(),
        reports: true,
    };
    Ok(RunOptions {
        model: model.map_err(|_| RecordError::Order(format!("there is no model {}", order.model)))?,
        host_fs: host_fs
            .map_err(|_| RecordError::Order(format!("there is no host file system {}", order.host_fs)))?,
        limits: DirtyLimits::of_memory(HOST_BYTES),
        image_bytes: order.disk_bytes,
        contract,
        journal: JournalOptions { retain: order.retain, ..JournalOptions::passthrough() },
        control_disk: order.control_disk,
        // As the recorder in real time: contracts with a process rule need it.
        direct: false,
        log_bytes: order.log_bytes,
        limit: Duration::from_secs(order.limit_s),
        ..RunOptions::of(guest)
    })
}

struct Recording<'a> {
    crowd: Crowd,
    site: &'a Site,
    recorder: &'a Recorder,
    /// The guest's clock, where it is ahead of its daemon's.
    guest_ns: Arc<AtomicU64>,
    /// The guest's clock when its last turn had ended.
    turn_ns: Arc<AtomicU64>,
    reports: Lines,
    console: Lines,
    states: Vec<String>,
    /// The mark `end` has been said.
    done: bool,
}

impl Recording<'_> {
    fn live(
        &mut self,
        settle: Ns,
        interrupt: &AtomicBool,
        say: &mut dyn FnMut(&str),
    ) -> Result<End, RunError> {
        let (mut until, mut home_at, mut look_at) = (None, None, None);
        let mut is_home = false;
        loop {
            if interrupt.load(Ordering::SeqCst) {
                return Ok(End::Interrupted);
            }
            match self.crowd.turn([until, home_at, look_at].into_iter().flatten().min())? {
                Turn::Taken => {}
                Turn::Rings(id) => {
                    if !is_home && self.crowd.daemons[id].asked() > 0 {
                        is_home = true;
                        home_at = Some(self.bring_home()?);
                    }
                    self.crowd.interrupt(id)?;
                }
                Turn::Own(at) if until.is_some_and(|until| until <= at) => return Ok(End::Done),
                Turn::Own(at) => {
                    if home_at.take_if(|home_at| *home_at <= at).is_some() {
                        self.crowd.daemons[0].set_serial(GO);
                    }
                    look_at = Some(at + HEARD_NS);
                }
                Turn::Over => break,
            }
            self.listen();
            self.hear()?;
            self.console.tell(say)?;
            if self.done && until.is_none() {
                until = Some(self.crowd.calendar.now() + settle);
            }
        }
        let code = exit_status(&String::from_utf8_lossy(&self.console.all));
        Ok(code.map_or(End::Died, End::Failed))
    }

    /// What the guest has published is heard, before what it has said since.
    fn listen(&self) {
        let now = self.crowd.calendar.clock(GuestId(0));
        self.turn_ns.store(now, Ordering::SeqCst);
        self.site.listen();
    }

    /// What the guest has said becomes marks.
    fn hear(&mut self) -> Result<(), RunError> {
        let now = self.crowd.calendar.clock(GuestId(0));
        let (recorder, guest_ns) = (self.recorder, &self.guest_ns);
        let mut said = Vec::new();
        self.reports.tell(&mut |line| {
            guest_ns.fetch_max(now, Ordering::SeqCst);
            recorder.mark(line);
            said.push(Arrival { at_ns: now, line: line.to_owned() });
        })?;
        for arrival in said {
            let Some(Mark { mark }) = arrival.report("mark")? else { continue };
            match mark.as_str() {
                "end" => self.done = true,
                "begin" => {}
                _ => self.states.push(mark),
            }
        }
        Ok(())
    }

    /// What the setup wrote goes home, on the recording: it would be recovered again in every state. Until when that takes: the guest
    /// waits for it, or its first events would all be the daemon's clock's.
    fn bring_home(&mut self) -> Result<Ns, RunError> {
        let failed = |what: String| RunError::Daemon { guest: 0, now: self.crowd.calendar.now(), what };
        self.site.machine.reach(self.crowd.calendar.now());
        self.site.group.pause(Some(HOME_LIMIT)).map_err(|e| failed(e.to_string()))?;
        self.site.group.resume();
        Ok(self.site.machine.now_ns())
    }

    /// The last window ends on the recording.
    fn durable(&mut self, contract: &Contract) -> Result<(), RunError> {
        let now = self.crowd.calendar.now();
        if matches!(contract, Contract::PowerWindow { .. }) {
            let group = &self.site.group;
            let durable = group.wait_durable(group.status().acknowledged, Some(DURABLE_LIMIT));
            durable.map_err(|e| RunError::Daemon { guest: 0, now, what: e.to_string() })?;
        }
        Ok(())
    }
}

/// Whole lines of a file that somebody else appends to.
struct Lines {
    path: PathBuf,
    file: Option<fs::File>,
    all: Vec<u8>,
    said: usize,
}

impl Lines {
    fn of(path: PathBuf) -> Self {
        Self { path, file: None, all: Vec::new(), said: 0 }
    }

    /// Tells those that have come since the last time.
    fn tell(&mut self, say: &mut dyn FnMut(&str)) -> Result<(), RunError> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(fs::File::open(&self.path).map_err(io_error("open what the guest says"))?),
        };
        file.read_to_end(&mut self.all).map_err(io_error("read what the guest says"))?;
        while let Some(len) = self.all[self.said..].iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&self.all[self.said..self.said + len]);
            say(line.trim_end_matches('\r'));
            self.said += len + 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn only_whole_lines_are_told_and_each_once() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut lines = Lines::of(file.path().to_owned());
        let mut told = Vec::new();
        for (text, after) in [("", vec![]), ("one\r\ntw", vec!["one"]), ("o\nthree\n", vec!["two", "three"])]
        {
            file.write_all(text.as_bytes()).unwrap();
            lines.tell(&mut |line| told.push(line.to_owned())).unwrap();
            assert_eq!(std::mem::take(&mut told), after);
        }
    }
}
