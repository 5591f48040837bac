//! States mounted by real kernels: a pool of guests that live long and look at one state after the other.
//!
//! ```text
//!   PoolChecker (one per worker) ─► same bytes on what somebody read before? ─► his answer
//!        │ no                                  (memo)
//!        ▼
//!   idle guest ◄─ SwapMedium ◄─ the state, in memory        vhost-user-blk, served by this process
//!        │ "ID": mount ─► check ─► unmount ─► forget
//!        ▼
//!   report: mount's errno, the check's exit status and state, the kernel's messages ─► Observation
//! ```
//!
//! What a guest may end a state with: its report; its death; its silence. Its death, and its silence before the check has begun, are the
//! state's fault when a second guest confirms them: a kernel that dies on what a crash left is as bad as one that refuses it. A check that
//! takes too long says nothing: the state is not judged.

mod guest;
mod report;
mod swap;

pub(crate) use guest::BOOTED;
pub use swap::SwapMedium;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use guest::{Answer, PoolGuest};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use super::fsck::Fsck;
use super::memo::Memo;
use super::{Checker, Observation};
use crate::state::{Image, Scratch};
use crate::{ExploreError, Result};

/// States after which a guest is replaced: all that it has reported is kept, and so is what its kernel leaks.
const STATES_PER_GUEST: u64 = 20_000;

/// How long a check may take where nothing else is said.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// What a guest that has just booted has for its first state, whatever the campaign's time.
const FIRST_STATE: Duration = Duration::from_secs(5);

/// What the guests look at once a state is mounted at `/mnt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolCheck {
    /// Nothing more than that it mounts without a complaint.
    Mount,
    /// The agent's records (`ack-write`) in that directory.
    Records(String),
    /// The document that the agent's `editor` saves in that file.
    Editor(String),
    /// What that script for `sqlite3` prints: one line where the state is sound, its name. One program is asked about all
    /// states.
    Sqlite(String),
    /// `sh -c` of it: exit status 0 where the state is sound, and the last line of output names the application's state.
    Command(String),
}

impl PoolCheck {
    /// What it is called in reports.
    pub fn name(&self) -> &'static str {
        match self {
            PoolCheck::Mount => "mount",
            PoolCheck::Records(_) => "records",
            PoolCheck::Editor(_) => "editor",
            PoolCheck::Sqlite(_) => "sqlite",
            PoolCheck::Command(_) => "cmd",
        }
    }
}

impl PoolCheck {
    /// As it stands on a command line and in a recording; see [`PoolCheck::from_text`].
    pub fn to_text(&self) -> String {
        match self {
            PoolCheck::Mount => String::new(),
            PoolCheck::Records(directory) => format!("records {directory}"),
            PoolCheck::Editor(file) => format!("editor {file}"),
            PoolCheck::Sqlite(script) => format!("sqlite {script}"),
            PoolCheck::Command(command) => format!("cmd {command}"),
        }
    }

    /// `records DIR`, `editor FILE`, `sqlite SCRIPT`, `cmd COMMAND`, or a command as it is; nothing: that it mounts.
    pub fn from_text(text: &str) -> Self {
        match text.trim().split_once(' ') {
            _ if text.trim().is_empty() => PoolCheck::Mount,
            Some(("records", directory)) => PoolCheck::Records(directory.trim().to_owned()),
            Some(("editor", file)) => PoolCheck::Editor(file.trim().to_owned()),
            Some(("sqlite", script)) => PoolCheck::Sqlite(script.to_owned()),
            Some(("cmd", command)) => PoolCheck::Command(command.to_owned()),
            _ => PoolCheck::Command(text.to_owned()),
        }
    }
}

/// What the pool is to be.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Guests at most, each an own kernel; they are started when they are needed.
    pub guests: usize,
    /// Memory of each, in MiB.
    pub memory_mib: u32,
    /// The disk to mount; the others are there too, as `/dev/vda`, `/dev/vdb`, … in their order.
    pub disk: usize,
    /// Its file system's type.
    pub file_system: String,
    /// Mount options, as mount(8) takes them.
    pub mount_options: String,
    /// What to look at.
    pub check: PoolCheck,
    /// A check that has not ended after this long leaves its state without a judgement.
    pub check_timeout: Duration,
    /// Whether states that agree on all that was read share an answer. Only for checks that depend on nothing else.
    pub memo: bool,
}

