//! Deaths of guest and daemon: images, logs and arenas stay as they are, and somebody recovers.
//!
//! ```text
//!   guest layer ─► plain disk, request by request ────────────────► P: the kernel replays its journal
//!              └─► daemons, one after the other
//!                     │ at drawn places: what is left of the last one, taken over by another
//!                     ├─► the guest is dead: recovered ───────────► A: nothing to replay
//!                     ├─► the guest may still live: handed back ──► B: the kernel replays what it is given
//!                     └─► only the guest is dead, and has published
//!                         what the daemon has not taken: it looks ─► C: P with that
//! ```
//!
//! Under `guest-crash` a daemon is a `RetainDisk` over [`memory`], with its arena; under `power-window` all of its layers, over [`files`].
//!
//! P, A and B are compared block by block after a naive replay (see the [module above](super)); at the level `fsck` `e2fsck`
//! looks at A and B; and at the level `mount` a real kernel mounts all three, and finds one and the same tree: names, contents,
//! owners, modes, links, sizes, inode numbers, times.

mod files;
mod lent;
mod memory;

use std::sync::Arc;
use std::time::{Duration, Instant};

use afterimage_block::{Blocking, FlushKind, Operation, Sector};
use afterimage_journal::group::JournalOptions;
use afterimage_trace::{EventKind, Op, Recording, Sparse};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::compare::{differences, Changed};
use super::plain::Plain;
use super::read_first;
use super::side::Side;
use crate::layers::{guest_disks, refused_ids, OpenRetained};
use crate::marks::{bounds, marks, Mark};
use crate::published::Publications;
use crate::{ExploreError, Result};
use lent::Left;

/// How deaths are drawn.
#[derive(Clone)]
pub struct DeathOptions {
    /// Of all draws.
    pub seed: u64,
    /// Deaths that are drawn, spread evenly over the run; its end is one more.
    pub points: usize,
    /// `--retain-max`.
    pub arena_bytes_max: u64,
    /// The daemon dies alone, or the guest only seems to be gone, before one request in so many; 0: never.
    pub restart_one_in: u32,
    /// The window where the contract is `power-window`; `None`: `guest-crash`.
    pub window: Option<Duration>,
    /// For proofs that mistakes are found under `guest-crash`; `None`: as a daemon does.
    pub open: Option<OpenRetained>,
    /// The same under `power-window`: what else its daemons are told of journals.
    pub journal: JournalOptions,
    /// For proofs that mistakes are found: a daemon does not look once more at what a guest has published that dies.
    pub forgets: bool,
}

impl Default for DeathOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            points: 60,
            arena_bytes_max: 64 << 20,
            restart_one_in: 40,
            window: None,
            open: None,
            journal: JournalOptions::passthrough(),
            forgets: false,
        }
    }
}

/// What is left of a guest's first disk.
pub struct Death {
    /// The event of the first request that was not made, or the end.
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
    /// Marks before that event must be there where its daemon dies with the guest.
    pub required: usize,
    /// Left by a daemon whose guest alone has died, where that had published what was not taken: the plain disk with that written to it.
    pub looked_at: Option<Sparse>,
    /// Where a recovered disk is not what the guest's own recovery makes of the plain one.
    pub wrong: Option<String>,
}

