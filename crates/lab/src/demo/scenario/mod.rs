//! What happens to guests at work, and how fast the work goes.
//!
//! ```text
//!   work (boot 1) ─► death ─► ledger ─┐
//!   examine (boot 2) ─► survivors ────┴─► judge ─► orderly end ─► e2fsck of the plain image
//! ```

mod crash;
mod power;
mod restart;
mod retain;
mod speed;

use std::path::Path;
use std::time::Duration;

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

pub use self::retain::{canary as retain_canary, compare, kill as retain_kill};
pub use self::speed::run as measure;

use super::inside::{self, Load};
use super::judge;
use super::ledger::{Gauge, Ledger};
use super::plan::{Allowance, Contract, Event, GUEST_LIMIT, JITTER_MS};
use super::progress::Progress;
use super::report::{Check, Recovery, StreamReport};
use super::rig::Rig;
use super::survivors::Survivors;
use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::guest::{Ended, Guest, Vmm};

/// What every scenario is given.
pub struct Setting<'a> {
    /// Where to say what is going on.
    pub progress: &'a Progress,
    /// Where images go.
    pub images_in: &'a Path,
    /// Where to keep what a person may have to look at.
    pub evidence: &'a Evidence,
    /// This scenario's own generator.
    pub rng: ChaCha8Rng,
    /// Which time it is, where the same is done several times; 0 where it is done once.
    pub round: u64,
}

impl Setting<'_> {
    /// A name for a piece of evidence of this round.
    fn tag(&self, name: &str) -> String {
        if self.round == 0 {
            name.to_owned()
        } else {
            format!("round-{}-{name}", self.round)
        }
    }
}

/// What a scenario found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Acknowledged and lost, over all rounds.
    pub streams: Vec<StreamReport>,
    /// Each round's, where there were several.
    pub rounds: Vec<Vec<StreamReport>>,
    /// Each promise.
    pub checks: Vec<Check>,
    /// What the image lay on.
    pub medium: String,
    /// The machine that ran the guest at work.
    pub guest: String,
    /// Rounds of postmark before the death.
    pub postmark_rounds: u64,
    /// How often the daemon was killed and started again.
    pub daemon_restarts: u64,
    /// What the daemon brought home of a dead guest's retained journal.
    pub recovery: Option<Recovery>,
}

impl Findings {
    /// Whether every promise held.
    pub fn held(&self) -> bool {
        self.checks.iter().all(|check| check.held)
    }

    /// Adds another round of the same: a promise holds if it held in each.
    fn add_round(&mut self, round: Findings) {
        self.rounds.push(round.streams.clone());
        if self.rounds.len() == 1 {
            let rounds = std::mem::take(&mut self.rounds);
            *self = Findings { rounds, ..round };
            return;
        }
        for (sum, stream) in self.streams.iter_mut().zip(round.streams) {
            sum.acknowledged += stream.acknowledged;
            sum.lost += stream.lost;
            sum.lost_numbers.extend(stream.lost_numbers);
            sum.lost_ms = sum.lost_ms.max(stream.lost_ms);
            sum.lost_ms_proved = sum.lost_ms_proved.max(stream.lost_ms_proved);
        }
        for check in round.checks {
            match self.checks.iter_mut().find(|known| known.promise == check.promise) {
                Some(known) => {
                    known.held &= check.held;
                    known.detail = format!("{} | {}", known.detail, check.detail);
                }
                None => self.checks.push(check),
            }
        }
        self.postmark_rounds += round.postmark_rounds;
    }
}

/// Runs one crash.
///
/// # Errors
/// It could not be found out whether the promises held.
pub fn crash(setting: &mut Setting<'_>, contract: Contract, event: Event) -> Result<Findings> {
    match event {
        Event::VmmKill | Event::GuestPanic => crash::run(setting, contract, event),
        Event::DaemonKillKept | Event::DaemonKillQemu => restart::run(setting, contract, event),
        Event::PowerCut => power::run(setting, contract),
    }
}

/// Runs the power cut that must lose something.
///
/// # Errors
/// The cut could not be made or looked at.
pub fn canary(setting: &mut Setting<'_>) -> Result<Findings> {
    power::run_canary(setting)
}

