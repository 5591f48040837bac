# What the guests of these recordings ran.
cd $AFTERIMAGE_MOUNT
fill() { seq $1 $(( $1 + $2 )); }
i=0
while [ $i -lt 120 ]; do
  mkdir -p d$((i % 7)); 
  fill $i $(( (i * 1919) % 9000 + 20 )) > d$((i % 7))/f$((i % 31))
  [ $((i % 3)) = 0 ] && sync d$((i % 7))/f$((i % 31))
  [ $((i % 11)) = 0 ] && rm -rf d$(( (i + 3) % 7))
  [ $((i % 40)) = 39 ] && sync
  i=$((i + 1))
done
mount -o remount,ro $AFTERIMAGE_MOUNT; mount -o remount,rw $AFTERIMAGE_MOUNT
i=0
while [ $i -lt 60 ]; do
  fill $i $(( (i * 1919) % 9000 + 20 )) > e$((i % 31)); [ $((i % 2)) = 0 ] && sync e$((i % 31)); [ $((i%13)) = 5 ] && rm -f e*
  fallocate -l 40000 g$((i%5)); [ $((i % 7)) = 3 ] && rm -f g*
  i=$((i+1)); done