/// A guest's daemons, one after the other.
trait Daemons<'a> {
    fn send(&mut self, op: &'a Op) -> Result<()>;

    /// Something happens beside the guest's requests.
    fn happens(&mut self, what: Beside) -> Result<()>;

    /// What the orderly end of the next daemon leaves, if this one dies now. (It does not.)
    fn ended(&self, attached: bool) -> Result<Sparse>;

    /// What a daemon leaves whose guest alone dies now, having published that; `None`: it could not have.
    fn looked_at(&self, left: &Left<'_>) -> Result<Option<Sparse>>;
}

#[derive(Clone, Copy, Debug)]
enum Beside {
    /// The daemon dies alone, and another one goes on.
    Death,
    /// What is committed goes home.
    Settle,
    /// The arena gives something up.
    Room,
}

/// A request of the guest, by a lane of its disk.
fn send(lane: &mut Blocking, op: &Op) -> Result<()> {
    let nothing = afterimage_block::Buffers::empty;
    read_first(lane, op).map_err(|e| failed(&e))?;
    let result = match op {
        Op::Write { offset, data, flushed: true } => lane.write_flushed(Sector(offset / 512), data),
        Op::Write { offset, data, .. } => lane.write(Sector(offset / 512), data),
        Op::Zero { offset, len, unmap, .. } => {
            let operation = match unmap {
                true => Operation::Discard { flushed: false },
                false => Operation::WriteZeroes { unmap: false, flushed: false },
            };
            lane.request(operation, Sector(offset / 512), len / 512, nothing())
        }
        Op::Flush => lane.flush(FlushKind::Order),
    };
    result.map_err(|e| failed(&e))
}

fn failed(error: &dyn std::fmt::Display) -> ExploreError {
    ExploreError::Corrupt(format!("serving the guest's requests with a retained journal: {error}"))
}

/// Lets the first disk's guest and daemon die in many places, as long as `visit` says so and the time is not over; and whatever the
/// time, at the end: there all that was said is asked for, also what no request came behind.
///
/// # Errors
/// The recording has no disk, nothing happens in it, the retaining layer fails, or `visit` does.
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
    let marks = marks(recording)?;
    let (begin, end) = bounds(&marks, recording.events.len());
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
    let promises = |mark: &Mark| mark.event > begin && (mark.names_state() || mark.record.is_some());
    if candidates == 0 && !marks.iter().any(promises) {
        return Err(ExploreError::Usage(
            "the guest asked nothing of its disk and said nothing between the recording's begin and end: there is no death to look \
             at; record a COMMAND that writes"
                .to_owned(),
        ));
    }
    let published = Publications::of(recording)?;
    let mut rng = ChaCha8Rng::seed_from_u64(how.seed);
    let mut plain = Plain::new(base.clone());
    let mut daemons: Box<dyn Daemons<'_> + '_> = match how.window {
        Some(window) => Box::new(files::Files::new(how, window, base)),
        None => Box::new(memory::Memory::new(how, base)?),
    };
    let mut look = |daemons: &dyn Daemons<'_>, plain: &Plain, event: usize, requests: usize| {
        let pending = published.all().iter().filter(|p| p.target == target && p.is_pending(event));
        let layouts = Arc::clone(&plain.side.layouts);
        let left = Left { published: pending.collect(), layouts: &layouts, forgotten: how.forgets };
        let at = At { event, requests, required: published.required(event) };
        visit(death(daemons, plain, &left, at)?)
    };
    let until_end = requests.partition_point(|(event, _)| *event < end);
    for (made, (event, op)) in requests[..until_end].iter().enumerate() {
        let drawn = *event >= begin && rng.random_range(0..candidates) < how.points;
        if drawn && begun.elapsed() <= time && !look(&*daemons, &plain, *event, made)? {
            return Ok(());
        }
        if how.restart_one_in > 0 && rng.random_range(0..how.restart_one_in) == 0 {
            daemons.happens([Beside::Death, Beside::Settle, Beside::Room][rng.random_range(0..3)])?;
        }
        match op {
            Op::Write { offset, data, .. } => drop(plain.apply(*offset, data.len() as u64, Some(data))),
            Op::Zero { offset, len, .. } => drop(plain.apply(*offset, *len, None)),
            Op::Flush => {}
        }
        daemons.send(op)?;
    }
    look(&*daemons, &plain, end, until_end).map(drop)
}

/// Where a death is, as [`Death`] has it.
struct At {
    event: usize,
    requests: usize,
    required: usize,
}

fn death(
    daemons: &dyn Daemons<'_>,
    plain: &Plain,
    left: &Left<'_>,
    At { event, requests, required }: At,
) -> Result<Death> {
    let recovered = daemons.ended(false)?;
    let handed_back = daemons.ended(true)?;
    let mut wrong = fault(&recovered, "recovered by the daemon", plain, requests)
        .or_else(|| fault(&handed_back, "handed back to the guest", plain, requests));
    let mut looked_at = None;
    if !left.published.is_empty() {
        if let Some(content) = daemons.looked_at(left)? {
            let mut plain = plain.clone();
            for run in left.published.iter().flat_map(|publication| publication.runs.iter()) {
                plain.apply(run.offset, run.data.len() as u64, Some(&run.data));
            }
            let what = "left by a daemon whose guest alone has died, with what it had published besides,";
            wrong = wrong.or_else(|| fault(&content, what, &plain, requests));
            looked_at = Some(content);
        }
    }
    Ok(Death {
        event,
        requests,
        plain: plain.side.content.clone(),
        recovered,
        handed_back,
        replays: !plain.side.homes.is_empty(),
        required,
        looked_at,
        wrong,
    })
}

/// Where a disk is not what the guest's own recovery makes of the plain one.
fn fault(content: &Sparse, what: &str, plain: &Plain, requests: usize) -> Option<String> {
    let side = Side::new(content.clone());
    let fault = side.journal_fault(&side, &plain.side);
    let all = Changed { all: true, ..Changed::default() };
    let bad = differences(&[side], std::slice::from_ref(plain), &Default::default(), &[&all]);
    let named: Vec<String> = bad.iter().take(6).map(|(_, block)| block.to_string()).collect();
    match bad.is_empty() {
        true => fault.map(|fault| format!("the disk {what}: {fault}")),
        false => Some(format!(
            "the disk {what} is not what the guest's own recovery makes of its first {requests} requests: {} blocks differ: {}",
            bad.len(),
            named.join(", ")
        )),
    }
}
