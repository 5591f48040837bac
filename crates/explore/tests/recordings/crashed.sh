# Given to `explore record` as --mkfs: makes an ext4 with a journal of 4 MiB, works on it, and leaves the disk as a crash would have
# left it: the mount that follows replays its journal, and begins a new one over it. Some files begin with the journal's own magic
# number.
mkfs.ext4 -q -F -b 4096 -J size=4 $1
mkdir -p $AFTERIMAGE_MOUNT
mount -o data=journal $1 $AFTERIMAGE_MOUNT
cd $AFTERIMAGE_MOUNT
WORK='i=0; while [ $i -lt 40 ]; do
  mkdir -p d$((i % 5)); f=d$((i % 5))/f$((i % 17))
  { [ $((i % 3)) = 0 ] && printf "\300\073\071\230\000\000\000\001"; seq $i $(( i + (i * 1919) % 4000 + 20 )); } > $f
  [ $((i % 3)) = 1 ] && sync $f
  [ $((i % 9)) = 0 ] && rm -rf d$(( (i + 3) % 5))
  [ $((i % 25)) = 24 ] && sync
  i=$((i + 1)); done'
sh -c "$WORK"
seq 1000 > last; sync last
mount -t tmpfs none /run
dd if=$1 of=/run/image bs=1M iflag=direct 2> /dev/null
cd /
umount $AFTERIMAGE_MOUNT
dd if=/run/image of=$1 bs=1M oflag=direct 2> /dev/null
"$AFTERIMAGE_AGENT" say '{"mark":"crashed"}'
