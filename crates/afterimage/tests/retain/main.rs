//! `--journal retain` from outside: what stands beside the image, what a start takes over, refuses and gives up.

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod foreign;
mod memory;
mod state;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use afterimage_journal::state_file::{State, StateError};
use common::guest::Guest;
use common::journal::{e2fs, Journal, BLOCK};
use common::{folder, json, refused, run, succeeds, with_own_mounts, Daemon};

const CRASH: [&str; 8] =
    ["--disk", "a.img", "--journal", "retain", "--arena", "arena", "--survives", "guest-crash"];
const WINDOW: [&str; 10] = [
    "--disk",
    "a.img",
    "--journal",
    "retain",
    "--arena",
    "arena",
    "--survives",
    "power-window=50ms",
    "--log-max",
    "16M",
];

/// A folder with a place for arenas and an image with a file system.
fn place() -> (tempfile::TempDir, Journal) {
    let dir = folder(&[]);
    fs::create_dir(dir.path().join("arena")).unwrap();
    let journal = Journal::make(&dir.path().join("a.img"));
    (dir, journal)
}

fn serve(dir: &Path, args: &[&str]) -> Daemon {
    Daemon::serve(dir, &[args, &["--control", "c"]].concat())
}

fn connect(dir: &Path) -> Guest {
    Guest::connect(&dir.join("a.img.sock"))
}

/// The guest goes, and the daemon has noticed.
fn leave(dir: &Path, guest: Guest) {
    drop(guest);
    let deadline = std::time::Instant::now() + common::DEADLINE;
    while json(dir, &["ctl", "c", "status", "--json"])["disks"][0]["attached"] != false {
        assert!(std::time::Instant::now() < deadline, "the daemon does not notice that the guest is gone");
    }
}

/// A daemon that retains one committed block, which is nowhere else, and its guest.
fn committed(dir: &Path, journal: &mut Journal, args: &[&str]) -> (Daemon, Guest) {
    let daemon = serve(dir, args);
    let mut guest = connect(dir);
    journal.mount(&mut guest);
    journal.commit(&mut guest, journal.free, 7);
    (daemon, guest)
}

/// A daemon that was killed while it retained one committed block, which is nowhere else.
fn died(args: &[&str]) -> (tempfile::TempDir, Journal) {
    let (dir, mut journal) = place();
    committed(dir.path(), &mut journal, args).0.kill();
    (dir, journal)
}

/// Whether a block holds nothing but that byte. Its content is not printed where it does not.
#[track_caller]
fn assert_filled(block: &[u8], byte: u8) {
    assert_eq!(block.iter().position(|b| *b != byte), None, "not filled with {byte}");
}

fn block(dir: &Path, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    fs::File::open(dir.join("a.img")).unwrap().read_exact_at(&mut bytes, block * BLOCK).unwrap();
    bytes
}

/// Every file with its bytes, sockets apart.
fn everything(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let arenas = names(&dir.join("arena")).into_iter().map(|name| dir.join("arena").join(name));
    for folder in [dir.to_owned(), dir.join("arena")].into_iter().chain(arenas.filter(|path| path.is_dir())) {
        let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap());
        let files = entries.filter(|e| e.file_type().unwrap().is_file()).map(|e| e.path());
        all.extend(files.map(|path| (path.clone(), fs::read(path).unwrap())));
    }
    all.sort();
    all
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn arena(dir: &Path) -> PathBuf {
    let names = names(&dir.join("arena"));
    assert_eq!(names.len(), 1, "{names:?}");
    dir.join("arena").join(&names[0]).join("arena")
}

fn state_of(dir: &Path) -> State {
    State::read(&dir.join("a.img.state")).unwrap().unwrap()
}

fn file_system(dir: &Path) -> serde_json::Value {
    let status = json(dir, &["ctl", "c", "status", "--json"]);
    let found = status["disks"][0]["file_systems"].as_array().unwrap();
    assert_eq!(found.len(), 1, "{status}");
    found[0].clone()
}

