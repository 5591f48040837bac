//! `keep`: the guest's connection survives the daemon.

mod common;

use afterimage_testing::{is_inside, on_a_device, skip, FailingStorage};
use common::guest::Guest;
use common::{afterimage, folder, json, Daemon};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

fn pid_of(ready: &serde_json::Value) -> Pid {
    Pid::from_raw(i32::try_from(ready["pid"].as_i64().unwrap()).unwrap())
}

#[test]
fn a_guest_goes_on_through_a_killed_daemon_and_an_upgrade() {
    for contract in ["power", "power-window=50ms", "guest-crash"] {
        let dir = folder(&[("a.img", "8M")]);
        let args = [
            "keep",
            "--restart",
            "--",
            "serve",
            "--json",
            "--disk",
            "a.img,socket=s",
            "--survives",
            contract,
            "--control",
            "c",
        ];
        let mut keep = Daemon::start(afterimage(&args).current_dir(dir.path()));
        let first = pid_of(&keep.ready);
        let mut guest = Guest::connect(&dir.path().join("s"));
        guest.write(0, &[1; 4096]);
        guest.flush();
        assert_eq!(json(dir.path(), &["ctl", "c", "status", "--json"])["kept"], true);

        kill(first, Signal::SIGKILL).unwrap();
        // Asked while nobody is there, answered by the next daemon, on the same connection.
        guest.write(4096, &[2; 4096]);
        let second = pid_of(&keep.next_ready().expect("a new daemon"));
        assert_ne!(first, second);
        assert_eq!(guest.read(0, 4096), [1; 4096], "{contract}");

        keep.signal(Signal::SIGHUP);
        guest.write(8192, &[3; 4096]);
        let third = pid_of(&keep.next_ready().expect("a daemon after the handover"));
        assert_ne!(second, third);
        guest.flush();
        assert_eq!(guest.read(4096, 4096), [2; 4096], "{contract}");
        let errors = keep.terminate();
        assert!(errors.contains("handed over"), "{errors}");
        let image = std::fs::read(dir.path().join("a.img")).unwrap();
        assert_eq!(image[..4096], [1; 4096], "{contract}");
        assert_eq!(image[4096..8192], [2; 4096], "{contract}");
        assert_eq!(image[8192..12288], [3; 4096], "{contract}");
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["a.img"], "{contract}");
    }
}

#[test]
fn without_restart_the_guests_wait_for_the_word() {
    let dir = folder(&[("a.img", "8M")]);
    let args = ["keep", "--", "serve", "--json", "--disk", "a.img,socket=s"];
    let mut keep = Daemon::start(afterimage(&args).current_dir(dir.path()));
    let mut guest = Guest::connect(&dir.path().join("s"));
    kill(pid_of(&keep.ready), Signal::SIGKILL).unwrap();
    guest.start_write(0, &[7; 512]);
    assert_eq!(guest.complete_within(std::time::Duration::from_millis(300)), None);
    keep.signal(Signal::SIGHUP);
    keep.next_ready().expect("a new daemon");
    assert_eq!(guest.complete(), Some(0));
    keep.terminate();
}

/// The word may come before the keeper has heard of the death.
#[test]
fn a_handover_that_is_asked_of_a_dead_daemon_starts_the_next_one() {
    let dir = folder(&[("a.img", "8M")]);
    let args = ["keep", "--", "serve", "--json", "--disk", "a.img,socket=s"];
    let mut keep = Daemon::start(afterimage(&args).current_dir(dir.path()));
    let mut guest = Guest::connect(&dir.path().join("s"));
    guest.write(0, &[1; 512]);
    keep.signal(Signal::SIGSTOP);
    kill(pid_of(&keep.ready), Signal::SIGKILL).unwrap();
    keep.signal(Signal::SIGHUP);
    keep.signal(Signal::SIGCONT);
    keep.next_ready().expect("the next daemon");
    guest.write(0, &[2; 512]);
    keep.terminate();
}

