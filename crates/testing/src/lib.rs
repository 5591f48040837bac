//! What the tests of all crates share.
//!
//! A test that cannot run here has not passed. libtest knows no third outcome, so [`skip`] names it: `./x test` counts
//! what was skipped, says why, and lets nothing be skipped on a machine that can run everything.

mod stuck;
mod uml;

pub use stuck::StuckMemory;
pub use uml::uml_preload;

use std::fmt::Display;
use std::io::Write as _;
use std::process::Command;

mod storage;

pub use storage::{command, in_namespace, is_inside, on_a_device, FailingStorage, INSIDE};

/// Names a file to which [`skip`] appends a line for each test.
pub const SKIPPED: &str = "AFTERIMAGE_SKIPPED";
/// Set to `1`, a test that cannot run fails.
pub const NO_SKIP: &str = "AFTERIMAGE_NO_SKIP";

/// Says that the test that calls it, or the rest of it, cannot run on this machine, and why: `return skip("needs root")`.
///
/// # Panics
///
/// Under [`NO_SKIP`], and if the file that [`SKIPPED`] names cannot be written: a skip that nobody hears of is a pass.
#[track_caller]
pub fn skip(why: impl Display) {
    let place = std::panic::Location::caller();
    let thread = std::thread::current();
    // libtest names a test's thread after it.
    let line = format!("{} ({}:{}): {why}", thread.name().unwrap_or("?"), place.file(), place.line());
    assert!(
        std::env::var_os(NO_SKIP).is_none_or(|set| set != "1"),
        "skipped in spite of {NO_SKIP}=1: {line}"
    );
    eprintln!("skipped: {line}");
    if let Some(list) = std::env::var_os(SKIPPED) {
        let list = std::fs::OpenOptions::new().create(true).append(true).open(list);
        // One write: tests of several programs append at once.
        list.and_then(|mut list| list.write_all(format!("{line}\n").as_bytes()))
            .expect("the list of skipped tests");
    }
}

/// Whether this is root, of this user namespace at least.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// `unshare`, for a program (its next arguments) with mounts of its own that go with it; or why that cannot be here.
/// Who is not root becomes root of a user namespace: that may mount a tmpfs, but no block device.
///
/// # Errors
///
/// Why not, for [`skip`].
pub fn own_mounts() -> Result<Command, String> {
    let user: &[&str] = if is_root() { &[] } else { &["--user", "--map-root-user"] };
    // In a chroot propagation cannot be changed. Where nothing is shared, that is not needed either.
    let private =
        std::fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| !mounts.contains(" shared:"));
    let unchanged: &[&str] = if private { &["--propagation", "unchanged"] } else { &[] };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(user).arg("--mount").args(unchanged);
        command
    };
    match unshare().arg("true").output() {
        Ok(output) if output.status.success() => Ok(unshare()),
        Ok(output) => {
            Err(format!("no mount namespaces here: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
        Err(error) => Err(format!("running unshare: {error}")),
    }
}
