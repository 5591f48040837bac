# For guests in virtual time (./x guest-kernel uml check): files that are synced on vext4, one commit and one flush each, are what the
# stock driver of the same kernel finds after an unmount.
set -e
mkfs.ext4 -q -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda
mount -t vext4 -o data=journal,journal_async_commit /dev/vda /mnt/disk
i=0
while [ $i -lt 40 ]; do
    dd if=/dev/urandom of=/mnt/disk/$i bs=8k count=1 conv=fsync 2> /dev/null
    i=$((i + 1))
done
cat /proc/fs/vjbd2/*/single_io
[ "$(sed -n 's/^single //p' /proc/fs/vjbd2/*/single_io)" -ge 40 ]
sums() { find /mnt/disk -type f | sort | xargs cat | md5sum; }
written=$(sums)
umount /mnt/disk
e2fsck -fn /dev/vda
mount -t ext4 /dev/vda /mnt/disk
[ "$(sums)" = "$written" ]
umount /mnt/disk
