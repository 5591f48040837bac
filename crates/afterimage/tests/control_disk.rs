//! `--control-disk`: what a guest's programs ask for there holds for the daemon's disks, under every contract, across its deaths.

mod common;

use std::path::Path;
use std::time::Duration;

use afterimage_format::control_disk::{
    Answer, Command, Lent, LENT_OFFERED, LENT_OPEN, OPERATION_INIT, OPERATION_NONE, OPERATION_VFLUSH,
    OPERATION_VORDER, OPERATION_WAIT, STATUS_DONE, STATUS_MALFORMED, STATUS_NOT_YET,
};
use common::guest::Guest;
use common::journal::Journal;
use common::{folder, json, refused, succeeds, Daemon};
use serde_json::Value;
use zerocopy::IntoBytes as _;

const CONTRACTS: [&str; 3] = ["power", "power-window=10s", "guest-crash"];
const SLOT: u64 = 5 << 20;

fn serve(dir: &Path, contract: &str) -> Daemon {
    let args = ["--disk", "a.img,socket=a", "--disk", "b.img,socket=b", "--control", "c"];
    Daemon::serve(dir, &[&args[..], &["--control-disk", "cd", "--survives", contract]].concat())
}

fn status(dir: &Path) -> Value {
    json(dir, &["ctl", "c", "status", "--json"])
}

fn answer(control: &mut Guest, slot: u64) -> Answer {
    Answer::parse(&control.read(slot, 512)).unwrap()
}

fn ask(control: &mut Guest, command: Command) -> Answer {
    control.write(SLOT, command.seal().as_bytes());
    let answer = answer(control, SLOT);
    assert_eq!((answer.tag, answer.operation), (command.tag, command.operation));
    answer
}

fn wait_for(point: &Answer, timeout_ms: u32) -> Command {
    let mut wait = Command::new(OPERATION_WAIT, 9);
    (wait.instance, wait.sequence, wait.timeout_ms) = (point.instance, point.sequence, timeout_ms.into());
    wait
}

#[test]
fn a_program_in_the_guest_orders_flushes_and_waits() {
    for contract in CONTRACTS {
        let dir = folder(&[("a.img", "4M"), ("b.img", "4M")]);
        let daemon = serve(dir.path(), contract);
        assert_eq!(daemon.ready["control_disk"], "cd");
        let (mut a, mut b) = (Guest::connect(&dir.path().join("a")), Guest::connect(&dir.path().join("b")));
        let mut control = Guest::connect(&dir.path().join("cd"));
        assert_eq!(control.sectors(), 64 * 2048);
        let hello = answer(&mut control, 0);
        assert_eq!((hello.operation.get(), hello.sequence.get()), (OPERATION_NONE, 0));
        assert!(hello.text().starts_with(contract), "{}", hello.text());

        a.write(0, &[1; 4096]);
        b.write(4096, &[2; 4096]);
        let point = ask(&mut control, Command::new(OPERATION_VORDER, 1));
        assert_eq!((point.status.get(), point.sequence.get()), (STATUS_DONE, 2), "{contract}");
        let in_order = contract.starts_with("power-window");
        assert_eq!(point.durable.get() < 2, in_order, "{contract}: who does not order by itself has flushed");
        let waited = ask(&mut control, wait_for(&point, 30)).status.get();
        // A window of ten seconds does not pass; but nothing forbids to be durable earlier.
        assert!(waited == STATUS_DONE || in_order && waited == STATUS_NOT_YET, "{contract}");

        a.write(8192, &[3; 4096]);
        let syncs = |status: &Value| -> u64 {
            let storage = status["disks"].as_array().unwrap().iter().map(|d| &d["storage"]["syncs"]);
            storage.chain([&status["log"]["syncs"]]).map(|n| n.as_u64().unwrap()).sum()
        };
        let before = syncs(&status(dir.path()));
        let flushed = ask(&mut control, Command::new(OPERATION_VFLUSH, 2));
        assert_eq!((flushed.status.get(), flushed.sequence.get() >= 3), (STATUS_DONE, true), "{contract}");
        assert!(flushed.durable >= flushed.sequence, "{contract}");
        let told = status(dir.path());
        assert!(syncs(&told) > before, "{contract}: storage was synced");
        assert!(told["sequence"]["durable"].as_u64().unwrap() >= 3, "{contract}");
        assert_eq!(ask(&mut control, wait_for(&flushed, 0)).status.get(), STATUS_DONE, "{contract}");

        let disk = &told["control_disk"];
        assert_eq!(
            (&disk["socket"], &disk["attached"], &disk["vorders"]),
            (&"cd".into(), &true.into(), &1.into())
        );
        let text = succeeds(dir.path(), &["ctl", "c", "status"]);
        assert!(
            text.contains("control disk on cd, guest connected; 1 ordering points, 1 flushes, "),
            "{text}"
        );
        daemon.terminate();
        assert!(!dir.path().join("cd").exists());
    }
}

