//! Guests whose file system goes down under them and is mounted again, by the same kernel and by the next one, while somebody
//! uses the control socket.
//!
//! ```text
//!   mount: the guest's own recovery ─► what the last cycle left? ─► 10 000 blocks, acknowledged records ─► EXT4_IOC_SHUTDOWN
//!     ▲        ▲                                                                                             umount │
//!     │        └─ flush, wait, pause, hand-over, a daemon's death, at random moments                                ▼
//!     └─────────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//!                                                               last cycle: killed, a panic, or another kernel by kexec
//! ```
//!
//! What a guest recovers is large, so that its recovery lasts: thousands of blocks are committed and not home.

use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::format::Format;
use super::rig::{self, judge_end, End, Rig, Setup};
use crate::acks::{Allowance, Ledger, Remains, Verdict};
use crate::channel::Arrival;
use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::guest::{Guest, Vmm};
use crate::powerfs::ModelName;
use crate::suite::kexec;

/// A journal that holds all of a cycle.
const MAKE: [(&str, &str); 2] = [("csum", "-J size=64"), ("plain", "-O ^metadata_csum,^64bit -J size=64")];
const IMAGE_BYTES: u64 = 512 << 20;
/// Enough that the guest's kernel does not begin to write back what its journal holds.
const GUEST_MEMORY_MIB: u32 = 512;
/// Each of a cycle's two files.
const FILE_BYTES: u64 = 20_000_000;
/// Acknowledged records of a cycle.
const RECORDS: u64 = 40;
/// How long after a mount has begun something may happen. It lasts about as long.
const MOUNT: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(120);
/// On a kernel's command line: which one of its machine it is.
const NUMBER: &str = "afterimage.kernel";
/// What the guest says before it mounts.
const MOUNTING: &str = r#"{"suite":"mounting"}"#;

/// How one guest follows another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A virtual machine of its own, after a death.
    Machine,
    /// In the same one, by kexec from under the mounted file system. (User Mode Linux has none.)
    Kexec,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    setup: Setup,
    next: Next,
    guests: u64,
    /// Mounts of each guest.
    cycles: u64,
    seed: u64,
}

impl Plan {
    /// A suite's plans: names, and what to do.
    pub fn all(survives: &'static str, guests: u64, cycles: u64, seed: u64) -> Vec<(String, Plan)> {
        let mut plans = Vec::new();
        for (next, storage, how) in [
            (Next::Machine, ModelName::None, ""),
            (Next::Machine, ModelName::Hdd15k, "slow-"),
            (Next::Kexec, ModelName::None, "kexec-"),
        ] {
            for (name, make) in MAKE {
                let format = Format {
                    name,
                    make,
                    mount: "data=journal",
                    partition: false,
                    foreign_blocks: false,
                    quick: false,
                };
                let setup =
                    Setup { image_bytes: IMAGE_BYTES, survives, keep: true, storage, ..Setup::new(format) };
                plans.push((format!("{how}{name}"), Plan { setup, next, guests, cycles, seed }));
            }
        }
        plans
    }

    /// Whether it is over in a minute or two.
    pub fn is_quick(&self) -> bool {
        self.next == Next::Machine && self.setup.storage == ModelName::None
    }
}

/// What somebody does on the host meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    Flush,
    Wait,
    Pause,
    HandedOver,
    Killed,
}

const MEANWHILE: [Meanwhile; 8] = [
    Meanwhile::Nothing,
    Meanwhile::Flush,
    Meanwhile::Flush,
    Meanwhile::Flush,
    Meanwhile::Wait,
    Meanwhile::Pause,
    Meanwhile::HandedOver,
    Meanwhile::Killed,
];

/// `keep` gives up a daemon that dies five times in a row within 10 s of its start.
#[derive(Default)]
struct Deaths {
    started: Option<Instant>,
    quick: u32,
}

impl Deaths {
    const QUICK: Duration = Duration::from_secs(12);
    const QUICK_MAX: u32 = 3;

    /// The same, or a pause where one more death would be too many.
    fn spared(&mut self, what: Meanwhile) -> Meanwhile {
        let quick = self.started.is_none_or(|at| at.elapsed() < Deaths::QUICK);
        match what {
            Meanwhile::Killed if quick && self.quick >= Deaths::QUICK_MAX => return Meanwhile::Pause,
            Meanwhile::Killed => self.quick = if quick { self.quick + 1 } else { 1 },
            Meanwhile::HandedOver => {}
            _ => return what,
        }
        self.started = Some(Instant::now());
        what
    }
}

#[derive(Default)]
struct Tally {
    deaths: Deaths,
    mounts: u64,
    acknowledged: u64,
    stamped: u64,
    pending_max: u64,
    disturbances: u64,
}

