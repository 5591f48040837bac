//! `ctl pause`: the images stand still as a complete prefix while somebody copies them.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use crate::control::client::Client;
use crate::control::protocol::{Answer, Request};
use crate::failure::Failure;

/// Pauses, runs the command or waits, and lets writes go on.
pub fn run(client: &mut Client, hold: Duration, command: &[OsString], json: bool) -> Result<(), Failure> {
    let held = begin(client, hold)?;
    if json {
        super::super::print_line(&held.text)?;
    }
    let Some((program, arguments)) = command.split_first() else {
        if !json {
            let sequence = held.sequence;
            super::super::print_line(&format!(
                "paused at {sequence}: the images may be copied for {hold:?}; interrupt this program to let writes go on"
            ))?;
        }
        // Interrupted or not: when this connection closes, writes go on.
        std::thread::sleep(hold);
        return Ok(());
    };
    let status = Command::new(program).args(arguments).status();
    let resumed = end(client, hold);
    let status =
        status.map_err(|e| Failure::failed(format!("cannot run {}: {e}", program.to_string_lossy())))?;
    resumed?;
    if status.success() {
        return Ok(());
    }
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Err(Failure::Status(u8::try_from(code).unwrap_or(1)))
}

/// A pause in force.
pub(super) struct Held {
    /// The answer's line.
    pub text: String,
    /// What the images hold.
    pub sequence: u64,
}

/// Pauses.
pub(super) fn begin(client: &mut Client, hold: Duration) -> Result<Held, Failure> {
    let (text, sequence) = super::sequence(client, &Request::Pause { for_ms: Some(super::millis(hold)) })?;
    Ok(Held { text, sequence })
}

/// Lets writes go on. Fails if they have gone on before: what was copied meanwhile is then no consistent state.
pub(super) fn end(client: &mut Client, hold: Duration) -> Result<(), Failure> {
    match client.ask(&Request::Resume {}) {
        Ok((_, Answer::Done(_))) => Ok(()),
        Ok(_) => Err(super::unexpected()),
        Err(why) => Err(Failure::failed(format!(
            "{why}; the pause of {hold:?} did not last until the end, so the copy is not consistent: \
             repeat it with a longer --for"
        ))),
    }
}
