//! Guests, their daemons and the host, one thread and one calendar.

use std::fs;
use std::hash::Hasher as _;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{BlockError, Disk, Lane, Medium};
use afterimage_block_conformance::Bytes;
use afterimage_compose::{ComposeError, Prepared};
use afterimage_frontend::inband::Heard;
use afterimage_frontend::FrontendStats;
use afterimage_journal::group::{JournalOptions, RetainGroup};
use afterimage_lab::device::ModelName;
use afterimage_lab::LabError;
use afterimage_order::redo::{create_medium, log_file_bytes};
use afterimage_order::{Contract, GroupOptions};
use afterimage_store::Image as _;
use parking_lot::Mutex;
use twox_hash::XxHash3_64;

use crate::calendar::{Broken, Calendar, Go, GuestId, Next, Ns, Say};
use crate::daemon::Daemon;
use crate::guest::{Guest, GuestOptions, Tell, EXIT};
use crate::image::{Around, VirtualImage};
use crate::machine::{Machine, OnMachine, Storage, TimedMedium};
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
    /// The host's limits on what is dirty in its page cache.
    pub limits: DirtyLimits,
    /// Each image's size in bytes.
    pub image_bytes: u64,
    /// The promise.
    pub contract: Contract,
    /// Journals are retained.
    pub retain: bool,
    /// Under `power`: whether the image is opened with O_DIRECT. (The other contracts use the page cache.)
    pub direct: bool,
    /// Size of a redo log in bytes.
    pub log_bytes: u64,
    /// What a request costs the daemon.
    pub request_ns: Ns,
    /// How long all of it may take in real time.
    pub limit: Duration,
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
    let storage = Storage::new(options.model, options.limits);
    let sites = (0..options.guests)
        .map(|guest| Site::open(guest, options, folder, &storage, &trace))
        .collect::<Result<Vec<_>, _>>()?;
    storage.lock().start();
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
        storage: Arc::clone(&storage),
        daemons: daemons.collect(),
        guests: Vec::new(),
        ended: vec![0; options.guests],
    };
    for guest in 0..options.guests {
        let id = GuestId(guest);
        // One after another: who connects first is the first.
        world.guests.push(Guest::start(id, &options.guest, &listener, folder)?);
        world.calendar.hear(id, Say::Start)?;
    }
    while world.step()? {}
    let World { guests, ended, .. } = world;
    let messages = guests.iter().map(|guest| guest.messages).sum();
    drop(guests);
    let traced = trace.finish().map_err(io_error("write the trace"))?;
    let reports = sites.iter().zip(&ended).enumerate().map(|(guest, (site, ended))| {
        let path = folder.join(format!("guest{guest}.out"));
        let output = fs::read(&path).map_err(io_error(format!("read {}", path.display())))?;
        let output = String::from_utf8_lossy(&output).into_owned();
        let exit =
            output.lines().rev().find_map(|line| line.trim_end().strip_prefix(EXIT)?.trim().parse().ok());
        let image = sum(&site.image).map_err(io_error("sum an image"))?;
        Ok(GuestReport { exit, output, ended: *ended, counts: trace.counts(guest), image })
    });
    let guests = reports.collect::<Result<Vec<_>, RunError>>()?;
    let virtual_time = Duration::from_nanos(ended.iter().copied().max().unwrap_or(0));
    Ok(Report { guests, trace: traced, virtual_time, real_time: begun.elapsed(), messages })
}

/// Of an image of any size.
fn sum(image: &Bytes) -> io::Result<u64> {
    let mut sum = XxHash3_64::with_seed(0);
    let mut part = vec![0; 1 << 20];
    for at in (0..image.len()).step_by(part.len()) {
        let bytes = part.len().min((image.len() - at) as usize);
        image.read_at(&mut part[..bytes], at)?;
        sum.write(&part[..bytes]);
    }
    Ok(sum.finish())
}

/// Where one guest's daemon is: its files, its machine, and its layers.
pub(crate) struct Site {
    pub machine: Arc<Machine>,
    pub image: Arc<Bytes>,
    pub disk: Arc<dyn Disk>,
    pub group: Arc<RetainGroup>,
}

impl Site {
    pub fn open(
        guest: usize,
        options: &RunOptions,
        folder: &Path,
        storage: &Arc<Mutex<Storage>>,
        trace: &Arc<Trace>,
    ) -> Result<Self, RunError> {
        let machine = Machine::new(storage, options.request_ns);
        let path: PathBuf = folder.join(format!("image{guest}"));
        // Of the image only the name is a file.
        let name = fs::File::create(&path).and_then(|file| file.set_len(options.image_bytes));
        name.map_err(io_error(format!("make {}", path.display())))?;
        let arenas = folder.join("arenas");
        fs::create_dir_all(&arenas).map_err(io_error(format!("make {}", arenas.display())))?;
        let image = Bytes::new(vec![0; options.image_bytes as usize]);
        let (image_file, log_file) = (2 * guest as u64, 2 * guest as u64 + 1);
        let direct = options.direct && options.contract == Contract::Power;
        let medium = TimedMedium::new(&image, image_file, direct, &machine);
        let named = VirtualImage::new(&machine, medium, &path);
        let log = Self::log(options, &named, &image)
            .map_err(io_error(format!("make the log of {}", path.display())))?;
        let host = Arc::new(OnMachine(Arc::clone(&machine)));
        let around =
            Around { guest, machine: Arc::clone(&machine), log: (log, log_file), trace: Arc::clone(trace) };
        let group =
            GroupOptions { log_max_bytes: options.log_bytes, host, ..GroupOptions::new(options.contract) };
        let journal =
            JournalOptions { retain: options.retain, arena_folder: arenas, ..JournalOptions::passthrough() };
        let opened = Prepared::of(vec![named], group, journal).and_then(|p| p.open(Some(Arc::new(around))));
        let mut stack = opened.map_err(|source| RunError::Compose { guest, source })?;
        Ok(Self { machine, image, disk: stack.disks.remove(0).disk, group: stack.group })
    }

    /// The content of a log of which only the name is a file: empty.
    fn log(options: &RunOptions, image: &VirtualImage, content: &Arc<Bytes>) -> io::Result<Arc<Bytes>> {
        if !matches!(options.contract, Contract::PowerWindow { .. }) {
            return Ok(Bytes::new(Vec::new()));
        }
        let log = Bytes::new(vec![0; log_file_bytes(options.log_bytes) as usize]);
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
    daemons: Vec<Daemon<'a>>,
    guests: Vec<Guest>,
    ended: Vec<Ns>,
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
        let first = daemon.map(|(at, _)| at).into_iter().chain(host).min();
        match self.calendar.next(first) {
            Next::Over => return Ok(false),
            Next::Stuck => return Err(RunError::Stuck(self.calendar.now())),
            Next::Guest(id) => self.run(id)?,
            Next::Disk(at) => {
                self.calendar.reach(at);
                match daemon {
                    Some((when, id)) if host.is_none_or(|host| when <= host) => self.serve(id)?,
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
        match rings && !self.calendar.has_ended(GuestId(id)) {
            true => self.interrupt(GuestId(id)),
            false => Ok(()),
        }
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
        Ok(())
    }
}
