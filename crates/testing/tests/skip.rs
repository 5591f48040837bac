//! That a skipped test is heard of.

use std::process::{Command, Output};

use afterimage_testing::{skip, NO_SKIP, SKIPPED};

#[test]
#[ignore = "run by the others: it skips itself"]
fn one_that_cannot_run() {
    skip("there is no moon");
}

fn run(list: &std::path::Path, no_skip: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "one_that_cannot_run", "--ignored"])
        .env(SKIPPED, list)
        .env(NO_SKIP, no_skip)
        .output()
        .unwrap()
}

#[test]
fn a_skip_is_listed_and_fails_where_none_may_be() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("skip");
    std::fs::create_dir_all(&folder).unwrap();
    let list = folder.join("skipped");
    let _ = std::fs::remove_file(&list);
    for _ in 0..2 {
        assert!(run(&list, "0").status.success());
    }
    let lines = std::fs::read_to_string(&list).unwrap();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.contains("tests/skip.rs:") && lines.contains("there is no moon"), "{lines}");

    let refused = run(&list, "1");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stdout).contains("there is no moon"), "{refused:?}");
    // A list that cannot be written is no reason to keep quiet.
    assert!(!run(&folder, "0").status.success());
}
