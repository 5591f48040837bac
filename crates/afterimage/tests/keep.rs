//! `keep`: the guest's connection survives the daemon.

mod common;

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
