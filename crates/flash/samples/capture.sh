#!/bin/sh
# Makes the *.trace.zst of this folder anew: a guest works over a daemon that writes down what reaches storage.
# usage: AFTERIMAGE=target/release/afterimage crates/flash/samples/capture.sh FOLDER
set -eu
program=${AFTERIMAGE:-afterimage}
folder=$1
work=$(mktemp -d)
daemon=
trap '[ -z "$daemon" ] || kill "$daemon"; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# NAME, OPTIONS OF serve, MOUNT OPTIONS, COMMAND IN THE GUEST (its disk is mounted on /mnt)
capture() {
    truncate -s 1G "$work/disk.img"
    mke2fs -q -F -t ext4 -b 4096 -J size=16 -E lazy_itable_init=0,lazy_journal_init=0 "$work/disk.img"
    # shellcheck disable=SC2086 # several options
    "$program" serve --disk "$work/disk.img" $2 --trace "$folder/$1.trace.zst" &
    daemon=$!
    while [ ! -S "$work/disk.img.sock" ]; do
        kill -0 "$daemon" || { daemon=; exit 1; }
        sleep 0.1
    done
    "$program" guest run --vmm uml --memory 156M --disk "$work/disk.img.sock" -- \
        sh -ec "mount -t ext4 -o noatime,$3 /dev/vda /mnt; cd /mnt; $4; cd /; umount /mnt"
    kill "$daemon"
    wait "$daemon"
    daemon=
    rm "$work/disk.img"
}

postmark='printf "set location /mnt\nset number 3000\nset transactions 15000\nset size 500 20000\nset seed 42\nrun\nquit\n" |
    postmark'
# shellcheck disable=SC2016 # expanded in the guest
sqlite='sqlite3 db "create table t(k integer primary key, v blob)"
    for i in $(seq 1500); do echo "insert into t values($((i * 7919 % 100000)), randomblob(900));"; done | sqlite3 db'
churn='for round in 1 2 3 4; do rm -rf tree; cp -r /usr/share/perl5 tree; sync; done; fstrim /mnt'

capture postmark-journal "--survives guest-crash" data=journal "$postmark"
capture postmark-retain "--survives guest-crash --journal retain" data=journal "$postmark"
capture sqlite-window "--survives power-window=50ms" data=ordered "$sqlite"
capture churn-power "--survives power" data=ordered "$churn"
