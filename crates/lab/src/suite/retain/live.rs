//! Guests that only looked dead: whatever happens to them or to their daemon, they go on, and what they commit later is
//! found after a later kill.
//!
//! ```text
//!   acknowledged writes ─► the disturbance ─► more of them ─► killed ─► the next guest: every record, e2fsck -fn
//! ```
//!
//! Where the guest has to take part (unbind, kexec, suspend) its script does, and prints `again` when it is back. It prints:
//! a port for reports can be opened only once at a time, and the acknowledgements have it.

use std::time::{Duration, Instant};

use afterimage_protocol::report::Agent;

use super::kills::{self, Plan};
use super::rig::{self, judge_end, End, Rig};
use crate::acks::{Allowance, Ledger, Remains, Verdict};
use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::guest::{Guest, Vmm};
use crate::suite::kexec;

/// What happens in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// User Mode Linux's process is stopped and continued, twice.
    Frozen,
    /// QEMU's `stop` and `cont`.
    Paused,
    /// The daemon is killed; QEMU reconnects, `keep` holds User Mode Linux's socket.
    DaemonKilled,
    /// The daemon is stopped in order with the guest attached, and started again; QEMU reconnects.
    DaemonStopped,
    /// SIGHUP: another daemon goes on.
    HandedOver,
    /// The driver is taken from under the mounted file system, and put back.
    Rebound,
    /// Another kernel is started from the running one, with the file system mounted.
    Kexec,
    /// All devices are suspended and resumed.
    Suspended,
}

impl Disturbance {
    /// Whether it leaves the guest's kernel without its file system: what it had acknowledged is verified at once.
    fn is_new_mount(self) -> bool {
        matches!(self, Disturbance::Rebound | Disturbance::Kexec)
    }
}

/// What the guest prints when it is back, and when it cannot go.
const AGAIN: &str = "suite: again";
const REFUSED: &str = "suite: refused";

/// Acknowledgements before and after.
const WORK: u64 = 60;
/// How long the guest or the daemon is away.
const AWAY: Duration = Duration::from_millis(400);
const TIMES: u64 = 2;
/// How long a guest may take to come back.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs it.
pub(super) fn run(evidence: &Evidence, plan: &Plan, vmm: Vmm, disturbance: Disturbance) -> Result<String> {
    rig::on(&plan.setup, evidence, End::Clean, |rig| disturbed(evidence, plan, rig, vmm, disturbance))
}

fn disturbed(
    evidence: &Evidence,
    plan: &Plan,
    rig: &mut Rig,
    vmm: Vmm,
    disturbance: Disturbance,
) -> Result<String> {
    let mut builder = rig.guest(vmm);
    if vmm == Vmm::Qemu && matches!(disturbance, Disturbance::DaemonKilled | Disturbance::DaemonStopped) {
        builder = builder.reconnect_s(1);
    }
    if disturbance == Disturbance::Kexec {
        builder = kexec::with_kernel(builder)?.memory_mib(512);
    }
    let mut guest = builder.start(&script(plan, disturbance))?;
    let lived = go_through(rig, &mut guest, disturbance);
    let ended = lived.and_then(|told| {
        // A journal that was handed back to the disk is retained again from the next mount on.
        if disturbance != Disturbance::DaemonStopped {
            rig.expect_retained()?;
        }
        guest.kill();
        guest.wait()?;
        Ok(told)
    });
    evidence.guest(&guest, "disturbed");
    let told = ended?;
    let (before, after) = split(&guest)?;
    let mut checked = 0;
    if disturbance.is_new_mount() {
        let verdict = Verdict::new(&before, &Remains::of(guest.channel())?);
        verdict.check(Allowance::Nothing)?;
        checked += verdict.acknowledged;
    }
    drop(guest);
    let mut last = rig.guest(Vmm::Uml).start(&kills::script(plan, 1, false))?;
    let ended = judge_end(&mut last);
    evidence.guest(&last, "last");
    ended?;
    let ledger = if disturbance.is_new_mount() { after } else { Ledger::of_both(before, after) };
    let verdict = Verdict::new(&ledger, &Remains::of(last.channel())?);
    verdict.check(Allowance::Nothing)?;
    Ok(format!("{told}{} acknowledged, 0 lost", checked + verdict.acknowledged))
}

/// What was acknowledged before the guest said `again`, and after.
fn split(guest: &Guest) -> Result<(Ledger, Ledger)> {
    let (mut before, mut after) = (Ledger::default(), Ledger::default());
    let again_ns = printed(guest, AGAIN).unwrap_or(u64::MAX);
    for line in guest.channel().lines() {
        let again = line.at_ns > again_ns;
        if let Some(Agent::Ack(ack)) = line.agent()? {
            if again { &mut after } else { &mut before }.acks.push(ack);
        }
    }
    Ok((before, after))
}

/// When the guest has printed a line, if it has, in nanoseconds.
fn printed(guest: &Guest, line: &str) -> Option<u64> {
    guest.output_channel().lines().iter().find(|arrival| arrival.line == line).map(|arrival| arrival.at_ns)
}

