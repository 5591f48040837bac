//! `check` says what `serve` does, and exits accordingly; arenas that nothing names.

mod common;

use std::fs;
use std::io::BufRead as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use common::guest::Guest;
use common::{afterimage, folder, json, refused, run, succeeds, Daemon};

const WINDOW: &[&str] = &["--survives", "power-window=50ms", "--log-max", "16M"];
const RETAIN_WINDOW: &[&str] =
    &["--survives", "power-window=50ms", "--log-max", "16M", "--journal", "retain", "--arena", "arena"];
const RETAIN: &[&str] = &["--survives", "guest-crash", "--journal", "retain", "--arena", "arena"];

/// An image whose daemon was killed.
fn died(how: &[&str]) -> tempfile::TempDir {
    let dir = folder(&[("a.img", "8M")]);
    fs::create_dir(dir.path().join("arena")).unwrap();
    let daemon = Daemon::serve(dir.path(), &[&["--disk", "a.img"], how].concat());
    let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
    guest.write(4096, &[2; 4096]);
    guest.flush();
    daemon.kill();
    dir
}

/// Whether a daemon serves; it is killed then.
fn serves(dir: &Path, how: &[&str]) -> bool {
    let args = [&["serve", "--json", "--disk", "a.img"], how].concat();
    let mut command = afterimage(&args);
    let mut child = command.current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        assert_eq!(child.wait().unwrap().code(), Some(1), "a refusal");
        return false;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    true
}

fn arenas(dir: &Path) -> Vec<PathBuf> {
    // Each in a folder of its own.
    fs::read_dir(dir.join("arena")).unwrap().map(|entry| entry.unwrap().path().join("arena")).collect()
}

fn damage(path: &Path, at: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[0xff; 64], at).unwrap();
}

#[test]
fn what_check_says_is_what_serve_does() {
    type Change = fn(&Path);
    let nothing: Change = |_| {};
    let no_arena: Change = |dir| arenas(dir).iter().for_each(|arena| fs::remove_file(arena).unwrap());
    let bad_arena: Change = |dir| arenas(dir).iter().for_each(|arena| damage(arena, 0));
    let bad_state: Change = |dir| damage(&dir.join("a.img.state"), 40);
    let other_image: Change = |dir| {
        fs::copy(dir.join("a.img"), dir.join("copy")).unwrap();
        fs::rename(dir.join("copy"), dir.join("a.img")).unwrap();
    };
    let cases: &[(&str, &[&str], Change, bool)] = &[
        ("a log that waits", WINDOW, nothing, true),
        ("no log", WINDOW, |dir| fs::remove_file(dir.join("a.img.aflog")).unwrap(), false),
        (
            "a damaged log",
            WINDOW,
            |dir| (0..2).for_each(|i| damage(&dir.join("a.img.aflog"), 100 + i * 4096)),
            false,
        ),
        ("another image", WINDOW, other_image, false),
        (
            "an older copy",
            WINDOW,
            |dir| {
                let old = SystemTime::now() - Duration::from_secs(1 << 20);
                fs::File::options().write(true).open(dir.join("a.img")).unwrap().set_modified(old).unwrap();
            },
            false,
        ),
        ("a death under power", &["--survives", "power"], nothing, true),
        ("retained", RETAIN, nothing, true),
        ("no arena", RETAIN, no_arena, false),
        ("a damaged arena", RETAIN, bad_arena, false),
        ("a damaged state file", RETAIN, bad_state, false),
        ("the state file of another image", RETAIN, other_image, false),
        ("retained under power-window", RETAIN_WINDOW, nothing, true),
        ("no arena under power-window", RETAIN_WINDOW, no_arena, true),
        ("a damaged arena under power-window", RETAIN_WINDOW, bad_arena, true),
        ("a damaged state file under power-window", RETAIN_WINDOW, bad_state, false),
    ];
    for (name, how, change, sound) in cases {
        let dir = died(how);
        change(dir.path());
        let output = run(dir.path(), &["check", "--json", "a.img"]);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["sound"], *sound, "{name}: {answer}");
        assert_eq!(output.status.code(), Some(i32::from(!sound)), "{name}");
        let text = String::from_utf8(run(dir.path(), &["check", "a.img"]).stdout).unwrap();
        assert_eq!(text.contains("NOT sound"), !sound, "{name}: {text}");
        assert_eq!(serves(dir.path(), how), *sound, "{name}");
    }
}

