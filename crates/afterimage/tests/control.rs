//! The control socket of a running daemon: pauses and their owners, copies, waits, and clients that say nothing.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::guest::Guest;
use common::{afterimage, finish, folder, json, refused, succeeds, Daemon, DEADLINE};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;

const CONTRACTS: [&str; 3] = ["power", "power-window=50ms", "guest-crash"];

/// A connection that speaks the protocol itself.
struct Raw {
    stream: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Raw {
    fn connect(dir: &Path) -> Self {
        let stream = UnixStream::connect(dir.join("c")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let answers = BufReader::new(stream.try_clone().unwrap());
        Self { stream, answers }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stream, "{line}").unwrap();
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"))
    }

    fn ask(&mut self, line: &str) -> Value {
        self.tell(line);
        self.answer()
    }
}

fn status(dir: &Path) -> Value {
    json(dir, &["ctl", "c", "status", "--json"])
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn resident_kib(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_pause_ends_in_time_whatever_its_connection_asks_next() {
    for (contract, next) in [
        ("power-window=50ms", "{\"command\":\"events\"}"),
        ("power", "{\"command\":\"wait\",\"sequence\":999,\"timeout_ms\":120000}"),
        ("guest-crash", "{\"command\":\"wait\",\"sequence\":999,\"timeout_ms\":120000}"),
    ] {
        let dir = folder(&[("a.img", "1M")]);
        let daemon =
            Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", contract, "--control", "c"]);
        let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
        let mut raw = Raw::connect(dir.path());
        assert_eq!(raw.ask("{\"command\":\"pause\",\"for_ms\":300}")["ok"], true, "{contract}");
        raw.tell(next);
        guest.start_write(0, &[1; 4096]);
        let answer = guest.complete_within(Duration::from_secs(20));
        assert_eq!(answer, Some(0), "{contract}: the write goes on when the pause's time is over");
        drop(raw);
        daemon.terminate();
    }
}

#[test]
fn an_expired_pause_is_not_made_good_by_somebody_elses() {
    for contract in CONTRACTS {
        let dir = folder(&[("a.img", "1M")]);
        let daemon =
            Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", contract, "--control", "c"]);
        let (mut a, mut b) = (Raw::connect(dir.path()), Raw::connect(dir.path()));
        assert_eq!(a.ask("{\"command\":\"pause\",\"for_ms\":50}")["ok"], true);
        eventually("the first pause ends", || status(dir.path())["paused"] == false);
        assert_eq!(b.ask("{\"command\":\"pause\",\"for_ms\":60000}")["ok"], true);
        let late = a.ask("{\"command\":\"resume\"}");
        assert_eq!(late["ok"], false, "{contract}: {late}");
        assert_eq!(status(dir.path())["paused"], true, "{contract}: the other one's pause stays");
        assert_eq!(b.ask("{\"command\":\"resume\"}")["ok"], true, "{contract}");
        // An operator's early end is for whoever holds the pause, who learns of it.
        assert_eq!(b.ask("{\"command\":\"pause\"}")["ok"], true, "{contract}");
        assert_eq!(succeeds(dir.path(), &["ctl", "c", "resume"]), "writes go on\n");
        let late = b.ask("{\"command\":\"resume\"}");
        assert_eq!(late["ok"], false, "{contract}: {late}");
        drop((a, b));
        daemon.terminate();
    }
}

/// A VMM's main loop stands while its guest's device is stopped, and the next guest waits until the last one's is.
#[test]
fn a_pause_gives_way_to_a_device_that_is_to_stop() {
    for contract in CONTRACTS {
        let dir = folder(&[("a.img", "1M")]);
        let daemon =
            Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", contract, "--control", "c"]);
        let socket = dir.path().join("a.img.sock");
        let mut owner = Raw::connect(dir.path());
        let mut guest = Guest::connect(&socket);
        assert_eq!(owner.ask("{\"command\":\"pause\",\"for_ms\":600000}")["ok"], true);
        // Nothing is held back: the pause stays.
        drop(guest);
        guest = Guest::connect(&socket);
        assert_eq!(status(dir.path())["paused"], true, "{contract}");
        guest.start_write(0, &[1; 4096]);
        assert_eq!(guest.complete_within(Duration::from_millis(200)), None, "{contract}: it is held back");
        let begun = Instant::now();
        drop(guest);
        let mut next = Guest::connect(&socket);
        next.read(0, 4096);
        assert!(begun.elapsed() < Duration::from_secs(20), "{contract}: {:?}", begun.elapsed());
        assert_eq!(
            owner.ask("{\"command\":\"resume\"}")["ok"],
            false,
            "{contract}: writes were not held all the time"
        );
        assert_eq!(owner.ask("{\"command\":\"pause\"}")["ok"], true, "{contract}: another one");
        drop((owner, next));
        daemon.terminate();
    }
}

#[test]
fn an_orderly_end_ends_a_pause_for_its_owner_too() {
    let dir = folder(&[("a.img", "1M")]);
    let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", "power", "--control", "c"]);
    let mut a = Raw::connect(dir.path());
    assert_eq!(a.ask("{\"command\":\"pause\"}")["ok"], true);
    daemon.terminate();
    drop(writeln!(a.stream, "{{\"command\":\"resume\"}}"));
    let mut line = String::new();
    let read = a.answers.read_line(&mut line);
    assert!(read.is_err() || !line.contains("\"ok\":true"), "{line}");
}

/// `ctl pause` with these arguments, and its pause in force.
fn pausing(dir: &Path, args: &[&str]) -> Child {
    let mut command = afterimage(&[&["ctl", "c", "pause"], args].concat());
    let child = command.current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the pause is in force", || status(dir)["paused"] == true);
    child
}

fn serve_one() -> (tempfile::TempDir, Daemon) {
    let dir = folder(&[("a.img", "1M")]);
    let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", "power", "--control", "c"]);
    (dir, daemon)
}

type End = fn(&Path, &Daemon);

/// What ends a pause before its time.
const EARLY: [(&str, End); 3] = [
    ("resume", |dir, _| drop(succeeds(dir, &["ctl", "c", "resume"]))),
    ("stop", |dir, _| drop(succeeds(dir, &["ctl", "c", "stop"]))),
    ("the daemon's death", |_, daemon| daemon.signal(Signal::SIGKILL)),
];

#[test]
fn a_pause_without_a_command_says_whether_it_lasted() {
    let (dir, daemon) = serve_one();
    succeeds(dir.path(), &["ctl", "c", "pause", "--for", "300ms"]);
    daemon.terminate();
    for (what, end) in EARLY {
        let (dir, daemon) = serve_one();
        let pause = pausing(dir.path(), &["--for", "10s"]);
        end(dir.path(), &daemon);
        let output = finish(pause);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{what}: {said}");
        assert!(said.starts_with("afterimage: ") && said.contains("ended early"), "{what}: {said}");
    }
}

#[test]
fn what_a_pause_runs_does_not_outlive_it() {
    let send = |pause: &Child, signal| kill(Pid::from_raw(pause.id() as i32), signal).unwrap();
    // Also what a shell has started: it does not end with the shell.
    let (shell, nested) = ("sleep 5; touch late", "(sleep 5; touch late); true");
    let mut all = Vec::new();
    let mut runs =
        |what: &str, time: &str, script: &str, end: &dyn Fn(&Path, &Daemon, &Child), status, said: &str| {
            let (dir, daemon) = serve_one();
            let script = format!("touch begun; {script}");
            let pause = pausing(dir.path(), &["--for", time, "--", "sh", "-c", &script]);
            eventually("the command runs", || dir.path().join("begun").exists());
            let begun = Instant::now();
            end(dir.path(), &daemon, &pause);
            let output = finish(pause);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), status, "{what}: {errors}");
            assert!(errors.contains(said), "{what}: {errors}");
            all.push((what.to_owned(), begun, dir, daemon));
        };
    for (what, end) in EARLY {
        runs(what, "60s", nested, &|dir, daemon, _| end(dir, daemon), Some(1), "ended early");
    }
    runs("its time", "2s", nested, &|_, _, _| (), Some(1), "ended first");
    runs("SIGTERM", "60s", nested, &|_, _, pause| send(pause, Signal::SIGTERM), Some(143), "");
    runs("SIGKILL", "60s", shell, &|_, _, pause| send(pause, Signal::SIGKILL), None, "");
    for (what, begun, dir, _daemon) in all {
        std::thread::sleep(Duration::from_millis(6500).saturating_sub(begun.elapsed()));
        assert!(!dir.path().join("late").exists(), "{what}: the command went on");
    }
}

/// What the guest of a disk does, one request after another, each after the answer to the one before.
#[derive(Clone, Copy)]
enum Step {
    /// Each eight bytes are the request's number.
    Write {
        at: u64,
        bytes: usize,
    },
    Discard {
        at: u64,
        bytes: u64,
    },
}

const DISK_BYTES: u64 = 4 << 20;

/// The request of that number, from 1 on.
fn step(disk: u64, number: u64) -> Step {
    let random = (number * 4 + disk).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (place, length) = ((random >> 8) % 1000 * 4096, random >> 40);
    match random >> 61 {
        0 => Step::Discard { at: place, bytes: (1 + length % 24) * 4096 },
        _ => Step::Write { at: place + random % 8 * 512, bytes: (1 + length % 96) as usize * 512 },
    }
}

/// The naive disk.
fn apply(disk: u64, number: u64, bytes: &mut [u8]) {
    match step(disk, number) {
        Step::Discard { at, bytes: n } => bytes[at as usize..(at + n) as usize].fill(0),
        Step::Write { at, bytes: n } => {
            bytes[at as usize..at as usize + n]
                .chunks_mut(8)
                .for_each(|c| c.copy_from_slice(&number.to_le_bytes()));
        }
    }
}

/// After how many requests a disk holds this: the smallest and the largest number, as requests may change nothing.
fn prefix_of(disk: u64, copy: &[u8]) -> std::ops::RangeInclusive<u64> {
    let newest =
        copy.chunks(512).map(|sector| u64::from_le_bytes(sector[..8].try_into().unwrap())).max().unwrap();
    let mut expected = vec![0; DISK_BYTES as usize];
    (1..=newest).for_each(|number| apply(disk, number, &mut expected));
    let (mut first, mut number) = (None, newest);
    loop {
        match (expected == copy, first) {
            (true, None) => first = Some(number),
            (false, Some(first)) => return first..=number - 1,
            _ => assert!(number < newest + 64, "disk {disk}: no prefix of what was written, near {newest}"),
        }
        number += 1;
        apply(disk, number, &mut expected);
    }
}

/// Several guests write, overlapping and discarding, while copies are made: each is exactly the first requests, on all disks together.
#[test]
fn a_copy_is_a_prefix_byte_for_byte_while_guests_write() {
    for contract in CONTRACTS {
        let dir = folder(&[("a.img", "4M"), ("b.img", "4M")]);
        // Where no blocks can be shared, and where they may be.
        let copies = [tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir_in(dir.path()).unwrap()];
        let mut args = vec!["--disk", "a.img", "--disk", "b.img", "--survives", contract, "--control", "c"];
        if contract.starts_with("power-window") {
            // The smallest, so that it laps.
            args.extend(["--log-max", "16M"]);
        }
        let daemon = Daemon::serve(dir.path(), &args);
        let end = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (disk, name) in ["a.img.sock", "b.img.sock"].into_iter().enumerate() {
                let (socket, end) = (dir.path().join(name), &end);
                scope.spawn(move || {
                    let mut guest = Guest::connect(&socket);
                    for number in 1.. {
                        match step(disk as u64, number) {
                            Step::Write { at, bytes } => {
                                guest.write(at, &number.to_le_bytes().repeat(bytes / 8))
                            }
                            Step::Discard { at, bytes } => guest.discard(at, bytes),
                        }
                        // As fast as a copy can keep up with where the machine does much else.
                        std::thread::sleep(Duration::from_micros(300));
                        if end.load(std::sync::atomic::Ordering::SeqCst) {
                            return;
                        }
                    }
                });
            }
            let checked = std::panic::catch_unwind(|| {
                for n in 0..2 {
                    let copies = copies[n % 2].path();
                    let copied = json(dir.path(), &["ctl", "c", "copy", copies.to_str().unwrap(), "--json"]);
                    let [a, b] = ["a.img", "b.img"].map(|name| std::fs::read(copies.join(name)).unwrap());
                    let (a, b) = (prefix_of(0, &a), prefix_of(1, &b));
                    let counts = a.start() + b.start()..=a.end() + b.end();
                    let sequence = copied["sequence"].as_u64().unwrap();
                    assert!(counts.contains(&sequence), "{contract}: {a:?} and {b:?}, but {sequence}");
                    assert!(sequence > 0, "{contract}");
                    ["a.img", "b.img"]
                        .iter()
                        .for_each(|name| std::fs::remove_file(copies.join(name)).unwrap());
                }
            });
            end.store(true, std::sync::atomic::Ordering::SeqCst);
            checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        daemon.terminate();
    }
}

/// A slow copy that has begun.
fn copying(dir: &Path, copies: &Path) -> Child {
    let args = ["ctl", "c", "copy", "--rate", "64K", "--progress", copies.to_str().unwrap()];
    let child =
        afterimage(&args).current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the copy has begun", || copies.join("a.img.part").exists());
    child
}

#[test]
fn writes_go_on_while_a_copy_is_made_and_an_interrupted_one_leaves_no_copy() {
    for contract in CONTRACTS {
        let dir = folder(&[]);
        std::fs::write(dir.path().join("a.img"), vec![1; 4 << 20]).unwrap();
        let copies = tempfile::tempdir_in("/dev/shm").unwrap();
        let names = || {
            let entries = std::fs::read_dir(copies.path()).unwrap().flatten();
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        let daemon =
            Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", contract, "--control", "c"]);
        let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
        let mut copy = copying(dir.path(), copies.path());
        (0..50).for_each(|n| guest.write(n * 4096, &[2; 4096]));
        assert!(copy.try_wait().unwrap().is_none(), "{contract}: a minute's copy is not over");
        let other = tempfile::tempdir().unwrap();
        let second = ["ctl", "c", "copy", other.path().to_str().unwrap()];
        refused(dir.path(), &second, 1, &["a copy is being made already"]);
        kill(Pid::from_raw(copy.id() as i32), Signal::SIGTERM).unwrap();
        copy.wait().unwrap();
        assert_eq!(names(), ["a.img.part"], "{contract}");
        // Nothing of it is left in the daemon.
        succeeds(dir.path(), &second);
        assert!(
            std::fs::read(other.path().join("a.img")).unwrap()[..50 * 4096] == [2; 50 * 4096],
            "{contract}"
        );
        std::fs::remove_file(copies.path().join("a.img.part")).unwrap();
        let copy = copying(dir.path(), copies.path());
        daemon.kill();
        let output = finish(copy);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("the daemon ended"), "{contract}: {said}");
        assert!(names().is_empty(), "{contract}: {:?}", names());
    }
}

#[test]
fn only_who_makes_a_copy_is_told_what_changes() {
    let dir = folder(&[("a.img", "1M")]);
    let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", "power", "--control", "c"]);
    let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
    let (mut a, mut b) = (Raw::connect(dir.path()), Raw::connect(dir.path()));
    for request in
        ["{\"command\":\"changed\",\"disk\":0}", "{\"command\":\"approach\"}", "{\"command\":\"hold\"}"]
    {
        assert_eq!(a.ask(request)["ok"], false, "{request}");
    }
    assert_eq!(a.ask("{\"command\":\"track\"}")["ok"], true);
    assert_eq!(b.ask("{\"command\":\"track\"}")["ok"], false);
    guest.write(8192, &[1; 512]);
    guest.discard(65536, 8192);
    let changed = a.ask("{\"command\":\"changed\",\"disk\":0}");
    assert_eq!(changed["ranges"], serde_json::json!([[8192, 12288], [65536, 73728]]));
    assert_eq!(a.ask("{\"command\":\"changed\",\"disk\":0}")["ranges"], serde_json::json!([]), "told once");
    assert_eq!(a.ask("{\"command\":\"changed\",\"disk\":7}")["ranges"], serde_json::json!([]));
    // A hold that its client forgets ends by itself.
    assert_eq!(a.ask("{\"command\":\"hold\"}")["ok"], true);
    guest.write(0, &[1; 512]);
    assert_eq!(a.ask("{\"command\":\"resume\"}")["ok"], false);
    drop(a);
    eventually("the next one may make a copy", || b.ask("{\"command\":\"track\"}")["ok"] == true);
    drop(b);
    daemon.terminate();
}

#[test]
fn a_copy_is_of_the_daemons_image_with_its_mode() {
    for contract in CONTRACTS {
        let dir = folder(&[("a.img", "1M")]);
        let elsewhere = folder(&[("a.img", "1M")]);
        std::fs::write(elsewhere.path().join("a.img"), vec![0xee; 1 << 20]).unwrap();
        std::fs::create_dir(elsewhere.path().join("copies")).unwrap();
        let image = dir.path().join("a.img");
        std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mark = "user.afterimage.test";
        let marked = rustix::fs::setxattr(&image, mark, b"1", rustix::fs::XattrFlags::empty()).is_ok();
        let daemon =
            Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", contract, "--control", "c"]);
        let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
        guest.write(4096, &[7; 4096]);
        let control = dir.path().join("c");
        let copied = json(elsewhere.path(), &["ctl", control.to_str().unwrap(), "copy", "copies", "--json"]);
        let copy = elsewhere.path().join("copies/a.img");
        let mut found = [0; 4096];
        std::fs::File::open(&copy).unwrap().read_exact_at(&mut found, 4096).unwrap();
        assert_eq!(found, [7; 4096], "{contract}: another file of that name was copied");
        assert_eq!(std::fs::metadata(&copy).unwrap().mode() & 0o7777, 0o600, "{contract}");
        assert_eq!(
            copied["copies"][0]["from"],
            image.canonicalize().unwrap().to_str().unwrap(),
            "{contract}"
        );
        if marked {
            let got = rustix::fs::getxattr(&copy, mark, &mut [0u8; 8][..]);
            assert!(got.is_err(), "{contract}: a copy is complete in itself and carries no mark");
        }
        // Never over something that is there, not even through a dangling link.
        std::fs::remove_file(&copy).unwrap();
        std::os::unix::fs::symlink("../victim", &copy).unwrap();
        let control = control.to_str().unwrap();
        refused(elsewhere.path(), &["ctl", control, "copy", "copies"], 1, &["exists already"]);
        assert!(!elsewhere.path().join("victim").exists());
        // Nor over what an interrupted one has left, which nobody takes for a copy.
        std::fs::rename(&copy, elsewhere.path().join("copies/a.img.part")).unwrap();
        refused(elsewhere.path(), &["ctl", control, "copy", "copies"], 1, &["a.img.part", "interrupted"]);
        assert!(!copy.exists());
        daemon.terminate();
    }
}

/// Zeros that the guest never wrote would look like what it did.
#[test]
fn an_image_that_was_shortened_is_not_copied() {
    for contract in CONTRACTS {
        let dir = folder(&[("a.img", "1M"), ("b.img", "1M")]);
        std::fs::create_dir(dir.path().join("copies")).unwrap();
        let disks = ["--disk", "a.img", "--disk", "b.img", "--survives", contract, "--control", "c"];
        let daemon = Daemon::serve(dir.path(), &disks);
        std::fs::File::options().write(true).open(dir.path().join("b.img")).unwrap().set_len(4096).unwrap();
        let parts = ["b.img was shortened", "from 1048576 to 4096 bytes"];
        refused(dir.path(), &["ctl", "c", "copy", "copies"], 1, &parts);
        assert_eq!(std::fs::read_dir(dir.path().join("copies")).unwrap().count(), 0, "{contract}");
        daemon.kill();
    }
}

#[test]
fn two_images_that_would_be_one_file_while_they_are_copied_are_refused() {
    for disks in [["a", "a.part"], ["a.part", "a"]] {
        let dir = folder(&[("a", "1M"), ("a.part", "1M")]);
        std::fs::create_dir(dir.path().join("copies")).unwrap();
        let args = ["--disk", disks[0], "--disk", disks[1], "--survives", "power", "--control", "c"];
        let daemon = Daemon::serve(dir.path(), &args);
        refused(
            dir.path(),
            &["ctl", "c", "copy", "copies"],
            1,
            &["copies/a.part is the name of one image's copy"],
        );
        assert_eq!(std::fs::read_dir(dir.path().join("copies")).unwrap().count(), 0);
        daemon.terminate();
    }
}

#[test]
fn a_copy_is_of_the_image_that_is_served_even_when_it_was_renamed() {
    let dir = folder(&[("a.img", "1M")]);
    std::fs::create_dir(dir.path().join("copies")).unwrap();
    std::fs::set_permissions(dir.path().join("a.img"), std::fs::Permissions::from_mode(0o640)).unwrap();
    let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", "power", "--control", "c"]);
    Guest::connect(&dir.path().join("a.img.sock")).write(0, &[9; 512]);
    std::fs::rename(dir.path().join("a.img"), dir.path().join("moved.img")).unwrap();
    std::fs::write(dir.path().join("a.img"), vec![0xee; 4096]).unwrap();
    succeeds(dir.path(), &["ctl", "c", "copy", "copies"]);
    let copy = std::fs::read(dir.path().join("copies/a.img")).unwrap();
    assert_eq!((copy.len(), copy[0]), (1 << 20, 9));
    assert_eq!(std::fs::metadata(dir.path().join("copies/a.img")).unwrap().mode() & 0o7777, 0o640);
    daemon.terminate();
}

#[test]
fn a_wait_for_the_future_does_not_sync_meanwhile() {
    for contract in ["power", "guest-crash"] {
        let dir = folder(&[("a.img", "1M")]);
        let daemon =
            Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", contract, "--control", "c"]);
        let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
        guest.write(0, &[1; 4096]);
        succeeds(dir.path(), &["ctl", "c", "flush"]);
        let syncs = || status(dir.path())["disks"][0]["storage"]["syncs"].as_u64().unwrap();
        let before = syncs();
        refused(dir.path(), &["ctl", "c", "wait", "100", "--timeout", "1s"], 1, &["not durable yet"]);
        assert!(syncs() - before <= 1, "{contract}: {} syncs in a second of waiting", syncs() - before);
        // And when the number comes, it is made durable.
        let mut raw = Raw::connect(dir.path());
        raw.tell("{\"command\":\"wait\",\"sequence\":2,\"timeout_ms\":60000}");
        guest.write(0, &[2; 4096]);
        assert_eq!(raw.answer()["durable"], true, "{contract}");
        daemon.terminate();
    }
}

#[test]
fn silent_clients_lock_nobody_out() {
    let dir = folder(&[("a.img", "1M")]);
    let mut daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", "power", "--control", "c"]);
    let mut silent: Vec<UnixStream> = Vec::new();
    for n in 0..200 {
        let stream = UnixStream::connect(dir.path().join("c")).unwrap();
        if n % 2 == 0 {
            // A line that never ends is no reason to keep a place.
            drop((&stream).write_all(b"{\"command\":"));
        }
        silent.push(stream);
    }
    assert_eq!(status(dir.path())["ok"], true);
    // Those that do keep a place, because they wait for something, cannot take the last one.
    let mut busy: Vec<Raw> = Vec::new();
    for _ in 0..100 {
        let mut raw = Raw::connect(dir.path());
        raw.tell("{\"command\":\"events\"}");
        busy.push(raw);
    }
    assert_eq!(status(dir.path())["ok"], true);
    let refused = busy.iter_mut().map(Raw::answer).filter(|answer| answer["ok"] == false).count();
    assert!((1..100).contains(&refused), "{refused} of 100 subscribers were refused");
    assert_eq!(succeeds(dir.path(), &["ctl", "c", "stop"]), "closed in order\n");
    let (status, errors) = daemon.end();
    assert!(status.success(), "{errors}");
}

#[test]
fn an_orderly_end_resumes_only_what_was_paused() {
    // SIGHUP hands over under `keep`, and is an end like any other without it.
    for (contract, signal) in CONTRACTS.into_iter().zip([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]) {
        for paused in [false, true] {
            let dir = folder(&[("a.img", "1M")]);
            let mut daemon =
                Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", contract, "--control", "c"]);
            let (mut events, mut owner) = (Raw::connect(dir.path()), Raw::connect(dir.path()));
            assert_eq!(events.ask("{\"command\":\"events\"}")["ok"], true);
            if paused {
                assert_eq!(owner.ask("{\"command\":\"pause\",\"for_ms\":60000}")["ok"], true);
                while events.answer()["event"] != "paused" {}
            }
            daemon.signal(signal);
            assert!(daemon.end().0.success(), "{signal}");
            let told: Vec<Value> =
                events.answers.lines().map(|l| serde_json::from_str(&l.unwrap()).unwrap()).collect();
            let count = |name: &str| told.iter().filter(|event| event["event"] == name).count();
            assert_eq!((count("resumed"), count("closed")), (paused.into(), 1), "{contract}: {told:?}");
        }
    }
}

#[test]
fn subscribers_cost_little_and_nothing_when_they_are_gone() {
    let dir = folder(&[("a.img", "1M")]);
    let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", "power", "--control", "c"]);
    let subscribe = |rounds: usize| {
        for _ in 0..rounds {
            let mut raw = Raw::connect(dir.path());
            assert_eq!(raw.ask("{\"command\":\"events\"}")["ok"], true);
        }
    };
    // The places of those that left become free as soon as the daemon looks.
    subscribe(20);
    let before = resident_kib(&daemon);
    subscribe(300);
    let grown = resident_kib(&daemon).saturating_sub(before);
    assert!(grown < 8 << 10, "300 subscribers that left still cost {grown} KiB");
    daemon.terminate();
}

#[test]
fn silent_clients_do_not_stop_the_metrics() {
    let dir = folder(&[("a.img", "1M")]);
    let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--metrics", "127.0.0.1:0"]);
    let address = daemon.ready["metrics"].as_str().unwrap().to_owned();
    let silent: Vec<TcpStream> = (0..130).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let begun = Instant::now();
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("# EOF\n"), "{answer}");
    // One silent client was given five seconds; a hundred and thirty of them, one after the other, ten minutes.
    assert!(begun.elapsed() < Duration::from_secs(20), "the metrics took {:?}", begun.elapsed());
    drop(silent);
    daemon.terminate();
}
