//! The life of a daemon, from start-up to the orderly end.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{Bell, Disk};
use afterimage_compose::{folder_of, Plan, Prepared, Stack, StackDisk};
use afterimage_control_disk::{ControlDisk, Durability, Promise};
use afterimage_frontend::{Endpoint, FrontendStats, KeepHandle, ServeOptions, Server};
use afterimage_ijournal::{recover_disk, DiskStorage};
use afterimage_journal::group::{Ending, RetainError, RetainGroup};
use afterimage_order::{Closing, Contract};
use afterimage_store::{give_up_looking_when, Image as _, OpenOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::announce::announce;
use super::descriptors;
use super::disk_spec::SocketSpec;
use super::doors::{Doors, Inherited};
use super::ends::{End, Ends, EndsStart, HANDING_OVER};
use super::kept::{disk_name, Shown, CONTROL_DISK_NAME};
use super::memory;
use super::metrics;
use super::notify::Notifier;
use super::settings::{DiskSettings, Settings};
use super::sockets::{self, SocketFile};
use super::state::{Daemon, Readable, ServedControlDisk, ServedDisk};
use super::trace::{TraceFile, Tracing};
use crate::control;
use crate::failure::Failure;
use crate::sandbox::{restrict_calls, restrict_files, FileNeeds, SandboxMode, SandboxReport};

/// How long an orderly end brings blocks home before it leaves the rest to the next start: whoever stops a daemon
/// waits for it, and some kill it after a while.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// How long the kernel is given to take a guest's killed process down, at an orderly end.
const DYING_LIMIT: Duration = Duration::from_secs(10);
/// How long clients are given to take the last answers and events.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Serves until told to stop.
///
/// # Errors
/// It cannot start, or its images could not be closed in order.
pub fn run(settings: &Settings, keep: Option<KeepHandle>, json: bool) -> Result<(), Failure> {
    let inherited = Inherited::take(settings)?;
    memory::bound_the_allocator();
    tracing::info!(
        bytes = memory::Shape::of(settings).bytes_max(),
        "the daemon takes no more memory than this"
    );
    // From here on a signal is remembered; it is acted on once the images are open, or where that takes long.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|e| Failure::failed(format!("cannot watch for signals: {e}")))?;
    give_up_looking_when_told()?;
    let notifier = Notifier::from_environment();
    abort_on_panic();
    let mut files = Vec::new();
    let begun =
        begin(settings, keep.as_ref(), inherited, signals, &notifier, &mut files).inspect_err(|_| {
            // The listening sockets are kept, too: whoever starts next needs their names.
            let waits =
                keep.as_ref().is_some_and(|keep| keep.connected().is_ok_and(|guests| !guests.is_empty()));
            if waits {
                files.drain(..).for_each(SocketFile::leave);
            }
        })?;
    let Begun {
        daemon,
        servers,
        control_server,
        control,
        control_file,
        metrics,
        ends,
        ends_with_guests,
        kept_guests,
        traced,
    } = begun;
    // Guests are served whether or not anybody reads this.
    if let Err(failure) = announce(&daemon, control_file.as_ref().map(SocketFile::path), metrics, json) {
        tracing::warn!("{failure}");
    }
    notifier.tell("READY=1\nSTATUS=serving");

    let mut losses = Losses { daemon: &daemon, deleted: Vec::new(), shortened: Vec::new() };
    let end = ends.wait(&servers, ends_with_guests, || losses.look());
    match end {
        End::HandOver => notifier.tell_reloading(),
        End::Stop(_) | End::GuestsLeft => notifier.tell("STOPPING=1"),
    }
    let ending = match end {
        End::HandOver => Ending::HandOver,
        // A guest that was killed just before is as good as gone: its journal is recovered, not left to it.
        End::Stop(_) | End::GuestsLeft => {
            // First: a guest that comes between the two is not to be taken for one that has gone.
            let mut on_its_way = false;
            for (index, disk) in daemon.disks.iter().enumerate() {
                let came = disk.stats.snapshot().connections > 0;
                // A daemon that is told to end as it starts has not taken up yet what is kept: that guest lives, for all we know.
                let kept = !came && kept_guests.contains(&disk_name(index));
                if came || kept {
                    daemon.group.guest_was_seen(index);
                }
                on_its_way |= kept;
            }
            let attached = on_its_way || servers.iter().any(|server| server.attached(DYING_LIMIT));
            Ending::Close { attached }
        }
    };
    if let Some(control) = &control {
        control.end();
    }
    // Nobody is kept from closing by a guest that waits; what it handed over may wait for the end of a pause.
    daemon.group.resume();
    drop(control_server);
    let closed = close(&daemon, servers, ending);
    // Whatever became of the disks, the trace is ended; what went wrong with them is said first.
    let traced = traced.map_or(Ok(()), |traced| traced.finish());
    let traced = match (&end, traced) {
        // The next daemon is asked for, and guests wait for it: a trace that is not whole keeps nobody from it.
        (End::HandOver, Err(failure)) => {
            tracing::error!("{failure}");
            Ok(())
        }
        (_, traced) => traced,
    };
    let result = closed.and(traced);
    if matches!(end, End::HandOver) {
        // The sockets go on living with the next daemon: their files must stay.
        files.into_iter().for_each(SocketFile::leave);
    }
    // To who asked for the stop of what goes on, a good end of ours is none.
    let told = match end {
        End::HandOver => Err(HANDING_OVER.to_owned()),
        _ => result.as_ref().copied().map_err(ToString::to_string),
    };
    let asked = match end {
        End::Stop(Some(outcome)) => Some(outcome),
        _ => None,
    };
    // Whoever came behind what ended us, too. The clients may be gone; the outcome is reported below in any case.
    for outcome in asked.into_iter().chain(ends.late()) {
        outcome.tell(told.clone());
    }
    if let Some(control) = &control {
        control.drain(ANSWER_WAIT);
    }
    result
}

/// A daemon that serves.
struct Begun {
    daemon: Arc<Daemon>,
    servers: Vec<Server>,
    control_server: Option<Server>,
    control: Option<control::server::Control>,
    control_file: Option<SocketFile>,
    /// Where metrics are served.
    metrics: Option<String>,
    ends: Ends,
    ends_with_guests: bool,
    /// The disks whose guests' connections were kept.
    kept_guests: Vec<String>,
    traced: Option<Tracing>,
}

/// Goes all the way up to serving. Sockets' files are noted in `files` as they are made or taken over.
///
/// # Errors
/// It cannot start: what was opened is closed in order.
fn begin(
    settings: &Settings,
    keep: Option<&KeepHandle>,
    inherited: Inherited,
    signals: Signals,
    notifier: &Notifier,
    files: &mut Vec<SocketFile>,
) -> Result<Begun, Failure> {
    let ends_start =
        EndsStart::watch().map_err(|e| Failure::failed(format!("cannot watch for signals: {e}")))?;
    let opened = Opened::open(settings, keep, inherited, notifier, files)?;
    // Before calls are restricted, and what is open now is closed in order.
    drop(ends_start);
    let group = Arc::clone(&opened.stack.group);
    opened.serve(settings, keep, notifier, signals).inspect_err(|_| {
        // This failure is the one to report; what cannot be closed stays for the next start. A guest may wait for that one.
        drop(group.close_within(CLOSE_LIMIT, Ending::Close { attached: true }));
    })
}

/// All that is opened before anybody is served.
struct Opened {
    doors: Doors,
    readables: Vec<Readable>,
    process: Option<metrics::Process>,
    stack: Stack,
    traced: Option<Tracing>,
    sandbox: SandboxReport,
    /// What is still to be opened by name, where that is not closed yet.
    later: Option<FileNeeds>,
}

impl Opened {
    fn open(
        settings: &Settings,
        keep: Option<&KeepHandle>,
        inherited: Inherited,
        notifier: &Notifier,
        files: &mut Vec<SocketFile>,
    ) -> Result<Self, Failure> {
        descriptors::prepare(settings, keep.is_some())?;
        let trace = TraceFile::create(settings)?;
        let process = settings.metrics.as_ref().map(|_| metrics::Process::open()).transpose();
        let process =
            process.map_err(|e| Failure::failed(format!("cannot read /proc/self for the metrics: {e}")))?;
        let doors = Doors::open(settings, keep, inherited, files)?;
        notifier.tell_begun("opening the images");
        let prepared = Prepared::new(plan(settings, keep.is_some())).map_err(Failure::failed)?;
        let readables =
            prepared.images().iter().map(|image| Readable::open(image)).collect::<Result<Vec<_>, _>>()?;
        if settings.journal.drop_journal {
            tracing::error!(
                "UNSAFE, for measurements only: journal writes are DROPPED; serve no data that you want to keep"
            );
        }
        let needs = file_needs(settings, &prepared)?;
        // The group of `power-window` starts threads, which must be born inside the sandbox. So does a group that retains
        // journals; and state files come and go where `power` needs no folder. A trace has a thread, too.
        let early = matches!(settings.contract, Contract::PowerWindow { .. })
            || !needs.arenas.is_empty()
            || trace.is_some()
            // Lanes may have threads.
            || settings.recover_ijournal;
        let mut sandbox = SandboxReport::off();
        if early {
            sandbox.landlock = restrict(settings.sandbox, || restrict_files(&needs))?;
        }
        let later =
            (!early).then(|| FileNeeds { socket_folders: needs.socket_folders, ..FileNeeds::default() });
        let traced = trace.map(|trace| trace.start(settings, prepared.images())).transpose()?;
        notifier.tell_begun("taking over what an earlier daemon left");
        let stack = prepared.open(traced.as_ref().map(Tracing::tap)).map_err(Failure::failed)?;
        Ok(Self { doors, readables, process, stack, traced, sandbox, later })
    }

    fn serve(
        self,
        settings: &Settings,
        keep: Option<&KeepHandle>,
        notifier: &Notifier,
        signals: Signals,
    ) -> Result<Begun, Failure> {
        let Self { doors, readables, process, stack: Stack { group, disks }, mut traced, mut sandbox, later } =
            self;
        if settings.recover_ijournal {
            notifier.tell_begun("recovering iJournaling");
            recover_ijournal(settings, &disks)?;
        }
        if let Some(needs) = later {
            sandbox.landlock = restrict(settings.sandbox, || restrict_files(&needs))?;
        }
        let disks = disks.into_iter().zip(readables).zip(&settings.disks).map(
            |((StackDisk { image, disk }, readable), disk_settings)| ServedDisk {
                readable,
                settings: disk_settings.clone(),
                image,
                disk,
                stats: Arc::new(FrontendStats::new(settings.queues)),
            },
        );
        let disks: Vec<_> = disks.collect();
        let ends_with_guests = doors.disks.iter().all(|e| matches!(e, Endpoint::Connected(_)));
        let hurry = Bell::new().map_err(|e| Failure::failed(format!("cannot create an eventfd: {e}")))?;
        let hurry = Arc::new(hurry);
        let control_disk = start_control_disk(settings, &group, doors.control_disk, keep, &hurry)?;
        let (control_disk, control_server) = control_disk.unzip();
        // Before any disk of the guest's may stop: what it has published is waited for where its read is there again.
        control_server.iter().for_each(Server::taken_over);
        let kept_guests = keep.map(KeepHandle::connected).transpose().map_err(Failure::failed)?;
        let servers = start_servers(settings, &disks, doors.disks, keep, &hurry)?;
        let ends = Ends::watch(signals, keep.is_some())?;
        sandbox.seccomp = restrict(settings.sandbox, restrict_calls)?;
        let started = Instant::now();
        let daemon = Daemon { group, disks, control_disk, sandbox, kept: keep.is_some(), started, hurry };
        let daemon = Arc::new(daemon);
        let (control, control_file) = doors.control.unzip();
        let control = control
            .map(|listener| control::server::start(listener, &daemon, ends.stop()))
            .transpose()
            .map_err(|e| Failure::failed(format!("cannot serve the control socket: {e}")))?;
        let metrics = doors.metrics.as_ref().and_then(|l| l.local_addr().ok()).map(|a| a.to_string());
        if let Some((listener, process)) = doors.metrics.zip(process) {
            metrics::start(listener, Arc::clone(&daemon), process)
                .map_err(|e| Failure::failed(format!("cannot serve metrics: {e}")))?;
        }
        traced.iter_mut().for_each(Tracing::stays);
        Ok(Begun {
            daemon,
            servers,
            control_server,
            control,
            control_file,
            metrics,
            ends,
            ends_with_guests,
            kept_guests: kept_guests.unwrap_or_default(),
            traced,
        })
    }
}

/// A start that looks at storage after a failed sync may take long, and leaves everything as it was where it ends before.
fn give_up_looking_when_told() -> Result<(), Failure> {
    let told = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&told))
            .map_err(|e| Failure::failed(format!("cannot watch for signals: {e}")))?;
    }
    give_up_looking_when(told);
    Ok(())
}

