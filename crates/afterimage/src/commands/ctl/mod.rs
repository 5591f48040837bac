//! `afterimage ctl SOCKET …`

mod copy;
mod pause;
mod rounds;
mod show;
mod transfer;

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use crate::control::client::Client;
use crate::control::protocol::{Answer, Request, PAUSE_MS_MAX, WAIT_MS_MAX};
use crate::failure::Failure;
use crate::units::{parse_duration, parse_size, UnitError};

/// How long a daemon may take for an answer that needs no storage.
const PATIENCE: Duration = Duration::from_secs(30);

/// Talk to a running `serve` through its control socket
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The control socket, as in `serve --control`
    socket: PathBuf,
    #[command(subcommand)]
    command: CtlCommand,
    /// Answer as JSON, one object a line
    #[arg(long, global = true)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  afterimage ctl /tmp/ctl.sock status
  afterimage ctl /tmp/ctl.sock flush
  afterimage ctl /tmp/ctl.sock wait 4711 --timeout 1s
  afterimage ctl /tmp/ctl.sock copy /backup
  afterimage ctl /tmp/ctl.sock pause -- cp --sparse=always disk.img backup.img";

#[derive(Subcommand, Debug)]
enum CtlCommand {
    /// Show the contract, sequence numbers, the log, and each disk
    Status,
    /// Make all completed requests durable under any contract, and print the sequence number
    Flush,
    /// Wait until a sequence number is durable; status 1 after the timeout
    Wait {
        /// The sequence number, as `flush` or `status` prints it
        sequence: u64,
        /// Timeout, as in 500ms or 10s: at most 24h
        #[arg(long, value_parser = wait_time, value_name = "TIME")]
        timeout: Option<Duration>,
    },
    /// Print durability and failure events until interrupted
    Events,
    /// Shut the daemon down: everything written back and synced, the log removed
    Stop,
    /// Hold new writes at a consistent point, for a copy of the images
    ///
    /// With a command: runs it, resumes writes, and exits with its status. Without: holds writes until the timeout or an
    /// interrupt. Writes always resume when this program ends. If writes resume early, the command gets SIGTERM, and the
    /// status is 1.
    Pause {
        /// At most this long: 1ms to 10m
        #[arg(long = "for", value_parser = pause_time, value_name = "TIME", default_value = "60s")]
        hold: Duration,
        /// Run this while writes are held
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<std::ffi::OsString>,
    },
    /// End a pause early
    Resume,
    /// Copy every image of the group, at one point of the guest's history, into a folder
    ///
    /// Copies while the guest writes, and repeats changed blocks until few are left. Then it holds writes for at most 100 ms.
    /// A guest that writes faster than the copy is slowed down. Blocks are shared (reflink) if the file system can.
    Copy {
        /// Folder of the copies; existing files are not overwritten
        folder: PathBuf,
        /// Bytes a second, as in 100M; not applied while writes are held
        #[arg(long, value_parser = rate, value_name = "BYTES")]
        rate: Option<u64>,
        /// Print progress on stderr each second
        #[arg(long)]
        progress: bool,
    },
}

/// Runs it.
///
/// # Errors
/// No daemon answers, or it refuses.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut client = Client::connect(&args.socket)?;
    match &args.command {
        CtlCommand::Status => {
            client.set_patience(Some(PATIENCE))?;
            let (text, answer) = client.ask(&Request::Status {})?;
            match answer {
                Answer::Status(_) if args.json => super::print_line(&text),
                Answer::Status(status) => super::print_line(&show::status(&status)),
                _ => Err(unexpected()),
            }
        }
        CtlCommand::Flush => {
            let (text, sequence) = sequence(&mut client, &Request::Flush {})?;
            super::print_line(&if args.json { text } else { sequence.to_string() })
        }
        CtlCommand::Wait { sequence, timeout } => {
            let timeout_ms = timeout.map(millis);
            let (text, answer) = client.ask(&Request::Wait { sequence: *sequence, timeout_ms })?;
            let Answer::Wait(wait) = answer else { return Err(unexpected()) };
            if args.json {
                super::print_line(&text)?;
            }
            if wait.durable {
                return if args.json { Ok(()) } else { super::print_line(&format!("{sequence} is durable")) };
            }
            Err(Failure::failed(format!(
                "sequence number {sequence} is not durable yet after {:?}: wait longer, or use flush",
                Duration::from_millis(timeout_ms.unwrap_or_default())
            )))
        }
        CtlCommand::Events => {
            client.ask(&Request::Events {})?;
            while let Some(line) = client.line()? {
                super::print_line(&if args.json { line } else { show::event(&line) })?;
            }
            Ok(())
        }
        CtlCommand::Stop => done(&mut client, &Request::Stop {}, "closed in order", args.json),
        CtlCommand::Pause { hold, command } => pause::run(&mut client, *hold, command, args.json),
        CtlCommand::Resume => done(&mut client, &Request::Resume {}, "writes go on", args.json),
        CtlCommand::Copy { folder, rate, progress } => {
            copy::run(&mut client, folder, *rate, *progress, args.json)
        }
    }
}

/// Bytes a second.
fn rate(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Ok(0) => {
            Err("a rate of 0 copies nothing: leave --rate out, or give bytes a second, as in 100M".to_owned())
        }
        Ok(rate) => Ok(rate),
        Err(error) => Err(error.to_string()),
    }
}

/// A time that the daemon takes for a pause.
fn pause_time(text: &str) -> Result<Duration, String> {
    time_within(text, 1..=PAUSE_MS_MAX, "a pause lasts 1ms to 10m")
}

/// A time that the daemon takes for a wait.
fn wait_time(text: &str) -> Result<Duration, String> {
    time_within(text, 0..=WAIT_MS_MAX, "a wait lasts at most 24h")
}

fn time_within(text: &str, ms: RangeInclusive<u64>, rule: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(*ms.start())..=Duration::from_millis(*ms.end());
    match parse_duration(text) {
        Ok(time) if range.contains(&time) => Ok(time),
        Ok(_) | Err(UnitError::TooLong(_)) => Err(rule.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn done(client: &mut Client, request: &Request, words: &str, json: bool) -> Result<(), Failure> {
    let (text, _) = client.ask(request)?;
    super::print_line(if json { &text } else { words })
}

/// Asks something that is answered with a sequence number.
fn sequence(client: &mut Client, request: &Request) -> Result<(String, u64), Failure> {
    match client.ask(request)? {
        (text, Answer::Sequence(answer)) => Ok((text, answer.sequence)),
        _ => Err(unexpected()),
    }
}

/// Whole milliseconds, at least one.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn unexpected() -> Failure {
    Failure::failed("the daemon's answer does not fit the request: use the afterimage that serves it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_the_daemons() {
        assert_eq!(pause_time("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(pause_time("10m"), Ok(Duration::from_millis(PAUSE_MS_MAX)));
        assert_eq!(wait_time("24h"), Ok(Duration::from_millis(WAIT_MS_MAX)));
        assert!(pause_time("0.5ms").is_err() && pause_time("600001ms").is_err());
        assert!(wait_time("0").is_ok() && wait_time("24.1h").is_err());
    }
}
