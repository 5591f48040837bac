//! A guest alone decides nothing about the daemon's memory: what the real process took at most stays below the figure that
//! `docs/operations.md` gives, whatever is sent, and most of it is given back.

mod common;
#[path = "../../frontend/tests/support/raw.rs"]
mod raw;

use std::path::Path;
use std::time::Duration;

use afterimage::serve::memory::Shape;
use common::{folder, Daemon};
use raw::*;

const LOG_MAX: u64 = 64 << 20;
const MIB: u64 = 1 << 20;
/// Where requests' own tables and data lie in the guest's memory.
const TABLES_AT: u64 = 0x1_0000;
const TABLE_BYTES: u64 = 0x1000;
const DATA_AT: u64 = 0x8_0000;
const DATA_BYTES: u32 = 0x7_f000;

/// A guest with a deep queue.
struct Deep(RawGuest);

impl Deep {
    fn start(socket: &Path) -> Self {
        let mut guest = RawGuest::connect(socket);
        guest.queue_size = 64;
        guest.negotiate(!0);
        guest.set_up_queue();
        Self(guest)
    }

    /// Makes a request available as an indirect chain: `chunks` pieces of data of `len` bytes each, all in the same place.
    fn offer(&mut self, head: u16, kind: u32, sector: u64, data_at: u64, chunks: u64, len: u32) {
        let n = u64::from(head);
        let guest = &mut self.0;
        let write = if kind == T_IN { F_WRITE } else { 0 };
        let mut table = vec![guest.header(n, kind, sector)];
        table.extend((0..chunks).map(|i| desc(gpa(data_at), len, F_NEXT | write, i as u16 + 2)));
        table.push(guest.status(n));
        let bytes: Vec<u8> = table.iter().flat_map(|d| encode(*d)).collect();
        assert!(bytes.len() as u64 <= TABLE_BYTES);
        guest.write(TABLES_AT + n * TABLE_BYTES, &bytes);
        guest.set_desc(head, desc(gpa(TABLES_AT + n * TABLE_BYTES), bytes.len() as u32, F_INDIRECT, 0));
        guest.offer(head);
    }

    /// As many requests at once as the queue holds, until all are answered well.
    fn all(&mut self, requests: u64, mut offer: impl FnMut(&mut Self, u16, u64)) {
        let mut free: Vec<u16> = (0..self.0.queue_size).collect();
        let mut next = 0;
        let mut left = requests;
        while left > 0 {
            while let Some(head) = if next < requests { free.pop() } else { None } {
                offer(self, head, next);
                next += 1;
            }
            self.0.ring_kick();
            let (head, _) = self.0.next_used(Duration::from_secs(60)).expect("an answer");
            assert_eq!(self.0.status_value(u64::from(head)), 0);
            free.push(head as u16);
            left -= 1;
        }
    }
}

/// A number in kB from the daemon's `/proc/PID/status`, in bytes.
fn status(daemon: &Daemon, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).expect(name);
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// The figure, and the guest's own memory, which the daemon shares.
fn bound(log_bytes_max: Option<u64>) -> u64 {
    let (retain_bytes_max, trace, control_disk, recover_ijournal) = (None, false, false, false);
    Shape { disks: 1, queues: 1, log_bytes_max, retain_bytes_max, trace, control_disk, recover_ijournal }
        .bytes_max()
        + MEMORY_BYTES
}

#[track_caller]
fn held(daemon: &Daemon, bound: u64, what: &str) {
    let peak = status(daemon, "VmHWM:");
    assert!(peak <= bound, "{what}: {} of {} MiB", peak / MIB, bound / MIB);
}

/// A daemon whose redo log has [`LOG_MAX`] bytes, and its guest.
fn serve_with_log(dir: &std::path::Path) -> (Daemon, Deep) {
    let log_max = LOG_MAX.to_string();
    let args =
        ["--survives", "power-window=50ms", "--log-max", &log_max, "--disk", "disk.img,socket=disk.sock"];
    let daemon = Daemon::serve(dir, &args);
    let guest = Deep::start(&dir.join("disk.sock"));
    (daemon, guest)
}

#[test]
fn scattered_writes_and_large_reads_of_them_stay_below_the_figure() {
    let dir = folder(&[("disk.img", "256M")]);
    let (daemon, mut guest) = serve_with_log(dir.path());
    let bound = bound(Some(LOG_MAX));
    guest.all(100_000, |guest, head, n| guest.offer(head, T_OUT, n * 2 + 1, DATA_AT, 1, 512));
    held(&daemon, bound, "100,000 scattered writes");
    // 96 MiB each, of which every other sector is in the log.
    let (len, chunks) = (DATA_BYTES / 4096 * 4096, 194);
    guest.all(64, |guest, head, _| guest.offer(head, T_IN, 0, DATA_AT, chunks, len));
    held(&daemon, bound, "64 reads of 96 MiB");
    drop(guest);
    daemon.terminate();
}

#[test]
fn the_smallest_records_stay_below_the_figure_and_are_given_back() {
    let dir = folder(&[("disk.img", "128M")]);
    let (daemon, mut guest) = serve_with_log(dir.path());
    let bound = bound(Some(LOG_MAX));
    let idle = status(&daemon, "VmRSS:");
    // Zeroes, 32 ranges a request, each of them 64 bytes of log and an entry of its own that cuts another one in two.
    // Their places come again after what the log holds at once, so that the image takes 128 MiB of the host's disk.
    guest.0.write(DATA_AT, &range(0, 1 << 18, 0));
    guest.all(1, |guest, head, _| guest.offer(head, T_WRITE_ZEROES, 0, DATA_AT, 1, 16));
    guest.all(20_000, |guest, head, n| {
        let at = DATA_AT + u64::from(head) * 512;
        let ranges: Vec<u8> = (0..32).flat_map(|i| range((n * 32 + i) % 125_000 * 2 + 1, 1, 0)).collect();
        guest.0.write(at, &ranges);
        guest.offer(head, T_WRITE_ZEROES, 0, at, 1, 512);
    });
    held(&daemon, bound, "640,000 small records");
    // When the log has gone home its index is gone as well.
    let deadline = std::time::Instant::now() + common::DEADLINE;
    while status(&daemon, "VmRSS:") > idle + 32 * MIB {
        assert!(std::time::Instant::now() < deadline, "{} MiB kept", status(&daemon, "VmRSS:") / MIB);
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(guest);
    daemon.terminate();
}

#[test]
fn misaligned_requests_of_direct_io_stay_below_the_figure() {
    let dir = folder(&[("disk.img", "256M")]);
    let daemon = Daemon::serve(dir.path(), &["--disk", "disk.img,socket=disk.sock,direct=auto"]);
    let mut guest = Deep::start(&dir.path().join("disk.sock"));
    // Data at odd addresses.
    for kind in [T_OUT, T_IN] {
        guest.all(256, |guest, head, n| guest.offer(head, kind, n % 16 * 4096, DATA_AT + 1, 8, 256 << 10));
        held(&daemon, bound(None), "misaligned requests");
    }
    let direct = daemon.ready["disks"][0]["direct"].as_bool();
    drop(guest);
    daemon.terminate();
    if direct == Some(false) {
        afterimage_testing::skip("no O_DIRECT where temporary files are");
    }
}
