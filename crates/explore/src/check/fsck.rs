//! The guest's file system as `e2fsck` recovers and judges it.
//!
//! ```text
//!   base ─► + the state ─► e2fsck -fy: recovers the journal ─► only messages of RECOVERY? ─► e2fsck -fn: clean?
//!                              │ anything else: inconsistent, in its own words                   │
//!                              └──────────────── restore the base ◄──────────────────────────────┘
//! ```
//!
//! Outcomes that a crash may leave an ext4 in: clean; or a journal to be replayed, files that were unlinked or truncated
//! while open (on the orphan list), and totals in the superblock that lag (the kernel keeps the real ones in memory).
//! Whatever else has to be repaired was ordered by the journal, so it is the storage below that broke it.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use afterimage_lab::locate::system_program;
use rustix::process::{prlimit, Pid, Resource, Rlimit};

use super::resident::Resident;
use super::{Checker, Observation};
use crate::state::Scratch;
use crate::{ExploreError, Result};

/// The clock that e2fsck is given, in seconds since 1970 (2036-01-01): later than any guest's, so that no state is called
/// one from the future because it was recorded elsewhere, and the same on every run.
const CLOCK_S: &str = "2082758400";

/// Processor time that e2fsck may take, in seconds: one that goes round in circles is killed, and its state inconsistent.
const CPU_S_MAX: u64 = 60;

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
const RECOVERY: [(&str, Text); 17] = [
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
    (
        "PR_6_ORPHAN_PRESENT_CLEAN_FILE",
        Text::Whole("Feature orphan_present is set but orphan file is clean."),
    ),
    // Totals in the superblock.
    ("PR_0_FREE_INODE_COUNT", Text::Begins("Setting free inodes count to ")),
    ("PR_0_FREE_BLOCK_COUNT", Text::Begins("Setting free blocks count to ")),
    ("PR_5_FREE_INODE_COUNT", Text::Both("Free inodes count wrong (", ").")),
    ("PR_5_FREE_BLOCK_COUNT", Text::Both("Free blocks count wrong (", ").")),
    // The answer to a question above.
    ("-y", Text::Whole("Fix? yes")),
];

/// The line that recovery should not have said, if there is one.
fn unexpected(output: &str) -> Option<&str> {
    output
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .find(|line| !RECOVERY.iter().any(|(_, text)| text.fits(line)))
}

/// Which of the guest's disks hold the file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct FsckOptions {
    /// The disk with the ext4 on it, whole, without a partition table.
    pub disk: usize,
    /// The disk with its external journal (`mke2fs -O journal_dev`), if there is one.
    pub journal: Option<usize>,
}

/// See the module. One per thread: each owns a file of the disk's size in memory.
#[derive(Debug)]
pub struct Fsck {
    program: PathBuf,
    options: FsckOptions,
    disk: Option<Resident>,
    journal: Option<Resident>,
    restored_pages: u64,
}

impl Fsck {
    /// For groups whose first disk is an ext4.
    ///
    /// # Errors
    /// e2fsck is not installed.
    pub fn new() -> Result<Self> {
        Self::with(FsckOptions::default())
    }

    /// For others.
    ///
    /// # Errors
    /// e2fsck is not installed.
    pub fn with(options: FsckOptions) -> Result<Self> {
        let program = system_program("e2fsck", "e2fsprogs")?;
        Ok(Self { program, options, disk: None, journal: None, restored_pages: 0 })
    }

    /// Pages that had to be put back so far, of all states.
    pub fn restored_pages(&self) -> u64 {
        self.restored_pages
    }

