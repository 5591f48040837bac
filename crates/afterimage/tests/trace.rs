//! `serve --trace`: what reaches storage is in the trace, once, in order, under every contract.

mod common;

use std::path::Path;

use afterimage_flash::cli::{self, CliError, TraceArgs};
use clap::Parser as _;
use common::guest::Guest;
use common::journal::{Journal, BLOCK};
use common::{folder, refused, succeeds, Daemon};
use nix::sys::signal::Signal;
use serde_json::Value;

/// The lines of a trace but the remarks, without their times, which must not decrease.
fn lines(text: &str) -> Vec<String> {
    let mut last_ns = 0;
    let mut lines = Vec::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let (time, rest) = line.split_once(' ').unwrap();
        let at_ns: u64 = time.parse().unwrap();
        assert!(at_ns >= last_ns, "{line}");
        last_ns = at_ns;
        assert_eq!(rest.split(' ').count(), 5, "{line}");
        lines.push(rest.to_owned());
    }
    lines
}

/// `afterimage trace`, whose program is another one.
fn trace(dir: &Path, args: &[&str]) -> Result<Vec<u8>, CliError> {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: TraceArgs,
    }
    let words = args.iter().map(|word| match word.starts_with('t') {
        true => dir.join(word).into_os_string(),
        false => word.into(),
    });
    let line = Line::parse_from(std::iter::once("trace".into()).chain(words));
    let mut answer = Vec::new();
    cli::trace(&line.args, &mut answer).map(|()| answer)
}

fn described(dir: &Path, args: &[&str]) -> Value {
    serde_json::from_slice(&trace(dir, &[&["stat"], args].concat()).unwrap()).unwrap()
}

fn read(dir: &Path, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join(name)).unwrap();
    assert!(text.starts_with("# afterimage-trace 1\n"), "{text}");
    let lines = lines(&text);
    assert!(text.ends_with(&format!("\n# end {} requests, 0 dropped\n", lines.len())), "{text}");
    lines
}

#[test]
fn power_and_guest_crash_hand_requests_through() {
    for contract in ["power", "guest-crash"] {
        let dir = folder(&[("a.img", "8M"), ("b.img", "8M")]);
        let args = ["--disk", "a.img", "--disk", "b.img,read-only", "--survives", contract, "--trace", "t"];
        let daemon = Daemon::serve(dir.path(), &[&args[..], &["--control", "c"]].concat());
        let mut a = Guest::connect(&dir.path().join("a.img.sock"));
        let mut b = Guest::connect(&dir.path().join("b.img.sock"));
        a.write(4096, &[1; 8192]);
        b.read(512, 1024);
        a.flush();
        assert_ne!(b.try_write(0, &[0; 512]), 0, "it is read-only");
        a.discard(1 << 20, 65536);
        a.read(0, 512);
        succeeds(dir.path(), &["ctl", "c", "flush"]);
        daemon.terminate();
        let mut expected = vec![
            "disk0 write 4096 8192 home",
            "disk1 read 512 1024 home",
            "disk0 flush 0 0 home",
            "disk0 discard 1048576 65536 home",
            "disk0 read 0 512 home",
            "disk0 flush 0 0 home",
            "disk0 flush 0 0 home",
        ];
        if contract == "guest-crash" {
            // The guest's own flush waits for nothing and reaches nothing.
            expected.remove(2);
        }
        assert_eq!(read(dir.path(), "t"), expected, "{contract}");
    }
}

