//! A journaling mode for each file: what replay must not bring back, who has which mode, and what SQLite's files get.

use std::path::Path;

use super::{Build, BROKEN};
use crate::daemon::{self, Daemon, ServeOptions};
use crate::error::{LabError, Result};
use crate::evidence::Evidence;
use crate::fsck;
use crate::guest::Ended;
use crate::process::Workdir;
use crate::suite::workload::IMAGE_BYTES;

/// Mounts under which files may differ from each other: the mount's own mode is the one or the other.
pub(super) const MOUNTS: [&str; 2] =
    ["data=journal,journal_async_commit", "data=ordered,journal_async_commit"];

/// What the scripts share. A shutdown leaves the disk as a crash does, with the journal to be replayed by a stock kernel.
pub(super) fn script(build: &Build, body: &str) -> String {
    let (load, journaling, scramble) = (build.load(), build.program("journaling"), build.program("scramble"));
    format!(
        r#"set -e
{load}
unset AFTERIMAGE_REPORT
J={journaling}; SCRAMBLE={scramble}
broken() {{ echo "broken: $*"; exit {BROKEN}; }}
swap() {{ perl -e 'open F, "+<", $ARGV[0] or die; ioctl F, 0x6611, 0 or exit 1' "$1"; }}
is() {{ wanted=$1; shift; for path; do
    [ "$($J get "$path")" = "$wanted" ] || broken "$path is $($J get "$path"), not $wanted"; done; }}
counted() {{ sed -n "s/^$1 //p" /proc/fs/vjbd2/vda-*/single_io; }}
replay() {{ "$AFTERIMAGE_AGENT" shutdown /mnt --commit; umount /mnt
    dumpe2fs -h /dev/vda 2>/dev/null | grep -q needs_recovery; mount -t ext4 -o data=journal /dev/vda /mnt; }}
{body}
umount /mnt 2>/dev/null || true
e2fsck -fn /dev/vda || broken e2fsck
"#
    )
}

/// Runs a script to its end in a guest with one disk.
pub(super) fn run(evidence: &Evidence, script: &str) -> Result<String> {
    let folder = Workdir::new("modes")?;
    let image = folder.join("disk.raw");
    daemon::create_image(&image, IMAGE_BYTES / 2)?;
    let daemon = Daemon::serve(&ServeOptions::new("power", std::slice::from_ref(&image)))?;
    let mut guest = super::guest(&daemon).limit(super::EXCHANGE_LIMIT).start(script)?;
    let ended = guest.wait();
    evidence.guest(&guest, "guest");
    let said = guest.output();
    let broken = said.lines().find(|line| line.starts_with("broken: "));
    match (ended?, broken) {
        (Ended::Exited(0), None) => {}
        (Ended::Exited(_), Some(what)) => {
            evidence.files(&[image], "");
            return Err(LabError::Broken(format!("{what}{}", guest.last_words())));
        }
        (ended, _) => {
            return Err(LabError::Guest(format!("the guest ended with {ended:?}{}", guest.last_words())))
        }
    }
    daemon.stop()?;
    fsck::clean(&image, 0)?;
    Ok(said)
}

/// The paper's hazards: replay must not put what one transaction journaled over what a later one wrote home, neither in one
/// file that was switched, nor in a block that another file or folder had before.
pub(super) fn replayed(evidence: &Evidence, build: &Build, mount: &str) -> Result<String> {
    let body = format!(
        r#"mkfs.ext4 -q -F -b 4096 -m 0 -J size=16 /dev/vda 128M
mount -t vext4 -o {mount} /dev/vda /mnt
echo 0 > /sys/fs/vext4/vda/reserved_clusters
head -c 800k /dev/zero | tr '\0' A > /a; tr A B < /a > /b
write() {{ dd if=$1 of=$2 bs=100k count=$3 conv=notrunc,fsync 2>/dev/null; }}
# One file, switched between the two.
: > /mnt/one; $J set data /mnt/one; write /a /mnt/one 1
$J set ordered /mnt/one; is ordered /mnt/one; write /b /mnt/one 1
# The boot loader's file, between the two. Where an ordered one is refused, it keeps its own blocks.
write /a /mnt/boot 1; swap /mnt/boot || broken "a file without a mode is not swapped"
: > /mnt/swapped; $J set ordered /mnt/swapped; write /b /mnt/swapped 1
swap /mnt/swapped && echo "an ordered file was swapped"; write /b /mnt/swapped 1
# Two files, and a folder and a file, one after the other in the only free blocks.
fallocate -l 1M /mnt/hole
fallocate -l $((($(stat -f -c %a /mnt) - 16) * 4096)) /mnt/rest
sync; rm /mnt/hole; sync
long=$(head -c 200 /dev/zero | tr '\0' n)
mkdir /mnt/names; i=0; while [ $i -lt 300 ]; do : > /mnt/names/$i$long; i=$((i+1)); done
: > /mnt/first; $J set data /mnt/first; write /a /mnt/first 8
rm -r /mnt/first /mnt/names; sync
: > /mnt/second; $J set ordered /mnt/second; write /b /mnt/second 8
replay
head -c 102400 /b | cmp - /mnt/one || broken "what was journaled is back in a file that was switched"
head -c 102400 /b | cmp - /mnt/swapped || broken "what was journaled is back in a file that has the boot loader's blocks"
cmp /b /mnt/second || broken "what was journaled is back in the block of another file""#
    );
    run(evidence, &script(build, &body))?;
    Ok("a file that was switched, and blocks that had another owner, are as they were written".to_owned())
}

