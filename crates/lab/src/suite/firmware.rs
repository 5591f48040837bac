//! Stock machines that boot from the daemon's disk by firmware, while the daemon is killed.
//!
//! ```text
//!   boots  firmware ─► GRUB ─► Linux: records ─► a second disk is plugged in, its daemon dies ─► reset, the daemon dies twice
//!          ─► firmware ─► GRUB ─► Linux: the records are there
//!   kills  firmware ─► GRUB ─► Linux: records, read back          the daemon dies every 3 s; the next boot's, half a second later
//! ```
//! A kernel that panics and a loader that gives up stand still, so each start of Linux that is seen is one that was due.

use std::time::{Duration, Instant};

use super::workload::{self, FileSystem};
use super::{live, run_cases, shutdown, Case, Evidence, SuiteOptions};
use crate::acks::{Allowance, Ledger};
use crate::daemon::{self, Daemon, ServeOptions};
use crate::error::{LabError, Result};
use crate::guest::{write_bootable, Firmware, Guest, GuestBuilder, Release, Vmm};
use crate::process::Workdir;

/// Emulated firmware, twice, on a machine that has other work.
const LIMIT: Duration = Duration::from_secs(300);
/// Several times an emulated boot on an idle machine.
const CANARY_LIMIT: Duration = Duration::from_secs(45);
const HALF: Duration = Duration::from_millis(500);
/// QEMU 7.2 comes back after a second, and gets on for another one.
const PHASES: u32 = 6;
const BETWEEN: Duration = Duration::from_secs(PHASES as u64 / 2);
/// `keep` gives a daemon up that dies five times soon after its start.
const DEATHS_MAX: u32 = 4;
const PLUGGED_BYTES: u64 = 4 << 20;

#[derive(Clone, Copy)]
struct Machine {
    release: Release,
    firmware: Firmware,
    keep: bool,
    reconnect: bool,
}

/// Runs the suite; `true` if every case passed.
///
/// # Errors
/// As [`super::run`].
pub fn run(options: &SuiteOptions) -> Result<bool> {
    run_cases(cases(), options)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, quick, run: super::Run| cases.push(Case { name, quick, run });
    for release in Release::ALL {
        for (firmware, firmware_name) in [(Firmware::SeaBios, "seabios"), (Firmware::Ovmf, "ovmf")] {
            for (keep, how) in [(false, "reconnect"), (true, "keep")] {
                let machine = Machine { release, firmware, keep, reconnect: true };
                let name = format!("qemu-{}-{firmware_name}-{how}", release.qemu().trim_end_matches('.'));
                add(format!("boots-{name}"), true, Box::new(move |e| boots(e, machine)));
                for first in 1..=PHASES {
                    let name = format!("kills-{name}-{}", f64::from(first) / 2.0);
                    add(name, false, Box::new(move |e| kills(e, machine, first)));
                }
            }
        }
    }
    add("canary-no-reconnect".to_owned(), true, Box::new(canary));
    cases.extend(shutdown::cases());
    cases
}

fn on(
    evidence: &Evidence,
    machine: Machine,
    test: impl FnOnce(&mut Daemon) -> Result<String>,
) -> Result<String> {
    let folder = Workdir::new("firmware")?;
    let images = [folder.join("disk.raw"), folder.join("plugged.raw")];
    write_bootable(machine.release, &images[0])?;
    daemon::create_image(&images[1], PLUGGED_BYTES)?;
    let options = ServeOptions { keep: machine.keep, ..ServeOptions::new("power-window=50ms", &images) };
    live::on(evidence, &options, test)
}

fn guest(machine: Machine, daemon: &Daemon) -> GuestBuilder {
    let guest = Guest::builder(Vmm::Qemu).disk(daemon.socket()).limit(LIMIT);
    let guest = if machine.reconnect { guest.reconnect_s(1) } else { guest.limit(CANARY_LIMIT) };
    guest.firmware(machine.firmware, machine.release)
}

/// The first partition of the disk is the loader's.
fn on_second_partition(script: &str) -> String {
    script.replace("/dev/vda", "/dev/vda2")
}

