//! Whatever is done over a retained journal: what was written is read, and nothing of the older file system ever lands.
//!
//! ```text
//!   mkfs, mount, acknowledged records, churn ─► journal aborted, or unmounted in order ─► the action ─► killed
//!   next guest: what the action should have left, and nothing else
//! ```
//!
//! After an abort the log stays on the disk as it is, so that old versions are there to land where they must not.

use super::kills::Plan;
use super::rig::{self, judge_end, End, Rig};
use crate::acks::{Allowance, Ledger, Remains, Verdict};
use crate::error::Result;
use crate::evidence::Evidence;
use crate::guest::Vmm;

/// One thing that is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Action {
    name: &'static str,
    /// What `mkfs.ext4` is told after the device.
    made_as: &'static str,
    /// The journal is aborted before, or the file system unmounted in order, or neither.
    ends: Ends,
    /// What is done; `$1` is the device.
    act: &'static str,
    /// What the next guest checks; exits with [`rig::DIFFERENT`].
    check: &'static str,
    /// The records that were acknowledged must be there afterwards.
    keeps: bool,
    quick: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Aborted,
    Unmounted,
    Mounted,
}

const CHECKED: &str = "umount /mnt || exit 63; e2fsck -fn $1 || exit 64\n";

/// A new file system that is filled, but for the 2 % that ext4 gives to nobody and 1 % that another mkfs may need:
/// whatever old version lands, it hardly lands elsewhere than in a stamped block or in metadata, which e2fsck judges.
const NEW_FILLED: &str = "mkfs.ext4 -q -F -b 4096 $1\nmount -o data=journal $1 /mnt\nsync\n\
    A stamp /mnt/fill --bytes 87000000 --seed 77\n";
const FILLED: &str =
    "mount $1 /mnt || exit 61; A stamp-verify /mnt/fill --bytes 87000000 --seed 77 || exit 66; ";

