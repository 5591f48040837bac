//! `timed`: what GNU time does, reported to the host: how long a command took.

use std::ffi::OsString;
use std::io;
use std::process::Command;

use afterimage_protocol::report::{Agent, Timed};

use crate::args::{invalid, Arguments};
use crate::report::Report;
use crate::sys;

/// Runs the words after `--` and reports when they have ended; its failure is ours.
///
/// The command's own options must not be taken for ours, so it is read from the process's arguments.
pub fn run(mut arguments: Arguments) -> io::Result<()> {
    let name = arguments.word("the name to report")?;
    let report = Report::open(&mut arguments)?;
    let mut words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    let program: OsString =
        words.next().ok_or_else(|| invalid("a command is missing after --".to_owned()))?;
    let start_ns = sys::monotonic_ns();
    let status = Command::new(&program).args(words).status()?;
    let elapsed_ns = sys::monotonic_ns() - start_ns;
    report.say(&Agent::Timed(Timed { name, elapsed_ns, success: status.success() }))?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{} ended with {status}", program.to_string_lossy())))
    }
}
