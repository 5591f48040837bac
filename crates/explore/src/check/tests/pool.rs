//! The pool with real guests.

use afterimage_lab::locate::system_program;

#[test]
fn the_pool_tells_good_from_bad() {
    if system_program("linux.uml", "user-mode-linux").is_err() {
        eprintln!("NOT TESTED: the pool of guests needs linux.uml (apt-get install user-mode-linux)");
        return;
    }
    let done = crate::check::selftest().unwrap();
    assert!(done.states > 10, "{done:?}");
    eprintln!("{done:?}");
}
