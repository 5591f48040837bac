//! One image's life: who serves it, how, and how that ends, by turns and at random, with a guest that goes on meanwhile.
//!
//! ```text
//!   guest ──acknowledged writes───────────────────────────────────────────────────────────► killed ─► the next one: every record
//!   daemon   retain ─ killed ─ retain ─ ended ─ passthrough ─ ended ─ retain ─ killed, begun, ended ─ ...
//!   between guests: nothing, `recover`, a daemon's whole life with nobody attached, qemu-storage-daemon for the next guest,
//!                   an older copy of the image in its place: a backup made under a guest, or the disk as it was made
//! ```
//!
//! A backup in place of an image whose journal is in memory is refused; put back for good (the loss accepted, or after
//! `recover`) it is what the next guest finds: every record that was acknowledged before it was made.
//!
//! A daemon may refuse to serve an image without the journal that belongs to it; then it is served with it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::kills::{self, Plan};
use super::rig::{self, judge_end, End, Rig, Setup};
use crate::acks::{Allowance, Ledger, Remains, Verdict};
use crate::daemon::{Daemon, PeerOptions};
use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::guest::{Guest, Vmm};
use crate::process::Workdir;

/// Acknowledgements between two steps.
const WORK: u64 = 25;
/// QEMU looks for its daemon once a second.
const BEFORE_RECONNECT: Duration = Duration::from_millis(700);

/// Long enough for what a guest says to arrive.
const SETTLE: Duration = Duration::from_millis(80);
/// How often a daemon may give up waiting for it.
const LOCKED_TIMES: usize = 3;
/// How long an image may stay locked after its daemon's end.
const LOCKED: Duration = Duration::from_secs(5);

/// What happens to the daemon while a guest is attached.
#[derive(Clone, Copy, Debug)]
enum Step {
    Flush,
    Paused,
    /// `ctl copy`, while the guest stands still.
    BackedUp,
    /// SIGKILL, and the next one.
    Killed,
    /// An orderly end, and the next one.
    Ended,
    /// SIGKILL; the next one ends in order before the guest has found it.
    EndedEarly,
    /// SIGKILL; the next one is killed before the guest has found it.
    KilledEarly,
}

const STEPS: [Step; 7] = [
    Step::Flush,
    Step::Paused,
    Step::BackedUp,
    Step::Killed,
    Step::Ended,
    Step::EndedEarly,
    Step::KilledEarly,
];

/// What happens between two guests.
#[derive(Clone, Copy, Debug)]
enum Between {
    Nothing,
    DaemonKilled,
    Recovered,
    EndedAlone,
    /// The next guest is another server's.
    Peer,
    /// With transactions in memory an older copy of the image is put in its place, and is refused; then the image is put back.
    Restored,
    /// The last backup takes the image's place for good.
    RolledBack,
}

impl Between {
    /// Whether the daemon dies before its guest. In the other order it brings everything home.
    fn needs_memory(self) -> bool {
        matches!(self, Between::Restored | Between::RolledBack)
    }
}

const BETWEEN: [Between; 8] = [
    Between::Nothing,
    Between::DaemonKilled,
    Between::Recovered,
    Between::EndedAlone,
    Between::Peer,
    Between::Restored,
    Between::RolledBack,
    Between::RolledBack,
];

/// A copy of the image.
struct Backup {
    folder: Workdir,
    /// What had been acknowledged when it was made.
    ledger: Ledger,
}

impl Backup {
    fn image(&self) -> PathBuf {
        self.folder.join("disk.raw")
    }
}

#[derive(Default)]
struct Tally {
    steps: u64,
    acknowledged: u64,
    refused: u64,
    restored: u64,
    rolled_back: u64,
    guests: u64,
    said: Vec<String>,
}

/// Runs it: so many guests, with so many steps in each one's life.
pub(super) fn run(evidence: &Evidence, plan: &Plan, guests: usize, steps: usize) -> Result<String> {
    let mut tally = Tally::default();
    rig::on(&plan.setup, evidence, End::Clean, |rig| {
        live(evidence, plan, rig, (guests, steps), &mut tally).map_err(|error| {
            evidence.text("life.txt", &tally.said.join("\n"));
            match error {
                LabError::Broken(what) => LabError::Broken(format!(
                    "of the guest before: {what} (all that happened: {})",
                    tally.said.join(", ")
                )),
                other => other,
            }
        })
    })?;
    Ok(format!(
        "{} guests, {} changes under them, {} of them refused at first, {} older copies refused, {} backups gone on with; \
         {} acknowledged, 0 lost",
        tally.guests, tally.steps, tally.refused, tally.restored, tally.rolled_back, tally.acknowledged
    ))
}