/// A point of a daemon that was killed is durable when the next one says so, whatever its own numbers are.
#[test]
fn a_point_outlives_its_daemon() {
    for contract in CONTRACTS {
        let dir = folder(&[("a.img", "4M"), ("b.img", "4M")]);
        let daemon = serve(dir.path(), contract);
        let mut a = Guest::connect(&dir.path().join("a"));
        let mut control = Guest::connect(&dir.path().join("cd"));
        (0..20).for_each(|n| a.write(n * 4096, &[7; 4096]));
        let point = ask(&mut control, Command::new(OPERATION_VORDER, 1));
        drop((a, control));
        daemon.kill();

        let daemon = serve(dir.path(), contract);
        let mut control = Guest::connect(&dir.path().join("cd"));
        let hello = answer(&mut control, SLOT);
        assert_eq!(hello.operation.get(), OPERATION_NONE, "what was answered before is forgotten");
        assert_ne!(hello.instance, point.instance);
        let waited = ask(&mut control, wait_for(&point, 0));
        assert_eq!(waited.status.get(), STATUS_DONE, "{contract}");
        assert!(waited.instance == hello.instance && waited.durable >= waited.sequence, "{contract}");
        let mut a = Guest::connect(&dir.path().join("a"));
        assert_eq!(a.read(0, 20 * 4096), vec![7; 20 * 4096]);
        daemon.terminate();
    }
}

/// The keeper holds its connection as it does the disks': a new daemon goes on with it.
#[test]
fn a_kept_connection_goes_on() {
    let dir = folder(&[("a.img", "4M")]);
    let args =
        ["keep", "--restart", "--", "serve", "--json", "--disk", "a.img,socket=a", "--control-disk", "cd"];
    let mut keep = Daemon::start(common::afterimage(&args).current_dir(dir.path()));
    let mut control = Guest::connect(&dir.path().join("cd"));
    let first = ask(&mut control, Command::new(OPERATION_VFLUSH, 1));
    let pid = keep.ready["pid"].as_i64().unwrap() as i32;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    assert!(keep.next_ready().is_some());
    let second = ask(&mut control, Command::new(OPERATION_VFLUSH, 2));
    assert_eq!(second.status.get(), STATUS_DONE);
    assert_ne!(first.instance, second.instance);
    keep.terminate();
}