/// A panic is a bug in a daemon that others rely on: half a daemon would keep guests waiting for ever, while a dead
/// one is restarted and resubmits what was in flight.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
}

/// How long a kept daemon waits for its predecessor's last I/O. Its guests wait whatever it does, and it cannot come back.
const KEPT_LOCK_WAIT: Duration = Duration::from_secs(120);

/// What the settings say of the group.
fn plan(settings: &Settings, kept: bool) -> Plan {
    let lock_wait = |usual| if kept { KEPT_LOCK_WAIT } else { usual };
    let image = |disk: &DiskSettings| OpenOptions {
        lock_wait: lock_wait(OpenOptions::new(&disk.file).lock_wait),
        read_only: disk.read_only,
        direct: disk.direct,
        serial: disk.serial.clone(),
        any_content: disk.any_content,
        ..OpenOptions::new(&disk.file)
    };
    Plan {
        images: settings.disks.iter().map(image).collect(),
        contract: settings.contract,
        log_bytes_max: settings.log_bytes_max,
        log: settings.log.clone(),
        journal: settings.journal.clone(),
    }
}

fn file_needs(settings: &Settings, prepared: &Prepared) -> Result<FileNeeds, Failure> {
    let names = prepared.names().map_err(Failure::failed)?;
    let sockets = settings.disks.iter().filter_map(|d| match &d.socket {
        SocketSpec::Path(path) => Some(path.as_path()),
        SocketSpec::Fd(_) => None,
    });
    Ok(FileNeeds {
        files: names.images,
        log_folders: names.folders,
        arenas: names.arenas,
        socket_folders: sockets
            .chain(settings.control.as_deref())
            .chain(settings.control_disk.as_deref())
            .map(folder_of)
            .collect(),
    })
}

