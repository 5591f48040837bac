//! Guests, their daemons and the host, one thread and one calendar.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{BlockError, Disk, Lane, Medium};
use afterimage_compose::{ComposeError, Prepared};
use afterimage_frontend::inband::Heard;
use afterimage_frontend::FrontendStats;
use afterimage_journal::group::{Ending, JournalOptions, RetainError, RetainGroup};
use afterimage_journal::DiskStatus;
use afterimage_lab::device::{ModelName, Work};
use afterimage_lab::LabError;
use afterimage_order::redo::{create_medium, log_file_bytes};
use afterimage_order::{Contract, GroupOptions};
use afterimage_store::Image as _;
use parking_lot::Mutex;

use crate::calendar::{Broken, Calendar, Go, GuestId, Next, Ns, Say};
use crate::content::Content;
use crate::daemon::Daemon;
use crate::guest::{Guest, GuestOptions, Tell, EXIT};
use crate::host_fs::HostFs;
use crate::image::{Around, VirtualImage};
use crate::machine::{File, Machine, OnMachine, Storage, TimedMedium};
use crate::meeting::{Meetings, GO, WAIT};
use crate::page_cache::DirtyLimits;
use crate::trace::{Counts, Trace};

/// What is run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// How many guests, each with its own daemon and image, on one device.
    pub guests: usize,
    /// What each guest is.
    pub guest: GuestOptions,
    /// The device.
    pub model: ModelName,
    /// What of a host's file system lies on it, as a model.
    pub host_fs: HostFs,
    /// Ranges of each image that have blocks there from the beginning, besides what is no hole in it.
    pub laid_out: Vec<Range<u64>>,
    /// The host's limits on what is dirty in its page cache.
    pub limits: DirtyLimits,
    /// Each image's size in bytes.
    pub image_bytes: u64,
    /// What the images hold, by guest; zeroes where there is none.
    pub images: Vec<Arc<Content>>,
    /// The promise.
    pub contract: Contract,
    /// What becomes of the guests' journals. (Arenas are in the run's folder.)
    pub journal: JournalOptions,
    /// Under `power`: whether the image is opened with O_DIRECT. (The other contracts use the page cache.)
    pub direct: bool,
    /// Under `power`: each write is synced before it is answered, as by a daemon that shows no write cache.
    pub write_through: bool,
    /// Size of a redo log in bytes.
    pub log_bytes: u64,
    /// What a request costs the daemon.
    pub request_ns: Ns,
    /// At so many meetings, from the first on, all that is cached goes to the device and is forgotten before anybody goes on.
    pub settle_meetings: usize,
    /// How often is looked at what the daemons retain, from the first meeting to the second.
    pub sample: Option<Ns>,
    /// All guests die at their work.
    pub kill: Option<Kill>,
    /// How long all of it may take in real time.
    pub limit: Duration,
}

/// All guests die.
#[derive(Clone, Copy, Debug)]
pub struct Kill {
    /// So long after their first meeting.
    pub after: Ns,
    /// Their daemons as well; other ones take over what they left.
    pub daemons: bool,
}

/// Guests have waited for each other, and go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// When the last one came.
    pub met: Ns,
    /// When they went on.
    pub at: Ns,
    /// What the device had been asked by then.
    pub device: Work,
    /// What daemons had asked of their files.
    pub asked: Work,
    /// What is retained, by guest, where anything is.
    pub retained: Vec<Option<DiskStatus>>,
}

/// What is retained at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When.
    pub at: Ns,
    /// By guest, where anything is.
    pub retained: Vec<Option<DiskStatus>>,
}

/// The daemons' orderly end, after the guests'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// When the last guest had ended; of guests that were killed, when all that was cached was on the device.
    pub from: Ns,
    /// When the daemons had ended.
    pub daemons: Ns,
    /// When all of it was on the device.
    pub settled: Ns,
    /// What the device had been asked when it began.
    pub device_before: Work,
    /// And at last.
    pub device: Work,
    /// What daemons had asked of their files when it began.
    pub asked_before: Work,
    /// And at last.
    pub asked: Work,
    /// What was retained when it began, by guest.
    pub retained: Vec<Option<DiskStatus>>,
}

