//! What `e2fsck -fy` may say of a state that a crash may leave: one table for the guest suites and the explorer.

/// How a message that recovery may print is recognised.
#[derive(Clone, Copy, Debug)]
enum Text {
    /// The whole line.
    Whole(&'static str),
    /// Its beginning.
    Begins(&'static str),
    /// Its end; what comes before is the image's name or label.
    Ends(&'static str),
    /// Both.
    Both(&'static str, &'static str),
    /// How many files and blocks are in use: the last line.
    Summary,
}

impl Text {
    fn fits(self, line: &str) -> bool {
        match self {
            Text::Whole(text) => line == text,
            Text::Begins(begin) => line.starts_with(begin),
            Text::Ends(end) => line.ends_with(end),
            Text::Both(begin, end) => line.starts_with(begin) && line.ends_with(end),
            Text::Summary => {
                line.ends_with(" blocks") && line.contains(" files (") && line.contains("% non-contiguous), ")
            }
        }
    }
}

/// Everything that `e2fsck -fy` may say about a state that a crash may leave (e2fsprogs 1.47.0, `e2fsck/problem.c`; the names are
/// those of its problem codes). Note what is not here: PR_0_JNL_TXN_CORRUPT, which a torn commit block causes (Linux before 6.10
/// refuses to mount then); counts of a group (PR_5_FREE_BLOCK_COUNT_GROUP) and bitmaps are
/// journalled and have to be right.
const RECOVERY: [(&str, Text); 18] = [
    // e2fsck/unix.c
    ("the program's version", Text::Begins("e2fsck 1.")),
    ("journal replay", Text::Ends(": recovering journal")),
    ("PR_1_PASS_HEADER", Text::Begins("Pass 1: ")),
    ("PR_2_PASS_HEADER", Text::Begins("Pass 2: ")),
    ("PR_3_PASS_HEADER", Text::Begins("Pass 3: ")),
    ("PR_4_PASS_HEADER", Text::Begins("Pass 4: ")),
    ("PR_5_PASS_HEADER", Text::Begins("Pass 5: ")),
    ("files and blocks in use", Text::Summary),
    ("the file system was modified", Text::Ends(": ***** FILE SYSTEM WAS MODIFIED *****")),
    // Orphans: unlinked or truncated while open.
    ("PR_0_ORPHAN_CLEAR_INODE", Text::Begins("Clearing orphaned inode ")),
    ("PR_0_ORPHAN_CLEAR_INODE", Text::Begins("Truncating orphaned inode ")),
    ("PR_6_ORPHAN_PRESENT_CLEAN_FILE", Text::Whole(ORPHAN_FILE_CLEAN)),
    ("PR_6_ORPHAN_FILE_NOT_CLEAN", Text::Both("Orphan file (inode ", " is not clean.")),
    // Totals in the superblock.
    ("PR_0_FREE_INODE_COUNT", Text::Begins("Setting free inodes count to ")),
    ("PR_0_FREE_BLOCK_COUNT", Text::Begins("Setting free blocks count to ")),
    ("PR_5_FREE_INODE_COUNT", Text::Both("Free inodes count wrong (", ").")),
    ("PR_5_FREE_BLOCK_COUNT", Text::Both("Free blocks count wrong (", ").")),
    // The answer to a question above.
    ("-y", Text::Whole("Fix? yes")),
];

/// A bit that lags as totals do. The question after it, and after an orphan file whose orphans have just been cleared, is
/// the only one of its kind that is all right.
const ORPHAN_FILE_CLEAN: &str = "Feature orphan_present is set but orphan file is clean.";

fn expected(line: &str) -> bool {
    RECOVERY.iter().any(|(_, text)| text.fits(line))
}

/// The line that recovery should not have said, if there is one.
pub fn unexpected(said: &str) -> Option<&str> {
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let before = std::iter::once("").chain(lines.clone());
    let orphan_file = |line: &str| line == ORPHAN_FILE_CLEAN || line.starts_with("Orphan file (inode ");
    lines
        .zip(before)
        .find(|(line, before)| !(expected(line) || *line == "Clear? yes" && orphan_file(before)))
        .map(|(line, _)| line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_recovery_may_say() {
        let fine = "/proc/1/fd/9: recovering journal\nClearing orphaned inode 13 (uid=0, gid=0, mode=0100644, size=0)\n\
            Pass 1: Checking inodes, blocks, and sizes\nPass 5: Checking group summary information\n\
            Free blocks count wrong (55000, counted=54000).\nFix? yes\n\n\n\
            /proc/1/fd/9: ***** FILE SYSTEM WAS MODIFIED *****\n\
            /proc/1/fd/9: 11/16384 files (0.0% non-contiguous), 9513/65536 blocks\n";
        assert_eq!(unexpected(fine), None);
        for wrong in [
            "Free blocks count wrong for group #0 (100, counted=99).",
            "Block bitmap differences:  +100",
            "Inode 13, i_blocks is 8, should be 16.  Fix? yes",
            "Deleted inode 13 has zero dtime.  Fix? yes",
            "Recovery flag not set in backup superblock, so running journal anyway.",
            "Journal checksum error found in /dev/vda",
            "JBD2: Invalid checksum recovering data block 99 in log",
            "Pass 1B: Rescanning for multiply-claimed blocks",
            "Unconnected directory inode 12 (was in /)",
            "Padding at end of inode bitmap is not set. Fix? yes",
            "Inode 13, i_blocks is 8, should be 16.  Fix? yes",
            "Clear? yes",
        ] {
            assert_eq!(unexpected(&format!("{fine}{wrong}\n")), Some(wrong));
        }
    }

    #[test]
    fn an_orphan_file_may_be_cleared() {
        for about in [ORPHAN_FILE_CLEAN, "Orphan file (inode 12) block 0 is not clean."] {
            assert_eq!(unexpected(&format!("{about}\nClear? yes\n")), None);
        }
        assert_eq!(
            unexpected("Orphan file (inode 12) is damaged\n"),
            Some("Orphan file (inode 12) is damaged")
        );
    }
}