/// Who has which mode: folders hand it on, it survives either driver, owners may change it, and what is empty is switched
/// without a flush.
pub(super) fn inherited(evidence: &Evidence, build: &Build, mount: &str) -> Result<String> {
    // Where the mount journals everything, a file that is no longer ordered is journaled again: nothing to flush.
    let flushed = if mount.starts_with("data=journal") { 2 } else { 3 };
    let body = format!(
        r#"mkfs.ext4 -q -F -b 4096 /dev/vda
mount -t vext4 -o {mount} /dev/vda /mnt; cd /mnt
mkdir d o; $J set data d; $J set ordered o
: > d/file; : > o/file; mkdir d/in o/in; : > d/in/file; : > o/in/file; : > file
is data d/file d/in d/in/file; is ordered o/file o/in o/in/file; is default file
lsattr d/file | grep -q j || broken "stock tools do not see the mode"
i=0; while [ $i -lt 20 ]; do echo $i > d/again; echo $i > o/again; is data d/again; is ordered o/again; rm d/again o/again; i=$((i+1)); done
: > swap; $J set data swap; $J set ordered swap; $J set data swap
[ "$(counted switches_flushed)" = 0 ] || broken "an empty file was switched with a flush"
echo content > swap; sync; $J set ordered swap
[ "$(counted switches_flushed)" = 1 ] || broken "a file with journaled data was switched without a flush"
$J set data swap
[ "$(counted switches_flushed)" = 1 ] || broken "a switch to the journal flushes it"
echo more >> swap; sync; $J set ordered swap; $J set default swap; chattr +j swap; is data swap
echo more >> swap; sync swap; chattr -j swap; is default swap
[ "$(counted switches_flushed)" = {flushed} ] || broken "$(counted switches_flushed) flushes, not {flushed}"
chown nobody swap
setpriv --reuid=65534 --clear-groups $J set data swap; is data swap
if setpriv --reuid=65534 --clear-groups $J set data file 2>/dev/null; then broken "another user's file was switched"; fi
$J set ordered swap
for file in d/file o/file; do if swap $file; then broken "$file was swapped with the boot loader's"; fi; done
cd /; umount /mnt
mount -t ext4 /dev/vda /mnt; echo by the other driver >> /mnt/o/file; umount /mnt; e2fsck -fn /dev/vda
mount -t vext4 -o {mount} /dev/vda /mnt; cd /mnt
is ordered o o/file o/in swap; is data d d/file d/in; is default file; : > o/new; is ordered o/new
cat /proc/fs/vjbd2/vda-*/single_io; cd /"#
    );
    run(evidence, &script(build, &body))?;
    Ok("folders hand their mode on, either driver keeps it, empty files are switched without a flush"
        .to_owned())
}

/// An ordered file that a stock kernel has given the attribute `j`: when that is taken away, what it was before must not come back at
/// the next reading of its inode, while the journal has its blocks.
pub(super) fn left_over(evidence: &Evidence, build: &Build, mount: &str) -> Result<String> {
    let body = format!(
        r#"mkfs.ext4 -q -F -b 4096 -J size=16 /dev/vda 128M
head -c 100k /dev/zero | tr '\0' A > /a; tr A B < /a > /b
write() {{ dd if=$1 of=/mnt/file bs=100k conv=notrunc,fsync 2>/dev/null; }}
mount -t vext4 -o {mount} /dev/vda /mnt; : > /mnt/file; $J set ordered /mnt/file; umount /mnt
mount -t ext4 -o nodelalloc /dev/vda /mnt; chattr +j /mnt/file; umount /mnt
mount -t vext4 -o {mount} /dev/vda /mnt; is data /mnt/file; chattr -j /mnt/file; is default /mnt/file
write /a; sync; echo 3 > /proc/sys/vm/drop_caches
now=$($J get /mnt/file); write /b
replay
cmp /b /mnt/file || broken "what was journaled is back in a file that is $now again"
[ "$now" = default ] || broken "the file is $now again""#
    );
    run(evidence, &script(build, &body))?;
    Ok("a mode that another driver's has hidden is gone with that".to_owned())
}