/// What came of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestReport {
    /// The script's exit status; `None` where it did not get that far.
    pub exit: Option<i32>,
    /// What it said.
    pub output: String,
    /// When it ended.
    pub ended: Ns,
    /// What it asked of its disk.
    pub counts: Counts,
    /// Sum of its image.
    pub image: u64,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// By guest.
    pub guests: Vec<GuestReport>,
    /// Guests have waited for each other.
    pub meetings: Vec<Meeting>,
    /// What was retained meanwhile.
    pub samples: Vec<Sample>,
    /// The daemons' end.
    pub end: End,
    /// Guests were killed: not where they had ended before.
    pub killed: bool,
    /// What the images hold, by guest.
    pub images: Vec<Arc<Content>>,
    /// Sum of the trace.
    pub trace: u64,
    /// How long it was in virtual time.
    pub virtual_time: Duration,
    /// And in real time.
    pub real_time: Duration,
    /// Messages that guests sent to the calendar.
    pub messages: u64,
}

/// Why a run came to no end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The lab: a guest did not start, or broke its protocol.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A guest broke the calendar's rules.
    #[error(transparent)]
    Calendar(#[from] Broken),
    /// A daemon's layers cannot be built.
    #[error("daemon {guest}: {source}")]
    Compose {
        /// Whose.
        guest: usize,
        /// Why.
        source: ComposeError,
    },
    /// A daemon opens no lane.
    #[error("daemon {guest}: {source}")]
    Lane {
        /// Whose.
        guest: usize,
        /// Why.
        source: BlockError,
    },
    /// A daemon broke.
    #[error("daemon {guest} at {now} ns: {what}")]
    Daemon {
        /// Whose.
        guest: usize,
        /// When.
        now: Ns,
        /// Why.
        what: String,
    },
    /// A daemon cannot end in order.
    #[error("daemon {guest}: {source}")]
    End {
        /// Whose.
        guest: usize,
        /// Why.
        source: RetainError,
    },
    /// A file or socket of the run's.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// Every guest waits for something that will not come.
    #[error("at {0} ns every guest waits, and nothing will happen")]
    Stuck(Ns),
    /// It takes too long.
    #[error("the run took longer than {} s of real time, and was at {now} ns", limit.as_secs())]
    Limit {
        /// How long it might.
        limit: Duration,
        /// How far it came.
        now: Ns,
    },
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> RunError {
    let what = what.into();
    move |source| RunError::Io { what, source }
}

/// Runs guests to their end. `folder` is for sockets, consoles and names of images, best on a tmpfs; the trace goes to a file of its
/// own.
///
/// # Errors
/// The run came to no end. What guests had said is in `folder`.
pub fn run(options: &RunOptions, folder: &Path, trace: &Path) -> Result<Report, RunError> {
    let begun = Instant::now();
    let trace =
        Trace::create(trace, options.guests).map_err(io_error(format!("create {}", trace.display())))?;
    let storage = Storage::new(options.model, options.limits, options.host_fs);
    let mut sites = (0..options.guests)
        .map(|guest| Site::open(guest, options, folder, &storage, &trace, None))
        .collect::<Result<Vec<_>, _>>()?;
    storage.lock().start();
    let lived = live(options, folder, begun, &storage, &sites)?;
    let end = close(options, folder, &lived, &storage, &trace, &mut sites)?;
    let traced = trace.finish().map_err(io_error("write the trace"))?;
    let reports = sites.iter().zip(&lived.ended).enumerate().map(|(guest, (site, ended))| {
        let path = folder.join(format!("guest{guest}.out"));
        let output = fs::read(&path).map_err(io_error(format!("read {}", path.display())))?;
        let output = String::from_utf8_lossy(&output).into_owned();
        let exit =
            output.lines().rev().find_map(|line| line.trim_end().strip_prefix(EXIT)?.trim().parse().ok());
        let image = site.image.sum().map_err(io_error("sum an image"))?;
        Ok(GuestReport { exit, output, ended: *ended, counts: trace.counts(guest), image })
    });
    let guests = reports.collect::<Result<Vec<_>, RunError>>()?;
    let virtual_time = Duration::from_nanos(lived.ended.iter().copied().max().unwrap_or(0));
    let images = sites.iter().map(|site| Arc::clone(&site.image)).collect();
    let Lived { meetings, samples, killed, messages, .. } = lived;
    let real_time = begun.elapsed();
    Ok(Report {
        guests,
        meetings,
        samples,
        end,
        killed,
        images,
        trace: traced,
        virtual_time,
        real_time,
        messages,
    })
}

/// What is known when all guests have ended.
struct Lived {
    ended: Vec<Ns>,
    meetings: Vec<Meeting>,
    samples: Vec<Sample>,
    killed: bool,
    messages: u64,
}

/// Guests and their daemons, until all guests have ended.
fn live(
    options: &RunOptions,
    folder: &Path,
    begun: Instant,
    storage: &Arc<Mutex<Storage>>,
    sites: &[Site],
) -> Result<Lived, RunError> {
    let stats: Vec<FrontendStats> = sites.iter().map(|_| FrontendStats::new(1)).collect();
    let mut lanes = Vec::new();
    for (guest, site) in sites.iter().enumerate() {
        lanes.push(site.disk.open_lane().map_err(|source| RunError::Lane { guest, source })?);
    }
    let daemons = sites.iter().zip(&mut lanes).zip(&stats).map(|((site, lane), stats)| {
        let lane: &mut dyn Lane = &mut **lane;
        Daemon::new(&site.machine, &site.group, &site.disk, lane, stats.queue(0).expect("one queue"))
    });
    let listener = UnixListener::bind(folder.join("calendar"))
        .map_err(io_error(format!("listen in {}", folder.display())))?;
    let mut world = World {
        options,
        begun,
        calendar: Calendar::new(options.guests),
        storage: Arc::clone(storage),
        sites,
        daemons: daemons.collect(),
        guests: Vec::new(),
        ended: vec![0; options.guests],
        place: Meetings::new(options.guests),
        asked: vec![0; options.guests],
        met: 0,
        meetings: Vec::new(),
        samples: Vec::new(),
        sample_at: None,
        kill_at: None,
        killed: false,
    };
    for guest in 0..options.guests {
        let id = GuestId(guest);
        // One after another: who connects first is the first.
        world.guests.push(Guest::start(id, &options.guest, &listener, folder)?);
        world.calendar.hear(id, Say::Start)?;
    }
    while world.step()? {}
    let World { guests, ended, meetings, samples, killed, .. } = world;
    let messages = guests.iter().map(|guest| guest.messages).sum();
    Ok(Lived { ended, meetings, samples, killed, messages })
}

/// The daemons end in order, all from the same time on, and what they leave goes to the device.
fn close(
    options: &RunOptions,
    folder: &Path,
    lived: &Lived,
    storage: &Arc<Mutex<Storage>>,
    trace: &Arc<Trace>,
    sites: &mut Vec<Site>,
) -> Result<End, RunError> {
    let machines = sites.iter().map(|site| site.machine.now_ns());
    let mut from = machines.chain(lived.ended.iter().copied()).max().unwrap_or(0);
    let killed = options.kill.filter(|_| lived.killed);
    if killed.is_some() {
        // What guests had written before they died is no part of what follows.
        from = storage.lock().settle(from);
    }
    let retained = retained(sites);
    let (asked_before, device_before) = storage.lock().work();
    for guest in 0..sites.len() {
        sites[guest].machine.reach(from);
        if killed.is_some_and(|kill| kill.daemons) {
            let left = sites.remove(guest).die();
            sites.insert(guest, Site::open(guest, options, folder, storage, trace, Some(&left))?);
            // As `afterimage recover`, which is told that nobody is there.
            sites[guest].group.guest_was_seen(0);
        }
        let closed = sites[guest].group.close_within(CLOSING_MAX, Ending::Close { attached: false });
        closed.map_err(|source| RunError::End { guest, source })?;
    }
    let daemons = sites.iter().map(|site| site.machine.now_ns()).max().unwrap_or(from);
    let settled = storage.lock().settle(daemons);
    let (asked, device) = storage.lock().work();
    Ok(End { from, daemons, settled, device_before, device, asked_before, asked, retained })
}

fn retained(sites: &[Site]) -> Vec<Option<DiskStatus>> {
    sites.iter().map(|site| site.group.disk_status(0)).collect()
}

/// For how long a log may be brought home at the orderly end: until it is empty.
const CLOSING_MAX: Duration = Duration::from_secs(24 * 3600);

/// Where one guest's daemon is: its files, its machine, and its layers.
pub(crate) struct Site {
    pub machine: Arc<Machine>,
    pub image: Arc<Content>,
    log: Arc<Content>,
    pub disk: Arc<dyn Disk>,
    pub group: Arc<RetainGroup>,
}

/// What is left of a daemon that died.
pub(crate) struct Left {
    image: Arc<Content>,
    log: Arc<Content>,
    died: Ns,
}

impl Site {
    /// A daemon's. `dead`: of the one before it.
    pub fn open(
        guest: usize,
        options: &RunOptions,
        folder: &Path,
        storage: &Arc<Mutex<Storage>>,
        trace: &Arc<Trace>,
        dead: Option<&Left>,
    ) -> Result<Self, RunError> {
        let machine = Machine::new(storage, options.request_ns);
        machine.reach(dead.map_or(0, |dead| dead.died));
        let image = match (dead, options.images.get(guest)) {
            (Some(dead), _) => Arc::clone(&dead.image),
            (None, Some(image)) => Arc::clone(image),
            (None, None) => Content::new(options.image_bytes),
        };
        let path: PathBuf = folder.join(format!("image{guest}"));
        if dead.is_none() {
            // Of the image only the name is a file.
            let name = fs::File::create(&path).and_then(|file| file.set_len(image.len()));
            name.map_err(io_error(format!("make {}", path.display())))?;
        }
        let arenas = folder.join("arenas");
        fs::create_dir_all(&arenas).map_err(io_error(format!("make {}", arenas.display())))?;
        let (image_file, log_file) = (2 * guest as u64, 2 * guest as u64 + 1);
        let under_power = options.contract == Contract::Power;
        let file = File {
            id: image_file,
            direct: options.direct && under_power,
            write_through: options.write_through && under_power,
        };
        let medium = TimedMedium::new(&image, file, &machine);
        let named = VirtualImage::new(&machine, medium, &path);
        let log = match dead {
            Some(dead) => Arc::clone(&dead.log),
            None => Self::log(options, &named, &image)
                .map_err(io_error(format!("make the log of {}", path.display())))?,
        };
        if dead.is_none() {
            let mut storage = storage.lock();
            let there = image.data().chain(options.laid_out.iter().cloned());
            there.for_each(|range| storage.lay_out(image_file, range));
            // A new log is written out before it is used.
            storage.lay_out(log_file, 0..log.len());
        }
        let host = Arc::new(OnMachine(Arc::clone(&machine)));
        let around = Around {
            guest,
            machine: Arc::clone(&machine),
            log: (Arc::clone(&log), log_file),
            trace: Arc::clone(trace),
        };
        let group =
            GroupOptions { log_max_bytes: options.log_bytes, host, ..GroupOptions::new(options.contract) };
        let journal = JournalOptions { arena_folder: arenas, ..options.journal.clone() };
        let opened = Prepared::of(vec![named], group, journal).and_then(|p| p.open(Some(Arc::new(around))));
        let mut stack = opened.map_err(|source| RunError::Compose { guest, source })?;
        Ok(Self { machine, image, log, disk: stack.disks.remove(0).disk, group: stack.group })
    }

    /// The daemon dies.
    fn die(self) -> Left {
        Left { image: self.image, log: self.log, died: self.machine.now_ns() }
    }

    /// The content of a log of which only the name is a file: empty.
    fn log(options: &RunOptions, image: &VirtualImage, content: &Arc<Content>) -> io::Result<Arc<Content>> {
        if !matches!(options.contract, Contract::PowerWindow { .. }) {
            return Ok(Content::new(0));
        }
        let log = Content::new(log_file_bytes(options.log_bytes));
        let homes: [Arc<dyn Medium>; 1] = [Arc::clone(content) as _];
        let medium: Arc<dyn Medium> = Arc::clone(&log) as _;
        create_medium(&medium, &homes, &[image.log_entry()?], &[], [7; 16], options.guest.seed)?;
        Ok(log)
    }
}

struct World<'a> {
    options: &'a RunOptions,
    begun: Instant,
    calendar: Calendar,
    storage: Arc<Mutex<Storage>>,
    sites: &'a [Site],
    daemons: Vec<Daemon<'a>>,
    guests: Vec<Guest>,
    ended: Vec<Ns>,
    place: Meetings,
    /// How often each guest has asked whether it may go on.
    asked: Vec<u64>,
    /// When everybody was there.
    met: Ns,
    meetings: Vec<Meeting>,
    samples: Vec<Sample>,
    sample_at: Option<Ns>,
    kill_at: Option<Ns>,
    killed: bool,
}

