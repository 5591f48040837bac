//! One file per subcommand.

pub mod arenas;
pub mod check;
pub mod create;
pub mod ctl;
pub mod guest_user;
mod ijournal;
pub mod inspect;
pub mod keep;
pub mod man;
pub mod recover;
pub mod serve;

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The images whose retained journals belong to what was asked about: those of a group's log, or the path itself.
fn images_of<'a>(path: &'a Path, logged: impl Iterator<Item = &'a PathBuf>) -> Vec<&'a Path> {
    let logged: Vec<&Path> = logged.map(PathBuf::as_path).collect();
    if logged.is_empty() {
        vec![path]
    } else {
        logged
    }
}

/// Whether a report of this file can be said, before anything is done: JSON has no word for a name that is not UTF-8.
///
/// # Errors
/// It cannot.
pub fn can_say(file: &Path, json: bool) -> Result<(), Failure> {
    // A report names files by their whole path, too.
    let path = file.canonicalize().or_else(|_| std::path::absolute(file)).unwrap_or_else(|_| file.to_owned());
    [file, &path].iter().try_for_each(|path| can_say_name(path, json))
}

/// As [`can_say`], of what names a file as it was named.
///
/// # Errors
/// It cannot.
pub fn can_say_name(path: &Path, json: bool) -> Result<(), Failure> {
    if json && path.to_str().is_none() {
        let path = path.display();
        return Err(Failure::usage(format!(
            "--json: JSON cannot say {path}, which is not UTF-8: leave --json out"
        )));
    }
    Ok(())
}

/// Prints a report: as JSON on one line, or as its author shows it to people.
///
/// # Errors
/// As [`print_line`].
pub fn print_report<T: serde::Serialize + std::fmt::Display>(report: &T, json: bool) -> Result<(), Failure> {
    let text = if json { to_json(report)? } else { report.to_string() };
    print_line(text.trim_end())
}

/// JSON on one line.
///
/// # Errors
/// The value cannot be written as JSON.
pub fn to_json<T: serde::Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|e| Failure::failed(format!("cannot write the answer as JSON: {e}")))
}

/// One line on stdout, at once. A reader that went away is an error, not a panic.
///
/// # Errors
/// Stdout takes nothing.
pub fn print_line(line: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|e| Failure::failed(format!("cannot write the answer to stdout: {e}")))
}