impl PoolOptions {
    /// ext4 on the first disk; two guests of 128 MiB; [`CHECK_TIMEOUT`].
    pub fn new(check: PoolCheck) -> Self {
        Self {
            guests: 2,
            memory_mib: 128,
            disk: 0,
            file_system: "ext4".to_owned(),
            mount_options: String::new(),
            check,
            check_timeout: CHECK_TIMEOUT,
            memo: true,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Pool {
    options: PoolOptions,
    guests: Mutex<Guests>,
    returned: Condvar,
    memo: Memo,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Guests {
    idle: Vec<PoolGuest>,
    /// Started or being started, idle or not.
    count: usize,
}

#[derive(Debug, Default)]
struct Counts {
    looked: AtomicU64,
    lost: AtomicU64,
    busy_us: AtomicU64,
}

/// What the pool has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStats {
    /// States that a guest has looked at.
    pub looked: u64,
    /// States whose answer was known from what was read.
    pub known: u64,
    /// Guests that died or hung and were replaced.
    pub lost: u64,
    /// Time that guests have worked, in microseconds, summed over all.
    pub busy_us: u64,
}

impl Pool {
    /// A pool without guests yet.
    pub fn new(options: PoolOptions) -> Arc<Self> {
        Arc::new(Self {
            options,
            guests: Mutex::default(),
            returned: Condvar::new(),
            memo: Memo::default(),
            counts: Counts::default(),
        })
    }

    /// A way in, for one worker. More workers than guests wait for each other.
    pub fn checker(self: &Arc<Self>) -> PoolChecker {
        PoolChecker { pool: Arc::clone(self), until: None, clean: None }
    }

    /// What it has done so far.
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            looked: self.counts.looked.load(Ordering::Relaxed),
            known: self.memo.counts().0,
            lost: self.counts.lost.load(Ordering::Relaxed),
            busy_us: self.counts.busy_us.load(Ordering::Relaxed),
        }
    }

    /// A guest for disks of these sizes: an idle one, a new one, or the next that comes back.
    fn take(&self, sizes: &[u64]) -> Result<PoolGuest> {
        let mut guests = self.guests.lock();
        loop {
            if let Some(at) = guests.idle.iter().position(|guest| guest.sizes() == sizes) {
                return Ok(guests.idle.swap_remove(at));
            }
            // One with disks of other sizes is of no use any more.
            if guests.idle.pop().is_some() {
                guests.count -= 1;
            }
            if guests.count < self.options.guests.max(1) {
                guests.count += 1;
                drop(guests);
                return PoolGuest::start(&self.options, sizes).inspect_err(|_| self.gone());
            }
            self.returned.wait(&mut guests);
        }
    }

    fn give_back(&self, guest: PoolGuest) {
        if guest.looked() >= STATES_PER_GUEST {
            drop(guest);
            return self.gone();
        }
        self.guests.lock().idle.push(guest);
        self.returned.notify_one();
    }

    fn gone(&self) {
        self.guests.lock().count -= 1;
        self.returned.notify_one();
    }

    /// Lets a guest look. One that dies is replaced, and the next one asked, once.
    fn look(&self, images: &[Image], until: Option<Instant>) -> Result<(Observation, Vec<Arc<Scratch>>)> {
        let sizes: Vec<u64> = images.iter().map(Image::len).collect();
        let mut first = None;
        loop {
            if until.is_some_and(|until| until <= Instant::now()) {
                return Err(ExploreError::OutOfTime);
            }
            let mut guest = self.take(&sizes)?;
            let now = Instant::now();
            let until = match guest.looked() {
                0 => until.map(|until| until.max(now + FIRST_STATE)),
                _ => until,
            };
            let disks: Vec<Arc<Scratch>> =
                images.iter().map(|image| Arc::new(Scratch::new(image.clone()))).collect();
            disks.iter().for_each(|disk| disk.note_reads());
            let answer = guest.look(&disks, self.options.check_timeout, until);
            self.counts.looked.fetch_add(1, Ordering::Relaxed);
            self.counts.busy_us.fetch_add(now.elapsed().as_micros() as u64, Ordering::Relaxed);
            match answer {
                Ok(Answer::Found(found)) => {
                    self.give_back(guest);
                    if let Some(words) = first {
                        tracing::warn!("a guest was lost at a state that another one looked at: {words}");
                    }
                    if self.options.memo {
                        let reads = disks.iter().map(|disk| disk.reads()).collect();
                        self.memo.remember(reads, images, &found);
                    }
                    return Ok((found, disks));
                }
                Ok(Answer::Slow) => {
                    drop(guest);
                    self.gone();
                    self.counts.lost.fetch_add(1, Ordering::Relaxed);
                    let limit = self.options.check_timeout.as_secs_f64();
                    let what = format!("the check did not end within {limit} s; --check-timeout allows more");
                    return Ok((Observation::NotJudged { what }, disks));
                }
                Ok(Answer::OutOfTime) => {
                    drop(guest);
                    self.gone();
                    return Err(ExploreError::OutOfTime);
                }
                Ok(Answer::Lost { what, words }) => {
                    drop(guest);
                    self.gone();
                    self.counts.lost.fetch_add(1, Ordering::Relaxed);
                    if first.is_some() {
                        return Ok((Observation::Inconsistent { what, evidence: words }, disks));
                    }
                    first = Some(what);
                }
                Err(error) => {
                    drop(guest);
                    self.gone();
                    return Err(error);
                }
            }
        }
    }
}

/// One worker's way into a [`Pool`].
#[derive(Debug)]
pub struct PoolChecker {
    pool: Arc<Pool>,
    until: Option<Instant>,
    clean: Option<Fsck>,
}

impl PoolChecker {
    /// What the guest's kernel has recovered, and its check has changed, has to be clean by `e2fsck` as well once it is unmounted. Not for
    /// a pool with a memo: e2fsck reads more than the guest did.
    #[must_use]
    pub fn then(self, fsck: Fsck) -> Self {
        debug_assert!(!self.pool.options.memo, "an answer depends on what e2fsck reads");
        Self { clean: Some(fsck), ..self }
    }
}

impl Checker for PoolChecker {
    fn name(&self) -> &'static str {
        self.pool.options.check.name()
    }

