# For a guest of User Mode Linux (./x guest-kernel uml ijournal), the build with faults, in real time: what iJournaling does beside an fsync. PARTS names some
# of: areas, switches, gone, aborted. RECOVER is the program vext4-recover.
set -e
J=$TESTS/journaling
broken() { echo "broken: $*"; exit 65; }
counted() { sed -n "s/^$1 //p" /proc/fs/vjbd2/*/ijournal; }
# made AREA_BLOCKS [mkfs's options]: a file system with one area, mounted nowhere.
made() {
    blocks=$1
    shift
    mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 "$@" /dev/vda
    mount -t vext4 /dev/vda /mnt/disk
    "$TESTS/areas" /mnt/disk 1 "$blocks"
    umount /mnt/disk
}
ms() { perl -MTime::HiRes=time -e 'printf "%d", time * 1000'; }

# Its content changes beside the page cache, so nobody reads it; and without it a root file system is mounted all the same.
areas() {
    made 1024
    mount -t vext4 -o ijournal /dev/vda /mnt/disk
    if cat /mnt/disk/.vext4-ijournal >/dev/null 2>&1; then broken "the areas are read"; fi
    if rm -f /mnt/disk/.vext4-ijournal 2>/dev/null; then broken "the areas are gone"; fi
    umount /mnt/disk
    mount -t vext4 /dev/vda /mnt/disk; cat /mnt/disk/.vext4-ijournal >/dev/null
    chattr -i /mnt/disk/.vext4-ijournal; rm /mnt/disk/.vext4-ijournal; umount /mnt/disk
    mount -t vext4 -o ijournal /dev/vda /mnt/disk || broken "not mounted without areas"
    dmesg | grep -q 'ijournal: it has no areas.*fsyncs commit' || broken "no message"
    if grep -q '/mnt/disk.*ijournal' /proc/mounts; then broken "the mount says that it has runs"; fi
    echo 1 >/mnt/disk/new; sync /mnt/disk/new; umount /mnt/disk; e2fsck -fn /dev/vda
}

# What empties the journal for everybody is root's; what does not is the owner's.
switches() {
    mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda
    mount -t vext4 -o data=journal,journal_async_commit /dev/vda /mnt/disk
    user() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
    flushed() { sed -n 's/^switches_flushed //p' /proc/fs/vjbd2/*/single_io; }
    mkdir -m 777 /mnt/disk/user
    user sh -c ': >/mnt/disk/user/file'
    for mode in ordered data ordered default; do user "$J" set $mode /mnt/disk/user/file || broken "$mode of an empty file"; done
    user sh -c 'echo content >/mnt/disk/user/file'
    if user "$J" set ordered /mnt/disk/user/file 2>/dev/null; then broken "anybody empties the journal"; fi
    [ "$(flushed)" = 0 ] || broken "flushed: $(flushed)"
    [ "$("$J" get /mnt/disk/user/file)" = default ] || broken "refused, and changed: $("$J" get /mnt/disk/user/file)"
    "$J" set ordered /mnt/disk/user/file
    [ "$(flushed)" = 1 ] || broken "root's: $(flushed)"
    # Towards the journal nothing is emptied.
    user "$J" set data /mnt/disk/user/file || broken "a file's owner cannot have it journaled"
    [ "$(flushed)" = 1 ] || broken "towards the journal: $(flushed)"
    umount /mnt/disk; e2fsck -fn /dev/vda
}