/// Runs it.
pub(super) fn run(evidence: &Evidence, plan: &Plan) -> Result<String> {
    let mut tally = Tally::default();
    rig::on(&plan.setup, evidence, End::Clean, |rig| guests(evidence, plan, rig, &mut tally))?;
    Ok(format!(
        "{} mounts after a shutdown or a death, {} of them disturbed, at most {} versions pending; {} acknowledged records and \
         {} blocks, 0 lost",
        tally.mounts, tally.disturbances, tally.pending_max, tally.acknowledged, tally.stamped
    ))
}

fn guests(evidence: &Evidence, plan: &Plan, rig: &mut Rig, tally: &mut Tally) -> Result<()> {
    let mut random = ChaCha8Rng::seed_from_u64(plan.seed);
    let mut before: Option<Ledger> = None;
    let told = |number: u64| {
        move |error| match error {
            LabError::Broken(what) => LabError::Broken(format!("guest {number}: {what}")),
            other => other,
        }
    };
    let machines = match plan.next {
        Next::Machine => (0..=plan.guests).map(|number| number..=number).collect(),
        Next::Kexec => vec![0..=plan.guests],
    };
    for numbers in machines {
        let first = *numbers.start();
        let mut guest = start(plan, rig, first)?;
        let mut seen = 0;
        let lived = numbers.into_iter().try_for_each(|number| {
            live(plan, rig, &mut guest, (number, &mut seen), &mut random, tally).map_err(told(number))
        });
        evidence.guest(&guest, &format!("guest{first}"));
        lived?;
        guest.wait()?;
        before = judge(before, &guest.channel().lines(), tally).map_err(told(first))?;
    }
    Ok(())
}

fn start(plan: &Plan, rig: &Rig, first: u64) -> Result<Guest> {
    let limit = PATIENCE * 4;
    match plan.next {
        Next::Machine => {
            rig.guest(Vmm::Uml).memory_mib(GUEST_MEMORY_MIB).limit(limit).start(&script(plan, first))
        }
        Next::Kexec => {
            let guest = kexec::with_kernel(rig.guest(Vmm::Qemu))?;
            let guest = guest.memory_mib(2 * GUEST_MEMORY_MIB).limit(limit * plan.guests as u32);
            guest.start(&scripts_by_kernel(plan))
        }
    }
}

/// A guest from its begin until it is killed; the last one looks, and ends. `seen` lines were read before.
fn live(
    plan: &Plan,
    rig: &mut Rig,
    guest: &mut Guest,
    (number, seen): (u64, &mut usize),
    random: &mut ChaCha8Rng,
    tally: &mut Tally,
) -> Result<()> {
    for cycle in 0..plan.mounts(number) {
        let mounting = guest.channel().wait_for(*seen, PATIENCE, "a mount", |arrival| {
            *seen += 1;
            (arrival.line == MOUNTING).then_some(())
        });
        if !matches!(mounting, Ok(Some(()))) {
            judge_end(guest)?;
            return Err(LabError::Guest(format!("no mount {cycle}: {mounting:?}{}", guest.last_words())));
        }
        // The first guest's first file system is new.
        tally.mounts += u64::from((number, cycle) != (0, 0));
        std::thread::sleep(random.random_range(Duration::ZERO..MOUNT));
        let what = tally.deaths.spared(*MEANWHILE.choose(random).unwrap_or(&Meanwhile::Nothing));
        tracing::debug!(number, cycle, ?what, "remount");
        disturb(rig, what)?;
        tally.disturbances += u64::from((number, cycle) != (0, 0) && what != Meanwhile::Nothing);
        if let Some(found) = rig.file_system()? {
            tally.pending_max = tally.pending_max.max(found.versions_pending);
        }
    }
    if number == plan.guests {
        return judge_end(guest);
    }
    // The last cycle works on until it is killed.
    let worked = guest
        .channel()
        .wait_for(*seen, PATIENCE, "acknowledgements", |arrival| arrival.says("agent", "ack").then_some(()));
    if !matches!(worked, Ok(Some(()))) {
        judge_end(guest)?;
        return Err(LabError::Guest(format!("no acknowledgement: {worked:?}{}", guest.last_words())));
    }
    rig.expect_retained()?;
    if plan.next == Next::Kexec {
        return Ok(());
    }
    std::thread::sleep(random.random_range(Duration::ZERO..MOUNT));
    if random.random_bool(0.5) {
        guest.panic()?;
    }
    guest.kill();
    Ok(())
}