/// An inode whose body has no room for the mode: what is refused leaves the file as it was, and what was inherited beside the
/// body is no reason to refuse when there is room.
pub(super) fn without_room(evidence: &Evidence, build: &Build, mount: &str) -> Result<String> {
    let body = format!(
        r#"mkfs.ext4 -q -F -b 4096 -I 128 /dev/vda
mount -t vext4 -o {mount} /dev/vda /mnt; echo content > /mnt/file; $J set data /mnt/file
if $J set ordered /mnt/file; then broken "ordered without room for it"; fi
is data /mnt/file; umount /mnt
mount -t vext4 -o {mount} /dev/vda /mnt; is data /mnt/file; umount /mnt
mkfs.ext4 -q -F -b 4096 -I 256 /dev/vda
mount -t vext4 -o {mount} /dev/vda /mnt; mkdir /mnt/folder; $J set ordered /mnt/folder
# setxattr(2) and removexattr(2): access for five users fills the body.
perl -e '$acl = pack "V(vvV)*", 2, 1, 7, -1, (map {{ (2, 7, $_) }} 1..5), 4, 7, -1, 16, 7, -1, 32, 7, -1;
    syscall(188, @ARGV, $acl, length $acl, 0) and die $!' /mnt/folder system.posix_acl_default
: > /mnt/folder/file; is ordered /mnt/folder/file
sync; echo 3 > /proc/sys/vm/drop_caches; is default /mnt/folder/file
perl -e 'syscall(197, @ARGV) and die $!' /mnt/folder/file system.posix_acl_access
$J set ordered /mnt/folder/file || broken "refused although there is room"; umount /mnt
mount -t vext4 -o {mount} /dev/vda /mnt; is ordered /mnt/folder/file"#
    );
    run(evidence, &script(build, &body))?;
    Ok("a mode that is refused for want of room leaves the file as it was, and is not refused when there is room".to_owned())
}

/// Random operations and switches against a model, a crash, a stock kernel's replay.
pub(super) fn scrambled(evidence: &Evidence, build: &Build, mount: &str, seed: u64) -> Result<String> {
    let body = format!(
        r#"mkfs.ext4 -q -F -b 4096 -J size=8 /dev/vda 128M
for seed in {seed}0 {seed}1 {seed}2; do
    mount -t vext4 -o {mount} /dev/vda /mnt
    $SCRAMBLE /mnt/file /copy $seed 600 || broken "seed $seed: while it ran"
    replay
    cmp /copy /mnt/file || broken "seed $seed: after the replay"
    umount /mnt; e2fsck -fn /dev/vda || broken "seed $seed: e2fsck"
done"#
    );
    run(evidence, &script(build, &body))?;
    Ok("3 × 600 operations, as in the model, also after a replay".to_owned())
}

