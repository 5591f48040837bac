# For a guest (./x guest-kernel xfstests): xfstests' check on the disks vda (TEST) and vdb (SCRATCH), and vdc for dm-log-writes. The file "settings" is in the
# folder that the guest shares with its host; check's results go there.
#
# xfstests knows ext4 and not vext4. Programs in front of the system's tell it that vext4 is ext4, and mount vext4 where it says ext4. Under ijournal
# they do what a guest's initramfs does, too: recovery before a mount, and the areas' file.
set -e
dmesg -n 1
mkdir bin etc test scratch xfstests work
. /mnt/share/settings
# The users that xfstests asks for; and it makes links beside its tests.
mount -t overlay -o lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/work overlay /etc
mkdir xfstests.above xfstests.work
mount -t overlay -o "lowerdir=$XFSTESTS,upperdir=/mnt/xfstests.above,workdir=/mnt/xfstests.work" overlay xfstests
number=2000
for user in fsgqa fsgqa2 123456-fsgqa; do
    echo "$user:x:$number:$number::/tmp:/bin/bash" >>/etc/passwd
    echo "$user:x:$number:" >>/etc/group
    number=$((number + 1))
done
# Commits that are handed over do not pass a device mapper that is to lose them.
[ "$DM" = yes ] || mount --bind /dev/null /usr/sbin/dmsetup
hostname guest
export DM_DISABLE_UDEV=1 PATH="/mnt/bin:$PATH"
# There is no udevd: device mapper makes its nodes itself.
printf '#!/bin/sh\n' >bin/udevadm

if [ "$TYPE" = vext4 ]; then
    cat >bin/mount <<'MOUNT'
#!/bin/bash
mount=/usr/bin/mount
arguments=() device= type= was=
for argument; do
    [ "$was" != -t ] || { type=$argument; [ "$type" != ext4 ] || argument=vext4; }
    [ ! -b "$argument" ] || device=$argument
    arguments+=("$argument")
    was=$argument
done
# What is told no type looks for it on the device.
if [ "$device" ] && [ ! "$type" ] && [ "$(blkid -p -o value -s TYPE "$device")" = ext4 ] && ! grep -q "^$(realpath "$device") \|^$device " /proc/mounts; then
    type=ext4 arguments=(-t vext4 "${arguments[@]}")
fi
if [ "$type" = ext4 ] && [ "$device" ] && [[ $OPTIONS == *ijournal* ]] && [ "$(blockdev --getro "$device")" = 0 ]; then
    "$RECOVER" --check "$device" >/dev/null 2>&1
    [ $? != 3 ] || "$RECOVER" "$device" >/dev/null
    if debugfs -R 'stat .vext4-ijournal' "$device" 2>&1 | grep -q 'File not found' && mkdir -p /mnt/areas && $mount -t vext4 "$device" /mnt/areas 2>/dev/null; then
        "$RECOVER" areas /mnt/areas --areas 2 --blocks 256 >/dev/null 2>&1
        umount /mnt/areas
    fi
fi
$mount "${arguments[@]}" || exit
[ ! "$FILES" ] || [ "$type" != ext4 ] || ! "$TESTS/journaling" set "$FILES" "${!#}" 2>/dev/null || :
MOUNT
    cat >bin/df <<'DF'
#!/bin/bash
set -o pipefail
/usr/bin/df "$@" | sed 's/ vext4 / ext4  /'
DF
    cat >bin/findmnt <<'FINDMNT'
#!/bin/bash
set -o pipefail
arguments=() was=
for argument; do
    [ "$was $argument" != "-t ext4" ] || argument=vext4
    arguments+=("$argument")
    was=$argument
done
/usr/bin/findmnt "${arguments[@]}" | sed 's/\bvext4\b/ext4/'
FINDMNT
fi
chmod 755 bin/*
export RECOVER OPTIONS FILES
export FSTYP=ext4 TEST_DEV=$(realpath /dev/vda) TEST_DIR=/mnt/test SCRATCH_DEV=$(realpath /dev/vdb) SCRATCH_MNT=/mnt/scratch LOGWRITES_DEV=$(realpath /dev/vdc) RESULT_BASE=/mnt/share/results
export MOUNT_OPTIONS="-o acl,user_xattr${OPTIONS:+,$OPTIONS}"
export TEST_FS_MOUNT_OPTS="$MOUNT_OPTIONS"
# mke2fs gives small file systems smaller blocks, which ijournal and data=vma do not take.
export MKFS_OPTIONS='-b 4096'
mkfs.ext4 -q -F $MKFS_OPTIONS /dev/vda
mkfs.ext4 -q -F $MKFS_OPTIONS /dev/vdb
mount -t ext4 $MOUNT_OPTIONS /dev/vda /mnt/test || { dmesg | tail -n 5; exit 1; }
grep " /mnt/test $TYPE " /proc/mounts
cd /mnt/xfstests
# Its status says that a test has failed, which the host looks for itself.
bash ./check $TESTLIST || :