# took OPTIONS: milliseconds that unlinking, and making as many again, take.
took() {
    mount -t vext4 -o "$1" /dev/vda /mnt/disk
    perl -e 'mkdir "/mnt/disk/d"; for (1..$ARGV[0]) { open F, ">", "/mnt/disk/d/$_" or die }' "$2"
    sync -f /mnt/disk
    begun=$(ms)
    perl -e 'for (1..$ARGV[0]) { unlink "/mnt/disk/d/$_" or die }' "$2"
    unlinked=$(ms)
    perl -e 'for (1..$ARGV[0]) { open F, ">", "/mnt/disk/d/new$_" or die }' "$3"
    created=$(ms)
    printf '%s %s' $((unlinked - begun)) $((created - unlinked))
    perl -e 'unlink glob "/mnt/disk/d/*"'
    umount /mnt/disk
}
# Names and numbers that are given up cost nothing as they become many.
gone() {
    unlinks=${UNLINKS:-8000}
    creates=${CREATES:-8000}
    made 1024 -N 120000 -O ^resize_inode
    plain=$(took commit=600 "$unlinks" "$creates")
    ours=$(took ijournal,commit=600 "$unlinks" "$creates")
    echo "$unlinks unlinks and $creates creates behind them, ms: $plain; with ijournal: $ours"
    for at in 1 2; do
        was=$(echo "$plain" | cut -d ' ' -f $at)
        is=$(echo "$ours" | cut -d ' ' -f $at)
        [ "$is" -lt $((was * 4 + 500)) ] || broken "$was ms, and $is with ijournal"
    done
    e2fsck -fn /dev/vda
}

# The journal is aborted by an I/O error while an fsync is about to write its run into an area that is nearly full. The runs that are there are the only
# durable copy of what was acknowledged: their transaction's commit has failed.
aborted() {
    made 64 -J size=4 -O ^resize_inode
    first=$(debugfs -R 'bmap <8> 0' /dev/vda 2>/dev/null)
    sectors=$(blockdev --getsz /dev/vda)
    log=$(((first + 1) * 8))
    end=$(((first + 1024) * 8))
    table() { printf '0 %s linear /dev/ubda 0\n%s %s %s\n%s %s linear /dev/ubda %s\n' $log $log $((end - log)) "$1" $end $((sectors - end)) $end; }
    table "linear /dev/ubda $log" | dmsetup create broken
    disk=/dev/$(basename "$(dmsetup info -c --noheadings -o blkdevname broken)")
    mount -t vext4 -o ijournal,commit=300,errors=continue "$disk" /mnt/disk
    sync -f /mnt/disk
    files=0
    # Two runs each, and two more: no block of the area is free.
    while [ $files -lt 31 ]; do
        files=$((files + 1))
        echo "content $files" >"/mnt/disk/$files"
        sync "/mnt/disk/$files"
    done
    for mode in 600 640; do chmod $mode /mnt/disk/1; sync /mnt/disk/1; done
    [ "$(counted runs)" = 64 ] || broken "$(cat /proc/fs/vjbd2/*/ijournal)"
    printf ijournal >/sys/module/vjbd2/parameters/wait_at
    echo 4000 >/sys/module/vjbd2/parameters/wait_ms
    (echo last >/mnt/disk/last; ! sync /mnt/disk/last 2>/dev/null || echo "acknowledged") & late=$!
    sleep 1
    dmsetup suspend --nolockfs broken; table error | dmsetup load broken; dmsetup resume broken
    # syncfs does not tell.
    sync -f /mnt/disk 2>/dev/null || true
    dmesg | grep -q 'Aborting journal' || broken "not aborted: $(dmesg | tail -n 5)"
    # A folder whose commit has failed is not durable.
    if sync /mnt/disk 2>/dev/null; then broken "the folder is durable"; fi
    wait $late || true
    umount /mnt/disk 2>/dev/null || true
    dmsetup remove --retry broken
    "$RECOVER" /dev/ubda
    # That the journal was aborted is noted on the disk.
    e2fsck -fy /dev/ubda >/tmp/said 2>&1 || [ $? = 1 ] || broken "e2fsck: $(cat /tmp/said)"
    e2fsck -fn /dev/ubda || broken "e2fsck"
    mount -t ext4 /dev/vda /mnt/disk
    at=0
    while [ $at -lt $files ]; do
        at=$((at + 1))
        [ "$(cat "/mnt/disk/$at" 2>/dev/null)" = "content $at" ] || broken "file $at of $files was acknowledged, and is gone"
    done
    umount /mnt/disk
    echo "$files files are there"
}

for part in ${PARTS:-areas switches gone aborted}; do
    (set -e; $part) || { code=$?; echo "ijournal: $part: status $code"; exit $code; }
    echo "ok      $part"
done
