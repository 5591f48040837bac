//! Nothing dies: what a mount takes and refuses, and what commits cost.

use super::rig::{guest, Rig};
use super::{CONTRACTS, PUBLISHED, SENT};
use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::guest::Ended;
use crate::suite::kernel::{Build, BROKEN};

/// Syncs of each size whose median is taken.
const COST_ROUNDS: u32 = 400;

/// The counters, one of which must not be 0 in a case that is about it.
fn counted(said: &str, name: &str) -> u64 {
    let prefix = format!("{name} ");
    said.lines().rev().find_map(|line| line.strip_prefix(&prefix)?.trim().parse().ok()).unwrap_or(0)
}

/// What a mount takes and refuses; commits that write no journal; an orderly end.
pub(super) fn mounted(evidence: &Evidence, build: &Build) -> Result<String> {
    let script = format!(
        r#"set -e
{load}
unset AFTERIMAGE_REPORT
broken() {{ echo "broken: $*"; exit {BROKEN}; }}
refused() {{ words=$1; shift; dmesg -C; if "$@" 2>/dev/null; then broken "not refused: $*"; fi
    dmesg | grep -q "$words" || broken "refused without '$words': $* ($(dmesg | tail -n 3))"; }}
mkfs.ext4 -q -F -b 4096 /dev/vda
refused 'is no control disk that takes commits' mount -t vext4 -o data=vma,vma_disk=/dev/vda /dev/vda /mnt
refused 'there is no control disk at' mount -t vext4 -o data=vma /dev/vda /mnt
refused 'vma_disk= is for data=vma' mount -t vext4 -o data=journal,vma_disk=/dev/vdb /dev/vda /mnt
refused 'no use for journal_async_commit' mount -t vext4 -o data=vma,vma_disk=/dev/vdb,journal_async_commit /dev/vda /mnt
refused 'vma_exitless is for data=vma' mount -t vext4 -o data=journal,vma_exitless /dev/vda /mnt
tune2fs -E mount_opts=data=vma /dev/vda >/dev/null; dmesg -C; mount -t vext4 /dev/vda /mnt; umount /mnt
dmesg | grep -q 'are no options of a superblock' || broken "the superblock's data=vma is dropped without a word"
mkfs.ext4 -q -F -b 4096 -O ^has_journal /dev/vda
refused 'vma_exitless is for data=vma' mount -t vext4 -o vma_exitless /dev/vda /mnt
refused 'data=vma needs a journal' mount -t vext4 -o data=vma,vma_disk=/dev/vdb /dev/vda /mnt
mkfs.ext4 -q -F -b 4096 /dev/vda; tune2fs -o journal_data /dev/vda >/dev/null
{mount}
grep -q ' /mnt vext4 .*data=vma' /proc/mounts || broken "where it is journal_data: $(grep /mnt /proc/mounts)"
umount /mnt
requests=/sys/block/vdb/queue/max_sectors_kb; longest=$(cat $requests); echo 4 > $requests
refused 'takes requests of 4 KiB' mount -t vext4 -o data=vma,vma_disk=/dev/vdb /dev/vda /mnt
refused 'takes requests of 4 KiB' mount -t vext4 -o data=vma,vma_exitless,vma_disk=/dev/vdb /dev/vda /mnt
echo $longest > $requests
mkfs.ext4 -q -F -b 1024 /dev/vda
refused 'in blocks of 4096 bytes' mount -t vext4 -o data=vma,vma_disk=/dev/vdb /dev/vda /mnt
# A copy that the daemon does not serve: its commits would go into the journal of the original.
mkfs.ext4 -q -F -b 4096 -J size=4 /dev/vda 32M
dd if=/dev/vda of=/copy bs=1M count=32 conv=sparse 2>/dev/null
losetup /dev/loop0 /copy
refused 'a copy with the same UUID' mount -t vext4 -o data=vma,vma_disk=/dev/vdb /dev/loop0 /mnt
losetup -d /dev/loop0; rm /copy
mkfs.ext4 -q -F -b 4096 /dev/vda
{mount}
grep -q ' /mnt vext4 .*data=vma' /proc/mounts || broken "$(grep /mnt /proc/mounts)"
refused 'Cannot change data mode' mount -o remount,data=journal /mnt
refused 'a remount cannot change vma_exitless' mount -o remount,vma_exitless /mnt
refused 'a remount cannot change vma_disk=' mount -o remount,vma_disk=/dev/vda /mnt
mount -o remount,data=vma,vma_disk=/dev/vdb /mnt
# Lazily initialized tables go home beside it, and their transactions are handed over as well.
i=0; while [ $i -lt 100 ]; do i=$((i+1)); dd if=/bin/busybox of=/mnt/f$i bs=4k count=3 conv=fsync 2>/dev/null; done
dd if=/bin/busybox of=/mnt/mapped bs=64k 2>/dev/null; sync
{synced} write /mnt/msync 20 msync
cp -r /usr/share/doc/e2fsprogs /mnt; sync; rm -r /mnt/e2fsprogs; sync
# The next mount's recovery reads what the daemon retains, and its challenge comes while that is retained.
dd if=/bin/busybox of=/mnt/late bs=4k count=3 conv=fsync 2>/dev/null
grep -q '^fallbacks 0' /proc/fs/vjbd2/vda-*/vma || broken "a commit fell back"
cat /proc/fs/vjbd2/vda-*/vma; "$AFTERIMAGE_AGENT" shutdown /mnt --commit; umount /mnt
{mount}
head -c 12288 /bin/busybox | cmp - /mnt/late || broken "what was committed is gone"
dd if=/bin/busybox of=/mnt/later bs=4k count=3 conv=fsync 2>/dev/null
grep -q '^handed_over 0' /proc/fs/vjbd2/vda-*/vma && broken "nothing is handed over any more"
umount /mnt
dmesg | grep 'did not take' && broken "a commit was refused"
e2fsck -fn /dev/vda || broken e2fsck
mount -t ext4 /dev/vda /mnt
i=0; while [ $i -lt 100 ]; do i=$((i+1)); head -c 12288 /bin/busybox | cmp - /mnt/f$i || broken "file $i"; done
umount /mnt
"#,
        load = build.load(),
        mount = SENT.mount,
        synced = build.program("synced"),
    );
    let rig = Rig::new(CONTRACTS[0], false)?;
    let mut guest = guest(&rig.daemon).start(&script)?;
    let ended = guest.wait();
    evidence.guest(&guest, "guest");
    let said = guest.output();
    if let (Ended::Exited(BROKEN), Some(what)) =
        (ended?, said.lines().find(|line| line.starts_with("broken: ")))
    {
        return Err(LabError::Broken(what.to_owned()));
    }
    guest.wait_success()?;
    let (commits, blocks) = (counted(&said, "handed_over"), counted(&said, "handed_over_blocks"));
    let received = rig.handed_over()?;
    if commits < 120 || blocks > received || counted(&said, "fallbacks") != 0 {
        return Err(LabError::Broken(format!(
            "{commits} commits with {blocks} blocks were handed over, and the daemon was given {received}"
        )));
    }
    rig.end()?;
    Ok(format!(
        "{commits} commits with {blocks} blocks handed over; 14 mounts refused, each with its sentence"
    ))
}

