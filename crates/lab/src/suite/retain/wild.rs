//! Wild writes: a guest that scribbles over what it has committed cannot change the retained copy.
//!
//! ```text
//!   file written, one fsync: committed, not home ─► scribbled over its home, or over the cached metadata ─► killed
//!   next guest: the committed content
//! ```

use super::kills::Plan;
use super::rig::{self, judge_end, End, Rig};
use crate::error::Result;
use crate::evidence::Evidence;
use crate::guest::Vmm;

/// How the guest scribbles: over the home of file data past the cache; over the cached block of the inode table that has
/// the file's inode, kept in memory; the same, written through. (Not the block with the journal's own inode: no
/// kernel finds a journal without it, on any disk.)
const SCRIBBLES: [(&str, &str); 3] = [
    ("data, direct", "dd if=/dev/urandom of=/dev/vda bs=4096 seek=$data count=32 oflag=direct conv=notrunc"),
    ("inode table, cached", "dd if=/dev/urandom of=/dev/vda bs=4096 seek=$table count=1 conv=notrunc"),
    ("inode table, synced", "dd if=/dev/urandom of=/dev/vda bs=4096 seek=$table count=1 conv=notrunc,fsync"),
];

/// Runs it.
pub(super) fn run(evidence: &Evidence, plan: &Plan) -> Result<String> {
    let mut told = Vec::new();
    for (name, scribble) in SCRIBBLES {
        let outcome =
            rig::on(&plan.setup, evidence, End::Any, |rig| scribbled(evidence, plan, rig, scribble));
        if outcome.is_err() {
            evidence.text("which.txt", name);
        }
        outcome?;
        told.push(name);
    }
    Ok(format!("the committed content is there after: {}", told.join("; ")))
}

fn scribbled(evidence: &Evidence, plan: &Plan, rig: &Rig, scribble: &str) -> Result<()> {
    let format = plan.setup.format;
    // The inode table is zeroed by mkfs: a lazy kernel thread would write it itself.
    let script = format!(
        "set -e\n{} -E lazy_itable_init=0\n{}\nmkdir /mnt/d\nfor i in $(seq 30); do : > /mnt/d/$i; done\n\"$AFTERIMAGE_AGENT\" stamp /mnt/d/warm --bytes 4096\nsync\nsleep 0.5\n\
         \"$AFTERIMAGE_AGENT\" stamp /mnt/d/victim --bytes 131072 --seed 3\n\
         data=$(filefrag -b4096 -v /mnt/d/victim | awk '$1 == \"0:\" {{ sub(/\\.\\./, \"\", $4); print $4 }}')\n\
         table=$(dumpe2fs $DEV 2>/dev/null | sed -n 's/.*Inode table at \\([0-9]*\\)-.*/\\1/p' | head -n 1)\n\
         table=$((table + ($(stat -c %i /mnt/d/victim) - 1) / 16))\n\
         [ -n \"$data\" ] && [ -n \"$table\" ]\n{scribble} 2>/dev/null\n\
         \"$AFTERIMAGE_AGENT\" say '{{\"suite\":\"scribbled\"}}'\nsleep 1000\n",
        format.mkfs(),
        format.mount()
    )
    .replace("$DEV", format.device());
    let mut guest = rig.guest(Vmm::Uml).start(&script)?;
    let ended = guest.wait_report("suite", "scribbled").or_else(|e| judge_end(&mut guest).and(Err(e)));
    evidence.guest(&guest, "wild");
    ended?;
    rig.expect_retained()?;
    evidence.text("before-the-kill.json", &format!("{:?}", rig.file_system()?));
    guest.kill();
    guest.wait()?;
    drop(guest);
    let script = format!(
        "{} || exit {}\n\"$AFTERIMAGE_AGENT\" stamp-verify /mnt/d/victim --seed 3 --bytes 131072 || exit {}\n\
         umount /mnt\ne2fsck -fn {} || exit {}\n",
        format.mount(),
        rig::NO_MOUNT,
        rig::DIFFERENT,
        format.device(),
        rig::DAMAGED
    );
    let mut guest = rig.guest(Vmm::Uml).start(&script)?;
    let ended = judge_end(&mut guest);
    evidence.guest(&guest, "next");
    ended
}