    fn run(&self, mode: &str) -> Result<Output> {
        let disk = self.disk.as_ref().ok_or_else(|| ExploreError::Checker("no disk to check".to_owned()))?;
        let mut command = Command::new(&self.program);
        command.env_clear().env("LC_ALL", "C").env("E2FSCK_TIME", CLOCK_S);
        // No messages about what could be smaller or faster: they are no complaints.
        command.args([mode, "-E", "fixes_only"]);
        if let Some(journal) = &self.journal {
            command.arg("-j").arg(journal.path());
        }
        command.arg(disk.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = || ExploreError::io(format!("run {}", self.program.display()));
        let child = command.spawn().map_err(failed())?;
        // Set from here: a limit that the child sets itself before exec would need a fork, which costs more than the check.
        if let Some(pid) = Pid::from_raw(child.id() as i32) {
            let limit = Rlimit { current: Some(CPU_S_MAX), maximum: Some(CPU_S_MAX) };
            match prlimit(Some(pid), Resource::Cpu, limit) {
                // It may have ended already.
                Ok(_) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(failed()(error.into())),
            }
        }
        child.wait_with_output().map_err(failed())
    }

    fn judge(&self) -> Result<Observation> {
        let repaired = self.run("-fy")?;
        let words = words(&repaired);
        // The exit status is a sum (e2fsck(8)): 1 errors corrected, which a replayed orphan list is.
        let status = repaired.status.code();
        let what = match (status, unexpected(&words)) {
            (Some(0 | 1), None) => {
                let clean = self.run("-fn")?;
                if clean.status.code() == Some(0) {
                    return Ok(Observation::Sound);
                }
                let evidence = format!("{words}\n--- e2fsck -fn afterwards ---\n{}", self::words(&clean));
                let what = "e2fsck -fn finds errors after recovery".to_owned();
                return Ok(Observation::Inconsistent { what, evidence });
            }
            (Some(0..=7), Some(line)) => format!("e2fsck had to repair more than a crash may leave: {line}"),
            (Some(8), _) => format!("e2fsck can not open the file system: {}", last_line(&words)),
            (Some(code), _) => format!("e2fsck -fy ended with status {code}: {}", last_line(&words)),
            (None, _) => format!("e2fsck -fy died ({}): {}", repaired.status, last_line(&words)),
        };
        Ok(Observation::Inconsistent { what, evidence: words })
    }

    fn load(slot: &mut Option<Resident>, disks: &[Arc<Scratch>], index: usize) -> Result<()> {
        let scratch = disks.get(index).ok_or_else(|| {
            ExploreError::Usage(format!("e2fsck is to check disk {index}, but the guest has {}", disks.len()))
        })?;
        let base = scratch.image().base();
        match slot {
            Some(resident) if resident.bytes() == base.len() => resident.rebase(base)?,
            _ => *slot = Some(Resident::new(base)?),
        }
        if let Some(resident) = slot {
            resident.apply(scratch);
        }
        Ok(())
    }
}

impl Checker for Fsck {
    fn name(&self) -> &'static str {
        "e2fsck"
    }

    fn check(&mut self, disks: &[Arc<Scratch>]) -> Result<Observation> {
        Self::load(&mut self.disk, disks, self.options.disk)?;
        if let Some(journal) = self.options.journal {
            Self::load(&mut self.journal, disks, journal)?;
        }
        let observation = self.judge();
        for resident in self.disk.iter_mut().chain(&mut self.journal) {
            self.restored_pages += resident.restore()? as u64;
        }
        observation
    }
}

/// Refuses what e2fsck can not judge.
///
/// # Errors
/// [`ExploreError::Usage`], which says what to use instead.
pub fn supports(file_system: &str) -> Result<()> {
    match file_system {
        "ext2" | "ext3" | "ext4" => Ok(()),
        other => Err(ExploreError::Usage(format!(
            "the e2fsck level can not check {other}: use ext4, or leave the level out and let guests mount the states"
        ))),
    }
}

pub(super) fn words(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text
}

fn last_line(text: &str) -> &str {
    // The version goes to the standard error, which comes last.
    let lines =
        || text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("e2fsck 1."));
    lines().next_back().unwrap_or("it said nothing")
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
        ] {
            assert_eq!(unexpected(&format!("{fine}{wrong}\n")), Some(wrong));
        }
    }

    #[test]
    fn other_file_systems_are_refused() {
        assert!(supports("ext4").is_ok());
        assert!(supports("xfs").unwrap_err().to_string().contains("xfs"));
    }
}