    fn check(&mut self, disks: &[Arc<Scratch>]) -> Result<Observation> {
        // What recovery has written is a part of the state that the guest reads.
        let images: Vec<Image> = disks.iter().map(|disk| disk.snapshot()).collect();
        if self.pool.options.memo {
            if let Some(found) = self.pool.memo.find(&images) {
                return Ok(found);
            }
        }
        let (found, left) = self.pool.look(&images, self.until)?;
        let unknown = matches!(found, Observation::Inconsistent { .. } | Observation::NotJudged { .. });
        if let Some(fsck) = self.clean.as_mut().filter(|_| !unknown) {
            let clean = fsck.clean(&left)?;
            if clean != Observation::Sound {
                return Ok(clean);
            }
        }
        Ok(found)
    }

    fn give_up_at(&mut self, until: Option<Instant>) {
        self.until = until;
        if let Some(fsck) = &mut self.clean {
            fsck.give_up_at(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_survive_their_text() {
        for check in [
            PoolCheck::Mount,
            PoolCheck::Records("/mnt/r".to_owned()),
            PoolCheck::Editor("/mnt/d".to_owned()),
            PoolCheck::Sqlite(crate::check::apps::sqlite_script("/mnt/bank.db")),
            PoolCheck::Command("test -f /mnt/x".to_owned()),
        ] {
            assert_eq!(PoolCheck::from_text(&check.to_text()), check);
        }
        assert_eq!(PoolCheck::from_text("ls /mnt"), PoolCheck::Command("ls /mnt".to_owned()));
    }
}