#[test]
fn a_power_window_logs_and_brings_home() {
    let dir = folder(&[("a.img", "8M"), ("b.img", "8M")]);
    let args = ["--disk", "a.img", "--disk", "b.img", "--survives", "power-window=50ms", "--trace", "t.zst"];
    let daemon = Daemon::serve(dir.path(), &args);
    let mut a = Guest::connect(&dir.path().join("a.img.sock"));
    let mut b = Guest::connect(&dir.path().join("b.img.sock"));
    b.read(4096, 512);
    a.write(4096, &[1; 8192]);
    b.write(1 << 20, &[2; 4096]);
    a.flush();
    daemon.terminate();
    let stat = described(dir.path(), &["--strict", "--json", "t.zst"]);
    assert_eq!(stat["format"], "afterimage");
    let log = stat["reading"]["classes"]["log"].clone();
    assert!(log["writes"].as_u64().unwrap() >= 2 && log["write_bytes"].as_u64().unwrap() >= 12288, "{stat}");
    assert!(log["flushes"].as_u64().unwrap() >= 1, "{stat}");
    trace(dir.path(), &["convert", "t.zst", "--to", "afterimage", "--out", "t"]).unwrap();
    let lines = read(dir.path(), "t");
    // Device numbers are those of the header: two disks, then the log.
    for home in ["disk1 read 4096 512 home", "disk0 write 4096 8192 home", "disk1 write 1048576 4096 home"] {
        assert_eq!(lines.iter().filter(|l| *l == home).count(), 1, "{home}: {lines:?}");
    }
    assert!(lines.iter().any(|l| l.starts_with("disk2 write")), "{lines:?}");
    let kept = described(dir.path(), &["--classes", "home", "--json", "t.zst"]);
    assert_eq!(kept["traffic"]["write_bytes"], 12288);
}

/// Beside the image that has a log, whatever it is called on the command line.
#[test]
fn a_trace_names_the_log_where_it_is() {
    let dir = folder(&[("a.img", "8M"), ("b.img", "8M")]);
    std::os::unix::fs::symlink("b.img", dir.path().join("link.img")).unwrap();
    let disks = ["--disk", "a.img,read-only", "--disk", "link.img"];
    let args = ["--survives", "power-window=50ms", "--trace", "t"];
    let daemon = Daemon::serve(dir.path(), &[&disks[..], &args].concat());
    let log = dir.path().canonicalize().unwrap().join("b.img.aflog");
    assert!(log.exists());
    daemon.terminate();
    let text = std::fs::read_to_string(dir.path().join("t")).unwrap();
    let named = text.lines().find(|line| line.starts_with("# file log ")).unwrap();
    assert!(named.ends_with(&format!(" {}", log.display())), "{named}");
}

#[test]
fn journal_writes_are_known_and_kept_from_storage_when_retained() {
    for (mode, expected) in [("passthrough", 3 * BLOCK), ("retain", 0)] {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.img");
        let mut journal = Journal::make(&image);
        let args = ["--disk", "a.img", "--survives", "guest-crash", "--journal", mode, "--trace", "t"];
        let daemon = Daemon::serve(dir.path(), &args);
        let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
        journal.mount(&mut guest);
        journal.commit(&mut guest, journal.free, 7);
        guest.write(journal.free * BLOCK, &[7; BLOCK as usize]);
        drop(guest);
        daemon.terminate();
        let lines = read(dir.path(), "t");
        let superblock = format!("disk0 write {} 4096 journal", journal.first * BLOCK);
        let sum = |lines: &[String], class: &str| -> u64 {
            lines
                .iter()
                .filter(|l| l.starts_with("disk0 write") && l.ends_with(class) && **l != superblock)
                .map(|l| l.split(' ').nth(3).unwrap().parse::<u64>().unwrap())
                .sum()
        };
        assert_eq!(sum(&lines, "journal"), expected, "{mode}: {lines:?}");
        assert!(
            lines.contains(&format!("disk0 write {} 4096 home", journal.free * BLOCK)),
            "{mode}: {lines:?}"
        );
    }
}