/// Applies one part of the sandbox as the mode says and puts the outcome into words.
fn restrict(mode: SandboxMode, part: impl FnOnce() -> Result<String, String>) -> Result<String, Failure> {
    if mode == SandboxMode::Off {
        return Ok("off".to_owned());
    }
    match part() {
        Ok(state) => Ok(state),
        Err(why) if mode == SandboxMode::Require => Err(Failure::failed(format!(
            "the sandbox cannot be closed: {why}; use --sandbox auto to serve without it"
        ))),
        Err(why) => {
            tracing::warn!("a part of the sandbox is not available: {why}");
            Ok(why)
        }
    }
}

fn start_servers(
    settings: &Settings,
    disks: &[ServedDisk],
    endpoints: Vec<Endpoint>,
    keep: Option<&KeepHandle>,
    hurry: &Arc<Bell>,
) -> Result<Vec<Server>, Failure> {
    disks
        .iter()
        .zip(endpoints)
        .enumerate()
        .map(|(index, (disk, endpoint))| {
            let options = ServeOptions {
                queues: settings.queues,
                write_cache: settings.write_cache,
                spin_us: settings.spin_us,
                keep: keep.cloned(),
                shown: Shown::of(&disk.settings, settings.queues)
                    .map_or_else(Vec::new, |shown| shown.to_bytes()),
                hurry: Some(Arc::clone(hurry)),
                ..ServeOptions::default()
            };
            Server::start(
                &disk_name(index),
                Arc::clone(&disk.disk),
                endpoint,
                options,
                Arc::clone(&disk.stats),
            )
            .map_err(|e| Failure::failed(format!("cannot serve {}: {e}", disk.settings.file.display())))
        })
        .collect()
}

