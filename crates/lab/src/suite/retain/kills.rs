//! Guests that are killed at seeded instants, one after the other on the same disk.
//!
//! ```text
//!   guest N: mount ─► guest N-1's records? ─► umount, e2fsck -fn ─► mount ─► churn, acknowledged writes ─► killed
//!              │                                                                                             │
//!              └──── the same daemon │ the next daemon │ after `recover`, judged by e2fsck │ by two oracles ◄┘
//! ```

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::format::Format;
use super::oracles;
use super::rig::{self, extract, judge_end, End, Rig, Setup};
use crate::acks::{Allowance, Ledger, Remains, Verdict};
use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::fsck;
use crate::guest::{Guest, Vmm};

/// How a guest's life ends, and what the next one finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// SIGKILL of the VMM; the daemon serves the next guest.
    Killed,
    /// A kernel panic; the daemon serves the next guest.
    Panicked,
    /// SIGKILL of VMM and daemon; the next daemon goes on from the arena.
    BothKilled,
    /// SIGKILL of both, then `afterimage recover`; a copy is judged by e2fsck.
    Recovered,
    /// SIGKILL of both, then a daemon that is started and stopped with nobody attached, and `afterimage recover`; a copy is
    /// judged by e2fsck.
    Stopped,
    /// As one of the two before, and compared with what the guest's kernel and e2fsck make of the materialised journal.
    Compared,
}

/// What a run of kills is to do.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub setup: Setup,
    pub deaths: Vec<Death>,
    pub seed: u64,
    /// Files and directories whose blocks change hands; a disk that is full most of the time.
    pub churn: bool,
    /// Acknowledgements before a kill, at most.
    pub acknowledged_max: u64,
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub kills: u64,
    pub acknowledged: u64,
    pub in_flight_kept: u64,
    pub mended: u64,
    pub compared: u64,
    pub names: usize,
}

impl Tally {
    pub fn told(&self) -> String {
        format!(
            "{} kills, {} acknowledged, 0 lost, {} more in flight were kept; {} recoveries judged by e2fsck, {} compared with \
             the kernel's replay and e2fsck's ({} names)",
            self.kills, self.acknowledged, self.in_flight_kept, self.mended, self.compared, self.names
        )
    }
}

/// The quick suite's deaths: one of each.
pub(super) const ONE_OF_EACH: [Death; 6] =
    [Death::Killed, Death::Recovered, Death::Panicked, Death::Compared, Death::Stopped, Death::BothKilled];

/// The full suite's.
pub(super) fn many(kills: usize, seed: u64) -> Vec<Death> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..kills).map(|_| ONE_OF_EACH[random.random_range(0..ONE_OF_EACH.len())]).collect()
}

/// Runs it.
pub(super) fn run(evidence: &Evidence, plan: &Plan) -> Result<String> {
    rounds(evidence, plan).map(|tally| tally.told())
}

/// As [`run`]: what was seen, in numbers.
pub(super) fn rounds(evidence: &Evidence, plan: &Plan) -> Result<Tally> {
    rig::on(&plan.setup, evidence, End::Clean, |rig| all_rounds(evidence, plan, rig))
}

fn all_rounds(evidence: &Evidence, plan: &Plan, rig: &mut Rig) -> Result<Tally> {
    let mut random = ChaCha8Rng::seed_from_u64(plan.seed);
    let mut tally = Tally::default();
    let mut ledger = None;
    for (round, death) in plan.deaths.iter().enumerate() {
        let script = script(plan, round, true);
        let mut guest = rig.guest(Vmm::Uml).start(&script)?;
        let lived = live(plan, rig, &mut guest, ledger.take(), &mut random, &mut tally);
        if let Err(error) = lived {
            evidence.guest(&guest, &format!("round{round}"));
            return Err(error);
        }
        tally.kills += 1;
        ledger = Some(die(evidence, plan, rig, guest, *death, &mut tally).map_err(|error| match error {
            LabError::Broken(what) => LabError::Broken(format!("round {round}, {death:?}: {what}")),
            other => other,
        })?);
    }
    let mut guest = rig.guest(Vmm::Uml).start(&script(plan, plan.deaths.len(), false))?;
    let ended = judge_end(&mut guest);
    evidence.guest(&guest, "last");
    ended?;
    judge(ledger, &guest, &mut tally)?;
    Ok(tally)
}

