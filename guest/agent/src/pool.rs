//! `pool`: a guest that lives long and looks at one disk content after the other.
//!
//! ```text
//!   host swaps the disk's content ─► "ID\n" ─► mount (the kernel recovers) ─► check ─► unmount ─► forget ─► {"pool":"done",…}
//!                                                                            └─► {"pool":"checking"} where there is one
//! ```
//!
//! Between unmount and report nothing of the content stays in this kernel: the last close of a block device drops its
//! page cache, and BLKFLSBUF says so once more. No process is started but for `cmd` checks: in User Mode Linux an exec costs
//! ten times what the mount does.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use afterimage_protocol::report::{Pool, PoolDone, PoolReady, PoolRecords};

use crate::args::{invalid, Arguments};
use crate::found::Found;
use crate::mounts::{KernelLog, Mount};
use crate::report::Report;
use crate::sqlite::Sqlite;
use crate::{editor, verify};

const TARGET: &str = "/mnt";
/// So much of a check's output is reported, its end, in bytes.
const OUTPUT_BYTES_MAX: usize = 6000;
/// So many of the kernel's messages are reported.
const MESSAGES_MAX: usize = 40;

enum Check {
    None,
    Records(String),
    Editor(String),
    Command(String),
    Sqlite(Sqlite),
}

/// Runs until the host closes the channel.
pub fn run(mut arguments: Arguments) -> io::Result<()> {
    let device = arguments.option("device").ok_or_else(|| invalid("--device is missing".to_owned()))?;
    let kind = arguments.option("type").ok_or_else(|| invalid("--type is missing".to_owned()))?;
    let options = arguments.option("options").unwrap_or_default();
    let argument = arguments.option("argument").unwrap_or_default();
    let mut check = match arguments.option("check").as_deref() {
        None => Check::None,
        Some("records") => Check::Records(argument),
        Some("editor") => Check::Editor(argument),
        Some("cmd") => Check::Command(argument),
        Some("sqlite") => Check::Sqlite(Sqlite::new(argument)),
        Some(other) => return Err(invalid(format!("there is no check '{other}'"))),
    };
    let channel = std::env::var("AFTERIMAGE_REPORT")
        .map_err(|_| invalid("AFTERIMAGE_REPORT does not name the channel to the host".to_owned()))?;
    let report = Report::open(&mut arguments)?;
    arguments.finish()?;
    let mount = Mount::new(&device, TARGET, &kind, &options)?;
    let mut kernel = KernelLog::open()?;
    let mut orders = BufReader::new(File::open(channel)?);
    report.say(&Pool::Ready(PoolReady {}))?;
    let mut line = String::new();
    loop {
        line.clear();
        if orders.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let id = line.trim();
        if !id.is_empty() {
            let said = look(id, &mount, &mut check, &mut kernel, &report)?;
            report.say(&said)?;
        }
    }
}

/// One state, from mount to the report.
fn look(
    id: &str,
    mount: &Mount,
    check: &mut Check,
    kernel: &mut KernelLog,
    report: &Report,
) -> io::Result<Pool> {
    // What came before belongs to no state.
    kernel.news()?;
    let number = |result: &io::Result<()>| match result {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    let mounted = mount.mount();
    // From here on the time is the check's, not the kernel's.
    if mounted.is_ok() && !matches!(check, Check::None) {
        report.say(&Pool::Checking(PoolReady {}))?;
    }
    let (found, unmounted) = match &mounted {
        Ok(()) => (run_check(check), mount.unmount()),
        Err(_) => (Found::default(), Ok(())),
    };
    let forgotten = mount.forget();
    let mut kmsg = kernel.news()?;
    kmsg.truncate(MESSAGES_MAX);
    Ok(Pool::Done(PoolDone {
        id: id.to_owned(),
        mount: number(&mounted),
        umount: number(&unmounted),
        forget: number(&forgotten),
        exit: found.exit,
        state: found.state,
        output: tail(&found.output).to_owned(),
        records: found.records.as_ref().map(records),
        kmsg,
    }))
}

fn run_check(check: &mut Check) -> Found {
    let found = match check {
        Check::None => Ok(Found::default()),
        Check::Records(directory) => verify::survey(Path::new(directory))
            .map(|survey| Found { records: Some(survey), ..Found::default() }),
        Check::Editor(file) => editor::version_of(Path::new(file)).map(|version| match version {
            Ok(state) => Found { state: Some(state), ..Found::default() },
            Err(why) => Found::bad(why),
        }),
        Check::Command(command) => run_command(command),
        Check::Sqlite(sqlite) => sqlite.run(),
    };
    found.unwrap_or_else(|error| Found::bad(format!("the check failed: {error}")))
}

/// `sh -c COMMAND`: the state is the last line that it prints.
fn run_command(command: &str) -> io::Result<Found> {
    let output = Command::new("/bin/sh").args(["-c", command]).stdin(Stdio::null()).output()?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    let state = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned);
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok(match output.status.code() {
        Some(0) => Found { state, output: text, ..Found::default() },
        Some(exit) => Found { exit, output: text, ..Found::default() },
        None => Found::bad(format!("the check died: {}\n{text}", output.status)),
    })
}

fn tail(text: &str) -> &str {
    let mut from = text.len().saturating_sub(OUTPUT_BYTES_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// Numbers as runs.
fn records(survey: &verify::Survey) -> PoolRecords {
    let mut present: Vec<(u64, u64)> = Vec::new();
    for number in &survey.present {
        match present.last_mut() {
            Some((_, last)) if *number <= *last + 1 => *last = *number,
            _ => present.push((*number, *number)),
        }
    }
    let torn = survey.torn.iter().map(|(thread, slot)| (*thread, u64::from(*slot))).collect();
    PoolRecords { present, torn, violations: survey.violations.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_runs() {
        let survey =
            verify::Survey { present: vec![1, 2, 3, 7], torn: vec![(0, 9)], violations: vec![(5, 7)] };
        let runs =
            PoolRecords { present: vec![(1, 3), (7, 7)], torn: vec![(0, 9)], violations: vec![(5, 7)] };
        assert_eq!(records(&survey), runs);
    }

    #[test]
    fn a_command_says_the_state_last() {
        let found = run_command("echo one; echo two; echo noise >&2").unwrap();
        assert_eq!((found.exit, found.state.as_deref()), (0, Some("two")));
        let found = run_command("echo mixed; exit 3").unwrap();
        assert_eq!((found.exit, found.state), (3, None));
        assert!(found.output.contains("mixed"));
        assert_eq!(run_command("kill -9 $$").unwrap().exit, 1);
    }

    #[test]
    fn a_long_output_keeps_its_end() {
        let text = format!("{}ü end", "x".repeat(OUTPUT_BYTES_MAX - 5));
        assert!(tail(&text).ends_with("ü end") && tail(&text).len() <= OUTPUT_BYTES_MAX);
    }
}