fn start_control_disk(
    settings: &Settings,
    group: &Arc<RetainGroup>,
    listener: Option<UnixListener>,
    keep: Option<&KeepHandle>,
    hurry: &Arc<Bell>,
) -> Result<Option<(ServedControlDisk, Server)>, Failure> {
    let (Some(listener), Some(socket)) = (listener, settings.control_disk.clone()) else { return Ok(None) };
    let promise = Promise { contract: group.status().contract, text: group.promise(), lends: true };
    let disk = ControlDisk::new(Arc::clone(group) as Arc<dyn Durability>, promise)
        .map_err(|e| Failure::failed(format!("cannot make the control disk: {e}")))?;
    let (disk, stats) = (Arc::new(disk), Arc::new(FrontendStats::new(1)));
    // Its writes are commands: no guest has to flush them.
    let hurry = Some(Arc::clone(hurry));
    let options = ServeOptions { write_cache: false, keep: keep.cloned(), hurry, ..ServeOptions::default() };
    let served = Arc::clone(&disk) as Arc<dyn Disk>;
    let endpoint = Endpoint::Listen(listener);
    let server = Server::start(CONTROL_DISK_NAME, served, endpoint, options, Arc::clone(&stats))
        .map_err(|e| Failure::failed(format!("cannot serve the control disk: {e}")))?;
    Ok(Some((ServedControlDisk { socket, disk, stats }, server)))
}