/// Its guest has committed it, and is gone when the next daemon comes: what lies in its memory is taken first, whichever connection ends.
#[test]
fn what_was_published_to_a_killed_daemon_is_taken_before_a_disk_hears_that_its_guest_has_left() {
    let dir = folder(&[]);
    std::fs::create_dir(dir.path().join("arena")).unwrap();
    let image = dir.path().join("a.img");
    let journal = Journal::make(&image);
    let uuid: [u8; 16] = std::fs::read(&image).unwrap()[1024 + 0x68..][..16].try_into().unwrap();
    let args =
        ["keep", "--restart", "--", "serve", "--json", "--disk", "a.img,socket=a", "--control-disk", "cd"];
    let retain = ["--survives", "guest-crash", "--journal", "retain", "--arena", "arena"];
    let mut keep = Daemon::start(common::afterimage(&[&args[..], &retain].concat()).current_dir(dir.path()));
    let pid = nix::unistd::Pid::from_raw(keep.ready["pid"].as_i64().unwrap() as i32);
    let data = Guest::connect(&dir.path().join("a"));
    let mut control = Guest::connect(&dir.path().join("cd"));
    let init = Command { file_system: uuid, ..Command::new(OPERATION_INIT, 1) };
    let right = ask(&mut control, init);
    assert_eq!(right.status.get(), STATUS_DONE, "{}", right.text());

    let lent = Lent::new(uuid, right.instance.get(), right.sequence.get());
    let memory = [lent.as_bytes(), &[7; 4096]].concat();
    loop {
        control.lend(60 << 20, &memory);
        while control.word(Lent::STATE_AT) == LENT_OFFERED {
            std::thread::sleep(Duration::from_millis(1));
        }
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        if control.word(Lent::STATE_AT) == LENT_OPEN {
            break;
        }
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
        assert_eq!(control.complete(), Some(0));
    }
    control.store(192, &(journal.first + 1).to_le_bytes());
    control.store(68, &1u32.to_le_bytes());
    control.store(Lent::PUBLISHED_AT, &1u32.to_le_bytes());
    assert_eq!(control.word(Lent::STATE_AT), LENT_OPEN, "it is committed");
    drop(data);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    assert!(keep.next_ready().is_some());
    assert_eq!(control.complete(), Some(0));
    assert_eq!(control.word(Lent::TAKEN_AT), 1);
    keep.terminate();
}

#[test]
fn nothing_that_is_sent_there_touches_an_image() {
    let dir = folder(&[("a.img", "4M"), ("b.img", "4M")]);
    std::fs::write(dir.path().join("a.img"), vec![0xa5; 4 << 20]).unwrap();
    let daemon = serve(dir.path(), "power-window=50ms");
    let mut control = Guest::connect(&dir.path().join("cd"));
    for (offset, bytes) in [
        (0, 512),
        (0, 1 << 20),
        (SLOT, 512),
        (SLOT, 1 << 20),
        (SLOT + 512, 4096),
        ((64 << 20) - 512, 512),
        (64 << 20, 512),
        (u64::MAX - 511, 512),
    ] {
        assert_ne!(control.try_write(offset, &vec![0xff; bytes]), 0, "{bytes} bytes at {offset}");
    }
    assert_eq!(answer(&mut control, SLOT).status.get(), STATUS_MALFORMED);
    assert_eq!(control.try_flush(), 0);
    assert_eq!(ask(&mut control, Command::new(OPERATION_VFLUSH, 2)).status.get(), STATUS_DONE);
    assert_eq!(status(dir.path())["control_disk"]["refused"], 6);
    assert_eq!(status(dir.path())["sequence"]["acknowledged"], 0);
    daemon.terminate();
    assert_eq!(std::fs::read(dir.path().join("a.img")).unwrap(), vec![0xa5; 4 << 20]);
    assert_eq!(std::fs::read(dir.path().join("b.img")).unwrap(), vec![0; 4 << 20]);
}

/// A pause of the disks holds writes back, and no flush; the end of the daemon waits for nobody.
#[test]
fn a_pause_and_an_end_do_not_hang() {
    let dir = folder(&[("a.img", "4M"), ("b.img", "4M")]);
    let daemon = serve(dir.path(), "power-window=10s");
    let mut a = Guest::connect(&dir.path().join("a"));
    let mut control = Guest::connect(&dir.path().join("cd"));
    a.write(0, &[1; 4096]);
    let pause = ["ctl", "c", "pause", "--", env!("CARGO_BIN_EXE_afterimage"), "ctl", "c", "status"];
    succeeds(dir.path(), &pause);
    assert_eq!(ask(&mut control, Command::new(OPERATION_VFLUSH, 2)).status.get(), STATUS_DONE);
    let mut wait = Command::new(OPERATION_WAIT, 3);
    wait.timeout_ms = 1000.into();
    a.write(0, &[2; 4096]);
    control.start_write(SLOT, wait.seal().as_bytes());
    daemon.terminate();
}

#[test]
fn its_socket_is_its_own() {
    let dir = folder(&[("a.img", "1M")]);
    refused(
        dir.path(),
        &["serve", "--disk", "a.img,socket=s", "--control-disk", "s"],
        2,
        &["s is the socket of disk a.img and of the control disk"],
    );
    refused(dir.path(), &["serve", "--disk", "a.img", "--control-disk", "a.img"], 2, &["a.img is an image"]);
}
