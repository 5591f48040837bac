//! `vext4-recover` as a program.

mod common;

use std::process::{Command, Output};

use common::*;

fn recover(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vext4-recover")).args(arguments).output().unwrap()
}

#[test]
fn exit_statuses_tell_what_became_of_it() {
    let committed = Disk::mkfs(16, &[], &[("kept", pattern(1, 30_000))]);
    let mut running = committed.clone();
    running.debugfs(&["write /etc/passwd /a".into()]);
    let mut writer = Writer::new(committed);
    writer.fsync(&running, "a", true, 1, 0);
    let mut disk = writer.disk;
    disk.as_file(|image| {
        for (arguments, status) in [
            (vec!["--check", image], 3),
            (vec![image], 0),
            (vec!["--check", image], 0),
            (vec![image], 0),
            (vec!["--offset", "4096", image], 1),
            (vec!["/nowhere/at/all"], 1),
            (vec!["--offset", "half", image], 2),
            (vec!["--check"], 2),
            (vec!["areas", "/nowhere/at/all", "--areas", "5", "--blocks", "1048576"], 2),
            (vec!["areas", "/nowhere/at/all", "--areas", "4", "--blocks", "1048576"], 1),
            (vec![], 2),
        ] {
            let output = recover(&arguments);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
            assert_eq!(said.is_empty(), status % 3 == 0, "{arguments:?}: {said}");
        }
    });
    disk.checked("after the program");
}

/// A loop device over a file that had no room: what another writer has lost there is told to whoever opens the device next, and is not recovery's.
#[test]
fn an_error_that_another_writer_has_left_is_not_recoverys() {
    if !afterimage_testing::is_root() {
        afterimage_testing::skip("loop devices are root's");
        return;
    }
    let committed = Disk::mkfs(16, &[], &[("kept", pattern(1, 30_000))]);
    let mut running = committed.clone();
    running.debugfs(&["write /etc/passwd /a".into()]);
    let mut writer = Writer::new(committed);
    writer.fsync(&running, "a", true, 1, 0);
    let mut disk = writer.disk;
    let script = r#"set -e
mkdir "$2"; mount -t tmpfs -o size=8M tmpfs "$2"
cp --sparse=always "$1" "$2/image"; truncate -s 64M "$2/image"
loop=$(losetup -f --show "$2/image")
trap 'losetup -d "$loop"' EXIT
# Behind the file system, and more than there is room for.
dd if=/dev/urandom of="$loop" bs=1M seek=20 count=40 status=none || :
mount -o remount,size=128M "$2"
"$3" "$loop"
dd if="$loop" of="$1" bs=1M count=16 status=none"#;
    let folder = tempfile::tempdir().unwrap();
    let room = folder.path().join("room");
    disk.as_file(|image| {
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", script, "sh", image, room.to_str().unwrap()])
            .arg(env!("CARGO_BIN_EXE_vext4-recover"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
    });
    disk.checked("after the program");
}

/// `FILE.state` says that the image alone is not complete. Whatever it says otherwise: nothing is written.
#[test]
fn an_image_whose_journal_is_in_memory_is_left_alone() {
    let mut disk = Disk::mkfs(16, &[], &[("kept", pattern(1, 30_000))]);
    disk.as_file(|image| {
        let state = format!("{image}.state");
        std::fs::write(&state, "{}").unwrap();
        let before = std::fs::read(image).unwrap();
        for arguments in [vec![image], vec!["--check", image]] {
            let output = recover(&arguments);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains(&state) && said.contains("--accept-loss"), "{said}");
        }
        assert!(before == std::fs::read(image).unwrap());
        std::fs::remove_file(state).unwrap();
        assert_eq!(recover(&[image]).status.code(), Some(0));
    });
}

/// A daemon that was killed keeps its lock until its requests are over.
#[test]
fn a_lock_that_goes_soon_is_waited_for() {
    let mut disk = Disk::mkfs(16, &[], &[]);
    disk.as_file(|image| {
        let held = std::fs::File::open(image).unwrap();
        rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(200));
                drop(held);
            });
            assert_eq!(recover(&[image]).status.code(), Some(0));
        });
        let held = std::fs::File::open(image).unwrap();
        rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert_eq!(recover(&[image]).status.code(), Some(1), "it is in use");
    });
}