fn boots(evidence: &Evidence, machine: Machine) -> Result<String> {
    let file_system = FileSystem::Ext4Ordered;
    let say = |word| format!("\"$AFTERIMAGE_AGENT\" say '{{\"suite\":\"{word}\"}}'\n");
    let script = on_second_partition(&format!(
        "{mount} 2> /dev/null && {{ umount /mnt; {checking}exit; }}\nset -e\n{make}\n{mount}\nmkdir /mnt/acks\nsync\n\
         \"$AFTERIMAGE_AGENT\" ack-write /mnt/acks --records 40\n{plug}\
         for i in $(seq 300); do [ ! -b /dev/vdb ] || break; sleep 0.1; done\n\
         \"$AFTERIMAGE_AGENT\" write-back /dev/vdb\n\
         \"$AFTERIMAGE_AGENT\" stamp /dev/vdb\n{plugged}\"$AFTERIMAGE_AGENT\" drop-caches\n\
         \"$AFTERIMAGE_AGENT\" stamp-verify /dev/vdb\n\
         {reset}echo b > /proc/sysrq-trigger\nsleep 60\nexit 66\n",
        mount = file_system.mount(),
        checking = workload::checking(file_system.mount(), file_system.check()),
        make = file_system.make(),
        plug = say("plug"),
        plugged = say("plugged"),
        reset = say("reset"),
    ));
    on(evidence, machine, |daemon| {
        let began = Instant::now();
        let mut guest = guest(machine, daemon).start(&script)?;
        let lived = live_through(&guest, machine, daemon);
        let ended = lived.and_then(|version| guest.wait_success().map(|()| version));
        evidence.guest(&guest, "guest");
        let version = ended?;
        expect_starts(&guest, 2)?;
        let ledger = Ledger::of(guest.channel())?;
        let remains = crate::acks::Remains::of(guest.channel())?;
        let told = workload::judge(evidence, &ledger, &remains, Allowance::Nothing)?;
        Ok(format!("QEMU {version}: two boots in {:.0} s, {told}", began.elapsed().as_secs_f32()))
    })
}

/// What happens to a machine of [`boots`]; the version that its QEMU says.
fn live_through(guest: &Guest, machine: Machine, daemon: &mut Daemon) -> Result<String> {
    let version = guest.qmp()?.execute("query-version", None)?["qemu"].clone();
    let version = format!("{}.{}.{}", version["major"], version["minor"], version["micro"]);
    if !version.starts_with(machine.release.qemu()) {
        return Err(LabError::Peer(format!("this is QEMU {version}, not {}", machine.release.qemu())));
    }
    guest.wait_report("suite", "plug")?;
    guest.plug(machine.release, &daemon.sockets()[1])?;
    guest.wait_report("suite", "plugged")?;
    restart(daemon)?;
    guest.wait_report("suite", "reset")?;
    restart(daemon)?;
    std::thread::sleep(4 * HALF);
    while !settled(daemon)? && !guest.out_of_time() {}
    restart(daemon)?;
    Ok(version)
}

fn restart(daemon: &mut Daemon) -> Result<()> {
    daemon.kill()?;
    daemon.restart()
}

fn expect_starts(guest: &Guest, wanted: usize) -> Result<()> {
    let seen = guest.channel().lines().iter().filter(|line| line.says("guest", "ready")).count();
    if seen == wanted {
        return Ok(());
    }
    Err(LabError::Guest(format!("Linux started {seen} times, not {wanted}{}", guest.last_words())))
}

/// One boot to the end of its work; the daemon dies first after so many half seconds.
fn kills(evidence: &Evidence, machine: Machine, first: u32) -> Result<String> {
    on(evidence, machine, |daemon| {
        let began = Instant::now();
        let mut guest = guest(machine, daemon).start(&on_second_partition(&live::script(20)))?;
        let (mut next, mut died) = (HALF * first, 0);
        while died < DEATHS_MAX {
            let left = next.saturating_sub(began.elapsed());
            let end = |line: &crate::channel::Arrival| line.says("guest", "exit").then_some(());
            match guest.channel().wait_for(0, left, "the guest's end", end) {
                Err(LabError::Deadline { .. }) if !guest.out_of_time() => {
                    if settled(daemon)? {
                        restart(daemon)?;
                        died += 1;
                    }
                    next = next.max(began.elapsed()) + BETWEEN;
                }
                _ => break,
            }
        }
        let finished =
            live::finish(evidence, &mut guest).and_then(|told| expect_starts(&guest, 1).map(|()| told));
        Ok(format!("{died} deaths in {:.0} s, {}", began.elapsed().as_secs_f32(), finished?))
    })
}

/// Whether QEMU is past its handshake: 7.2 never comes back to a daemon that dies inside it.
fn settled(daemon: &Daemon) -> Result<bool> {
    let attached = daemon.disk()?.attached;
    std::thread::sleep(HALF / 2);
    Ok(attached)
}

/// A machine that may not come back to its daemon loses its disk, which shows.
fn canary(evidence: &Evidence) -> Result<String> {
    let machine =
        Machine { release: Release::Trixie, firmware: Firmware::SeaBios, keep: false, reconnect: false };
    on(evidence, machine, |daemon| {
        let mut guest = guest(machine, daemon).start(&on_second_partition(&live::script(20)))?;
        guest.wait_report("guest", "ready")?;
        restart(daemon)?;
        match guest.wait_success() {
            Err(LabError::Guest(what)) => {
                Ok(format!("the harness saw it: {}", what.lines().next().unwrap_or_default()))
            }
            Err(error) => Err(error),
            Ok(()) => Err(LabError::Broken("a machine without a disk wrote to it".to_owned())),
        }
    })
}