const ACTIONS: [Action; 15] = [
    Action {
        name: "mkfs after an abort",
        made_as: "",
        ends: Ends::Aborted,
        act: NEW_FILLED,
        check: FILLED,
        keeps: false,
        quick: true,
    },
    Action {
        name: "mkfs after an unmount",
        made_as: "",
        ends: Ends::Unmounted,
        act: NEW_FILLED,
        check: FILLED,
        keeps: false,
        quick: false,
    },
    Action {
        name: "remount after an abort",
        made_as: "",
        ends: Ends::Aborted,
        act: "mount -o data=journal $1 /mnt\nA stamp /mnt/more --bytes 4000000 --seed 5\n",
        check: "mount $1 /mnt || exit 61; A stamp-verify /mnt/more --bytes 4000000 --seed 5 || exit 66; umount /mnt; e2fsck -fy $1; mount $1 /mnt; ",
        keeps: true,
        quick: true,
    },
    Action {
        name: "e2fsck -fy after an abort",
        made_as: "",
        ends: Ends::Aborted,
        act: "e2fsck -fy $1 || [ $? -le 1 ]\ne2fsck -fn $1\nmount -o data=journal $1 /mnt\n\
              A stamp /mnt/more --bytes 4000000 --seed 5\n",
        check: "mount $1 /mnt || exit 61; A stamp-verify /mnt/more --bytes 4000000 --seed 5 || exit 66; ",
        keeps: true,
        quick: false,
    },
    Action {
        name: "e2fsck -fy after an unmount",
        made_as: "",
        ends: Ends::Unmounted,
        act: "e2fsck -fy $1\nmount -o data=journal $1 /mnt\nA stamp /mnt/more --bytes 4000000 --seed 5\n",
        check: "mount $1 /mnt || exit 61; A stamp-verify /mnt/more --bytes 4000000 --seed 5 || exit 66; ",
        keeps: true,
        quick: false,
    },
    Action {
        name: "dd after an abort",
        made_as: "",
        ends: Ends::Aborted,
        act: "A stamp $1 --seed 9\n",
        check: "A stamp-verify $1 --seed 9 || exit 66; exit 0; ",
        keeps: false,
        quick: true,
    },
    Action {
        name: "dd under the mounted file system",
        made_as: "",
        ends: Ends::Mounted,
        // Lazily: the file system is mounted when the bytes come, and nothing of it may come after them.
        act: "sync; echo 1 > /sys/fs/ext4/vda/trigger_fs_error; sleep 0.2\nA stamp $1 --seed 9\n",
        check: "A stamp-verify $1 --seed 9 || exit 66; exit 0; ",
        keeps: false,
        quick: false,
    },
    Action {
        name: "mkswap after an abort",
        made_as: "",
        ends: Ends::Aborted,
        act: "A stamp $1 --seed 9\nmkswap $1\nsync\n",
        check: "[ \"$(dd if=$1 bs=1 skip=4086 count=10 2>/dev/null)\" = SWAPSPACE2 ] || exit 66; \
                dd if=$1 of=/run/one bs=4096 skip=1 count=1 2>/dev/null; \
                A stamp /run/wanted --bytes 8192 --seed 9; \
                dd if=/run/wanted bs=4096 skip=1 2>/dev/null | cmp - /run/one || exit 66; exit 0; ",
        keeps: false,
        quick: false,
    },
    Action {
        name: "discard after an abort",
        made_as: "",
        ends: Ends::Aborted,
        act: "blkdiscard -f $1\n",
        check: "cmp -n $(blockdev --getsize64 $1) $1 /dev/zero || exit 66; exit 0; ",
        keeps: false,
        quick: false,
    },
    Action {
        name: "zeroes after an abort, then mkfs",
        made_as: "",
        ends: Ends::Aborted,
        act: "blkdiscard -f -z $1\nmkfs.ext4 -q -F -b 4096 $1\nmount -o data=journal $1 /mnt\n\
              A stamp /mnt/fill --bytes 87000000 --seed 77\n",
        check: FILLED,
        keeps: false,
        quick: false,
    },
    Action {
        name: "resize2fs while mounted",
        made_as: "48M",
        ends: Ends::Mounted,
        act: "resize2fs $1\nA stamp /mnt/more --bytes 40000000 --seed 5\n",
        check: "mount $1 /mnt || exit 61; A stamp-verify /mnt/more --bytes 40000000 --seed 5 || exit 66; ",
        keeps: true,
        quick: true,
    },
    Action {
        name: "resize2fs while unmounted",
        made_as: "48M",
        ends: Ends::Unmounted,
        act: "e2fsck -fy $1\nresize2fs $1\nmount -o data=journal $1 /mnt\nA stamp /mnt/more --bytes 20000000 --seed 5\n\
              umount /mnt\ne2fsck -fy $1\nresize2fs $1 80M\nmount -o data=journal $1 /mnt\n\
              A stamp /mnt/again --bytes 4000000 --seed 6\n",
        check: "mount $1 /mnt || exit 61; A stamp-verify /mnt/more --bytes 20000000 --seed 5 || exit 66; \
                A stamp-verify /mnt/again --bytes 4000000 --seed 6 || exit 66; ",
        keeps: true,
        quick: false,
    },
    Action {
        name: "tune2fs -U while mounted",
        made_as: "",
        ends: Ends::Mounted,
        act: "tune2fs -O metadata_csum_seed $1 || true\ntune2fs -U random $1 || true\n\
              A stamp /mnt/more --bytes 4000000 --seed 5\n",
        check: "mount $1 /mnt || exit 61; A stamp-verify /mnt/more --bytes 4000000 --seed 5 || exit 66; ",
        keeps: true,
        quick: false,
    },
    Action {
        name: "tune2fs -U",
        made_as: "",
        ends: Ends::Unmounted,
        act: "e2fsck -fy $1\nyes | tune2fs -U random $1\nmount -o data=journal $1 /mnt\nA stamp /mnt/more --bytes 4000000 --seed 5\n",
        check: "mount $1 /mnt || exit 61; A stamp-verify /mnt/more --bytes 4000000 --seed 5 || exit 66; ",
        keeps: true,
        quick: false,
    },
    Action {
        name: "tune2fs -O ^has_journal, then -J size=8",
        made_as: "",
        ends: Ends::Unmounted,
        act: "tune2fs -O ^has_journal $1\ne2fsck -fy $1 || [ $? -le 1 ]\nmount $1 /mnt\nA stamp /mnt/bare --bytes 20000000 --seed 4\n\
              umount /mnt\ntune2fs -J size=8 $1\nmount -o data=journal $1 /mnt\nA stamp /mnt/more --bytes 4000000 --seed 5\n",
        check: "mount $1 /mnt || exit 61; A stamp-verify /mnt/bare --bytes 20000000 --seed 4 || exit 66; \
                A stamp-verify /mnt/more --bytes 4000000 --seed 5 || exit 66; ",
        keeps: true,
        quick: false,
    },
];