fn live(
    evidence: &Evidence,
    plan: &Plan,
    rig: &mut Rig,
    (guests, steps): (usize, usize),
    tally: &mut Tally,
) -> Result<()> {
    let mut random = ChaCha8Rng::seed_from_u64(plan.seed);
    let mut ledger: Option<Ledger> = None;
    let mut peer: Option<Daemon> = None;
    let mut backup: Option<Backup> = None;
    for round in 0..=guests {
        let last = round == guests;
        let script = kills::script(plan, round, !last);
        let builder = match &peer {
            Some(peer) => Rig::guest_of(peer, Vmm::Uml),
            None if last => rig.guest(Vmm::Uml),
            None => rig.guest(Vmm::Qemu).reconnect_s(1),
        };
        let mut guest = builder.start(&script)?;
        let went = if last {
            judge_end(&mut guest)
        } else {
            let steps = if peer.is_some() { 0 } else { steps };
            go_through(rig, &mut guest, steps, &mut random, (&mut backup, tally))
        };
        if went.is_err() {
            evidence.guest(&guest, &format!("guest{round}"));
        }
        went?;
        let next = *BETWEEN.choose(&mut random).unwrap_or(&Between::Nothing);
        let mut held = false;
        if next.needs_memory() && peer.is_none() && !last {
            held = rig.is_retained()?;
            rig.daemon.kill()?;
        }
        guest.kill();
        guest.wait()?;
        tally.guests += 1;
        tally.said.push("guest killed".to_owned());
        if let Some(ledger) = ledger.take() {
            let verdict = Verdict::new(&ledger, &Remains::of(guest.channel())?);
            let checked = verdict.check(Allowance::Nothing);
            if checked.is_err() {
                evidence.guest(&guest, &format!("guest{round}"));
            }
            checked?;
            tally.acknowledged += verdict.acknowledged;
        }
        if last {
            break;
        }
        ledger = Some(Ledger::of(guest.channel())?);
        drop(guest);
        if let Some(peer) = peer.take() {
            peer.stop()?;
            start(rig, &mut random, tally)?;
        } else {
            let before_last = round + 1 == guests;
            peer = between(plan, rig, (next, before_last, held), backup.as_ref(), &mut random, tally)?;
            if let (Between::RolledBack, Some(backup)) = (next, &backup) {
                ledger = Some(backup.ledger.clone());
            }
        }
    }
    Ok(())
}

/// A guest's life: steps, and work after each.
fn go_through(
    rig: &mut Rig,
    guest: &mut Guest,
    steps: usize,
    random: &mut ChaCha8Rng,
    (backup, tally): (&mut Option<Backup>, &mut Tally),
) -> Result<()> {
    let mut wanted = WORK;
    for step in 0..=steps {
        if let Err(error) = guest.wait_acknowledged(wanted) {
            return judge_end(guest).and(Err(error));
        }
        if step == steps {
            break;
        }
        let step = *STEPS.choose(random).unwrap_or(&Step::Flush);
        tally.said.push(format!("{step:?}"));
        tally.steps += 1;
        match step {
            Step::Flush => drop(rig.daemon.request(&json!({ "command": "flush" }))?),
            Step::Paused => drop(rig.daemon.hold()?),
            Step::BackedUp => {
                guest.pause()?;
                std::thread::sleep(SETTLE);
                let ledger = Ledger::of(guest.channel())?;
                *backup = Some(Backup { folder: rig.back_up()?, ledger });
                guest.resume()?;
            }
            Step::Killed => {
                rig.daemon.kill()?;
                start(rig, random, tally)?;
            }
            Step::Ended => {
                rig.daemon.end()?;
                start(rig, random, tally)?;
            }
            Step::EndedEarly | Step::KilledEarly => {
                rig.daemon.kill()?;
                start(rig, random, tally)?;
                std::thread::sleep(random.random_range(Duration::ZERO..BEFORE_RECONNECT));
                if matches!(step, Step::EndedEarly) {
                    rig.daemon.end()?;
                } else {
                    rig.daemon.kill()?;
                }
                start(rig, random, tally)?;
            }
        }
        wanted = Ledger::of(guest.channel())?.acks.len() as u64 + WORK;
    }
    Ok(())
}

