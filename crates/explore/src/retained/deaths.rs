//! Deaths of guest and daemon under `guest-crash`: images and arenas stay as they are, and somebody recovers.
//!
//! ```text
//!   guest layer ─► plain disk, request by request ────────────────► P: the kernel replays its journal
//!              └─► RetainDisk over memory, arena on a tmpfs
//!                     │ at drawn places: a copy of both, taken over by another daemon
//!                     ├─► the guest is dead: recovered ───────────► A: nothing to replay
//!                     └─► the guest may still live: handed back ──► B: the kernel replays what it is given
//! ```
//!
//! P, A and B are compared block by block after a naive replay (see the [module above](super)); at the level `fsck` `e2fsck`
//! looks at A and B; and at the level `mount` a real kernel mounts all three, and finds one and the same tree: names, contents,
//! owners, modes, links, sizes, inode numbers, times.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{Blocking, Disk, FlushKind, Medium, MediumDisk, Operation, Sector};
use afterimage_journal::arena::{Arena, ArenaIdentity};
use afterimage_journal::ext4::Options;
use afterimage_journal::group::JournalOptions;
use afterimage_journal::RetainDisk;
use afterimage_trace::{EventKind, Op, Recording, Sparse};
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::compare::{differences, Changed};
use super::plain::Plain;
use super::side::Side;
use crate::layers::{guest_disks, refused_ids, OpenRetained};
use crate::marks::{bounds, marks};
use crate::{ExploreError, Result};

/// How deaths are drawn.
#[derive(Clone)]
pub struct DeathOptions {
    /// Of all draws.
    pub seed: u64,
    /// Deaths that are looked at, spread evenly over the run.
    pub points: usize,
    /// `--retain-max`.
    pub arena_bytes_max: u64,
    /// The daemon dies alone, or the guest only seems to be gone, before one request in so many; 0: never.
    pub restart_one_in: u32,
    /// For proofs that mistakes are found; `None`: as a daemon does.
    pub open: Option<OpenRetained>,
}

impl Default for DeathOptions {
    fn default() -> Self {
        Self { seed: 1, points: 60, arena_bytes_max: 64 << 20, restart_one_in: 40, open: None }
    }
}

/// What is left of a guest's first disk.
pub struct Death {
    /// The event of the first request that was not made.
    pub event: usize,
    /// Requests that had been made.
    pub requests: usize,
    /// The disk as it would be without a daemon.
    pub plain: Sparse,
    /// Recovered by the daemon.
    pub recovered: Sparse,
    /// Handed back to the guest.
    pub handed_back: Sparse,
    /// Whether the guest's own recovery has anything to replay.
    pub replays: bool,
    /// Where a recovered disk is not what the guest's own recovery makes of the plain one.
    pub wrong: Option<String>,
}

/// A disk in memory.
struct Memory(Mutex<Sparse>);

impl Medium for Memory {
    fn len(&self) -> u64 {
        self.0.lock().len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.lock().read_at(buf, offset);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.lock().write_at(buf, offset);
        Ok(())
    }

    fn zero_at(&self, offset: u64, len: u64, _unmap: bool) -> io::Result<()> {
        self.0.lock().zero_at(offset, len);
        Ok(())
    }

    fn rewrite_lost(&self, _: u64, _: u64) -> io::Result<u64> {
        Ok(0)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// One daemon.
struct Served<'a> {
    how: &'a DeathOptions,
    below: Arc<Memory>,
    arena: PathBuf,
    disk: Arc<RetainDisk>,
    lane: Blocking,
}

impl<'a> Served<'a> {
    fn open(how: &'a DeathOptions, below: Arc<Memory>, arena: PathBuf) -> Result<Self> {
        let lower: Arc<dyn Disk> = Arc::new(MediumDisk::new(Arc::clone(&below) as Arc<dyn Medium>));
        let held = Arena::open(&arena, None).map_err(|e| failed(&e))?;
        let options =
            Options { home: None, drop_journal: false, accept_loss: false, vflush_at_truncation: false };
        let disk = match &how.open {
            Some(open) => open(lower, held, options),
            None => RetainDisk::open(lower, held, options),
        };
        let disk = Arc::new(disk.map_err(|e| failed(&e))?);
        let lane = Blocking::new(disk.open_lane().map_err(|e| failed(&e))?);
        Ok(Self { how, below, arena, disk, lane })
    }

    /// It dies, and another one goes on.
    fn again(self) -> Result<Self> {
        let Self { how, below, arena, disk, lane } = self;
        drop((lane, disk));
        Self::open(how, below, arena)
    }

    fn send(&mut self, op: &Op) -> Result<()> {
        let nothing = afterimage_block::Buffers::empty;
        let result = match op {
            Op::Write { offset, data, .. } => self.lane.write(Sector(offset / 512), data),
            Op::Zero { offset, len, unmap, .. } => {
                let operation = match unmap {
                    true => Operation::Discard { flushed: false },
                    false => Operation::WriteZeroes { unmap: false, flushed: false },
                };
                self.lane.request(operation, Sector(offset / 512), len / 512, nothing())
            }
            Op::Flush => self.lane.flush(FlushKind::Order),
        };
        result.map_err(|e| failed(&e))
    }

