//! Programs that are run, and the processor time of guests and daemons, from `/proc`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use afterimage_lab::locate;

use crate::error::{BenchError, Context, Result};

/// One process's line of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    group: u32,
    own_ticks: u64,
    children_ticks: u64,
}

fn parse(text: &str) -> Option<Stat> {
    // proc(5): the second field may hold anything, so count from behind its bracket.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|digits| digits.parse::<u64>().ok());
    Some(Stat {
        group: u32::try_from(number(2)?).ok()?,
        own_ticks: number(11)? + number(12)?,
        children_ticks: number(13)? + number(14)?,
    })
}

/// Ticks are 1/100 s on every Linux that this runs on.
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / 100.0
}

/// Processor time so far of one process, all its threads, in seconds.
///
/// # Errors
/// It has gone.
pub fn process_cpu_s(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).context(|| format!("read {path}"))?;
    Ok(seconds(parse(&text).map_or(0, |stat| stat.own_ticks)))
}

/// Processor time so far of all processes of some groups, and of their children that have ended: User Mode Linux has
/// a process on the host for each address space of the guest.
///
/// # Errors
/// `/proc` can not be read.
pub fn groups_cpu_s(leaders: &[u32]) -> Result<f64> {
    let mut ticks = 0;
    for entry in fs::read_dir("/proc").context(|| "read /proc".to_owned())? {
        let entry = entry.context(|| "read /proc".to_owned())?;
        if !entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // One that ended meanwhile is in its parent's account.
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some(stat) = parse(&text).filter(|stat| leaders.contains(&stat.group)) {
            ticks += stat.own_ticks + stat.children_ticks;
        }
    }
    Ok(seconds(ticks))
}

/// Runs a command to its successful end.
///
/// # Errors
/// It is not installed, or failed; its last words are in the error.
pub fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    if !name.contains('/') {
        locate::system_program(&name, &name)?;
    }
    let output = command.stdin(Stdio::null()).output().context(|| format!("run {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(BenchError::Workload(format!("{name} failed: {last}")))
}

/// Copies a file; zeroes become holes.
///
/// # Errors
/// `cp` failed.
pub fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("--sparse=always").args([from, to]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let text = "7 (a) b) (c) S 1 42 7 0 -1 0 0 0 0 0 100 20 3 4 20 0 1 0 5";
        assert_eq!(parse(text), Some(Stat { group: 42, own_ticks: 120, children_ticks: 7 }));
        assert_eq!(parse("7 (cut"), None);
    }

    #[test]
    fn work_of_our_own_is_seen() {
        let group = rustix::process::getpgrp().as_raw_nonzero().get() as u32;
        let before = groups_cpu_s(&[group]).unwrap();
        let mut number = 1u64;
        let end = std::time::Instant::now() + std::time::Duration::from_millis(300);
        while std::time::Instant::now() < end {
            number = std::hint::black_box(number.wrapping_mul(3));
        }
        assert!(groups_cpu_s(&[group]).unwrap() > before);
    }
}
