//! One guest of the pool: a User Mode Linux whose disks this process serves.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::Disk;
use afterimage_frontend::{Endpoint, FrontendStats, ServeOptions, Server};
use afterimage_lab::guest::{Guest, Vmm};
use afterimage_lab::process::{quote, Workdir};
use afterimage_lab::LabError;
use afterimage_protocol::report::Pool;

use super::report;
use super::swap::SwapMedium;
use super::{PoolCheck, PoolOptions};
use crate::check::Observation;
use crate::state::Scratch;
use crate::{ExploreError, Result};

/// How long a guest may take to boot.
const BOOT: Duration = Duration::from_secs(60);
/// A file of the guest that is as old as its boot, for checks that have to tell what a mount has changed.
pub(crate) const BOOTED: &str = "/run/afterimage-pool-booted";
/// How long a pool may be used.
const LIFE: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long a kernel may take to mount a state, and without a check to let go of it.
const QUICK: Duration = Duration::from_secs(20);

/// What became of a state.
pub(super) enum Answer {
    Found(Observation),
    /// The check did not end in time.
    Slow,
    /// The campaign's time is over.
    OutOfTime,
    /// The guest is no use any more.
    Lost {
        what: String,
        words: String,
    },
}

/// A running guest, its servers and their sockets.
pub(super) struct PoolGuest {
    guest: Guest,
    servers: Vec<Server>,
    disks: Vec<Arc<SwapMedium>>,
    sizes: Vec<u64>,
    next: u64,
    _folder: Workdir,
}

impl std::fmt::Debug for PoolGuest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolGuest").field("pid", &self.guest.pid()).field("sizes", &self.sizes).finish()
    }
}

impl PoolGuest {
    /// Boots it; returns when it waits for states.
    pub(super) fn start(options: &PoolOptions, sizes: &[u64]) -> Result<Self> {
        if options.disk >= sizes.len() {
            return Err(ExploreError::Usage(format!(
                "guests are to mount disk {}, but there are {}",
                options.disk,
                sizes.len()
            )));
        }
        let folder = Workdir::new("pool")?;
        let mut builder = Guest::builder(Vmm::Uml).memory_mib(options.memory_mib).limit(LIFE);
        let (mut servers, mut disks) = (Vec::new(), Vec::new());
        for (index, bytes) in sizes.iter().enumerate() {
            let name = format!("state{index}");
            let socket = folder.join(&name);
            let listener = UnixListener::bind(&socket)
                .map_err(ExploreError::io(format!("listen on {}", socket.display())))?;
            let disk = SwapMedium::new(*bytes);
            let served: Arc<dyn Disk> = Arc::new(disk.disk(&name));
            let stats = Arc::new(FrontendStats::new(1));
            let server =
                Server::start(&name, served, Endpoint::Listen(listener), ServeOptions::default(), stats)
                    .map_err(|error| ExploreError::Checker(format!("can not serve a state: {error}")))?;
            builder = builder.disk(socket);
            servers.push(server);
            disks.push(disk);
        }
        let guest = builder.start(&script(options))?;
        let what = "the pool's guest to be ready";
        let ready = guest.channel().wait_for(0, BOOT, what, |line| {
            let ready = line.says("pool", "ready");
            (ready || line.says("guest", "exit")).then_some(ready)
        })?;
        if ready != Some(true) {
            let words = guest.last_words();
            return Err(LabError::Guest(format!("a guest of the pool would not start{words}")).into());
        }
        Ok(Self { guest, servers, disks, sizes: sizes.to_vec(), next: 0, _folder: folder })
    }

    /// The sizes of its disks, in bytes.
    pub(super) fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// How many states it was shown.
    pub(super) fn looked(&self) -> u64 {
        self.next
    }

    /// Shows it a state and waits for its report.
    pub(super) fn look(
        &mut self,
        state: &[Arc<Scratch>],
        check: Duration,
        until: Option<Instant>,
    ) -> Result<Answer> {
        let left = || until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        for (disk, content) in self.disks.iter().zip(state) {
            disk.swap(Some(Arc::clone(content)));
        }
        let from = self.guest.channel().count();
        let id = self.next.to_string();
        self.next += 1;
        let lost = |what: &str, words: String| Ok(Answer::Lost { what: what.to_owned(), words });
        if self.guest.channel().send(&id).is_err() {
            return lost("the guest's kernel had died", self.guest.last_words());
        }
        // `None`: the state is mounted, and its check has begun.
        let wait = |limit: Duration, is_checked: bool| {
            let limit = limit.min(left());
            self.guest.channel().wait_for(from, limit, "the guest's report on a state", |line| {
                if line.says("guest", "exit") {
                    return Some(Err(LabError::Guest(line.line.clone())));
                }
                match line.report("pool") {
                    Ok(Some(Pool::Done(done))) => (done.id == id).then_some(Ok(Some(done))),
                    Ok(Some(Pool::Checking(_))) if !is_checked => Some(Ok(None)),
                    Ok(_) => None,
                    Err(error) => Some(Err(error)),
                }
            })
        };
        let mut report = wait(QUICK, false);
        let checks = matches!(report, Ok(Some(Ok(None))));
        if checks {
            report = wait(check, true);
        }
        for disk in &self.disks {
            disk.swap(None);
        }
        match report {
            Ok(Some(Ok(Some(done)))) => match report::judge(&done) {
                Ok(found) => Ok(Answer::Found(found)),
                Err(why) => Err(ExploreError::Checker(format!("{why}: {done:?}"))),
            },
            Ok(Some(Err(error))) => Err(ExploreError::Checker(format!(
                "the agent in a guest of the pool ended by itself, or cannot be understood ({error}){}",
                self.guest.last_words()
            ))),
            Ok(None | Some(Ok(None))) => {
                lost("the guest's kernel died of the state", self.guest.last_words())
            }
            Err(LabError::Deadline { .. }) if left().is_zero() => Ok(Answer::OutOfTime),
            Err(LabError::Deadline { .. }) if checks => Ok(Answer::Slow),
            Err(LabError::Deadline { .. }) => {
                let what = format!("the guest hung at the state for {} s", QUICK.as_secs());
                lost(&what, self.guest.last_words())
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for PoolGuest {
    fn drop(&mut self) {
        self.guest.kill();
        self.servers.iter().for_each(Server::stop);
    }
}

fn script(options: &PoolOptions) -> String {
    let device = format!("/dev/vd{}", (b'a' + options.disk as u8) as char);
    let mut text = format!(": > {BOOTED}\n");
    text.push_str(&format!(
        "exec \"$AFTERIMAGE_AGENT\" pool --device {device} --type {}",
        quote(&options.file_system)
    ));
    if !options.mount_options.is_empty() {
        text.push_str(&format!(" --options {}", quote(&options.mount_options)));
    }
    let argument = match &options.check {
        PoolCheck::Mount => None,
        PoolCheck::Records(argument)
        | PoolCheck::Editor(argument)
        | PoolCheck::Sqlite(argument)
        | PoolCheck::Command(argument) => Some(argument),
    };
    if let Some(argument) = argument {
        text.push_str(&format!(" --check {} --argument {}", options.check.name(), quote(argument)));
    }
    text.push('\n');
    text
}
