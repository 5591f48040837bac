//! The shell that runs inside the guest.
//!
//! ```text
//!   mount ─► set up ─► sync, drop caches (or warm them) ─► "ready" ─► host counts ─► "go" ─► begin ─ workload ─ end ─► unmount ─► "done"
//! ```
//! Each report carries `/sys/block/vda/stat`, the guest's own count of its requests and flushes.

use afterimage_bench_kit::mariadb;

use crate::catalog::Workload;
use crate::scale::Scale;
use crate::virtual_time::arm::{Arm, Shape};
use crate::virtual_time::work::Work;

const PROLOGUE: &str = r#"
set -e
A=$AFTERIMAGE_AGENT
tell() { "$A" say "{\"bench\":\"$1\",\"ns\":$(date +%s%N),\"stat\":\"$(cat /sys/block/vda/stat)\"}"; }
# Held open: the kernel forgets what has come when the last user of a serial line closes it.
exec 5<> "$AFTERIMAGE_REPORT"
mount -t ext4 /dev/vda /mnt
"#;

const DROP: &str = "\"$A\" drop-caches\n";

/// Reads every file, as if it had just been made.
const WARM: &str = "find /mnt/files -type f -exec cat {} + > /dev/null\n";

const BEGIN: &str = r#"
tell ready
read -r go <&5
tell begin
"#;

const EPILOGUE: &str = r#"
umount /mnt
tell done
"#;

/// InnoDB has as little memory as the guest.
pub const MARIADB: [&str; 3] = [
    "--innodb-log-file-size=24M",
    "--innodb-buffer-pool-size=32M",
    "--loose-innodb-buffer-pool-size-max=32M",
];

/// The script for one workload.
pub fn guest_script(workload: Workload, scale: &Scale) -> String {
    let (set_up, run, tear_down) = parts(workload, scale);
    let warm = if workload.starts_warm() { WARM } else { "" };
    format!("{PROLOGUE}{set_up}{DROP}{warm}{BEGIN}{run}\ntell end\n{tear_down}{EPILOGUE}")
}

fn parts(workload: Workload, scale: &Scale) -> (String, String, String) {
    let seconds = scale.seconds;
    let none = String::new;
    match workload {
        Workload::Varmail => (none(), personality("varmail", scale.varmail_files, seconds), none()),
        Workload::Fileserver => (none(), personality("fileserver", scale.fileserver_files, seconds), none()),
        Workload::Webserver => (none(), personality("webserver", scale.webserver_files, seconds), none()),
        Workload::Randwrite => (none(), fio("randwrite", scale, 1000), none()),
        Workload::Seqwrite => (none(), fio("write", scale, 1000), none()),
        Workload::Fsync4k => (none(), fio_appends(scale), none()),
        Workload::Sqlite => sqlite(scale),
        Workload::Postmark => postmark(scale),
        Workload::Oltp => oltp(scale),
    }
}

fn personality(name: &str, files: u32, seconds: u64) -> String {
    format!("\"$A\" workload {name} /mnt/files --files {files} --seconds {seconds}")
}

// `end_fsync` puts the last batch's sync into the measured time: a write that was never synced was not done.
fn fio(kind: &str, scale: &Scale, fsync_every: u32) -> String {
    format!(
        "{} --fsync={fsync_every} --end_fsync=1 --runtime={} --randrepeat=1 > /dev/null\ntell end\ncat /run/fio.json",
        fio_writes(kind, scale),
        scale.seconds
    )
}

fn fio_writes(kind: &str, scale: &Scale) -> String {
    format!(
        "fio --name=bench --filename=/mnt/data --size={}m --io_size={}k --rw={kind} --bs=4k --ioengine=psync \
         --fallocate=none --output-format=json --output=/run/fio.json",
        scale.file_mib,
        scale.writes_max * 4
    )
}

const FIO_RESULT: &str = "printf 'fio-result: '; tr -d '\\n' < /run/fio.json; echo\n";

/// At most this many operations of filebench's: where nothing waits for a disk, a minute has millions.
pub const OPERATIONS_MAX: u64 = 100_000;
/// At most this many transactions.
pub const TRANSACTIONS_MAX: u64 = 1000;

