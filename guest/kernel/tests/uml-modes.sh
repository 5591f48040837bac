# For guests in virtual time (./x guest-kernel uml check): data=vma, whose control disk lies behind the end of the guest's disk, its commits sent and
# published, and ijournal. Files are
# synced, the disk is unmounted, e2fsck finds nothing, and the stock driver of the same kernel finds the same files.
set -e
broken() { echo "broken: $*"; exit 65; }
sums() { find /mnt/disk -type f | sort | xargs cat | md5sum; }
# PROCFS OPTIONS COUNTER: synced files, one that is cut, one that is renamed, and one that is removed.
work() {
    mount -t vext4 -o "$2" "$DISK" /mnt/disk
    i=0
    while [ $i -lt 40 ]; do
        dd if=/dev/urandom of=/mnt/disk/$i bs=8k count=1 conv=fsync 2>/dev/null
        i=$((i + 1))
    done
    truncate -s 100 /mnt/disk/1; sync /mnt/disk/1
    mv /mnt/disk/2 /mnt/disk/renamed; sync /mnt/disk/renamed
    rm /mnt/disk/3; sync /mnt/disk
    cat /proc/fs/vjbd2/*/"$1"
    [ "$(sed -n "s/^$3 //p" /proc/fs/vjbd2/*/"$1")" -ge 40 ] || broken "$1: $3"
    written=$(sums)
    umount /mnt/disk
    e2fsck -fn "$DISK"
    mount -t ext4 "$DISK" /mnt/disk
    [ "$(sums)" = "$written" ] || broken "$1: the stock driver finds something else"
    umount /mnt/disk
}
uname -r
sectors=$(($(blockdev --getsz /dev/vda) - 131072))
addpart /dev/vda 1 0 $sectors
addpart /dev/vda 9 $sectors 131072
DISK=/dev/vda1

for way in 'data=vma,vma_disk=/dev/vda9 handed_over' 'data=vma,vma_exitless,vma_disk=/dev/vda9 published'; do
    mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 $DISK
    work vma $way
done

mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 $DISK
mount -t vext4 $DISK /mnt/disk
"$TESTS/areas" /mnt/disk 2 128
umount /mnt/disk
work ijournal ijournal written
