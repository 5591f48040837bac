//! iJournaling, recovered by `afterimage recover` and by `serve --recover-ijournal`: the same bytes as the library's, and as each other's.

mod common;

use std::fs;
use std::path::Path;

use afterimage_ijournal::fuzz::disk_of;
use common::guest::Guest;
use common::journal::e2fs;
use common::{json, refused, succeeds, Daemon};

/// An ext4 of 9 MiB with six i-transactions, with a second one behind it in a partition, or alone.
fn crashed(dir: &Path) -> Vec<u8> {
    let seed = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/fuzz_ijournal/crashed");
    let disk = disk_of(&fs::read(seed).unwrap()).0;
    fs::write(dir.join("a.img"), &disk).unwrap();
    disk
}

#[test]
fn recover_and_serve_leave_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let before = crashed(dir.path());
    let image = dir.path().join("a.img");
    let words = succeeds(dir.path(), &["recover", "--dry-run", "a.img"]);
    assert!(words.contains("6 valid") && words.contains("2 files created"), "{words}");
    assert!(fs::read(&image).unwrap() == before, "a dry run changes nothing");

    let done = json(dir.path(), &["recover", "--json", "a.img"]);
    let report = &done["ijournal"][0];
    assert_eq!((report["valid"].as_u64(), report["start"].as_u64()), (Some(6), Some(0)), "{done}");
    assert_eq!(report["refused"].as_array().map(Vec::len), Some(0), "{done}");
    e2fs("e2fsck", &["-fn"], &image);
    let recovered = fs::read(&image).unwrap();
    assert!(succeeds(dir.path(), &["recover", "a.img"]).contains("nothing to recover"));

    for survives in ["power", "guest-crash", "power-window=50ms"] {
        crashed(dir.path());
        let args = ["--disk", "a.img", "--survives", survives, "--recover-ijournal"];
        let said = Daemon::serve(dir.path(), &args).terminate();
        assert!(said.contains("6 valid"), "{said}");
        assert!(fs::read(&image).unwrap() == recovered, "{survives}");
    }
    // Nobody asked for it: the guest's own recovery finds it as it was.
    crashed(dir.path());
    Daemon::serve(dir.path(), &["--disk", "a.img"]).terminate();
    assert!(fs::read(&image).unwrap() == before);
}

/// What a log holds comes home before anybody looks for i-transactions: a dry run leaves it there, says so, and is no failure.
#[test]
fn a_log_comes_home_first() {
    let dir = tempfile::tempdir().unwrap();
    let before = crashed(dir.path());
    let last = before.len() as u64 - 4096;
    let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", "power-window=50ms"]);
    Guest::connect(&dir.path().join("a.img.sock")).write(last, &[7; 4096]);
    daemon.kill();
    let words = succeeds(dir.path(), &["recover", "--dry-run", "a.img"]);
    assert!(words.contains("a.img: i-transactions are looked for when the log is home"), "{words}");
    let would = json(dir.path(), &["recover", "--dry-run", "--json", "a.img"]);
    assert_eq!(would["ijournal_unknown"].as_array().map(Vec::len), Some(1), "{would}");
    assert!(succeeds(dir.path(), &["recover", "a.img"]).contains("6 valid"));
    e2fs("e2fsck", &["-fn"], &dir.path().join("a.img"));
    assert_eq!(fs::read(dir.path().join("a.img")).unwrap()[last as usize..], [7; 4096]);
}

/// Such a file system is served with `--journal retain`, and its journal left alone: recovered before, it is an ordinary one.
#[test]
fn a_journal_beside_i_transactions_is_not_retained() {
    let dir = tempfile::tempdir().unwrap();
    let before = crashed(dir.path());
    let image = dir.path().join("a.img");
    let args = ["--disk", "a.img", "--survives", "guest-crash", "--journal", "retain"];
    let said = Daemon::serve(dir.path(), &args).terminate();
    assert!(fs::read(&image).unwrap() == before, "{said}");
    Daemon::serve(dir.path(), &[&args[..], &["--recover-ijournal"]].concat()).terminate();
    e2fs("e2fsck", &["-fn"], &image);
    let left = e2fs("debugfs", &["-R", "ls /new"], &image);
    assert!(left.contains(" a "), "{left}");
}

#[test]
fn keep_and_recovery_exclude_each_other() {
    let dir = tempfile::tempdir().unwrap();
    crashed(dir.path());
    let args = ["keep", "--", "serve", "--disk", "a.img", "--recover-ijournal"];
    refused(dir.path(), &args, 2, &["--recover-ijournal"]);
}