/// The script of a cell in virtual time: what it measures is between two meetings ([`afterimage_bench_kit::virtual_time`]).
pub fn virtual_script(work: Work, arm: Arm, scale: &Scale) -> String {
    let workload = work.workload();
    let (set_up, run, tear_down) = match work {
        Work::Varmail | Work::Fileserver | Work::Webserver => {
            let (_, run, _) = parts(workload, scale);
            (String::new(), format!("{run} --choices $SEED --operations {OPERATIONS_MAX}"), String::new())
        }
        Work::Oltp => {
            let (set_up, run, tear_down) = parts(workload, scale);
            let run = run.replace("--rand-seed=1", &format!("--rand-seed=$SEED --events={TRANSACTIONS_MAX}"));
            (format!("cat /mnt/my/sbtest/*.ibd > /dev/null\n{set_up}"), run, tear_down)
        }
        Work::Randwrite | Work::Seqwrite | Work::RandwriteFree | Work::SeqwriteFree => {
            let kind = if workload == Workload::Randwrite { "randwrite" } else { "write" };
            let syncs = match work {
                Work::Randwrite | Work::Seqwrite => "--fsync=1000 --end_fsync=1",
                _ => "",
            };
            // A processor's own counter is not virtual; content does not matter, and zeroes take no memory. With its default randrepeat=1 fio
            // draws every seed's offsets from one seed of its own (init.c, td_fill_rand_seeds_internal).
            let run = format!(
                "{} {syncs} --randseed=$SEED --randrepeat=0 --clocksource=clock_gettime --zero_buffers > /dev/null",
                fio_writes(kind, scale)
            );
            (String::new(), run, FIO_RESULT.to_owned())
        }
        Work::Stream => {
            let run = "fio --name=bench --filename=/mnt/data --size=1g --rw=write --bs=32k --direct=1 --ioengine=psync --fallocate=none --fsync=512 \
                       --end_fsync=1 --clocksource=clock_gettime --zero_buffers --output-format=json --output=/run/fio.json > /dev/null";
            (String::new(), run.to_owned(), FIO_RESULT.to_owned())
        }
    };
    let Shape { guest_flushes, write_through, .. } = arm.shape();
    let barrier = if guest_flushes { "" } else { "-o nobarrier " };
    let cache = if write_through { "echo 'write through' > /sys/block/vda/queue/write_cache\n" } else { "" };
    // What the host has in its page cache; and what the guest has.
    let host_warm = if work.host_is_warm() && work != Work::Oltp { WARM } else { "" };
    let guest_warm = if work == Work::Varmail { WARM } else { "" };
    format!(
        "{cache}mount -t ext4 {barrier}/dev/vda /mnt\n{set_up}{host_warm}sync\necho 3 > /proc/sys/vm/drop_caches\n{guest_warm}\
         sync\nmeet\ntell begin\n{run}\ntell end\nmeet\n{tear_down}sync\numount /mnt\ntell done\n"
    )
}

fn fio_appends(scale: &Scale) -> String {
    format!(
        "fio --name=bench --filename=/mnt/new --size={}k --rw=write --bs=4k --ioengine=psync --fsync=1 --runtime={} \
         --file_append=1 --fallocate=none --overwrite=0 --output-format=json --output=/run/fio.json > /dev/null\n\
         tell end\ncat /run/fio.json",
        scale.transactions_max * 4,
        scale.seconds
    )
}

// SQLite's defaults: rollback journal, synchronous=FULL.
fn sqlite(scale: &Scale) -> (String, String, String) {
    (
        format!(
            "seq 1 {} | sed 's/.*/insert into t values(&,hex(randomblob(50)));/' > /run/inserts.sql\n",
            scale.transactions_max
        ),
        format!(
            "timeout {} sqlite3 -batch -init /dev/null /mnt/db '.read /run/inserts.sql' 2> /dev/null || :",
            scale.seconds
        ),
        "printf 'transactions: '; sqlite3 -batch -init /dev/null /mnt/db 'select count(*) from t' 2> /dev/null\n"
            .to_owned(),
    )
}

fn postmark(scale: &Scale) -> (String, String, String) {
    let settings = format!(
        "set location /mnt/files\\nset number {}\\nset transactions {}\\nset size 500 16384\\nset read 4096\\n\
         set write 4096\\nset seed 42\\nset buffering false\\nrun\\nquit\\n",
        scale.postmark_files, scale.postmark_transactions
    );
    (
        format!("mkdir -p /mnt/files\nprintf '{settings}' > /run/postmark\n"),
        "postmark < /run/postmark > /run/postmark.out; sync".to_owned(),
        format!("echo 'transactions: {}'\n", scale.postmark_transactions),
    )
}

fn oltp(scale: &Scale) -> (String, String, String) {
    let client = mariadb::GUEST_CLIENT;
    (
        mariadb::guest_server("", "/mnt/my", &MARIADB),
        format!(
            "sysbench oltp_read_write {client} --tables=1 --table-size={} --threads=1 --time={} --percentile=99 --rand-seed=1 run",
            scale.oltp_rows, scale.seconds
        ),
        "kill -9 $server; wait $server || :\n".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_in_virtual_time_is_shell() {
        for (work, arm) in Work::ALL.into_iter().flat_map(|work| Arm::ALL.map(|arm| (work, arm))) {
            let script = virtual_script(work, arm, &Scale::paper());
            let status = std::process::Command::new("/bin/sh").args(["-n", "-c", &script]).status().unwrap();
            assert!(status.success(), "{} {}", work.name(), arm.name());
            assert_eq!(script.matches("\nmeet\n").count(), 2, "{script}");
            let drawn = ["--choices $SEED ", "--rand-seed=$SEED ", "--randseed=$SEED --randrepeat=0 "];
            let wanted = usize::from(work != Work::Stream);
            assert_eq!(drawn.iter().filter(|words| script.contains(**words)).count(), wanted, "{script}");
        }
    }

    #[test]
    fn every_script_is_shell() {
        for workload in Workload::ALL {
            let script = guest_script(workload, &Scale::quick());
            let status = std::process::Command::new("/bin/sh").args(["-n", "-c", &script]).status().unwrap();
            assert!(status.success(), "{}", workload.name());
        }
    }
}