/// What fsyncs of a guest that is gone wrote beside its journal becomes part of its file systems, under the contract like any write. One that
/// cannot be recovered does not keep the others from it.
fn recover_ijournal(settings: &Settings, disks: &[StackDisk]) -> Result<(), Failure> {
    let mut left = Vec::new();
    for (disk_settings, disk) in settings.disks.iter().zip(disks) {
        if disk.disk.geometry().read_only {
            continue;
        }
        let file = disk_settings.file.display();
        let failed =
            |e: &dyn std::fmt::Display| Failure::failed(format!("{file}: iJournaling's recovery: {e}"));
        let mut storage = DiskStorage::open(&*disk.disk).map_err(|e| failed(&e))?;
        for (start, report) in recover_disk(&mut storage).map_err(|e| failed(&e))? {
            match report {
                Ok(report) => tracing::info!("{file}, file system at byte {start}: {report}"),
                Err(why) => left.push(format!("{file}, file system at byte {start}: {why}")),
            }
        }
    }
    match &left[..] {
        [] => Ok(()),
        left => Err(Failure::failed(format!("iJournaling's recovery: {}", left.join("; ")))),
    }
}

/// Says once of each file that it was deleted or shortened below the daemon: what is written to a deleted one is gone when the
/// daemon is, and what a shortened one has lost reads as zeros once something behind it is written.
struct Losses<'a> {
    daemon: &'a Daemon,
    deleted: Vec<PathBuf>,
    shortened: Vec<PathBuf>,
}

