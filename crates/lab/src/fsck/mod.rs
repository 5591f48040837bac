//! `e2fsck` as the judge of a recovered ext4: mends orphans and totals, and nothing else.
//!
//! ```text
//!   a copy ─► e2fsck -fy: says anything but RECOVERY? ─► e2fsck -fn: clean?
//! ```
//!
//! Outcomes that a crash may leave an ext4 in: clean; or a journal to be replayed, files that were unlinked or truncated
//! while open (on the orphan list), and totals in the superblock that lag (the kernel keeps the real ones in memory).
//! Whatever else has to be mended was ordered by the journal.

mod said;

use std::path::Path;
use std::process::Command;

use crate::error::{Context, LabError, Result};
use crate::locate::system_program;
pub use said::unexpected;

/// The clock that e2fsck is given, in seconds since 1970 (2036-01-01): later than any guest's, so that nothing is called
/// from the future because it was made elsewhere, and the same on every run.
pub const CLOCK_S: &str = "2082758400";

/// What it said, and its exit status, a sum (e2fsck(8)); −1 if it was killed.
fn run(mode: &str, image: &Path, offset_bytes: u64) -> Result<(String, i32)> {
    let mut command = Command::new(system_program("e2fsck", "e2fsprogs")?);
    command.env_clear().env("LC_ALL", "C").env("E2FSCK_TIME", CLOCK_S).args([mode, "-E", "fixes_only"]);
    let name = match offset_bytes {
        0 => image.display().to_string(),
        _ => format!("{}?offset={offset_bytes}", image.display()),
    };
    let output = command.arg(name).output().context(|| "run e2fsck".to_owned())?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((said, output.status.code().unwrap_or(-1)))
}

/// Mends the file system in `image`, and judges what had to be mended. Returns what e2fsck said.
///
/// # Errors
/// [`LabError::Broken`] where it mends more than a crash may leave, or finds anything afterwards.
pub fn mend(image: &Path) -> Result<String> {
    let (said, status) = run("-fy", image, 0)?;
    if let Some(line) = unexpected(&said) {
        return Err(LabError::Broken(format!(
            "e2fsck had to mend more than a crash may leave: {line}\n{said}"
        )));
    }
    // 1: errors were corrected, which orphans are.
    if !(0..=1).contains(&status) {
        return Err(LabError::Broken(format!("e2fsck -fy ended with {status}\n{said}")));
    }
    clean(image, 0)?;
    Ok(said)
}

/// Checks one that needs nothing mended, and begins so many bytes into `image`.
///
/// # Errors
/// [`LabError::Broken`] where e2fsck finds anything.
pub fn clean(image: &Path, offset_bytes: u64) -> Result<()> {
    match run("-fn", image, offset_bytes)? {
        (_, 0) => Ok(()),
        (said, status) => Err(LabError::Broken(format!("e2fsck -fn ended with {status}\n{said}"))),
    }
}