/// What a guest does: look at what its predecessor left, then work until it is killed.
pub(super) fn script(plan: &Plan, round: usize, works: bool) -> String {
    let format = plan.setup.format;
    let (mount, device) = (format.mount(), format.device());
    let mut text = "chmod 666 $AFTERIMAGE_REPORT\n".to_owned();
    if round == 0 {
        text.push_str(&format!("set -e\n{}\n", format.mkfs()));
    } else {
        text.push_str(&format!(
            "{mount} || {{ dmesg | tail -n 20; exit {} ; }}\n\
             \"$AFTERIMAGE_AGENT\" verify /mnt/acks || exit {}\n",
            rig::NO_MOUNT,
            rig::NO_VERIFY
        ));
        if plan.churn && !format.foreign_blocks {
            text.push_str(&format!(
                "\"$AFTERIMAGE_AGENT\" churn-verify /mnt/churn || exit {}\n",
                rig::FOREIGN
            ));
        }
        text.push_str(&format!(
            "umount /mnt || exit {}\ne2fsck -fn {device} || exit {}\n",
            rig::NO_UMOUNT,
            rig::DAMAGED
        ));
    }
    if !works {
        return text;
    }
    // Churn runs as nobody: the last blocks are root's, so that a full disk stops nothing acknowledged.
    let nobody = "chroot --userspec=65534:65534 /";
    text.push_str(&format!(
        "{mount}\nrm -rf /mnt/acks\nmkdir -p /mnt/acks /mnt/churn\nchmod 777 /mnt/churn\nsync\n"
    ));
    if plan.churn {
        text.push_str(&format!(
            "{nobody} \"$AFTERIMAGE_AGENT\" churn /mnt/churn --seed {} --round {round} --report /dev/null &\n",
            plan.seed
        ));
    }
    text.push_str("exec \"$AFTERIMAGE_AGENT\" ack-write /mnt/acks --seconds 600 --threads 2 --slots 96\n");
    text
}

/// Until the instant of its death.
fn live(
    plan: &Plan,
    rig: &Rig,
    guest: &mut Guest,
    ledger: Option<Ledger>,
    random: &mut ChaCha8Rng,
    tally: &mut Tally,
) -> Result<()> {
    let count = random.random_range(20..=plan.acknowledged_max);
    let then = Duration::from_micros(random.random_range(0..30_000));
    if let Err(error) = guest.wait_acknowledged(count) {
        return judge_end(guest).and(Err(error));
    }
    judge(ledger, guest, tally)?;
    rig.expect_retained()?;
    std::thread::sleep(then);
    Ok(())
}

fn judge(ledger: Option<Ledger>, guest: &Guest, tally: &mut Tally) -> Result<()> {
    let Some(ledger) = ledger else { return Ok(()) };
    let verdict = Verdict::new(&ledger, &Remains::of(guest.channel())?);
    verdict.check(Allowance::Nothing)?;
    tally.acknowledged += verdict.acknowledged;
    tally.in_flight_kept += verdict.unacknowledged_present;
    Ok(())
}

fn die(
    evidence: &Evidence,
    plan: &Plan,
    rig: &mut Rig,
    mut guest: Guest,
    death: Death,
    tally: &mut Tally,
) -> Result<Ledger> {
    let compared = match death {
        Death::Compared => {
            guest.freeze();
            Some(oracles::Moment::take(rig)?)
        }
        Death::Panicked => {
            guest.panic()?;
            None
        }
        _ => None,
    };
    guest.kill();
    if !matches!(death, Death::Killed | Death::Panicked) {
        rig.daemon.kill()?;
    }
    guest.wait()?;
    let ledger = Ledger::of(guest.channel())?;
    drop(guest);
    if !matches!(death, Death::Killed | Death::Panicked) {
        rig.remember()?;
    }
    match death {
        Death::Killed | Death::Panicked => {}
        Death::BothKilled => rig.daemon.restart()?,
        Death::Recovered | Death::Stopped | Death::Compared => {
            if let Some(moment) = &compared {
                moment.put_back()?;
            }
            let by_stop = death == Death::Stopped || (death == Death::Compared && tally.compared % 2 == 1);
            if by_stop {
                rig.daemon.restart()?;
                rig.daemon.end()?;
            }
            // A daemon that has seen no guest leaves it to somebody else to say that there is none.
            evidence.text("recover.txt", &rig.recover()?);
            let copied = rig.image.with_extension("recovered");
            extract(&rig.image, &copied, plan.setup.format)?;
            let judged = match &compared {
                None => fsck::mend(&copied).map(drop),
                Some(moment) => moment.compare(rig, &copied).map(|names| {
                    tally.compared += 1;
                    tally.names += names;
                }),
            };
            if judged.is_err() {
                evidence.files(std::slice::from_ref(&copied), "");
                evidence.files(&compared.iter().flat_map(oracles::Moment::files).collect::<Vec<_>>(), "");
            }
            judged?;
            tally.mended += 1;
            let _ = std::fs::remove_file(&copied);
            rig.daemon.restart()?;
        }
    }
    Ok(ledger)
}

/// A daemon that drops what it should retain has to be caught.
pub(super) fn canary(evidence: &Evidence, seed: u64) -> Result<String> {
    let Some(format) = Format::named("journal") else {
        return Err(LabError::Missing("there is no format 'journal'".to_owned()));
    };
    let plan = Plan {
        setup: Setup { journal: "drop-for-bench", ..Setup::new(format) },
        deaths: vec![Death::Killed; 3],
        seed,
        churn: false,
        acknowledged_max: 200,
    };
    super::super::workload::canary(run(evidence, &plan), "a journal that is dropped lost nothing")
}
