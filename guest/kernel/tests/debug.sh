# For kernels that look at their locks and memory (./x guest-kernel debug): all that vext4 does more than ext4, several things at a time. Then the kernel
# is asked: kmemleak, and each line of what it has said. Ends with 65 where vext4 is wrong, and with 66 where the kernel has found something.
# With VMA=1 it is data=vma, for a guest in virtual time whose control disk lies behind the end of its disk; else everything but that.
set -e
J=$TESTS/journaling
broken() { echo "broken: $*"; exit 65; }
leaks() { sleep 6; echo scan >/sys/kernel/debug/kmemleak; }
ioctl() { perl -e 'open F, "+<", $ARGV[0] or die; $at = pack "L", 1; ioctl F, hex $ARGV[1], $at or exit 1' "$1" "$2"; }
crash() { perl -e 'open F, "<", $ARGV[0] or die; $how = pack "L", 1; ioctl F, 0x8004587d, $how or exit 1' /mnt/disk; }
counted() { sed -n "s/^$1 //p" /proc/fs/vjbd2/*/single_io; }
locks() { [ ! -e /proc/lockdep_stats ] || grep -q 'debug_locks: *1' /proc/lockdep_stats; }

uname -r
# What the kernel says before it has anything to do with vext4 is its own (User Mode Linux itself is not free of it).
dmesg | sed -n 's/.*\(BUG:\|WARNING:\)/at boot: \1/p' | sort | uniq -c
[ -z "$BOOT" ] || dmesg
dmesg -C
locks || broken "nobody looks at locks"
[ ! -e /sys/kernel/debug/kmemleak ] || { leaks; echo clear >/sys/kernel/debug/kmemleak; }

DISK=/dev/vda
every='data=journal,journal_async_commit data=ordered,journal_async_commit data=ordered data=journal'
if [ -n "$VMA" ]; then
    disk_sectors=$(($(blockdev --getsz $DISK) - 131072))
    addpart $DISK 1 0 $disk_sectors
    addpart $DISK 9 $disk_sectors 131072
    DISK=/dev/vda1
    every='data=vma,vma_disk=/dev/vda9 data=vma,vma_exitless,vma_disk=/dev/vda9'
else
    sh "$(dirname "$0")/uml.sh"
fi
# Data that is moved and freed beside commits, stores through mappings, switches of modes; in a model, too.
seed=0
for options in $every; do
    seed=$((seed + 1))
    mkfs.ext4 -q -F -b 4096 -J size=8 -E lazy_itable_init=0,lazy_journal_init=0 $DISK 200M
    mount -t vext4 -o $options $DISK /mnt/disk
    $TESTS/synced write /mnt/disk/synced 80
    [ "$($TESTS/synced check /mnt/disk/synced)" = "op 80" ] || broken "synced"
    mkdir /mnt/disk/data /mnt/disk/ordered
    $J set data /mnt/disk/data; $J set ordered /mnt/disk/ordered
    (cp -r /usr/share/doc/bash /usr/share/doc/e2fsprogs /mnt/disk/data; cp -r /mnt/disk/data/bash /mnt/disk/ordered; rm -r /mnt/disk/data/bash
        mv /mnt/disk/data/e2fsprogs /mnt/disk/ordered; rm -r /mnt/disk/ordered/e2fsprogs) &
    beside=$!
    $TESTS/scramble /mnt/disk/data/file /tmp/copy1 ${seed}1 $OPERATIONS &
    first=$!
    $TESTS/scramble /mnt/disk/ordered/file /tmp/copy2 ${seed}2 $OPERATIONS &
    second=$!
    $TESTS/scramble /mnt/disk/file /tmp/copy3 ${seed}3 $OPERATIONS || broken "$options: random operations"
    for each in $beside $first $second; do wait $each || broken "$options: beside each other"; done
    # The boot loader's file takes what has no mode of its own.
    echo boot >/mnt/disk/boot; $J set ordered /mnt/disk/boot
    if ioctl /mnt/disk/boot 6611; then broken "$options: an ordered file was swapped"; fi
    $J set default /mnt/disk/boot; ioctl /mnt/disk/boot 6611 || broken "$options: a file was not swapped"
    # Direct I/O, unwritten extents, attributes, remounts.
    dd if=/dev/zero of=/mnt/disk/direct bs=64k count=8 oflag=direct 2>/dev/null; fallocate -l 4M /mnt/disk/space
    dd if=/dev/zero of=/mnt/disk/space bs=4k count=64 conv=notrunc,fsync 2>/dev/null
    chattr +j /mnt/disk/space; echo more >>/mnt/disk/space; sync /mnt/disk/space; chattr -j /mnt/disk/space
    mount -o remount,ro /mnt/disk; mount -o remount,rw /mnt/disk
    cat /proc/fs/vjbd2/*/single_io >/tmp/counters
    if [ -n "$VMA" ]; then
        grep -q '^fallbacks 0$' /proc/fs/vjbd2/*/vma && ! grep -q '^handed_over 0$' /proc/fs/vjbd2/*/vma || broken "$(cat /proc/fs/vjbd2/*/vma)"
        grep -v '^batch' /proc/fs/vjbd2/*/vma >/tmp/counters
    fi
    umount /mnt/disk
    e2fsck -fn $DISK >/tmp/said 2>&1 || { cat /tmp/said; broken "$options: e2fsck"; }
    # A crash while it goes on; either driver replays.
    mount -t vext4 -o $options $DISK /mnt/disk
    for at in data ordered; do for n in 1 2 3 4; do $TESTS/synced write /mnt/disk/$at/s$n 40 & done; done
    $TESTS/scramble /mnt/disk/file /tmp/copy3 ${seed}4 $OPERATIONS || broken "$options: random operations"
    crash; wait || true
    umount /mnt/disk
    driver=ext4; [ $((seed % 2)) = 0 ] || driver=vext4
    mount -t $driver -o data=journal $DISK /mnt/disk
    cmp /tmp/copy1 /mnt/disk/data/file && cmp /tmp/copy2 /mnt/disk/ordered/file && cmp /tmp/copy3 /mnt/disk/file ||
        broken "$options: after a replay by $driver"
    umount /mnt/disk
    e2fsck -fn $DISK >/tmp/said 2>&1 || { cat /tmp/said; broken "$options: e2fsck after a replay"; }
    echo "$options: as in the model, also after a replay by $driver; $(tr '\n' ' ' </tmp/counters)"
    [ -n "$ALL" ] || break
done

ijournal() {
    # iJournaling: fsyncs of five threads beside random operations in two more files, with commits among them; what ends runs, and begins them again.
    mkfs.ext4 -q -F -b 4096 -J size=8 -E lazy_itable_init=0,lazy_journal_init=0 $DISK 200M
    mount -t vext4 $DISK /mnt/disk
    $TESTS/areas /mnt/disk 2 128
    umount /mnt/disk
    mount -t vext4 -o ijournal,commit=1 $DISK /mnt/disk
    mkdir /mnt/disk/fsynced
    $TESTS/fsynced write /mnt/disk/fsynced 7 & beside=$!
    $TESTS/scramble /mnt/disk/file1 /tmp/copy1 71 $OPERATIONS & first=$!
    (cp -r /usr/share/doc/bash /mnt/disk/bash; rm -r /mnt/disk/bash) & second=$!
    $TESTS/scramble /mnt/disk/file2 /tmp/copy2 72 $OPERATIONS || broken "ijournal: random operations"
    for each in $first $second; do wait $each || broken "ijournal: beside each other"; done
    fsfreeze -f /mnt/disk; fsfreeze -u /mnt/disk
    kill $beside; wait $beside || true
    mount -o remount,ro /mnt/disk; mount -o remount,rw /mnt/disk
    # An inode that was read again, a long tree, a range that moves, a link, a rename.
    perl -e 'open F, ">", $ARGV[0] or die; for (0..499) { sysseek F, $_ * 8192, 0; syswrite F, "x" or die }' /mnt/disk/tree
    sync /mnt/disk/tree; fallocate -c -o 8192 -l 8192 /mnt/disk/tree; sync /mnt/disk/tree
    echo 2 >/proc/sys/vm/drop_caches; echo more >>/mnt/disk/tree; sync /mnt/disk/tree
    ln /mnt/disk/tree /mnt/disk/link; mv /mnt/disk/link /mnt/disk/other; sync /mnt/disk/other; rm /mnt/disk/other; sync /mnt/disk/tree
    [ "$(sed -n 's/^written //p' /proc/fs/vjbd2/*/ijournal)" -gt 0 ] || broken "ijournal: nothing was logged"
    grep -v ' 0$' /proc/fs/vjbd2/*/ijournal >/tmp/counters
    cmp /tmp/copy1 /mnt/disk/file1 && cmp /tmp/copy2 /mnt/disk/file2 || broken "ijournal: not as in the model"
    umount /mnt/disk
    e2fsck -fn $DISK >/tmp/said 2>&1 || { cat /tmp/said; broken "ijournal: e2fsck"; }
    # One that ends in the middle of it is not mounted again.
    mount -t vext4 -o ijournal $DISK /mnt/disk
    echo one >/mnt/disk/last; sync /mnt/disk/last
    crash
    umount /mnt/disk
    if mount -t vext4 $DISK /mnt/disk 2>/dev/null || mount -t ext4 $DISK /mnt/disk 2>/dev/null; then broken "ijournal: mounted before its recovery"; fi
    echo "ijournal: as in the model; $(tr '\n' ' ' </tmp/counters)"
}
[ -n "$VMA" ] || ijournal

found=0
if [ -e /sys/kernel/debug/kmemleak ]; then
    # It looks at nothing that is younger than five seconds, and what it finds once may be on its way. What was there before any file system was
    # cleared; what counts is what was allocated below vext4 and vjbd2, by us or by what is renamed.
    leaks; leaks
    awk '
        function judge() { all += known; theirs += fs; own += mine; if (mine || fs) { found++; printf "%s", text } known = fs = mine = by = 0; text = "" }
        /^unreferenced/ { judge(); known = 1 }
        { text = text $0 "\n" }
        # With an address in front in 6.1, without one in 6.12.
        /^    .*[+]0x[0-9a-f]+\/0x/ {
            name = $0; sub(/^ *(\[<[^>]*>\] )?/, "", name); sub(/[+.].*/, "", name)
            if (name ~ /^v(ext4|jbd2)_/) fs = 1
            if (!by && name !~ /^(save_stack_trace|stack_trace_save|set_track_prepare|__create_object|slab_post_alloc_hook)$|alloc/) {
                by = 1; mine = name ~ /^(sio|fm|series|ij|vmaj)_/
            }
        }
        END { judge(); printf "kmemleak: tells of %d objects, %d of them below vext4 and vjbd2, %d allocated by what is ours\n", all, theirs, own; exit found > 0 }
    ' /sys/kernel/debug/kmemleak || found=1
else
    echo "kmemleak: not in this kernel"
fi
dmesg >/tmp/said
if grep -E 'BUG:|WARNING:|KASAN|INFO: |possible |scheduling while|leaked|Oops|Call Trace|EXT4-fs (error|warning)|VEXT4-fs (error|warning)' /tmp/said; then
    found=1
    head -n 80 /tmp/said
else
    echo "the kernel's messages: nothing of locks, memory or errors"
fi
if [ -e /proc/lockdep_stats ]; then
    locks || { found=1; echo "lockdep: it has stopped looking"; }
    echo "lockdep: $(sed -n 's/^ *\(lock-classes\|direct dependencies\|dependency chains\):* */\1 /p' /proc/lockdep_stats | sed 's/  */ /g' | paste -sd, )"
else
    echo "lockdep: not in this kernel"
fi
[ $found = 0 ] || exit 66