/// The next daemon: retaining, or not; where it refuses not to, retaining.
fn start(rig: &mut Rig, random: &mut ChaCha8Rng, tally: &mut Tally) -> Result<()> {
    let retaining = rig.setup.clone();
    let passing = Setup { journal: "passthrough", ..retaining.clone() };
    // A log below stays in use: a daemon without one would refuse the image.
    let passing = if retaining.survives == "guest-crash" && random.random_bool(0.5) {
        Setup { survives: "power", ..passing }
    } else {
        passing
    };
    let setup = if random.random_bool(0.4) { &passing } else { &retaining };
    tally.said.push(format!("{} {}", setup.journal, setup.survives));
    let mut started = rig.restart_as(setup);
    // On a busy machine the kernel takes its time with a dead daemon's last I/O; whoever waited in vain tries again.
    for _ in 0..LOCKED_TIMES {
        match &started {
            Err(error)
                if refusal(error).is_some_and(|words| words.contains("still locked by the last I/O")) =>
            {
                tally.said.push("still locked".to_owned());
                started = rig.restart_as(setup);
            }
            _ => break,
        }
    }
    match started {
        Err(error) if setup.journal != retaining.journal && refusal(&error).is_some() => {
            tally.refused += 1;
            tally.said.push("refused".to_owned());
            rig.restart_as(&retaining)
        }
        other => other,
    }
}

fn between(
    plan: &Plan,
    rig: &mut Rig,
    (what, before_last, held): (Between, bool, bool),
    backup: Option<&Backup>,
    random: &mut ChaCha8Rng,
    tally: &mut Tally,
) -> Result<Option<Daemon>> {
    tally.said.push(format!("{what:?}"));
    match what {
        Between::Nothing => {}
        Between::DaemonKilled => {
            rig.daemon.kill()?;
            start(rig, random, tally)?;
        }
        Between::Recovered => {
            rig.daemon.kill()?;
            rig.recover()?;
            start(rig, random, tally)?;
        }
        Between::EndedAlone => {
            rig.daemon.end()?;
            rig.expect_alone("an orderly end with nobody attached")?;
            start(rig, random, tally)?;
        }
        Between::Restored => {
            // Whoever served last may have retained nothing, or nothing again yet.
            if held {
                let image = rig.remembered()?;
                put_older(rig, backup, random)?;
                expect_refused(rig)?;
                rig.put_back(&image)?;
                tally.restored += 1;
            }
            start(rig, random, tally)?;
        }
        Between::RolledBack if backup.is_none() => start(rig, random, tally)?,
        Between::RolledBack => {
            tally.rolled_back += 1;
            // A redo log belongs to its image alone: nobody can give it up by an option.
            if held && rig.setup.survives == "guest-crash" && random.random_bool(0.5) {
                put_older(rig, backup, random)?;
                expect_refused(rig)?;
                tally.restored += 1;
                tally.said.push("loss accepted".to_owned());
                let arenas = rig.arenas();
                rig.restart_as(&Setup { accept_loss: true, ..rig.setup.clone() })?;
                // That of a file which is not in its place any more: nobody but its owner can say that it is not needed.
                rig.give_up(&arenas)?;
                return Ok(None);
            }
            rig.recover()?;
            put_older(rig, backup, random)?;
            start(rig, random, tally)?;
        }
        Between::Peer if before_last || plan.setup.survives.starts_with("power-window") => {}
        Between::Peer => {
            rig.daemon.end()?;
            rig.expect_alone("an orderly end with nobody attached")?;
            return peer(rig).map(Some);
        }
    }
    Ok(None)
}

/// What a daemon that refuses to serve says: with status 1, and last of all. (Status 2 would be this suite's mistake.)
fn refusal(error: &LabError) -> Option<&str> {
    match error {
        LabError::Peer(what) if what.starts_with("afterimage would not start (exit status: 1)") => {
            what.lines().last()
        }
        _ => None,
    }
}

/// An older copy in the image's place, over it or as another file: the backup, or the disk as it was made.
fn put_older(rig: &Rig, backup: Option<&Backup>, random: &mut ChaCha8Rng) -> Result<()> {
    match backup {
        Some(backup) => rig.put(&backup.image(), random.random_bool(0.5)),
        None => rig.blank(),
    }
}

/// The image in place is not the one whose journal is in memory.
fn expect_refused(rig: &mut Rig) -> Result<()> {
    let retaining = rig.setup.clone();
    let served = rig.restart_as(&retaining);
    let words = served.as_ref().err().and_then(refusal);
    // The redo log, where there is one, looks first.
    let known = ["is not as it was left", "is an older copy than", "belongs to another image"];
    if words.is_some_and(|words| known.iter().any(|known| words.contains(known))) {
        return Ok(());
    }
    if served.is_ok() {
        rig.daemon.kill()?;
    }
    Err(LabError::Broken(format!("an arena over an older copy of its image was not refused: {served:?}")))
}

/// The other server. The kernel ends a dead process's rings, and with them the locks of their files, in its own time.
fn peer(rig: &Rig) -> Result<Daemon> {
    let end = Instant::now() + LOCKED;
    loop {
        match Daemon::peer(&PeerOptions::writeback(&rig.image)) {
            Err(LabError::Peer(_)) if Instant::now() < end => std::thread::sleep(LOCKED / 20),
            other => return other,
        }
    }
}