/// Whoever asks the daemon that hands over for its end has stopped nothing.
#[test]
fn a_stop_during_a_handover_is_not_called_done() {
    use std::io::{BufRead, BufReader, Write};
    let dir = folder(&[("a.img", "8M")]);
    let args = ["keep", "--", "serve", "--json", "--disk", "a.img,socket=s", "--control", "c"];
    let mut keep = Daemon::start(afterimage(&args).current_dir(dir.path()));
    let mut control = std::os::unix::net::UnixStream::connect(dir.path().join("c")).unwrap();
    keep.signal(Signal::SIGHUP);
    keep.wait_until_said("told to end");
    // It may be gone already, and says nothing then.
    drop(control.write_all(b"{\"command\":\"stop\"}\n"));
    let mut line = String::new();
    drop(BufReader::new(control).read_line(&mut line));
    assert!(line.is_empty() || line.contains("handing over to the next daemon"), "{line}");
    keep.next_ready().expect("the next daemon");
    common::succeeds(dir.path(), &["ctl", "c", "status"]);
    keep.terminate();
}

/// A name that is nobody's or another daemon's is not this one's to remove, and nobody comes in by it.
#[test]
fn a_socket_that_is_gone_or_anothers_is_said_to_be_and_left() {
    let dir = folder(&[("a.img", "8M"), ("b.img", "16M")]);
    let socket = dir.path().join("s");
    let args = ["keep", "--", "serve", "--json", "--disk", "a.img,socket=s"];
    let mut keep = Daemon::start(afterimage(&args).current_dir(dir.path()));
    let mut guest = Guest::connect(&socket);
    std::fs::remove_file(&socket).unwrap();
    keep.signal(Signal::SIGHUP);
    keep.next_ready().expect("the next daemon");
    keep.wait_until_said("the socket s of disk a.img is gone");
    let other = Daemon::serve(dir.path(), &["--disk", "b.img,socket=s"]);
    keep.signal(Signal::SIGHUP);
    keep.next_ready().expect("another one");
    keep.wait_until_said("the socket s of disk a.img is another one's now");
    guest.write(0, &[1; 512]);
    keep.terminate();
    assert_eq!(Guest::connect(&socket).sectors(), 32768);
    other.terminate();
    assert!(!socket.exists());
}

#[test]
fn keep_ends_with_a_daemon_that_ends_by_itself() {
    let dir = folder(&[("a.img", "1M")]);
    let args = ["keep", "--restart", "--", "serve", "--json", "--disk", "a.img", "--control", "c"];
    let mut keep = Daemon::start(afterimage(&args).current_dir(dir.path()));
    common::succeeds(dir.path(), &["ctl", "c", "stop"]);
    assert!(keep.end().0.success());
    // And with its status: a wrong request stays one.
    common::refused(
        dir.path(),
        &["keep", "--restart", "--", "serve", "--disk", "none.img"],
        1,
        &["none.img"],
    );
    common::refused(dir.path(), &["keep", "--", "serve"], 2, &["no disk to serve"]);
}

#[test]
fn keep_gives_up_on_a_daemon_that_dies_again_and_again() {
    let dir = folder(&[("a.img", "1M")]);
    let args = ["keep", "--restart", "--", "serve", "--json", "--disk", "a.img"];
    let mut keep = Daemon::start(afterimage(&args).current_dir(dir.path()));
    kill(pid_of(&keep.ready), Signal::SIGKILL).unwrap();
    for _ in 1..5 {
        let ready = keep.next_ready().expect("another try");
        kill(pid_of(&ready), Signal::SIGKILL).unwrap();
    }
    let (status, errors) = keep.end();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(errors.contains("died 5 times in a row"), "{errors}");
}

const TWO_DISKS: &str =
    "[[disk]]\nfile = \"a.img\"\nsocket = \"a\"\n[[disk]]\nfile = \"b.img\"\nsocket = \"b\"\n";

/// What a daemon was told of its storage, the next one below the same guest knows, too.
#[test]
fn a_failed_sync_outlives_the_daemon_that_was_told() {
    on_a_device("told_of_a_failed_sync");
}

