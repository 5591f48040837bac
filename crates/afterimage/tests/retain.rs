//! `--journal retain` from outside: what stands beside the image, what a start takes over, refuses and gives up.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use afterimage_journal::state_file::{State, StateError};
use common::guest::Guest;
use common::journal::{e2fs, Journal, BLOCK};
use common::{folder, json, refused, run, succeeds, Daemon};

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

/// A daemon that was killed while it retained one committed block, which is nowhere else.
fn died(args: &[&str]) -> (tempfile::TempDir, Journal) {
    let (dir, mut journal) = place();
    let daemon = serve(dir.path(), args);
    let mut guest = connect(dir.path());
    journal.mount(&mut guest);
    journal.commit(&mut guest, journal.free, 7);
    daemon.kill();
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
    for folder in [dir.to_owned(), dir.join("arena")] {
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
    dir.join("arena").join(&names[0])
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
fn an_orderly_end_leaves_a_plain_raw_file() {
    for args in [&CRASH[..], &WINDOW] {
        let (dir, _) = place();
        fs::write(dir.path().join("blank.img"), vec![0; 8 << 20]).unwrap();
        let before = everything(dir.path());
        let daemon = serve(dir.path(), &[args, &["--disk", "blank.img"]].concat());
        assert_eq!(daemon.ready["journal"], "retain");
        let promise = daemon.ready["promise"].as_str().unwrap();
        assert!(promise.contains("Journals are retained"), "{promise}");
        assert_eq!(names(&dir.path().join("arena")).len(), 2);
        let status = json(dir.path(), &["ctl", "c", "status", "--json"]);
        assert_eq!(status["journal"], "retain");
        assert_eq!(status["disks"][0]["file_systems"][0]["mode"], "waiting");
        assert_eq!(status["disks"][0]["arena"]["bytes_max"], 256 << 20);
        let words = succeeds(dir.path(), &["ctl", "c", "status"]);
        assert!(words.contains("file system at sector 0"), "{words}");
        let state = state_of(dir.path());
        assert_eq!(state.contract, args[7]);
        assert_eq!(state.image.inode, fs::metadata(dir.path().join("a.img")).unwrap().ino());
        assert_eq!(fs::metadata(&state.arena).unwrap().permissions().mode() & 0o777, 0o600);
        // What is read and flushed changes nothing.
        succeeds(dir.path(), &["ctl", "c", "flush"]);
        succeeds(dir.path(), &["ctl", "c", "pause", "--", "true"]);
        daemon.terminate();
        assert_eq!(names(dir.path()), ["a.img", "arena", "blank.img"]);
        assert!(everything(dir.path()) == before);
    }
}

#[test]
fn a_killed_daemon_leaves_what_was_committed_to_the_next_one() {
    for args in [&CRASH[..], &WINDOW] {
        let (dir, mut journal) = place();
        let daemon = serve(dir.path(), args);
        let mut guest = connect(dir.path());
        journal.mount(&mut guest);
        journal.commit(&mut guest, journal.free, 7);
        let found = file_system(dir.path());
        assert_eq!((&found["mode"], &found["transactions"]), (&"retain".into(), &1.into()), "{found}");
        assert_eq!((&found["versions"], &found["journal_commits"]), (&1.into(), &1.into()), "{found}");
        // The journal's own place was never written.
        assert_filled(&block(dir.path(), journal.first + 1), 0);
        assert_eq!(block(dir.path(), journal.first)[28..32], [0; 4]);
        let kept = arena(dir.path());
        daemon.kill();
        assert!(dir.path().join("a.img.state").exists());

        let daemon = serve(dir.path(), args);
        assert_eq!(arena(dir.path()), kept);
        let mut guest = connect(dir.path());
        assert_filled(&guest.read(journal.free * BLOCK, BLOCK as usize), 7);
        // A guest that lives goes on; one that mounts anew has nothing to replay before the next transaction.
        let superblock = guest.read(journal.first * BLOCK, BLOCK as usize);
        assert_eq!(superblock[24..32], [0, 0, 0, 2, 0, 0, 0, 4]);
        let commits = |dir| file_system(dir)["journal_commits"].as_u64().unwrap();
        let before = commits(dir.path());
        journal.commit(&mut guest, journal.free, 8);
        assert_eq!(commits(dir.path()), before + 1);
        leave(dir.path(), guest);
        daemon.terminate();
        assert_eq!(names(dir.path()), ["a.img", "arena"]);
        assert_eq!(names(&dir.path().join("arena")), [""; 0]);
        assert_filled(&block(dir.path(), journal.free), 8);
        // Nobody needs to recover it.
        let superblock = block(dir.path(), journal.first);
        assert_eq!(superblock[28..32], [0; 4]);
        assert!(superblock[24..28] > [0, 0, 0, 2][..]);
        e2fs("e2fsck", &["-fn"], &dir.path().join("a.img"));
    }
}

#[test]
fn an_end_with_a_guest_attached_leaves_the_journal_to_its_own_recovery() {
    let (dir, mut journal) = place();
    let daemon = serve(dir.path(), &CRASH);
    let mut guest = connect(dir.path());
    journal.mount(&mut guest);
    journal.commit(&mut guest, journal.free, 7);
    daemon.terminate();
    assert_eq!(names(dir.path()), ["a.img", "arena"]);
    assert_filled(&block(dir.path(), journal.free), 7);
    assert_ne!(block(dir.path(), journal.first)[28..32], [0; 4], "the guest may go on");
    // The next start passes it through until it is mounted again.
    let daemon = serve(dir.path(), &CRASH);
    assert_eq!(file_system(dir.path())["mode"], "waiting");
    daemon.terminate();
}

#[test]
fn an_image_with_retained_journals_is_not_served_without_them() {
    let (dir, journal) = died(&CRASH);
    let before = everything(dir.path());
    for args in [
        &["serve", "--disk", "a.img"][..],
        &["serve", "--disk", "a.img", "--survives", "guest-crash"],
        &["serve", "--disk", "a.img", "--accept-loss"],
        &["serve", "--disk", "a.img,read-only"],
        &["serve", "--disk", "a.img,read-only", "--journal", "retain", "--survives", "guest-crash"],
    ] {
        refused(dir.path(), args, 1, &["a.img", "--journal retain", "afterimage recover"]);
    }
    let inspected = json(dir.path(), &["inspect", "--json", "a.img"]);
    assert_eq!(inspected["copy_is_complete"], false, "{inspected}");
    let found = &inspected["retained"][0]["retained"]["file_systems"][0];
    assert_eq!((&found["transactions"], &found["versions_pending"]), (&1.into(), &1.into()), "{inspected}");
    let words = succeeds(dir.path(), &["inspect", "a.img"]);
    assert!(words.contains("1 transactions, 1 versions (1 not home)"), "{words}");
    assert!(words.contains("afterimage recover a.img"), "{words}");
    let checked = json(dir.path(), &["check", "--json", "a.img"]);
    assert_eq!((&checked["sound"], &checked["clean"]), (&true.into(), &false.into()), "{checked}");
    let words = succeeds(dir.path(), &["recover", "--dry-run", "a.img"]);
    assert!(words.contains("would write") && words.contains("1 go home (4096 bytes)"), "{words}");
    assert!(everything(dir.path()) == before, "looking changes nothing");

    let done = json(dir.path(), &["recover", "--json", "a.img"]);
    let found = &done["retained"][0]["file_systems"][0];
    assert_eq!((&found["versions"], &found["home_blocks"]), (&1.into(), &1.into()), "{done}");
    assert_eq!(names(dir.path()), ["a.img", "arena", "c"]);
    assert_eq!(names(&dir.path().join("arena")), [""; 0]);
    assert_filled(&block(dir.path(), journal.free), 7);
    assert_eq!(block(dir.path(), journal.first)[28..32], [0; 4]);
    assert_eq!(json(dir.path(), &["check", "--json", "a.img"])["clean"], true);
    assert!(succeeds(dir.path(), &["recover", "a.img"]).contains("nothing to recover"));
    Daemon::serve(dir.path(), &["--disk", "a.img"]).terminate();
}

#[test]
fn a_lost_arena_is_explained_and_given_up_only_on_demand() {
    type Loss = fn(&Path);
    let losses: [(Loss, &str); 3] = [
        (|dir| fs::remove_file(arena(dir)).unwrap(), "is gone"),
        (
            |dir| {
                let other_boot = State { boot_id: Default::default(), ..state_of(dir) };
                other_boot.write(&dir.join("a.img.state")).unwrap();
            },
            "the host was restarted",
        ),
        (
            |dir| {
                let arena = fs::OpenOptions::new().write(true).open(arena(dir)).unwrap();
                arena.write_all_at(&[0xff; 64], 0).unwrap();
            },
            "arena",
        ),
    ];
    for (lose, why) in losses {
        let (dir, journal) = died(&CRASH);
        lose(dir.path());
        let before = everything(dir.path());
        let serve_it = [&["serve"][..], &CRASH].concat();
        let parts = ["a.img", "are lost", why, "--accept-loss", "not yet written home"];
        refused(dir.path(), &serve_it, 1, &parts);
        let inspected = json(dir.path(), &["inspect", "--json", "a.img"]);
        assert!(inspected["retained"][0]["problem"].as_str().unwrap().contains(why), "{inspected}");
        assert_eq!(json(dir.path(), &["check", "--json", "a.img"])["sound"], false);
        refused(dir.path(), &["recover", "a.img"], 1, &parts);
        assert!(everything(dir.path()) == before);

        let daemon = serve(dir.path(), &[&CRASH[..], &["--accept-loss"]].concat());
        assert_filled(&block(dir.path(), journal.free), 0);
        let errors = daemon.terminate();
        assert!(errors.contains("given up"), "{errors}");
        assert!(!dir.path().join("a.img.state").exists());
    }
}

#[test]
fn without_an_arena_it_can_be_served_or_recovered_once_the_loss_is_accepted() {
    let (dir, _) = died(&CRASH);
    fs::remove_file(arena(dir.path())).unwrap();
    let parts = ["are lost", "--accept-loss"];
    refused(dir.path(), &["serve", "--disk", "a.img"], 1, &parts);
    Daemon::serve(dir.path(), &["--disk", "a.img", "--accept-loss"]).terminate();
    assert!(!dir.path().join("a.img.state").exists());

    let (dir, _) = died(&CRASH);
    fs::remove_file(arena(dir.path())).unwrap();
    refused(dir.path(), &["recover", "--dry-run", "a.img"], 1, &parts);
    let words = succeeds(dir.path(), &["recover", "--dry-run", "--accept-loss", "a.img"]);
    assert!(words.contains("would give up"), "{words}");
    assert!(dir.path().join("a.img.state").exists());
    succeeds(dir.path(), &["recover", "--accept-loss", "a.img"]);
    assert!(!dir.path().join("a.img.state").exists());
}

#[test]
fn under_power_window_nothing_durable_is_lost_with_an_arena() {
    let (dir, journal) = died(&WINDOW);
    fs::remove_file(arena(dir.path())).unwrap();
    let daemon = serve(dir.path(), &WINDOW);
    // It went into the redo log when it was committed.
    assert_filled(&connect(dir.path()).read(journal.free * BLOCK, BLOCK as usize), 7);
    let errors = daemon.terminate();
    assert!(errors.contains("nothing durable is lost"), "{errors}");
    assert_eq!(names(dir.path()), ["a.img", "arena"]);
}

#[test]
fn the_state_file_says_which_contract_is_in_force() {
    let (dir, journal) = died(&CRASH);
    let daemon = serve(dir.path(), &WINDOW);
    assert_eq!(state_of(dir.path()).contract, "power-window=50ms");
    assert_filled(&connect(dir.path()).read(journal.free * BLOCK, BLOCK as usize), 7);
    daemon.kill();
    let daemon = serve(dir.path(), &CRASH);
    assert_eq!(state_of(dir.path()).contract, "guest-crash");
    daemon.terminate();
    assert_filled(&block(dir.path(), journal.free), 7);
}

#[test]
fn a_damaged_state_file_is_refused() {
    let (dir, _) = died(&CRASH);
    let path = dir.path().join("a.img.state");
    let good = fs::read_to_string(&path).unwrap();
    for text in ["", "{", &good.replace("\"size_bytes\": 33554432", "\"size_bytes\": 33554433")] {
        assert_ne!(text, good);
        fs::write(&path, text).unwrap();
        assert!(matches!(State::read(&path), Err(StateError::Corrupt { .. })));
        for args in [&["serve", "--disk", "a.img"][..], &[&["serve"][..], &CRASH].concat()] {
            refused(dir.path(), args, 1, &["a.img.state is damaged", "--accept-loss"]);
        }
        assert_eq!(json(dir.path(), &["check", "--json", "a.img"])["sound"], false);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    fs::write(&path, good.replace("\"afterimage_state\": 1", "\"afterimage_state\": 2")).unwrap();
    refused(
        dir.path(),
        &["serve", "--disk", "a.img", "--accept-loss"],
        1,
        &["version 2", "use the afterimage that wrote it"],
    );
    fs::write(&path, "{").unwrap();
    Daemon::serve(dir.path(), &["--disk", "a.img", "--accept-loss"]).terminate();
    assert!(!path.exists());
}

#[test]
fn a_state_file_of_another_image_is_refused() {
    let (dir, _) = died(&CRASH);
    fs::copy(dir.path().join("a.img"), dir.path().join("b.img")).unwrap();
    fs::copy(dir.path().join("a.img.state"), dir.path().join("b.img.state")).unwrap();
    let before = everything(dir.path());
    refused(dir.path(), &["serve", "--disk", "b.img"], 1, &["b.img.state", "another image", "--accept-loss"]);
    assert!(everything(dir.path()) == before);
    // The copy is given up, not what it was copied from.
    Daemon::serve(dir.path(), &["--disk", "b.img", "--accept-loss"]).terminate();
    succeeds(dir.path(), &["recover", "a.img"]);
}

#[test]
fn one_arena_has_one_daemon() {
    let (dir, _) = place();
    let daemon = serve(dir.path(), &CRASH);
    refused(dir.path(), &[&["serve"][..], &CRASH].concat(), 1, &["a.img", "in use"]);
    refused(dir.path(), &["recover", "a.img"], 1, &["a.img", "in use"]);
    let inspected = json(dir.path(), &["inspect", "--json", "a.img"]);
    assert_eq!(inspected["retained"][0]["in_use"], true, "{inspected}");
    // A state file that leads another image to it.
    fs::write(dir.path().join("b.img"), vec![0; 8 << 20]).unwrap();
    let found = fs::metadata(dir.path().join("b.img")).unwrap();
    let image = afterimage_journal::state_file::ImageIdentity { inode: found.ino(), size_bytes: 8 << 20 };
    State { image, ..state_of(dir.path()) }.write(&dir.path().join("b.img.state")).unwrap();
    let other = [&["serve", "--disk", "b.img"][..], &CRASH[2..]].concat();
    refused(dir.path(), &other, 1, &["arena", "another process"]);
    daemon.terminate();
    // And without the daemon it is found not to be the image's own.
    refused(dir.path(), &other, 1, &["b.img", "are lost"]);
}

#[test]
fn a_start_that_fails_leaves_nothing() {
    let (dir, _) = place();
    let failing: [&[&str]; 3] = [
        &["--arena", "no/where"],
        // There is no socket to be made here.
        &["--arena", "arena", "--control", "no/where"],
        &["--arena", "a.img"],
    ];
    for args in failing {
        let all = [&["serve", "--disk", "a.img", "--journal", "retain", "--survives", "guest-crash"], args];
        let output = run(dir.path(), &all.concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert_eq!(names(dir.path()), ["a.img", "arena"], "{args:?}");
        assert_eq!(names(&dir.path().join("arena")), [""; 0], "{args:?}");
    }
    refused(
        dir.path(),
        &[
            "serve",
            "--disk",
            "a.img",
            "--journal",
            "retain",
            "--survives",
            "guest-crash",
            "--arena",
            "no/where",
        ],
        1,
        &["no/where", "--arena"],
    );
    // The group cannot be opened when the arena is there already.
    fs::write(dir.path().join("a.img.aflog"), vec![0; 16 << 20]).unwrap();
    refused(dir.path(), &[&["serve"][..], &CRASH].concat(), 1, &["a.img.aflog"]);
    assert_eq!(names(&dir.path().join("arena")), [""; 0]);
    assert!(!dir.path().join("a.img.state").exists());
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
    let daemon = serve(dir.path(), &args);
    let mut guest = connect(dir.path());
    journal.mount(&mut guest);
    journal.commit(&mut guest, journal.free, 7);
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

#[test]
fn a_handover_and_a_killed_daemon_under_keep_leave_everything_in_place() {
    for args in [&CRASH[..], &WINDOW] {
        let (dir, mut journal) = place();
        let all = [&["keep", "--restart", "--", "serve", "--json", "--control", "c"][..], args].concat();
        let mut keep = Daemon::start(common::afterimage(&all).current_dir(dir.path()));
        let mut guest = connect(dir.path());
        journal.mount(&mut guest);
        journal.commit(&mut guest, journal.free, 7);
        let (kept, state) = (arena(dir.path()), state_of(dir.path()));

        keep.signal(nix::sys::signal::Signal::SIGHUP);
        let pid = keep.next_ready().expect("a daemon after the handover")["pid"].as_i64().unwrap();
        assert_eq!((arena(dir.path()), state_of(dir.path())), (kept.clone(), state.clone()));
        journal.commit(&mut guest, journal.free, 8);
        assert_eq!(file_system(dir.path())["mode"], "retain");

        let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        keep.next_ready().expect("a new daemon");
        assert_eq!((arena(dir.path()), state_of(dir.path())), (kept, state));
        journal.commit(&mut guest, journal.free, 9);
        assert_eq!(file_system(dir.path())["mode"], "retain");
        leave(dir.path(), guest);
        keep.terminate();
        assert_eq!(names(dir.path()), ["a.img", "arena"]);
        assert_filled(&block(dir.path(), journal.free), 9);
        assert_eq!(block(dir.path(), journal.first)[28..32], [0; 4]);
    }
}

#[test]
fn memory_is_bounded_whatever_the_guest_logs() {
    let (dir, mut journal) = place();
    let args = [&CRASH[..], &["--retain-max", "1M"]].concat();
    let daemon = serve(dir.path(), &args);
    let mut guest = connect(dir.path());
    journal.mount(&mut guest);
    journal.commit(&mut guest, journal.free, 7);
    // One transaction that never ends: journal blocks without a commit.
    let scattered: Vec<u64> = (journal.first + 4..journal.first + 10).chain(journal.tail_blocks()).collect();
    for (n, block) in scattered.iter().enumerate() {
        guest.write(block * BLOCK, &vec![n as u8 | 1; BLOCK as usize]);
    }
    for (n, block) in scattered.iter().enumerate() {
        assert_filled(&guest.read(block * BLOCK, BLOCK as usize), n as u8 | 1);
    }
    let status = json(dir.path(), &["ctl", "c", "status", "--json"]);
    let arena = &status["disks"][0]["arena"];
    assert!(arena["used_bytes"].as_u64().unwrap() <= 1 << 20, "{status}");
    assert!(arena["resident_bytes"].as_u64().unwrap() <= 4 << 20, "{status}");
    assert!(file_system(dir.path())["evicted_blocks"].as_u64().unwrap() > 0, "{status}");
    leave(dir.path(), guest);
    daemon.terminate();
    assert_filled(&block(dir.path(), journal.free), 7);
}