/// SQLite with the extension: on vext4, and on the stock ext4 as far as that goes.
pub(super) fn sqlite(evidence: &Evidence, build: &Build, extension: &Path) -> Result<String> {
    let extension = extension.display();
    let body = format!(
        r#"sql() {{ sqlite3 -batch -bail -init /dev/null -cmd '.log stderr' -cmd '.load {extension}' 2>&1; }}
make="CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT);"
insert="INSERT INTO t(v) VALUES (hex(randomblob(50)));"
same() {{ [ "$1" = "$2" ] || broken "$3: $1"; }}
mkfs.ext4 -q -F -b 4096 /dev/vda
mount -t vext4 -o data=ordered,journal_async_commit /dev/vda /mnt
# Each journal mode: what its files are while a transaction is under way.
for mode in delete truncate persist; do
    same "$(printf '%s\n' '.open /mnt/db' "PRAGMA journal_mode=$mode;" "$make" BEGIN\; "$insert" ".shell $J get /mnt/db /mnt/db-journal" COMMIT\; 'PRAGMA integrity_check;' | sql | tr '\n' ' ')" "$mode data data ok " $mode
    rm /mnt/db*
done
same "$(printf '%s\n' '.open /mnt/db' 'PRAGMA journal_mode=delete;' "$make" 'PRAGMA journal_mode=wal;' "$insert" ".shell $J get /mnt/db /mnt/db-wal" \
    'PRAGMA journal_mode=truncate;' BEGIN\; "$insert" ".shell $J get /mnt/db-journal" COMMIT\; | sql | tr '\n' ' ')" "delete wal data ordered truncate data " changed
# Thirty transactions that each make and delete their journal: none of them empties the file system's journal.
rm -f /mnt/db-journal; before=$(counted switches); out=$({{ echo '.open /mnt/db'; echo 'PRAGMA journal_mode=delete;'; i=0; while [ $i -lt 30 ]; do echo "$insert"; i=$((i+1)); done; }} | sql)
[ $(($(counted switches) - before)) -ge 30 ] || broken "of 30 journals $(($(counted switches) - before)) were switched: $out"
[ "$(counted switches_flushed)" = 0 ] || broken "a journal that was made was switched with a flush"
# A folder's mode spares even that.
mkdir /mnt/d; $J set data /mnt/d; {{ echo '.open /mnt/d/db'; echo "$make"; }} | sql; before=$(counted switches)
{{ echo '.open /mnt/d/db'; i=0; while [ $i -lt 30 ]; do echo "$insert"; i=$((i+1)); done; }} | sql >/dev/null
[ "$(counted switches)" = "$before" ] || broken "what had its mode from the folder was switched"
# A crash: nothing committed is lost. Less than extra does not ask for the durability of the removal that is the commit.
for mode in delete wal; do
    rm -f /mnt/db*; {{ echo '.open /mnt/db'; echo "PRAGMA journal_mode=$mode;"; echo "PRAGMA synchronous=extra;"; echo "$make"; i=0; while [ $i -lt 60 ]; do echo "$insert"; i=$((i+1)); done
        echo ".shell \"$AFTERIMAGE_AGENT\" shutdown /mnt"; }} | sql >/dev/null || true
    umount /mnt; mount -t ext4 -o data=journal /dev/vda /mnt
    same "$(sqlite3 /mnt/db 'PRAGMA integrity_check; SELECT count(*) FROM t;' | tr '\n' ' ')" "ok 60 " "after a crash in $mode"
    umount /mnt; e2fsck -fn /dev/vda; mount -t vext4 -o data=ordered,journal_async_commit /dev/vda /mnt
done
umount /mnt
# The stock file system: the attribute, and one message where it does not help.
attribute() {{ lsattr $1 | cut -d' ' -f1 | grep -q j && echo data || echo ordinary; }}
stock() {{ printf '%s\n' '.open /mnt/db' 'PRAGMA journal_mode=wal;' "$make" "$insert" "$insert" '.shell lsattr /mnt/db /mnt/db-wal' 'PRAGMA journal_mode=delete;' "$insert" "$insert" | sql; }}
said() {{ [ "$(echo "$1" | grep -c 'journaling: ')" = "$2" ] || broken "$3: $1"; }}
mount -t ext4 -o nodelalloc /dev/vda /mnt; rm -rf /mnt/*
out=$(stock); said "$out" 0 nodelalloc
echo "$out" | grep '/mnt/db$' | grep -q '^[a-zA-Z-]*j' || broken "the database has no attribute: $out"
if echo "$out" | grep 'db-wal$' | grep -q '^[a-zA-Z-]*j'; then broken "the log has the attribute"; fi
umount /mnt; mount -t ext4 /dev/vda /mnt; rm -rf /mnt/*
out=$(stock); said "$out" 1 "delayed allocation"; echo "$out" | grep -q nodelalloc || broken "$out"
umount /mnt; mount -t ext4 -o data=journal /dev/vda /mnt; rm -rf /mnt/*
out=$(stock); said "$out" 1 "all journaled"; echo "$out" | grep -q 'only vext4' || broken "$out"
umount /mnt; mount -t ext4 -o nodelalloc /dev/vda /mnt; rm -rf /mnt/*; chmod 777 /mnt
out=$(setpriv --reuid=65534 --clear-groups --bounding-set=-all --inh-caps=-all sh -c "printf '%s\n' '.open /mnt/db' '$make' '$insert' | sqlite3 -batch -init /dev/null -cmd '.log stderr' -cmd '.load {extension}' 2>&1")
said "$out" 1 "without the capability"; echo "$out" | grep -q CAP_SYS_RESOURCE || broken "$out"
out=$(printf '%s\n' '.open /dev/shm/db' "$make" "$insert" | sql); said "$out" 1 tmpfs; echo "$out" | grep -q 'not on ext4' || broken "$out""#
    );
    run(evidence, &script(build, &body))?;
    Ok("database and journals data, log ordered, in each journal_mode; stock ext4 by its attribute"
        .to_owned())
}