/// Runs the actions one after the other on the same disk.
pub(super) fn run(evidence: &Evidence, plan: &Plan, quick: bool) -> Result<String> {
    let actions: Vec<Action> = ACTIONS.into_iter().filter(|a| a.quick || !quick).collect();
    let kept =
        rig::on(&plan.setup, evidence, End::Any, |rig| one_after_the_other(evidence, plan, rig, &actions))?;
    Ok(format!("{} actions, {kept} acknowledged records kept", actions.len()))
}

fn one_after_the_other(evidence: &Evidence, plan: &Plan, rig: &mut Rig, actions: &[Action]) -> Result<u64> {
    let device = plan.setup.format.device();
    let shell = |text: &str| text.replace("$1", device).replace("A stamp", "\"$AFTERIMAGE_AGENT\" stamp");
    let mut kept = 0;
    let mut before: Option<(Action, Ledger)> = None;
    for at in 0..=actions.len() {
        let action = actions.get(at);
        let mut script = String::new();
        if let Some((done, _)) = &before {
            // In a shell of its own: a check may end with an exit.
            let records = if done.keeps { "\"$AFTERIMAGE_AGENT\" verify /mnt/acks || exit 62\n" } else { "" };
            script.push_str(&shell(&format!("( {}\n{records}{CHECKED} )\ncode=$?\n", done.check)));
            script.push_str("[ $code -eq 0 ] || exit $code\n");
        }
        if let Some(action) = action {
            script.push_str(&shell(&setup(plan, action)));
        }
        let mut guest = rig.guest(Vmm::Uml).start(&script)?;
        let ended = match action {
            Some(_) => guest.wait_report("suite", "done").or_else(|e| judge_end(&mut guest).and(Err(e))),
            None => judge_end(&mut guest),
        };
        let name = before.as_ref().map_or("", |(done, _)| done.name);
        evidence.guest(&guest, &format!("{at}"));
        ended.map_err(|error| named(error, name, action.map_or("", |a| a.name)))?;
        guest.kill();
        guest.wait()?;
        if let Some((done, ledger)) = before.take().filter(|(done, _)| done.keeps) {
            let verdict = Verdict::new(&ledger, &Remains::of(guest.channel())?);
            verdict.check(Allowance::Nothing).map_err(|error| named(error, done.name, ""))?;
            kept += verdict.acknowledged;
        }
        before = match action {
            Some(action) => Some((*action, Ledger::of(guest.channel())?)),
            None => None,
        };
    }
    Ok(kept)
}

fn named(error: crate::error::LabError, checked: &str, done: &str) -> crate::error::LabError {
    use crate::error::LabError;
    let place = format!("after '{checked}', before or in '{done}'");
    match error {
        LabError::Broken(what) => LabError::Broken(format!("{place}: {what}")),
        LabError::Guest(what) => LabError::Guest(format!("{place}: {what}")),
        other => other,
    }
}

/// A file system at work, then the action; the guest says `done` and waits to be killed.
fn setup(plan: &Plan, action: &Action) -> String {
    let end = match action.ends {
        Ends::Aborted => "echo 1 > /sys/fs/ext4/vda/trigger_fs_error\nsleep 0.2\numount /mnt\n",
        Ends::Unmounted => "umount /mnt\n",
        Ends::Mounted => "",
    };
    format!(
        "set -e\nwipefs -qa $1\nmkfs.ext4 -q -F -b 4096 -e remount-ro $1 {}\nmount -o data=journal,errors=remount-ro $1 /mnt\n\
         mkdir -p /mnt/acks /mnt/churn\nsync\n\"$AFTERIMAGE_AGENT\" churn /mnt/churn --seed {} --seconds 1\n\
         \"$AFTERIMAGE_AGENT\" ack-write /mnt/acks --records 80 --threads 2\n{end}{}\
         \"$AFTERIMAGE_AGENT\" say '{{\"suite\":\"done\"}}'\nsleep 1000\n",
        action.made_as, plan.seed, action.act
    )
}

const _: () = assert!(rig::DIFFERENT == 66 && rig::NO_MOUNT == 61 && rig::DAMAGED == 64);