impl Losses<'_> {
    fn look(&mut self) {
        let disks = || self.daemon.disks.iter();
        let images = disks().filter(|disk| disk.image.is_deleted()).map(|disk| disk.image.path().to_owned());
        for path in images.chain(self.daemon.group.status().log_deleted) {
            if !self.deleted.contains(&path) {
                tracing::error!(
                    path = %path.display(),
                    "it was deleted while it is served, and is gone when this daemon ends: copy it first with \
                     `afterimage ctl SOCKET pause -- cp /proc/PID/fd/N NEW`"
                );
                self.deleted.push(path);
            }
        }
        for (disk, bytes) in disks().filter_map(|disk| Some((disk, disk.readable.shortened()?))) {
            let path = disk.image.path();
            if !self.shortened.iter().any(|said| said == path) {
                tracing::error!(
                    path = %path.display(),
                    "it was shortened to {bytes} bytes while it is served: data behind them is lost; stop the \
                     guest, and put a copy in its place"
                );
                self.shortened.push(path.to_owned());
            }
        }
    }
}

/// The orderly end: no request in flight, everything home and synced, the log removed.
fn close(daemon: &Daemon, servers: Vec<Server>, ending: Ending) -> Result<(), Failure> {
    // A paused disk would hold its last requests for ever.
    daemon.group.resume();
    servers.iter().for_each(Server::stop);
    servers.into_iter().for_each(Server::join);
    let failed_before = daemon.group.status().failure;
    let closing = daemon.group.close_within(CLOSE_LIMIT, ending).map_err(|error| match failed_before {
        Some(reason) => Failure::failed(format!("the disks had stopped taking writes: {reason}")),
        None => {
            let advice = match &error {
                RetainError::Block(error) => error.advice(),
                _ => "",
            };
            Failure::failed(format!("the images could not be closed in order: {error}{advice}"))
        }
    })?;
    match closing {
        Closing::Clean => tracing::info!("closed in order"),
        Closing::LogKept { log_bytes } => tracing::warn!(
            log_bytes,
            "everything is durable, but the redo log still holds a part of it: the next `serve` continues from it, \
             and `afterimage recover` makes the image a plain raw file"
        ),
    }
    Ok(())
}

/// Takes over the keeper's socket that `keep` passed on, if there is one.
///
/// # Errors
/// What was passed on is no keeper's socket.
pub fn keep_from_environment() -> Result<Option<KeepHandle>, Failure> {
    let Some(number) = std::env::var_os(super::KEEP_FD_VARIABLE) else { return Ok(None) };
    let socket =
        number.to_str().and_then(|n| n.parse().ok()).and_then(sockets::take_fd).ok_or_else(|| {
            Failure::usage(format!(
                "{} does not name an open descriptor: it is set by `afterimage keep`",
                super::KEEP_FD_VARIABLE
            ))
        })?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(|e| {
        Failure::failed(format!("cannot take over the keeper's socket: {}", io::Error::from(e)))
    })?;
    KeepHandle::connect(socket).map(Some).map_err(|e| Failure::failed(format!("cannot use the keeper: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_waits_for_a_start_that_waits_for_a_dead_daemon() {
        let unit = include_str!("../../../../contrib/systemd/afterimage@.service");
        let limit = unit.lines().find_map(|line| line.strip_prefix("TimeoutStartSec=")?.strip_suffix("min"));
        let limit = Duration::from_secs(60 * limit.unwrap().parse::<u64>().unwrap());
        // The image's lock, the log's, and as long again for the rest.
        let waits = KEPT_LOCK_WAIT + OpenOptions::new(PathBuf::new()).lock_wait;
        assert!(limit >= 2 * waits, "{limit:?} for waits of {waits:?}");
    }
}
