//! Whether a daemon can protect a guest's pages instead of copying them, as VMA does (§ 3.2), and what that would cost: an experiment, to be run by hand.
//!
//! `cargo test --release -p afterimage-journal --test protect_cost -- --ignored --nocapture`
//!
//! `protect_cost.c` does it: system calls on memory that another process stores to meanwhile. What it says is in `docs/guest-kernel.md`.

use std::path::Path;
use std::process::Command;

#[test]
#[ignore = "a measurement"]
fn what_protecting_a_page_costs() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("protect_cost");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protect_cost.c");
    let built = Command::new("cc").args(["-O2", "-Wall", "-Werror", "-o"]).arg(&program).arg(source).status();
    assert!(built.unwrap().success());
    let ran = Command::new(&program).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let said = String::from_utf8(ran.stdout).unwrap();
    print!("{said}");
    // The other process is stopped by none of them. Where that changes, write protection can be built.
    assert_eq!(said.matches("the other's stores go on").count(), 5, "{said}");
}