impl World<'_> {
    /// What is next. `false` when all is over.
    fn step(&mut self) -> Result<bool, RunError> {
        let limit = self.options.limit;
        if self.begun.elapsed() > limit {
            return Err(RunError::Limit { limit, now: self.calendar.now() });
        }
        let daemons = self.daemons.iter().enumerate();
        let daemon = daemons.filter_map(|(id, daemon)| Some((daemon.next()?, id))).min();
        let host = self.storage.lock().next();
        let own = self.sample_at.into_iter().chain(self.kill_at).chain(self.place.next()).min();
        let first = daemon.map(|(at, _)| at).into_iter().chain(host).chain(own).min();
        match self.calendar.next(first) {
            Next::Over => return Ok(false),
            Next::Stuck => return Err(RunError::Stuck(self.calendar.now())),
            Next::Guest(id) => self.run(id)?,
            Next::Disk(at) => {
                self.calendar.reach(at);
                match (daemon, host) {
                    _ if own == first => self.turn(at)?,
                    (Some((when, id)), _) if Some(when) == first => self.serve(id)?,
                    _ => self.storage.lock().turn(at),
                }
            }
        }
        Ok(true)
    }

    fn daemon_error(&self, guest: usize) -> impl FnOnce(String) -> RunError {
        let now = self.calendar.now();
        move |what| RunError::Daemon { guest, now, what }
    }

    /// A daemon's turn.
    fn serve(&mut self, id: usize) -> Result<(), RunError> {
        let peer = self.guests.get(id).and_then(|guest| guest.peer.as_ref());
        let stepped = self.daemons[id].step(self.calendar.now(), peer);
        let rings = stepped.map_err(self.daemon_error(id))?;
        if !rings || self.calendar.has_ended(GuestId(id)) {
            return Ok(());
        }
        let asked = self.daemons[id].asked();
        if std::mem::replace(&mut self.asked[id], asked) < asked && self.place.asks(id) {
            self.daemons[id].set_serial(WAIT);
        }
        self.meet();
        self.interrupt(GuestId(id))
    }

    /// If everybody is there: when they may go on.
    fn meet(&mut self) {
        if !self.place.has_met() {
            return;
        }
        let now = self.calendar.now();
        let settles = self.meetings.len() < self.options.settle_meetings;
        let at = if settles { self.storage.lock().settle(now) } else { now };
        self.met = now;
        self.place.go_on(at.max(now));
    }

    /// What is due at that time of the world's own.
    fn turn(&mut self, at: Ns) -> Result<(), RunError> {
        let due = |when: Option<Ns>| when.is_some_and(|when| when <= at);
        if due(self.place.next()) {
            for id in self.place.go() {
                self.daemons[id].set_serial(GO);
            }
            let (asked, device) = self.storage.lock().work();
            self.meetings.push(Meeting { met: self.met, at, device, asked, retained: retained(self.sites) });
            let is_first = self.meetings.len() == 1;
            self.sample_at = self.options.sample.filter(|_| is_first).map(|every| at + every);
            if let Some(kill) = self.options.kill.filter(|_| is_first) {
                self.kill_at = Some(at + kill.after);
            }
        }
        if due(self.sample_at) {
            self.samples.push(Sample { at, retained: retained(self.sites) });
            self.sample_at = self.options.sample.map(|every| at + every);
        }
        if due(self.kill_at) {
            self.kill_at = None;
            for id in (0..self.guests.len()).map(GuestId) {
                if !self.calendar.has_ended(id) {
                    self.killed = true;
                    self.guests[id.0].kill();
                    self.end(id)?;
                }
            }
        }
        Ok(())
    }

    /// A guest computes until it waits.
    fn run(&mut self, id: GuestId) -> Result<(), RunError> {
        let alone_until = self.daemons[id.0].next();
        let gone = match self.calendar.run(id, alone_until) {
            Go::Begin => {
                self.guests[id.0].begin()?;
                false
            }
            Go::Run { now, free_until } => {
                let guest = &mut self.guests[id.0];
                let hears = free_until.map_or(Ok(true), |until| guest.tell(Tell::FreeUntil(until)))?;
                !(hears && guest.tell(Tell::Run(now))?)
            }
        };
        if gone {
            self.end(id)?;
        }
        while self.calendar.computes(id) {
            let came = self.guests[id.0].wait(false)?;
            // What was sent before it says that it waits is there by then.
            while came.disk && self.hear_driver(id)? {}
            if came.time {
                self.hear(id)?;
            }
        }
        Ok(())
    }

    fn hear(&mut self, id: GuestId) -> Result<(), RunError> {
        match self.guests[id.0].hear()? {
            None => self.end(id),
            Some((say, sequence)) => {
                let answer = self.calendar.hear(id, say)?;
                Ok(self.guests[id.0].answer(sequence, answer.unwrap_or(0))?)
            }
        }
    }

    /// A message of a guest's driver; `false` when there is none.
    fn hear_driver(&mut self, id: GuestId) -> Result<bool, RunError> {
        let (guest, daemon) = (&mut self.guests[id.0], &mut self.daemons[id.0]);
        let clock = self.calendar.clock(id);
        let Some(peer) = &mut guest.peer else {
            guest.accept(daemon.geometry())?;
            return Ok(true);
        };
        let heard = peer.hear().map_err(io_error(format!("guest {}'s disk", id.0)))?;
        let done = match heard {
            None => return Ok(false),
            Some(Heard::SetUp) => Ok(()),
            Some(Heard::Enabled) => daemon.attach(peer, clock),
            Some(Heard::Disabled) => daemon.detach(clock),
            Some(Heard::Closed) => {
                guest.peer = None;
                daemon.detach(clock)
            }
            Some(Heard::Kick) => {
                daemon.kick(clock);
                // It believes that it is alone for longer; it hears of this before it goes on.
                let shorter = daemon.next().and_then(|at| self.calendar.shorten(id, at));
                if let Some(until) = shorter {
                    guest.tell(Tell::FreeUntil(until))?;
                }
                let peer = guest.peer.as_ref().expect("it is there");
                peer.answer_kick().map_err(io_error(format!("guest {}'s disk", id.0)))?;
                Ok(())
            }
        };
        done.map_err(self.daemon_error(id.0))?;
        Ok(!matches!(heard, Some(Heard::Closed)))
    }

    /// Interrupts a guest that waits: it asks for the time and for its turn before it answers.
    fn interrupt(&mut self, id: GuestId) -> Result<(), RunError> {
        let disk_of = || io_error(format!("interrupt guest {}", id.0));
        let Some(peer) = &self.guests[id.0].peer else { return Ok(()) };
        peer.call().map_err(disk_of())?;
        loop {
            let came = self.guests[id.0].wait(true)?;
            if came.time {
                self.hear(id)?;
            }
            if self.calendar.has_ended(id) {
                return Ok(());
            }
            if came.call {
                let Some(peer) = &self.guests[id.0].peer else { return Ok(()) };
                return peer.take_call_answer().map_err(disk_of());
            }
        }
    }

    fn end(&mut self, id: GuestId) -> Result<(), RunError> {
        self.calendar.end(id);
        self.ended[id.0] = self.calendar.clock(id);
        let at = self.ended[id.0].max(self.calendar.now());
        self.daemons[id.0].detach(at).map_err(self.daemon_error(id.0))?;
        self.guests[id.0].peer = None;
        self.guests[id.0].finish();
        self.place.end(id.0);
        self.meet();
        Ok(())
    }
}