#[test]
#[ignore = "run in a namespace by a_failed_sync_outlives_the_daemon_that_was_told"]
fn told_of_a_failed_sync() {
    if !is_inside() {
        return skip("run by a_failed_sync_outlives_the_daemon_that_was_told");
    }
    const MIB: usize = 1 << 20;
    for signal in [Signal::SIGKILL, Signal::SIGHUP] {
        let dir = folder(&[]);
        let storage = FailingStorage::new(dir.path(), 40 << 20);
        let image = storage.folder().join("a.img");
        std::fs::write(&image, vec![0x11; 4 * MIB]).unwrap();
        std::fs::File::open(&image).and_then(|image| image.sync_all()).unwrap();
        let disk = format!("{},socket=s,direct=off,format=raw", image.display());
        let args = ["keep", "--restart", "--", "serve", "--json", "--disk", &disk];
        let mut keep = Daemon::start(afterimage(&args).current_dir(dir.path()));
        let mut guest = Guest::connect(&dir.path().join("s"));
        storage.fail_under(&image);
        guest.write(0, &vec![0x22; MIB]);
        assert_ne!(guest.try_flush(), 0, "the storage has failed");
        match signal {
            Signal::SIGKILL => kill(pid_of(&keep.ready), signal).unwrap(),
            _ => keep.signal(signal),
        }
        keep.wait_until_said("the guests wait");
        storage.mend();
        keep.signal(Signal::SIGHUP);
        keep.next_ready().expect("the storage is mended");
        assert!(guest.read(0, MIB) == vec![0x22; MIB], "{signal}: what had completed is gone");
        guest.flush();
        drop(guest);
        keep.terminate();
        storage.remount();
        let held = std::fs::read(&image).unwrap();
        assert!(held[..MIB] == vec![0x22; MIB], "{signal}: what was called durable is gone");
    }
}

/// Another disk below a guest that runs would be written as if it were its own.
#[test]
fn a_guest_that_is_kept_gets_no_other_disk() {
    let dir = folder(&[("a.img", "8M"), ("b.img", "16M")]);
    let config = dir.path().join("x.toml");
    std::fs::write(&config, TWO_DISKS).unwrap();
    let args = ["keep", "--restart", "--", "serve", "--json", "--config", "x.toml"];
    let mut keep = Daemon::start(afterimage(&args).current_dir(dir.path()));
    let mut guest = Guest::connect(&dir.path().join("a"));
    guest.write(0, &[1; 512]);
    let changes = [
        (TWO_DISKS.replace("a.img", "c.img").replace("b.img", "a.img").replace("c.img", "b.img"), "would be"),
        ("[[disk]]\nfile = \"b.img\"\nsocket = \"a\"\n".to_owned(), "would be"),
        (TWO_DISKS.replace("\"a\"", "\"c\""), "its socket is a, and would be c"),
        (TWO_DISKS.replace("socket = \"a\"", "socket = \"a\"\nread-only = true"), "would be read-only"),
    ];
    for (changed, sentence) in changes {
        std::fs::write(&config, changed).unwrap();
        let before = keep.said().len();
        keep.signal(Signal::SIGHUP);
        keep.wait_until_said_behind(before, "the guests wait");
        let said = keep.said()[before..].to_owned();
        assert!(said.contains("cannot go on") && said.contains(sentence), "{said}");
        guest.start_write(512, &[2; 512]);
        std::fs::write(&config, TWO_DISKS).unwrap();
        keep.signal(Signal::SIGHUP);
        keep.next_ready().expect("the daemon with the disks as they were");
        assert_eq!((guest.complete(), guest.sectors()), (Some(0), 16384));
    }
    // Its file is there for the next guest.
    drop(guest);
    Guest::connect(&dir.path().join("a")).write(0, &[3; 512]);
    keep.terminate();
    assert!(!dir.path().join("a").exists());
}

/// A disk that nobody uses may change with a hand-over, and its socket moves.
#[test]
fn a_disk_without_a_guest_may_become_another_one() {
    let dir = folder(&[("a.img", "8M"), ("b.img", "16M")]);
    let config = dir.path().join("x.toml");
    std::fs::write(&config, TWO_DISKS).unwrap();
    let args = ["keep", "--", "serve", "--json", "--config", "x.toml"];
    let mut keep = Daemon::start(afterimage(&args).current_dir(dir.path()));
    std::fs::write(&config, "[[disk]]\nfile = \"b.img\"\nsocket = \"c\"\n").unwrap();
    keep.signal(Signal::SIGHUP);
    keep.next_ready().expect("the next daemon");
    assert_eq!(Guest::connect(&dir.path().join("c")).sectors(), 32768);
    assert!(!dir.path().join("a").exists());
    keep.terminate();
}