/// What is damaged of one image of a group is found from each of them, and before the log that all need goes home.
#[test]
fn a_group_is_checked_and_recovered_whole() {
    let dir = folder(&[("a.img", "8M"), ("b.img", "8M")]);
    fs::create_dir(dir.path().join("arena")).unwrap();
    let group = [&["--disk", "a.img", "--disk", "b.img"], RETAIN_WINDOW].concat();
    let daemon = Daemon::serve(dir.path(), &group);
    let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
    guest.write(4096, &[2; 4096]);
    guest.flush();
    daemon.kill();
    let paths = ["a.img", "b.img", "a.img.aflog"];
    paths.iter().for_each(|path| drop(succeeds(dir.path(), &["check", path])));
    damage(&dir.path().join("b.img.state"), 40);
    for path in paths {
        let output = run(dir.path(), &["check", path]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{path}: {text}");
        assert!(text.contains("NOT sound") && text.contains("b.img.state is damaged"), "{path}: {text}");
    }
    refused(dir.path(), &[&["serve"], &group[..]].concat(), 1, &["b.img.state is damaged"]);
    for path in paths {
        refused(dir.path(), &["recover", path], 1, &["b.img.state is damaged", "--accept-loss"]);
        assert!(dir.path().join("a.img.aflog").exists() && dir.path().join("a.img.state").exists(), "{path}");
    }
    succeeds(dir.path(), &["recover", "--accept-loss", "a.img"]);
    let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.retain(|name| !name.to_str().unwrap().ends_with(".sock"));
    left.sort();
    assert_eq!(left, ["a.img", "arena", "b.img"]);
    assert_eq!(fs::read(dir.path().join("a.img")).unwrap()[4096..8192], [2; 4096]);
}

/// Under `power-window` nothing durable is lost with an arena, whatever is asked.
#[test]
fn a_damaged_arena_stops_no_recovery_under_power_window() {
    let dir = died(RETAIN_WINDOW);
    arenas(dir.path()).iter().for_each(|arena| damage(arena, 0));
    assert!(succeeds(dir.path(), &["recover", "--dry-run", "a.img"]).contains("would give up"));
    assert!(succeeds(dir.path(), &["recover", "a.img"]).contains("gave up"));
    assert!(!dir.path().join("a.img.aflog").exists() && !dir.path().join("a.img.state").exists());
}

#[test]
fn an_arena_that_nothing_needs_is_listed_and_removed() {
    let dir = died(RETAIN);
    let list = || json(dir.path(), &["arenas", "--json", "arena"])["arenas"].clone();
    let [arena] = arenas(dir.path()).try_into().unwrap();
    let arena = arena.to_str().unwrap();
    assert_eq!(
        (&list()[0]["need"], &list()[0]["path"]),
        (&"named".into(), &arena.strip_prefix(&format!("{}/", dir.path().display())).into())
    );
    refused(dir.path(), &["arenas", "--remove", arena], 1, &["stays", "a.img", "afterimage recover"]);
    let daemon = Daemon::serve(dir.path(), &[&["--disk", "a.img"], RETAIN].concat());
    assert_eq!(list()[0]["need"], "in_use");
    refused(
        dir.path(),
        &["arenas", "--remove", arena, "--accept-loss"],
        1,
        &["stays", "a daemon has it open"],
    );
    daemon.kill();
    // Moved away with its state file: nobody can tell.
    fs::rename(dir.path().join("a.img"), dir.path().join("b.img")).unwrap();
    assert_eq!(list()[0]["need"], "unknown");
    refused(dir.path(), &["arenas", "--remove", arena], 1, &["stays", "--accept-loss"]);
    fs::rename(dir.path().join("b.img"), dir.path().join("a.img")).unwrap();
    fs::remove_file(dir.path().join("a.img.state")).unwrap();
    assert_eq!(list()[0]["need"], "orphan");
    assert!(succeeds(dir.path(), &["arenas", "arena"]).contains("it may be removed"));
    assert!(Path::new(arena).exists(), "listing removes nothing");
    succeeds(dir.path(), &["arenas", "--remove", arena]);
    assert!(!Path::new(arena).exists() && succeeds(dir.path(), &["arenas", "arena"]).contains("no arenas"));
    // What is no arena stays.
    let other = dir.path().join("arena/afterimage-x.arena");
    fs::write(&other, vec![0; 1 << 16]).unwrap();
    refused(
        dir.path(),
        &["arenas", "--remove", "arena/afterimage-x.arena", "--accept-loss"],
        1,
        &["no arena"],
    );
    assert!(other.exists());
}

#[test]
fn a_deleted_image_and_log_are_noticed() {
    let dir = folder(&[("a.img", "8M")]);
    let args = [&["--disk", "a.img", "--control", "c", "--metrics", "127.0.0.1:0"], WINDOW].concat();
    let daemon = Daemon::serve(dir.path(), &args);
    let status = || json(dir.path(), &["ctl", "c", "status", "--json"]);
    let metrics = || {
        let mut stream = std::net::TcpStream::connect(daemon.ready["metrics"].as_str().unwrap()).unwrap();
        std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        std::io::read_to_string(stream).unwrap()
    };
    let before = status();
    assert_eq!((&before["disks"][0]["deleted"], &before["log"]["deleted"]), (&false.into(), &false.into()));
    assert!(metrics().contains("afterimage_disk_deleted{disk=\"a.img\"} 0.0"), "{}", metrics());
    fs::remove_file(dir.path().join("a.img")).unwrap();
    fs::remove_file(dir.path().join("a.img.aflog")).unwrap();
    let after = status();
    assert_eq!((&after["disks"][0]["deleted"], &after["log"]["deleted"]), (&true.into(), &true.into()));
    assert!(metrics().contains("afterimage_disk_deleted{disk=\"a.img\"} 1.0"));
    // It looks once a second; slower machines are given more than that.
    std::thread::sleep(Duration::from_secs(3));
    daemon.signal(nix::sys::signal::Signal::SIGKILL);
    let mut daemon = daemon;
    let (_, errors) = daemon.end();
    assert_eq!(errors.matches("deleted while it is served").count(), 2, "once each: {errors}");
}

#[test]
fn a_shortened_image_is_noticed_once() {
    let dir = folder(&[("a.img", "8M")]);
    let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--control", "c"]);
    let shortened =
        || json(dir.path(), &["ctl", "c", "status", "--json"])["disks"][0]["shortened"].as_bool().unwrap();
    assert!(!shortened());
    let image = fs::OpenOptions::new().write(true).open(dir.path().join("a.img")).unwrap();
    image.set_len(1 << 20).unwrap();
    assert!(shortened());
    daemon.wait_until_said("it was shortened to 1048576 bytes");
    std::thread::sleep(Duration::from_secs(3));
    let errors = daemon.terminate();
    assert_eq!(errors.matches("it was shortened").count(), 1, "{errors}");
}

#[test]
fn a_file_system_that_is_passed_through_is_logged_once() {
    let dir = folder(&[("a.img", "8M")]);
    fs::create_dir(dir.path().join("arena")).unwrap();
    let made = std::process::Command::new("mkfs.ext4")
        .args(["-q", "-b", "1024", "a.img"])
        .current_dir(&dir)
        .status();
    assert!(made.unwrap().success());
    let daemon = Daemon::serve(dir.path(), &[&["--disk", "a.img", "--control", "c"], RETAIN].concat());
    let status = json(dir.path(), &["ctl", "c", "status", "--json"]);
    let why = status["disks"][0]["file_systems"][0]["why"].as_str().unwrap().to_owned();
    let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
    // The superblock again: it is looked at again, and is as it was.
    let superblock = guest.read(0, 4096);
    for _ in 0..3 {
        guest.write(0, &superblock);
        guest.flush();
    }
    drop(guest);
    let errors = daemon.terminate();
    assert_eq!(errors.matches("is passed through").count(), 1, "{errors}");
    assert!(errors.contains(&why), "{errors}");
}
