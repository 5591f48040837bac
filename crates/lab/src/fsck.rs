//! `e2fsck` as the judge of a recovered ext4: mends orphans and totals, and nothing else.
//!
//! ```text
//!   a copy ─► e2fsck -fy: says anything but RECOVERY? ─► e2fsck -fn: clean?
//! ```
//!
//! Outcomes that a crash may leave an ext4 in: clean; or a journal to be replayed, files that were unlinked or truncated
//! while open (on the orphan list), and totals in the superblock that lag (the kernel keeps the real ones in memory).
//! Whatever else has to be mended was ordered by the journal.

use std::path::Path;
use std::process::Command;

use crate::error::{Context, LabError, Result};
use crate::locate::system_program;

/// The clock that e2fsck is given, in seconds since 1970 (2036-01-01): later than any guest's.
const CLOCK_S: &str = "2082758400";

/// How lines begin that `e2fsck -fy` may say (e2fsprogs 1.47.0, `e2fsck/problem.c` and `unix.c`).
const BEGINNINGS: [&str; 11] = [
    "e2fsck 1.",
    "Pass 1: ",
    "Pass 2: ",
    "Pass 3: ",
    "Pass 4: ",
    "Pass 5: ",
    // Orphans: unlinked or truncated while open.
    "Clearing orphaned inode ",
    "Truncating orphaned inode ",
    // Totals in the superblock.
    "Setting free inodes count to ",
    "Setting free blocks count to ",
    // The answer to a question.
    "Fix? yes",
];

/// A bit that lags as totals do. The question after it, and after an orphan file whose orphans have just been cleared, is
/// the only one of its kind that is all right.
const ORPHAN_FILE_CLEAN: &str = "Feature orphan_present is set but orphan file is clean.";

/// How such lines end, whatever the image's name.
const ENDINGS: [&str; 2] = [": recovering journal", ": ***** FILE SYSTEM WAS MODIFIED *****"];

fn expected(line: &str) -> bool {
    let total = |what: &str| line.starts_with(what) && line.ends_with(").");
    BEGINNINGS.iter().any(|begin| line.starts_with(begin))
        || ENDINGS.iter().any(|end| line.ends_with(end))
        || total("Free inodes count wrong (")
        || total("Free blocks count wrong (")
        || (line.ends_with(" blocks") && line.contains(" files (") && line.contains("% non-contiguous), "))
}

/// The line that recovery should not have said, if there is one.
fn unexpected(said: &str) -> Option<&str> {
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let before = std::iter::once("").chain(lines.clone());
    let orphan_file = |line: &str| {
        line == ORPHAN_FILE_CLEAN
            || (line.starts_with("Orphan file (inode ") && line.ends_with(" is not clean."))
    };
    lines
        .zip(before)
        .find(|(line, before)| {
            let cleared = *line == "Clear? yes" && orphan_file(before);
            !(expected(line) || orphan_file(line) || cleared)
        })
        .map(|(line, _)| line)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_recovery_may_say() {
        let fine = "disk.raw: recovering journal\nClearing orphaned inode 13 (uid=0, gid=0, mode=0100644, size=0)\n\
            Pass 1: Checking inodes, blocks, and sizes\nFree blocks count wrong (55000, counted=54000).\nFix? yes\n\n\
            disk.raw: ***** FILE SYSTEM WAS MODIFIED *****\n\
            disk.raw: 11/16384 files (0.0% non-contiguous), 9513/65536 blocks\n";
        assert_eq!(unexpected(fine), None);
        for wrong in [
            "Free blocks count wrong for group #0 (100, counted=99).",
            "Block bitmap differences:  +100",
            "Inode 13, i_blocks is 8, should be 16.  Fix? yes",
            "Journal checksum error found in disk.raw",
            "Clear? yes",
        ] {
            assert_eq!(unexpected(&format!("{fine}{wrong}\n")), Some(wrong));
        }
    }
}
