//! What an end leaves, orderly or not.

use super::*;

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
        assert_eq!(names(&dir.path().join("arena")), [""; 0]);
        assert!(everything(dir.path()) == before);
    }
}

#[test]
fn a_killed_daemon_leaves_what_was_committed_to_the_next_one() {
    for args in [&CRASH[..], &WINDOW] {
        let (dir, mut journal) = place();
        let (daemon, _guest) = committed(dir.path(), &mut journal, args);
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
        // A guest that lives goes on behind its own tail; one that mounts anew replays what was committed.
        let superblock = guest.read(journal.first * BLOCK, BLOCK as usize);
        assert_eq!(superblock[24..32], [0, 0, 0, 1, 0, 0, 0, 1]);
        let commits = |dir| file_system(dir)["journal_commits"].as_u64().unwrap();
        let before = commits(dir.path());
        journal.commit(&mut guest, journal.free, 8);
        assert_eq!(commits(dir.path()), before + 1);
        leave(dir.path(), guest);
        let errors = daemon.terminate();
        assert_eq!(names(dir.path()), ["a.img", "arena"]);
        assert_eq!(names(&dir.path().join("arena")), [""; 0], "{errors}");
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
    let (daemon, _guest) = committed(dir.path(), &mut journal, &CRASH);
    daemon.terminate();
    assert_eq!(names(dir.path()), ["a.img", "arena"]);
    assert_filled(&block(dir.path(), journal.free), 7);
    assert_ne!(block(dir.path(), journal.first)[28..32], [0; 4], "the guest may go on");
    // The next start passes it through until it is mounted again.
    let daemon = serve(dir.path(), &CRASH);
    assert_eq!(file_system(dir.path())["mode"], "waiting");
    daemon.terminate();
}

/// The guest goes on with a server that knows nothing of retained journals: it still believes in a transaction that is home, and names it
/// as its tail.
#[test]
fn an_end_with_a_guest_attached_is_right_for_any_server() {
    for args in [&CRASH[..], &WINDOW] {
        let (dir, mut journal) = place();
        let (daemon, mut guest) = committed(dir.path(), &mut journal, args);
        guest.write(journal.free * BLOCK, &[7; BLOCK as usize]);
        journal.commit(&mut guest, journal.free - 1, 8);
        let superblock = guest.read(journal.first * BLOCK, BLOCK as usize);
        assert_eq!(superblock[24..32], [0, 0, 0, 1, 0, 0, 0, 1], "only the guest moves its tail");
        daemon.terminate();
        assert_eq!(names(dir.path()), ["a.img", "arena"]);

        let daemon = serve(dir.path(), &["--disk", "a.img", "--survives", "power"]);
        let mut guest = connect(dir.path());
        let mut superblock = guest.read(journal.first * BLOCK, BLOCK as usize);
        superblock[24..32].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
        guest.write(journal.first * BLOCK, &superblock);
        journal.commit(&mut guest, journal.free - 2, 9);
        leave(dir.path(), guest);
        daemon.terminate();
        let image = dir.path().join("a.img");
        e2fs("debugfs", &["-w", "-R", "feature needs_recovery"], &image);
        e2fs("e2fsck", &["-fp"], &image);
        for (back, byte) in [(0, 7), (1, 8), (2, 9)] {
            assert_filled(&block(dir.path(), journal.free - back), byte);
        }
    }
}

/// A daemon is killed, and the next one told to end before the guest has found it: that guest may live, and goes on where it was.
#[test]
fn an_end_before_the_guest_is_back_leaves_the_journal_to_it() {
    for args in [&CRASH[..], &WINDOW] {
        let (dir, mut journal) = died(args);
        let warned = serve(dir.path(), args).terminate();
        let daemon = serve(dir.path(), args);
        let mut guest = connect(dir.path());
        // The tail that it believes in.
        let mut superblock = guest.read(journal.first * BLOCK, BLOCK as usize);
        superblock[24..32].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
        guest.write(journal.first * BLOCK, &superblock);
        journal.commit(&mut guest, journal.free, 9);
        assert_eq!(file_system(dir.path())["mode"], "retain");
        leave(dir.path(), guest);
        daemon.terminate();
        assert_filled(&block(dir.path(), journal.free), 9);
        assert_eq!(names(dir.path()), ["a.img", "arena"], "it was seen to go");
        assert!(warned.contains("afterimage recover"), "{warned}");
    }
}

/// Until somebody says that there is no guest any more.
#[test]
fn what_nobody_came_back_to_stays_until_it_is_recovered() {
    for args in [&CRASH[..], &WINDOW] {
        let (dir, journal) = died(args);
        serve(dir.path(), args).terminate();
        serve(dir.path(), args).terminate();
        assert_eq!(names(dir.path()), ["a.img", "a.img.state", "arena"]);
        assert_filled(&block(dir.path(), journal.free), 7);
        // A copy of it alone is complete.
        let superblock = &block(dir.path(), journal.first)[24..32];
        assert_eq!(superblock, [0, 0, 0, 1, 0, 0, 0, 1], "the guest may go on");
        refused(dir.path(), &["serve", "--disk", "a.img"], 1, &["--journal retain", "afterimage recover"]);
        succeeds(dir.path(), &["recover", "a.img"]);
        assert_eq!(names(&dir.path().join("arena")), [""; 0]);
        assert_filled(&block(dir.path(), journal.free), 7);
        assert_eq!(block(dir.path(), journal.first)[28..32], [0; 4]);
        Daemon::serve(dir.path(), &["--disk", "a.img"]).terminate();
    }
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

/// What the daemon that hands over leaves behind for the next one is closed by that one.
#[test]
fn an_end_that_is_asked_for_during_a_handover_is_the_next_daemons() {
    // At once; when the daemon knows that it hands over; when the next one is there and knows of no signal yet.
    for moment in ["", "told to end", "started a daemon"] {
        let (dir, mut journal) = place();
        let all = [&["keep", "--", "serve", "--json", "--control", "c"][..], &CRASH].concat();
        let mut keep = Daemon::start(common::afterimage(&all).current_dir(dir.path()));
        let mut guest = connect(dir.path());
        journal.mount(&mut guest);
        journal.commit(&mut guest, journal.free, 7);
        let before = keep.said().len();
        keep.signal(nix::sys::signal::Signal::SIGHUP);
        keep.wait_until_said_behind(before, moment);
        keep.signal(nix::sys::signal::Signal::SIGTERM);
        let (status, said) = keep.end();
        assert!(status.success(), "{moment:?}: {status}: {said}");
        assert!(said.contains("handed over") && said.contains("closed in order"), "{moment:?}: {said}");
        assert_eq!(names(dir.path()), ["a.img", "arena"], "{moment:?}: {said}");
        assert_eq!(names(&dir.path().join("arena")), [""; 0], "{moment:?}: {said}");
        assert_filled(&block(dir.path(), journal.free), 7);
    }
}

#[test]
fn two_partitions_go_on_after_a_daemon_died_in_the_middle_of_their_transactions() {
    for args in [&CRASH[..], &WINDOW] {
        let dir = folder(&[]);
        fs::create_dir(dir.path().join("arena")).unwrap();
        let mut journals = Journal::make_partitions(&dir.path().join("a.img"), 2);
        let daemon = serve(dir.path(), args);
        let mut guest = connect(dir.path());
        for (journal, byte) in journals.iter_mut().zip([1, 2]) {
            journal.mount(&mut guest);
            journal.commit(&mut guest, journal.free, byte);
            journal.begin(&mut guest, journal.free - 1, byte + 10);
        }
        daemon.kill();
        let daemon = serve(dir.path(), args);
        let mut guest = connect(dir.path());
        let status =
            || json(dir.path(), &["ctl", "c", "status", "--json"])["disks"][0]["file_systems"].clone();
        let modes = |status: &serde_json::Value| -> Vec<String> {
            status.as_array().unwrap().iter().map(|f| f["mode"].as_str().unwrap().to_owned()).collect()
        };
        let found = status();
        assert_eq!(modes(&found), ["retain", "retain"], "{found}");
        for (journal, byte) in journals.iter().zip([1, 2]) {
            assert_filled(&guest.read(journal.place(journal.free), BLOCK as usize), byte);
            assert_filled(&guest.read(journal.place(journal.free - 1), BLOCK as usize), 0);
        }
        // The first goes on, and only its transaction becomes one; the other dies with what it had begun.
        journals[0].end(&mut guest);
        let found = status();
        assert!(found[0]["journal_commits"].as_u64() > found[1]["journal_commits"].as_u64(), "{found}");
        leave(dir.path(), guest);
        daemon.terminate();
        assert_eq!(names(dir.path()), ["a.img", "arena"]);
        let image = fs::File::open(dir.path().join("a.img")).unwrap();
        for ((journal, byte), second) in journals.iter().zip([1, 2]).zip([11, 0]) {
            let mut found = vec![0; BLOCK as usize];
            for (home, byte) in [(journal.free, byte), (journal.free - 1, second)] {
                image.read_exact_at(&mut found, journal.place(home)).unwrap();
                assert_filled(&found, byte);
            }
            image.read_exact_at(&mut found, journal.place(journal.first)).unwrap();
            assert_eq!(found[28..32], [0; 4], "nobody needs to recover it");
        }
    }
}

/// Names the folder of the socket to [`a_vmm`].
const VMM: &str = "AFTERIMAGE_TEST_VMM";
/// Memory of a VMM that dies, in bytes: its taking down comes before its sockets are closed.
const VMM_BYTES: usize = 192 << 20;

/// The VMM of the tests below, in a process of its own.
#[test]
#[ignore = "the VMM of the tests below"]
fn a_vmm() {
    let dir = PathBuf::from(std::env::var_os(VMM).expect("started by the test that kills it"));
    let mut guest = connect(&dir);
    let mut journal = Journal::find(&dir.join("a.img"));
    journal.mount(&mut guest);
    journal.commit(&mut guest, journal.free, 7);
    let memory = vec![1u8; VMM_BYTES];
    fs::write(dir.join("committed"), "").unwrap();
    std::thread::sleep(common::DEADLINE);
    drop(memory);
}

/// A daemon, and a VMM whose guest has mounted and committed.
fn with_vmm(dir: &Path, args: &[&str]) -> (Daemon, std::process::Child) {
    let daemon = serve(dir, args);
    let vmm = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ends::a_vmm", "--ignored"])
        .env(VMM, dir)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + common::DEADLINE;
    while !dir.join("committed").exists() {
        assert!(std::time::Instant::now() < deadline, "the VMM does not commit");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    fs::remove_file(dir.join("committed")).unwrap();
    (daemon, vmm)
}

fn signal(process: &std::process::Child, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(process.id() as i32), signal).unwrap();
}

#[test]
fn an_end_right_after_the_vmms_death_recovers_and_one_beside_a_stopped_vmm_does_not() {
    use nix::sys::signal::Signal::{SIGKILL, SIGSTOP};
    for round in 0..24 {
        let dead = round % 4 != 3;
        let args = if round % 2 == 0 { &CRASH[..] } else { &WINDOW };
        let (dir, journal) = place();
        let (daemon, mut vmm) = with_vmm(dir.path(), args);
        // Nobody waits between the two: the daemon may learn of its end before the VMM's sockets are closed.
        signal(&vmm, if dead { SIGKILL } else { SIGSTOP });
        daemon.terminate();
        vmm.kill().unwrap();
        vmm.wait().unwrap();
        assert_eq!(names(dir.path()), ["a.img", "arena"]);
        assert_filled(&block(dir.path(), journal.free), 7);
        let start = &block(dir.path(), journal.first)[28..32];
        assert_eq!(
            start == [0; 4],
            dead,
            "round {round}: a dead guest's journal is empty, a live one's is its own"
        );
    }
}