#[test]
fn a_killed_daemon_leaves_a_readable_trace() {
    for name in ["t", "t.zst"] {
        let dir = folder(&[("a.img", "8M")]);
        let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--trace", name]);
        let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
        for i in 0..200 {
            guest.write(i * 4096, &[1; 4096]);
        }
        // Two turns of the thread that writes, and then some that may be lost.
        std::thread::sleep(std::time::Duration::from_millis(700));
        for i in 0..5 {
            guest.write(i * 4096, &[2; 4096]);
        }
        daemon.kill();
        let stat = described(dir.path(), &["--json", name]);
        let writes = stat["traffic"]["writes"].as_u64().unwrap();
        assert!((200..=205).contains(&writes), "{name}: {stat}");
        assert_eq!(stat["reading"]["broken"], 1, "{name}: that it has no end is said");
        assert!(matches!(trace(dir.path(), &["stat", "--strict", name]), Err(CliError::Failed(_))));
    }
}

#[test]
fn traces_that_cannot_be_are_refused_before_anything_is_touched() {
    let dir = folder(&[("a.img", "8M")]);
    std::fs::write(dir.path().join("old"), "precious").unwrap();
    let serve = |trace: &'static str| ["serve", "--disk", "a.img", "--trace", trace];
    refused(dir.path(), &serve("old"), 1, &["cannot create the trace old", "remove it"]);
    refused(dir.path(), &serve("no/t"), 1, &["cannot create the trace no/t", "its folder must exist"]);
    refused(dir.path(), &serve("t.gz"), 2, &["--trace t.gz", "FILE.zst"]);
    std::fs::hard_link(dir.path().join("a.img"), dir.path().join("hard")).unwrap();
    std::os::unix::fs::symlink("a.img", dir.path().join("soft")).unwrap();
    for own in ["a.img", "./a.img", "hard", "soft", "a.img.aflog", "./a.img.state", "./a.img.sock"] {
        refused(dir.path(), &serve(own), 2, &[&format!("--trace {own}: the daemon already uses this path")]);
    }
    assert_eq!(std::fs::read(dir.path().join("old")).unwrap(), b"precious");
    // A start that fails later leaves none.
    refused(dir.path(), &["serve", "--disk", "missing.img", "--trace", "t"], 1, &["missing.img"]);
    assert!(!dir.path().join("t").exists());
    // Nor where the trace had begun. No file system has room for this log.
    let window = ["--survives", "power-window=50ms", "--log-max", "7E"];
    refused(dir.path(), &[&serve("t")[..], &window].concat(), 1, &["a.img.aflog"]);
    assert!(!dir.path().join("t").exists());
}

#[test]
fn a_trace_that_cannot_be_written_ends_alone_and_is_told_at_the_end() {
    let dir = folder(&[("a.img", "1M")]);
    let mut command = common::afterimage(&["serve", "--json", "--disk", "a.img", "--trace", "t"]);
    // The trace is the only file that grows.
    limit_files(&mut command, 1 << 20);
    let mut daemon = Daemon::start(command.current_dir(dir.path()));
    let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
    // A line has at least 30 bytes.
    for i in 0..(5 << 18) / 30 {
        guest.write(i % 2048 * 512, &[1; 512]);
    }
    assert_eq!(guest.try_flush(), 0, "the guest is served on");
    daemon.signal(Signal::SIGTERM);
    let (status, errors) = daemon.end();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(errors.contains("afterimage: the trace t is incomplete"), "{errors}");
    assert!(described(dir.path(), &["--json", "t"])["traffic"]["writes"].as_u64().unwrap() > 10_000);
}

/// Sets RLIMIT_FSIZE in the program to be.
#[allow(unsafe_code)]
fn limit_files(command: &mut std::process::Command, bytes: u64) {
    use std::os::unix::process::CommandExt;
    let limit = move || {
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_FSIZE, bytes, bytes)
            .map_err(std::io::Error::from)
    };
    // SAFETY: setrlimit is safe between fork and exec: it allocates nothing and takes no lock.
    unsafe { command.pre_exec(limit) };
}

#[test]
fn each_process_has_its_own_file() {
    let dir = folder(&[("a.img", "8M")]);
    for _ in 0..2 {
        let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--trace", "t.%p"]);
        let name = format!("t.{}", daemon.pid());
        daemon.terminate();
        assert_eq!(read(dir.path(), &name), ["disk0 flush 0 0 home"]);
    }
}
