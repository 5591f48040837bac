//! Guests, their daemons and the host, one thread and one calendar.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::Medium as _;
use afterimage_journal::group::Ending;
use afterimage_journal::DiskStatus;
use afterimage_protocol::cell::KillAt;
use parking_lot::Mutex;

use crate::calendar::Ns;
use crate::crowd::{Crowd, Turn};
use crate::daemon::Daemon;
use crate::error::{io_error, RunError};
use crate::guest::exit_status;
use crate::machine::Machine;
use crate::meeting::{Meetings, GO, WAIT};
use crate::options::RunOptions;
use crate::report::{End, GuestReport, Meeting, Report, Sample};
use crate::site::{Files, Site};
use crate::storage::Storage;
use crate::trace::Trace;

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
        .map(|guest| {
            let files = Files::make(guest, options, folder, &storage)?;
            Site::open(&files, options, &Machine::new(&storage, options.request_ns), &trace)
                .map_err(|source| RunError::Compose { guest, source })
        })
        .collect::<Result<Vec<_>, _>>()?;
    storage.lock().start();
    let lived = live(options, folder, begun, &storage, &trace, &sites)?;
    let end = close(options, &lived, &storage, &trace, &mut sites)?;
    write_storage_traces(options, &sites)?;
    let traced = trace.finish().map_err(io_error("write the trace"))?;
    let reports = sites.iter().zip(&lived.ended).enumerate().map(|(guest, (site, ended))| {
        let path = folder.join(format!("guest{guest}.out"));
        let output = fs::read(&path).map_err(io_error(format!("read {}", path.display())))?;
        let output = String::from_utf8_lossy(&output).into_owned();
        let exit = exit_status(&output);
        let image = site.files.image.cached().sum().map_err(io_error("sum an image"))?;
        Ok(GuestReport { exit, output, ended: *ended, counts: trace.counts(guest), image })
    });
    let guests = reports.collect::<Result<Vec<_>, RunError>>()?;
    let virtual_time = Duration::from_nanos(lived.ended.iter().copied().max().unwrap_or(0));
    let images = sites.iter().map(|site| Arc::clone(site.files.image.cached())).collect();
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

fn write_storage_traces(options: &RunOptions, sites: &[Site]) -> Result<(), RunError> {
    let Some(folder) = &options.storage_traces else { return Ok(()) };
    let journals = if options.journal.retain { "retain" } else { "passthrough" };
    let about = format!(
        "by afterimage {} in virtual time: --survives {} --journal {journals}",
        env!("CARGO_PKG_VERSION"),
        options.contract,
    );
    for (guest, site) in sites.iter().enumerate() {
        let Some(below) = &site.below else { continue };
        let path = folder.join(format!("guest{guest}.trace.zst"));
        let (image, log) = (site.files.image.len(), site.files.log.len());
        below.write(&path, &about, image, log).map_err(io_error(format!("write {}", path.display())))?;
    }
    Ok(())
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
    trace: &Trace,
    sites: &[Site],
) -> Result<Lived, RunError> {
    let daemons = sites.iter().map(Daemon::new).collect();
    let mut world = World {
        options,
        crowd: Crowd::new(folder, storage, daemons, begun, options.limit)?,
        storage: Arc::clone(storage),
        sites,
        place: Meetings::new(options.guests),
        asked: vec![0; options.guests],
        met: 0,
        meetings: Vec::new(),
        samples: Vec::new(),
        sample_at: None,
        kill_at: None,
        trace,
        killed: false,
    };
    for guest in 0..options.guests {
        // One after another: who connects first is the first.
        world.crowd.boot(guest, &options.guest, folder)?;
    }
    while world.step()? {}
    let World { crowd, meetings, samples, killed, .. } = world;
    let messages = crowd.guests.iter().map(|guest| guest.messages).sum();
    Ok(Lived { ended: crowd.ended, meetings, samples, killed, messages })
}

/// The daemons end in order, all from the same time on, and what they leave goes to the device.
fn close(
    options: &RunOptions,
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
            let Site { files, machine: dead, .. } = sites.remove(guest);
            let machine = Machine::new(storage, options.request_ns);
            machine.reach(dead.now_ns());
            let site = Site::open(&files, options, &machine, trace)
                .map_err(|source| RunError::Compose { guest, source })?;
            sites.insert(guest, site);
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

struct World<'a> {
    options: &'a RunOptions,
    crowd: Crowd,
    storage: Arc<Mutex<Storage>>,
    sites: &'a [Site],
    place: Meetings,
    /// How often each guest has asked whether it may go on.
    asked: Vec<u64>,
    /// When everybody was there.
    met: Ns,
    meetings: Vec<Meeting>,
    samples: Vec<Sample>,
    sample_at: Option<Ns>,
    kill_at: Option<Ns>,
    /// Knows when they die of what they have written.
    trace: &'a Trace,
    killed: bool,
}

impl World<'_> {
    /// What is next. `false` when all is over.
    fn step(&mut self) -> Result<bool, RunError> {
        let own = self.sample_at.into_iter().chain(self.kill_at).chain(self.place.next()).min();
        let turn = self.crowd.turn(own)?;
        match turn {
            Turn::Own(at) => self.turn(at)?,
            Turn::Rings(id) => {
                let asked = self.crowd.daemons[id].asked();
                if std::mem::replace(&mut self.asked[id], asked) < asked && self.place.asks(id) {
                    self.crowd.daemons[id].set_serial(WAIT);
                }
                self.meet();
                self.crowd.interrupt(id)?;
            }
            Turn::Taken | Turn::Over => {}
        }
        if !self.killed && self.trace.are_dead() {
            self.kill()?;
        }
        for id in self.crowd.take_gone() {
            self.place.end(id);
            self.meet();
        }
        Ok(turn != Turn::Over)
    }

    /// If everybody is there: when they may go on.
    fn meet(&mut self) {
        if !self.place.has_met() {
            return;
        }
        let now = self.crowd.calendar.now();
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
                self.crowd.daemons[id].set_serial(GO);
            }
            let (asked, device) = self.storage.lock().work();
            self.meetings.push(Meeting { met: self.met, at, device, asked, retained: retained(self.sites) });
            let is_first = self.meetings.len() == 1;
            self.sample_at = self.options.sample.filter(|_| is_first).map(|every| at + every);
            match self.options.kill.filter(|_| is_first).map(|kill| kill.at) {
                Some(KillAt::Ns(after)) => self.kill_at = Some(at + after),
                Some(KillAt::WrittenBytes(bytes)) => self.trace.die_after(bytes),
                None => {}
            }
        }
        if due(self.sample_at) {
            self.samples.push(Sample { at, retained: retained(self.sites) });
            self.sample_at = self.options.sample.map(|every| at + every);
        }
        if due(self.kill_at) {
            self.kill_at = None;
            self.kill()?;
        }
        Ok(())
    }

    fn kill(&mut self) -> Result<(), RunError> {
        for id in 0..self.crowd.guests.len() {
            self.killed |= self.crowd.kill(id)?;
        }
        Ok(())
    }
}