fn disturb(rig: &mut Rig, what: Meanwhile) -> Result<()> {
    match what {
        Meanwhile::Nothing => Ok(()),
        Meanwhile::Flush => rig.daemon.request(&json!({ "command": "flush" })).map(drop),
        Meanwhile::Wait => {
            let sequence = rig.daemon.status()?.sequence;
            let wait = json!({ "command": "wait", "sequence": sequence.acknowledged, "timeout_ms": 10_000 });
            rig.daemon.request(&wait).map(drop)
        }
        Meanwhile::Pause => {
            let hold = rig.daemon.hold()?;
            std::thread::sleep(MOUNT / 20);
            drop(hold);
            Ok(())
        }
        Meanwhile::HandedOver => rig.daemon.hand_over(),
        Meanwhile::Killed => {
            rig.daemon.kill()?;
            rig.daemon.restart()
        }
    }
}

/// What each mount found against what had been acknowledged before it. Returns what the guest had acknowledged at its end.
fn judge(mut before: Option<Ledger>, lines: &[Arrival], tally: &mut Tally) -> Result<Option<Ledger>> {
    for (at, cycle) in lines.split(|arrival| arrival.line == MOUNTING).skip(1).enumerate() {
        if let Some(ledger) = before.take() {
            let remains = Remains::read(cycle)?;
            let verdict = Verdict::new(&ledger, &remains);
            let check = verdict.check(Allowance::Nothing);
            check.map_err(|error| match error {
                LabError::Broken(what) => LabError::Broken(format!("mount {at}: {what}")),
                other => other,
            })?;
            tally.acknowledged += verdict.acknowledged;
            tally.stamped += 2 * FILE_BYTES / 4096;
        }
        before = Some(Ledger::read(cycle)?);
    }
    Ok(before)
}

impl Plan {
    /// Of a guest; the last one only looks.
    fn mounts(&self, guest: u64) -> u64 {
        if guest == self.guests {
            1
        } else {
            self.cycles
        }
    }
}

fn script(plan: &Plan, number: u64) -> String {
    let format = plan.setup.format;
    let mut text = String::new();
    if number == 0 {
        text.push_str(&format!("{} || exit 1\n", format.mkfs()));
    }
    for cycle in 0..plan.mounts(number) {
        // Of all cycles.
        let at = number * plan.cycles + cycle;
        text.push_str(&format!(
            "\"$AFTERIMAGE_AGENT\" say '{MOUNTING}'\n{} || {{ dmesg | tail -n 20; exit {}; }}\n",
            format.mount(),
            rig::NO_MOUNT
        ));
        let files = |seed: u64| [("one", 2 * seed), ("two", 2 * seed + 1)];
        if at > 0 {
            text.push_str(&format!("\"$AFTERIMAGE_AGENT\" verify /mnt/acks || exit {}\n", rig::NO_VERIFY));
            for (file, seed) in files(at - 1) {
                text.push_str(&format!(
                    "\"$AFTERIMAGE_AGENT\" stamp-verify /mnt/{file} --seed {seed} --bytes {FILE_BYTES} || exit {}\n",
                    rig::DIFFERENT
                ));
            }
        }
        if number == plan.guests {
            text.push_str(&format!(
                "umount /mnt || exit {}\ne2fsck -fn {} || exit {}\n",
                rig::NO_UMOUNT,
                format.device(),
                rig::DAMAGED
            ));
            continue;
        }
        text.push_str("rm -rf /mnt/acks\nmkdir /mnt/acks\nsync\n");
        for (file, seed) in files(at) {
            text.push_str(&format!(
                "\"$AFTERIMAGE_AGENT\" stamp /mnt/{file} --seed {seed} --bytes {FILE_BYTES} || exit 1\n"
            ));
        }
        if cycle + 1 == plan.cycles {
            let work = "\"$AFTERIMAGE_AGENT\" ack-write /mnt/acks --seconds 600 --threads 2 --slots 96";
            match plan.next {
                Next::Machine => text.push_str(&format!("exec {work}\n")),
                Next::Kexec => text.push_str(&format!(
                    "{work} &\nsleep 3\n{}",
                    kexec::script(&format!("{NUMBER}={}", number + 1))
                )),
            }
        } else {
            // By turns as a crash leaves it, and with the journal's running transaction committed.
            let how = if at % 3 == 0 { " --commit" } else { "" };
            text.push_str(&format!(
                "\"$AFTERIMAGE_AGENT\" ack-write /mnt/acks --records {RECORDS} --threads 2 || exit 1\n\
                 \"$AFTERIMAGE_AGENT\" shutdown /mnt{how} || exit 1\numount /mnt || exit {}\n",
                rig::NO_UMOUNT
            ));
        }
    }
    text
}

/// The script of a machine whose kernels follow each other: which one it is, its command line says.
fn scripts_by_kernel(plan: &Plan) -> String {
    let cases: String =
        (0..=plan.guests).map(|number| format!("{number})\n{}exit 0\n;;\n", script(plan, number))).collect();
    format!(
        "kernel=$(sed -n 's/.*{NUMBER}=\\([0-9]*\\).*/\\1/p' /proc/cmdline)\n\
         case ${{kernel:-0}} in\n{cases}esac\nexit 1\n"
    )
}
