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

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Instant;

use afterimage_lab::fsck::{unexpected, CLOCK_S};
use afterimage_lab::locate::system_program;
use rustix::process::{prlimit, Pid, Resource, Rlimit};

use super::resident::Resident;
use super::{Checker, Observation};
use crate::state::Scratch;
use crate::{ExploreError, Result};

/// Processor time that e2fsck may take, in seconds: one that goes round in circles is killed, and its state inconsistent.
const CPU_S_MAX: u64 = 60;

/// See the module: of the first disk, whole, without a partition table. One per thread: each owns a file of the disk's size in memory.
#[derive(Debug)]
pub struct Fsck {
    program: PathBuf,
    disk: Option<Resident>,
    restored_pages: u64,
    until: Option<Instant>,
}

impl Fsck {
    /// For groups whose first disk is an ext4.
    ///
    /// # Errors
    /// e2fsck is not installed.
    pub fn new() -> Result<Self> {
        let program = system_program("e2fsck", "e2fsprogs")?;
        Ok(Self { program, disk: None, restored_pages: 0, until: None })
    }

    /// Pages that had to be put back so far, of all states.
    pub fn restored_pages(&self) -> u64 {
        self.restored_pages
    }

    fn run(&self, mode: &str, disk: &Path) -> Result<Output> {
        // No more processor time than there is time at all, in whole seconds.
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()).as_secs() + 1);
        let cpu_s = left.map_or(CPU_S_MAX, |left| left.min(CPU_S_MAX));
        let mut command = Command::new(&self.program);
        command.env_clear().env("LC_ALL", "C").env("E2FSCK_TIME", CLOCK_S);
        // No messages about what could be smaller or faster: they are no complaints.
        command.args([mode, "-E", "fixes_only"]);
        command.arg(disk).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = || ExploreError::io(format!("run {}", self.program.display()));
        let child = command.spawn().map_err(failed())?;
        // Set from here: a limit that the child sets itself before exec would need a fork, which costs more than the check.
        if let Some(pid) = Pid::from_raw(child.id() as i32) {
            let limit = Rlimit { current: Some(cpu_s), maximum: Some(cpu_s) };
            match prlimit(Some(pid), Resource::Cpu, limit) {
                // It may have ended already.
                Ok(_) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(failed()(error.into())),
            }
        }
        let output = child.wait_with_output().map_err(failed())?;
        match output.status.code() {
            None if cpu_s < CPU_S_MAX => Err(ExploreError::OutOfTime),
            _ => Ok(output),
        }
    }

    /// Looks at disks that were unmounted: there is nothing to recover, and nothing is mended.
    ///
    /// # Errors
    /// As [`Checker::check`].
    pub fn clean(&mut self, disks: &[Arc<Scratch>]) -> Result<Observation> {
        self.with_disk(disks, |fsck, disk| {
            let clean = fsck.run("-fn", disk)?;
            Ok(match clean.status.code() {
                Some(0) => Observation::Sound,
                _ => Observation::Inconsistent {
                    what: "e2fsck -fn finds errors after the kernel's own recovery".to_owned(),
                    evidence: words(&clean),
                },
            })
        })
    }

    /// The file that each of these blocks belongs to once the journal is replayed, as debugfs names it, where it belongs to one.
    ///
    /// # Errors
    /// A program cannot be run.
    pub fn names(&mut self, disks: &[Arc<Scratch>], blocks: &[u64]) -> Result<BTreeMap<u64, String>> {
        self.with_disk(disks, |fsck, disk| {
            fsck.run("-fy", disk)?;
            let owners: BTreeMap<u64, u64> = pairs(&debugfs("icheck", blocks.iter(), disk)?)
                .filter_map(|(block, inode)| Some((block, inode.parse().ok()?)))
                .collect();
            let inodes: BTreeSet<&u64> = owners.values().collect();
            let mut paths = BTreeMap::from([(JOURNAL_INODE, "the journal".to_owned())]);
            for (inode, path) in pairs(&debugfs("ncheck", inodes.into_iter(), disk)?) {
                // A name in the root folder begins with two slashes.
                paths.entry(inode).or_insert_with(|| format!("/{}", path.trim_start_matches('/')));
            }
            let name = |inode: u64| paths.get(&inode).cloned().unwrap_or_else(|| format!("inode {inode}"));
            Ok(owners.iter().map(|(block, inode)| (*block, name(*inode))).collect())
        })
    }

    fn with_disk<T>(
        &mut self,
        disks: &[Arc<Scratch>],
        look: impl FnOnce(&Self, &Path) -> Result<T>,
    ) -> Result<T> {
        let scratch = disks.first().ok_or_else(|| ExploreError::Checker("no disk to check".to_owned()))?;
        let base = scratch.image().base();
        let mut disk = match self.disk.take() {
            Some(mut disk) if disk.bytes() == base.len() => {
                disk.rebase(base)?;
                disk
            }
            _ => Resident::new(base)?,
        };
        disk.apply(scratch);
        let found = look(self, &disk.path());
        self.restored_pages += disk.restore()? as u64;
        self.disk = Some(disk);
        found
    }

    fn judge(&self, disk: &Path) -> Result<Observation> {
        let repaired = self.run("-fy", disk)?;
        let words = words(&repaired);
        // The exit status is a sum (e2fsck(8)): 1 errors corrected, which a replayed orphan list is.
        let status = repaired.status.code();
        let what = match (status, unexpected(&words)) {
            (Some(0 | 1), None) => {
                let clean = self.run("-fn", disk)?;
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
}

impl Checker for Fsck {
    fn name(&self) -> &'static str {
        "e2fsck"
    }

    fn check(&mut self, disks: &[Arc<Scratch>]) -> Result<Observation> {
        self.with_disk(disks, Self::judge)
    }

    fn give_up_at(&mut self, until: Option<Instant>) {
        self.until = until;
    }
}

/// `EXT4_JOURNAL_INO`.
const JOURNAL_INODE: u64 = 8;

/// What debugfs says to a request with these numbers.
fn debugfs<'a>(request: &str, numbers: impl Iterator<Item = &'a u64>, disk: &Path) -> Result<String> {
    let numbers: Vec<String> = numbers.map(u64::to_string).collect();
    if numbers.is_empty() {
        return Ok(String::new());
    }
    let program = system_program("debugfs", "e2fsprogs")?;
    let what = format!("run {}", program.display());
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").stdin(Stdio::null());
    command.arg("-R").arg(format!("{request} {}", numbers.join(" "))).arg(disk);
    let output = command.output().map_err(ExploreError::io(what))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Lines of a number and what it has.
fn pairs(text: &str) -> impl Iterator<Item = (u64, &str)> {
    text.lines().filter_map(|line| {
        let (number, what) = line.split_once('\t')?;
        Some((number.parse().ok()?, what))
    })
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
    fn other_file_systems_are_refused() {
        assert!(supports("ext4").is_ok());
        assert!(supports("xfs").unwrap_err().to_string().contains("xfs"));
    }
}