/// How long an fsync takes, by the pages that were written: a measurement, in which nothing is judged but that each commit went its way.
pub(super) fn cost(evidence: &Evidence, build: &Build) -> Result<String> {
    let journal = "mount -t vext4 -o data=journal /dev/vda /mnt";
    let single = "mount -t vext4 -o data=journal,journal_async_commit /dev/vda /mnt";
    let mut script = format!("set -e\n{}\nunset AFTERIMAGE_REPORT\n", build.load());
    for (name, mount) in
        [("journal", journal), ("single", single), ("sent", SENT.mount), ("published", PUBLISHED.mount)]
    {
        script += &format!(
            "mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda\n{mount}\n\
             for pages in 1 8 64; do echo \"{name} $({} /mnt/file $pages {COST_ROUNDS})\"; done\n\
             [ ! -e /proc/fs/vjbd2/vda-*/vma ] || sed 's/^/{name}: /' /proc/fs/vjbd2/vda-*/vma\numount /mnt\n",
            build.program("sync_cost"),
        );
    }
    let rig = Rig::new(CONTRACTS[0], false)?;
    let mut guest = guest(&rig.daemon).start(&script)?;
    let ended = guest.wait_success();
    evidence.guest(&guest, "guest");
    ended?;
    rig.expect_commits(PUBLISHED)?;
    let said = guest.output();
    let lines = said.lines().filter(|line| line.contains(" fsync_us ") || line.contains("published "));
    Ok(lines.collect::<Vec<_>>().join("; "))
}