#[test]
fn a_daemon_that_cannot_start_leaves_its_guests_waiting() {
    let dir = folder(&[("a.img", "8M")]);
    let config = dir.path().join("x.toml");
    let good = "[[disk]]\nfile = \"a.img\"\nsocket = \"s\"\n";
    std::fs::write(&config, good).unwrap();
    let args = ["keep", "--restart", "--", "serve", "--json", "--config", "x.toml"];
    let mut keep = Daemon::start(afterimage(&args).current_dir(dir.path()));
    let mut guest = Guest::connect(&dir.path().join("s"));
    std::fs::write(&config, "no = true").unwrap();
    keep.signal(Signal::SIGHUP);
    keep.wait_until_said("no hand-over");
    guest.write(0, &[1; 512]);
    kill(pid_of(&keep.ready), Signal::SIGKILL).unwrap();
    keep.wait_until_said("the guests wait");
    guest.start_write(0, &[2; 512]);
    std::fs::write(&config, good).unwrap();
    keep.signal(Signal::SIGHUP);
    keep.next_ready().expect("the next daemon");
    assert_eq!(guest.complete(), Some(0));
    keep.terminate();
}

#[test]
fn an_upgrade_follows_the_link_that_keep_was_started_by() {
    let dir = folder(&[("a.img", "8M")]);
    for version in ["v1", "v2"] {
        std::fs::create_dir(dir.path().join(version)).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_afterimage"), dir.path().join(version).join("afterimage")).unwrap();
    }
    let current = dir.path().join("current");
    std::os::unix::fs::symlink("v1", &current).unwrap();
    let mut command = std::process::Command::new(current.join("afterimage"));
    command.args(["keep", "--", "serve", "--json", "--disk", "a.img,socket=s"]).current_dir(dir.path());
    let mut keep = Daemon::start(&mut command);
    std::fs::remove_file(&current).unwrap();
    std::os::unix::fs::symlink("v2", &current).unwrap();
    keep.signal(Signal::SIGHUP);
    let next = pid_of(&keep.next_ready().expect("the next daemon"));
    let program = std::fs::read_link(format!("/proc/{next}/exe")).unwrap();
    assert!(program.ends_with("v2/afterimage"), "{program:?}");
    keep.terminate();
}

#[test]
fn each_daemon_has_a_trace_of_its_own() {
    let dir = folder(&[("a.img", "1M")]);
    let args = ["keep", "--", "serve", "--disk", "a.img", "--trace", "t.txt"];
    common::refused(dir.path(), &args, 2, &["--trace t.txt", "%p"]);
}

#[test]
fn a_daemon_whose_announcement_nobody_reads_serves() {
    let dir = folder(&[("a.img", "1M")]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = afterimage(&["serve", "--disk", "a.img,socket=s"]);
    let mut daemon = command.current_dir(dir.path()).stdout(full).spawn().unwrap();
    while !dir.path().join("s").exists() {
        assert!(daemon.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut guest = Guest::connect(&dir.path().join("s"));
    guest.write(0, &[1; 512]);
    guest.flush();
    kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM).unwrap();
    assert!(common::finish(daemon).status.success());
}

#[test]
fn a_daemon_logs_as_its_keeper() {
    let dir = folder(&[("a.img", "1M")]);
    let keep = ["-v", "--log-format", "json", "keep", "--", "serve", "--json", "--disk", "a.img"];
    for (own, others) in [(&[][..], false), (&["--log-format", "text"], true)] {
        let keep = Daemon::start(afterimage(&[&keep[..], own].concat()).current_dir(dir.path()));
        let (keeper, daemon) = (keep.pid(), pid_of(&keep.ready));
        let said = keep.terminate();
        let is_text = |line: &&str| serde_json::from_str::<serde_json::Value>(line).is_err();
        // The daemon's, of which the keeper knows nothing.
        let closed = said.lines().find(|line| line.contains("closed in order"));
        assert_eq!(closed.as_ref().map(is_text), Some(others), "{keeper} {daemon} {said}");
        assert!(said.lines().any(|line| !is_text(&line)), "{said}");
        // -v, too.
        assert!(said.contains("DEBUG"), "{said}");
    }
}
