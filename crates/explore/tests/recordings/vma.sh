# Given to `explore record --virtual --control-disk` as COMMAND: a guest whose file system hands its commits over. Files come, grow, are synced, and go with their
# folders, so blocks are revoked; some begin with the journal's own magic number, so blocks are escaped; and some data goes home.
i=0; while [ $i -lt 240 ]; do
  mkdir -p d$((i % 5)); f=d$((i % 5))/f$((i % 17))
  { [ $((i % 3)) = 0 ] && printf "\300\073\071\230\000\000\000\001"; seq $i $(( i + (i * 1919) % 4000 + 20 )); } > $f
  [ $((i % 3)) = 1 ] && sync $f && afterimage explore mark "synced $i"
  [ $((i % 9)) = 0 ] && rm -rf d$(( (i + 3) % 5))
  [ $((i % 25)) = 24 ] && sync
  i=$((i + 1)); done
cat /proc/fs/vjbd2/*/vma