#[test]
fn the_configuration_file_says_it_as_well() {
    let (dir, _) = place();
    let text = "survives = \"guest-crash\"\njournal = \"retain\"\nretain-max = \"8M\"\narena = \"arena\"\n\
                accept-loss = true\nvflush-at-truncation = true\ncontrol = \"c\"\n[[disk]]\nfile = \"a.img\"\n";
    fs::write(dir.path().join("x.toml"), text).unwrap();
    let daemon = Daemon::serve(dir.path(), &["--config", "x.toml"]);
    let status = json(dir.path(), &["ctl", "c", "status", "--json"]);
    assert_eq!(status["disks"][0]["arena"]["bytes_max"], 8 << 20);
    daemon.terminate();
    // The command line wins, and what belongs to retaining is idle then.
    let daemon = Daemon::serve(dir.path(), &["--config", "x.toml", "--journal", "passthrough"]);
    assert_eq!(daemon.ready["journal"], "passthrough");
    daemon.terminate();
    fs::write(dir.path().join("x.toml"), text.replace("guest-crash", "power")).unwrap();
    refused(dir.path(), &["serve", "--config", "x.toml"], 2, &["power", "--survives guest-crash"]);
    fs::write(dir.path().join("x.toml"), text.replace("\"retain\"", "\"absorb\"")).unwrap();
    refused(dir.path(), &["serve", "--config", "x.toml"], 2, &["x.toml, journal", "absorb"]);
}

#[test]
fn dropping_journals_is_for_measurements_and_says_so() {
    let (dir, mut journal) = place();
    let args = [&CRASH[..2], &["--journal", "drop-for-bench"], &CRASH[4..]].concat();
    let daemon = serve(dir.path(), &args);
    let promise = daemon.ready["promise"].as_str().unwrap();
    assert!(promise.contains("UNSAFE") && promise.contains("DROPPED"), "{promise}");
    let mut guest = connect(dir.path());
    journal.mount(&mut guest);
    journal.commit(&mut guest, journal.free, 7);
    leave(dir.path(), guest);
    let errors = daemon.terminate();
    assert!(errors.contains("UNSAFE"), "{errors}");
    for shown in ["serve --help", "--help"] {
        let help = succeeds(dir.path(), &shown.split(' ').collect::<Vec<_>>());
        assert!(!help.contains("drop-for-bench"), "{help}");
    }
}

#[test]
fn metrics_and_status_tell_file_systems_apart() {
    let (dir, mut journal) = place();
    let args = [&CRASH[..], &["--metrics", "127.0.0.1:0"]].concat();
    let (daemon, guest) = committed(dir.path(), &mut journal, &args);
    let address = daemon.ready["metrics"].as_str().unwrap().to_owned();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let text = std::io::read_to_string(stream).unwrap();
    let uuid = file_system(dir.path())["uuid"].as_str().unwrap().to_owned();
    let labels = format!("disk=\"a.img\",start_sector=\"0\",uuid=\"{uuid}\"");
    for row in [
        "afterimage_arena_used_bytes{disk=\"a.img\"}".to_owned(),
        format!("afterimage_retained_versions{{{labels}}} 1.0"),
        format!("afterimage_retained_versions_pending{{{labels}}} 1.0"),
        format!("afterimage_retained_data_bytes{{{labels}}} 4096.0"),
        format!("afterimage_journal_commits_total{{{labels}}} 1"),
        format!("afterimage_journal_info{{{labels},mode=\"retain\",why=\"\"}} 1.0"),
        format!("afterimage_journal_absorbed_bytes_total{{{labels}}}"),
    ] {
        assert!(text.contains(&row), "{row} in {text}");
    }
    let words = succeeds(dir.path(), &["ctl", "c", "status"]);
    assert!(words.contains("1 transactions with 1 versions, 1 of them not home"), "{words}");
    // The guest goes: what it committed goes home, within a moment.
    leave(dir.path(), guest);
    let pending = || file_system(dir.path())["versions_pending"] != 0;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while pending() {
        assert!(std::time::Instant::now() < deadline, "what was committed did not go home");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_filled(&block(dir.path(), journal.free), 7);
    daemon.terminate();
}