    /// What the orderly end of a daemon that takes over a copy leaves.
    fn ended(&self, folder: &Path, attached: bool) -> Result<Sparse> {
        let arena = folder.join("copy.arena");
        copy_sparse(&self.arena, &arena)?;
        let content = self.below.0.lock().clone();
        let copy = Self::open(self.how, Arc::new(Memory(Mutex::new(content))), arena.clone())?;
        copy.disk.finish(attached).map_err(|e| failed(&e))?;
        let content = copy.below.0.lock().clone();
        drop(copy);
        std::fs::remove_file(&arena).map_err(ExploreError::io("removing a copy of an arena"))?;
        Ok(content)
    }
}

fn failed(error: &dyn std::fmt::Display) -> ExploreError {
    ExploreError::Corrupt(format!("serving the guest's requests with a retained journal: {error}"))
}

/// An arena is mostly holes.
fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("--sparse=always").arg(from).arg(to).status();
    match status.map_err(ExploreError::io("copying an arena"))? {
        status if status.success() => Ok(()),
        status => Err(ExploreError::Checker(format!("cp of an arena ended with {status}"))),
    }
}

/// Lets the first disk's guest and daemon die in many places, as long as `visit` says so and the time is not over.
///
/// # Errors
/// The recording has no disk, the retaining layer fails, or `visit` does.
pub fn deaths(
    recording: &Recording,
    how: &DeathOptions,
    time: Duration,
    visit: &mut dyn FnMut(Death) -> Result<bool>,
) -> Result<()> {
    let begun = Instant::now();
    let target = guest_disks(recording)?[0];
    let base = (*recording.targets[target.0 as usize].base).clone();
    let refused = refused_ids(recording);
    let (begin, end) = bounds(&marks(recording)?, recording.events.len());
    let requests: Vec<(usize, &Op)> = recording
        .events
        .iter()
        .enumerate()
        .filter_map(|(event, entry)| match &entry.kind {
            EventKind::Submit { target: of, id, op } if *of == target && !refused.contains(id) => {
                Some((event, op))
            }
            _ => None,
        })
        .collect();
    let candidates = requests.iter().filter(|(event, _)| (begin..end).contains(event)).count();
    let folder = tempfile::Builder::new()
        .prefix("afterimage-explore-")
        .tempdir_in(JournalOptions::ARENA_FOLDER)
        .map_err(ExploreError::io("cannot make a folder for arenas"))?;
    let arena = folder.path().join("0.arena");
    let identity = ArenaIdentity { uuid: [1; 16], inode: 1, size_bytes: base.len() };
    drop(Arena::create(&arena, identity, how.arena_bytes_max).map_err(|e| failed(&e))?);
    let mut rng = ChaCha8Rng::seed_from_u64(how.seed);
    let mut plain = Plain::new(base.clone());
    let mut served = Served::open(how, Arc::new(Memory(Mutex::new(base))), arena)?;
    for (made, (event, op)) in requests.iter().enumerate() {
        let inside = (begin..end).contains(event);
        let drawn = inside && rng.random_range(0..candidates.max(1)) < how.points;
        let late = drawn && begun.elapsed() > time;
        if late || (drawn && !visit(death(&served, &plain, folder.path(), *event, made)?)?) {
            return Ok(());
        }
        if how.restart_one_in > 0 && rng.random_range(0..how.restart_one_in) == 0 {
            match rng.random_range(0..3) {
                0 => served = served.again()?,
                1 => served.disk.settle().map_err(|e| failed(&e))?,
                _ => served.disk.make_room().map_err(|e| failed(&e))?,
            }
        }
        match op {
            Op::Write { offset, data, .. } => drop(plain.apply(*offset, data.len() as u64, Some(data))),
            Op::Zero { offset, len, .. } => drop(plain.apply(*offset, *len, None)),
            Op::Flush => {}
        }
        served.send(op)?;
    }
    Ok(())
}

fn death(served: &Served<'_>, plain: &Plain, folder: &Path, event: usize, requests: usize) -> Result<Death> {
    let recovered = served.ended(folder, false)?;
    let handed_back = served.ended(folder, true)?;
    let wrong = [(&recovered, "recovered by the daemon"), (&handed_back, "handed back to the guest")]
        .into_iter()
        .find_map(|(content, what)| {
            let side = Side::new(content.clone());
            let fault = side.journal_fault(&side, &plain.side);
            let all = Changed { all: true, ..Changed::default() };
            let bad = differences(&[side], std::slice::from_ref(plain), &Default::default(), &[&all]);
            let named: Vec<String> = bad.iter().take(6).map(|(_, block)| block.to_string()).collect();
            match bad.is_empty() {
                true => fault.map(|fault| format!("the disk {what}: {fault}")),
                false => Some(format!(
                    "the disk {what} is not what the guest's own recovery makes of its first {requests} requests: {} blocks \
                     differ: {}",
                    bad.len(),
                    named.join(", ")
                )),
            }
        });
    Ok(Death {
        event,
        requests,
        plain: plain.side.content.clone(),
        recovered,
        handed_back,
        replays: !plain.side.homes.is_empty(),
        wrong,
    })
}