fn script(plan: &Plan, disturbance: Disturbance) -> String {
    let format = plan.setup.format;
    let begin = kills::script(plan, 0, true);
    let (begin, work) = begin.trim_end().split_once("exec ").unwrap_or((&begin, "true"));
    let device = format.device();
    let again = |device: &str| {
        format!(
            "{} || exit {}\n\"$AFTERIMAGE_AGENT\" verify /mnt/acks || exit {}\n\
             echo '{AGAIN}'\nsleep 0.5\nrm -rf /mnt/acks\nsync\nset +e\n{work}",
            format.mount_of(device),
            rig::NO_MOUNT,
            rig::NO_VERIFY
        )
    };
    match disturbance {
        // The kernel writes everything back before it lets go of a disk, and never ends while somebody writes on.
        Disturbance::Rebound => format!(
            "{begin}{work} &\nset +e\nsleep 3\npkill -STOP -x afterimage-agen\nbus=$(\"$AFTERIMAGE_AGENT\" unbind vda)\n\
             echo \"unbound $bus\"\n\
             pkill -9 -x afterimage-agen; sleep 0.3\numount /mnt || umount -l /mnt\necho unmounted\n\
             \"$AFTERIMAGE_AGENT\" bind $bus\nsleep 0.3\ndisk=$(ls -d /dev/vd?)\n{}",
            again("$disk")
        ),
        Disturbance::Kexec => format!(
            "if grep -q afterimage.second /proc/cmdline; then\nset -e\n{}\nexit 0\nfi\n{begin}{work} &\nset +e\nsleep 3\n\
             {}",
            again(device),
            kexec::script("afterimage.second")
        ),
        // The host's files are out of reach afterwards: 9p has no way back from a reset.
        Disturbance::Suspended => format!(
            "cp \"$AFTERIMAGE_AGENT\" /bin/busybox /run/\nAFTERIMAGE_AGENT=/run/afterimage-agent\n{}\
             cd /run\n{} &\nset +e\n/run/busybox sleep 3\necho 1 > /sys/module/suspend/parameters/pm_test_delay\n\
             echo devices > /sys/power/pm_test || exit 1\n\
             echo mem > /sys/power/state || echo '{REFUSED}'\necho '{AGAIN}'\n/run/busybox sleep 1000\n",
            begin,
            work
        ),
        _ => format!("{begin}exec {work}"),
    }
}

fn go_through(rig: &mut Rig, guest: &mut Guest, disturbance: Disturbance) -> Result<String> {
    if let Err(error) = guest.wait_acknowledged(WORK) {
        return judge_end(guest).and(Err(error));
    }
    rig.expect_retained()?;
    match disturbance {
        Disturbance::Frozen => again_and_again(guest, |guest| {
            guest.freeze();
            std::thread::sleep(AWAY);
            guest.thaw();
            Ok(())
        })?,
        Disturbance::Paused => again_and_again(guest, |guest| {
            guest.pause()?;
            std::thread::sleep(AWAY);
            guest.resume()
        })?,
        Disturbance::DaemonKilled => again_and_again(guest, |_| {
            rig.daemon.kill()?;
            std::thread::sleep(AWAY / 4);
            rig.daemon.restart()
        })?,
        Disturbance::DaemonStopped => again_and_again(guest, |_| {
            rig.daemon.end()?;
            std::thread::sleep(AWAY);
            rig.daemon.restart()
        })?,
        Disturbance::HandedOver => again_and_again(guest, |_| rig.daemon.hand_over())?,
        Disturbance::Rebound | Disturbance::Kexec | Disturbance::Suspended => {
            let seen = guest.output_channel().wait_for(0, PATIENCE, "the guest's return", |arrival| {
                (arrival.line == AGAIN || arrival.line == REFUSED).then(|| arrival.line.clone())
            });
            match seen {
                Ok(Some(line)) if line == AGAIN => {}
                Ok(Some(_)) => {
                    return Err(LabError::Guest(format!("the guest refuses{}", guest.last_words())));
                }
                Ok(None) => {
                    return judge_end(guest).and(Err(LabError::Guest("the guest ended".to_owned())));
                }
                Err(error) => {
                    return Err(LabError::Guest(format!("{error}{}", guest.last_words())));
                }
            }
            let so_far = Ledger::of(guest.channel())?.acks.len() as u64;
            guest.wait_acknowledged(so_far + WORK)?;
        }
    }
    Ok(String::new())
}

/// Disturbs the guest, each time with work done in between and afterwards. A journal that was handed back to the disk may
/// be retained again only after a while.
fn again_and_again(guest: &Guest, mut disturb: impl FnMut(&Guest) -> Result<()>) -> Result<()> {
    for _ in 0..TIMES {
        disturb(guest)?;
        let so_far = Ledger::of(guest.channel())?.acks.len() as u64;
        let began = Instant::now();
        guest.wait_acknowledged(so_far + WORK)?;
        tracing::debug!(took_s = began.elapsed().as_secs_f32(), "the guest went on");
    }
    Ok(())
}