/// Runs `steps` on the rig; keeps what is left if they fail or find a broken promise.
fn on_rig(
    setting: &mut Setting<'_>,
    mut rig: Rig,
    steps: impl FnOnce(&mut Setting<'_>, &mut Rig) -> Result<Findings>,
) -> Result<Findings> {
    let outcome = steps(setting, &mut rig);
    if !outcome.as_ref().is_ok_and(Findings::held) {
        rig.keep(setting.evidence, &setting.tag("4-at-the-end"));
    }
    outcome
}

/// Boots a guest that works.
fn start_work(setting: &mut Setting<'_>, rig: &Rig, vmm: Vmm, load: Load) -> Result<Guest> {
    inside::write_inputs(rig.folder(), load.transactions, load.postmark, &mut setting.rng)?;
    let mut builder = rig.guest(vmm);
    if vmm == Vmm::Qemu {
        builder = builder.reconnect_s(1).memory_mib(512).limit(GUEST_LIMIT * 2);
    }
    builder.start(&inside::work(rig.folder(), load, rig.data()))
}

/// Waits until the guest has acknowledged so many records and commits (in each mode) since line `from`. A program of it that ended meanwhile breaks the
/// promise that its disk works.
fn wait_for_work(
    setting: &Setting<'_>,
    guest: &Guest,
    from: usize,
    (records, commits): (u64, u64),
) -> Result<()> {
    let mut gauge = Gauge::default();
    let what = format!("{records} acknowledged records and {commits} commits per mode in the guest");
    let found = guest.channel().wait_for(from, GUEST_LIMIT, &what, |arrival| {
        if let Err(error) = gauge.add(arrival) {
            return Some(Err(error));
        }
        if let Some(program) = gauge.ended() {
            return Some(Err(LabError::Broken(format!(
                "in the guest, {program} ended{}",
                guest.last_words()
            ))));
        }
        gauge.reached(records, commits).then_some(Ok(()))
    });
    let outcome = match found {
        Ok(Some(outcome)) => outcome,
        Ok(None) => Err(LabError::Guest(format!("the guest ended before {what}{}", guest.last_words()))),
        Err(LabError::Deadline { what, limit }) => {
            Err(LabError::Guest(format!("not within {} s: {what}{}", limit.as_secs(), guest.last_words())))
        }
        Err(error) => Err(error),
    };
    if outcome.is_err() {
        setting.evidence.guest(guest, &setting.tag("1-work"));
    }
    outcome
}

/// A seeded instant: sleeps up to [`JITTER_MS`].
fn jitter(rng: &mut ChaCha8Rng) {
    std::thread::sleep(Duration::from_micros(rng.random_range(0..JITTER_MS * 1000)));
}

/// What the dead guest had acknowledged, before `cut_ns` if there was a cut. Saves its words.
fn ledger_of(setting: &Setting<'_>, guest: &Guest, cut_ns: Option<u64>) -> Result<Ledger> {
    guest.channel().wait_closed(Duration::from_secs(5));
    setting.evidence.guest(guest, &setting.tag("1-work"));
    let ledger = Ledger::read(&guest.channel().lines(), cut_ns)?;
    setting.progress.step(&format!("dead; acknowledged until then: {}", ledger.summary()));
    Ok(ledger)
}

/// Boots again, looks, judges; ends the server in order and looks at the plain image.
fn recover_and_judge(
    setting: &Setting<'_>,
    rig: &mut Rig,
    ledger: &Ledger,
    allowance: Allowance,
) -> Result<(Vec<StreamReport>, Vec<Check>)> {
    let mut guest = rig.guest(Vmm::Uml).start(&inside::examine(rig.folder(), rig.data()))?;
    let ended = guest.wait();
    setting.evidence.guest(&guest, &setting.tag("2-examine"));
    let ended = ended?;
    let found = Survivors::read(&guest.channel().lines())?;
    let (streams, mut checks) = judge::judge(ledger, &found, allowance);
    if ended == Ended::Panicked || ended == Ended::Died {
        checks.push(Check::new(
            "the recovered disk boots",
            false,
            format!("the examining guest ended with {ended:?}"),
        ));
    }
    rig.stop_server()?;
    checks.push(plain_image(setting, rig)?);
    Ok((streams, checks))
}

/// Looks at the image as a file, after the server's orderly end.
fn plain_image(setting: &Setting<'_>, rig: &Rig) -> Result<Check> {
    let (clean, text) = rig.e2fsck()?;
    setting.evidence.text(&setting.tag("3-e2fsck-on-host.log"), &text);
    let left = rig.left_beside_image()?;
    Ok(Check::new(
        "after an orderly end the image is a plain, clean raw file",
        clean && left.is_empty(),
        match (clean, left.is_empty()) {
            (true, true) => "e2fsck -fn on the host is clean; nothing lies beside the image".to_owned(),
            (false, _) => "e2fsck -fn on the host finds faults: 3-e2fsck-on-host.log".to_owned(),
            (true, false) => format!("left beside the image: {}", left.join(", ")),
        },
    ))
}
