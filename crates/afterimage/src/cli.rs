//! The command line. Each subcommand's arguments stand in its own file.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

use crate::commands::{arenas, check, create, ctl, guest_user, inspect, keep, man, recover, serve};
use crate::tools;

/// A virtual disk that keeps what the guest committed.
#[derive(Parser, Debug)]
#[command(
    name = "afterimage",
    version = crate::VERSION,
    about = "A virtual disk that keeps what the guest committed, without making it wait for the disk",
    after_help = EXAMPLES,
    max_term_width = 100,
    disable_help_subcommand = true,
    propagate_version = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Logging.
    #[command(flatten)]
    pub logging: Logging,
}

/// One subcommand each; its help is the documentation of its arguments.
#[derive(Subcommand, Debug)]
#[allow(missing_docs)]
pub enum Command {
    Create(create::Args),
    Serve(Box<serve::Args>),
    Check(check::Args),
    Recover(recover::Args),
    Inspect(inspect::Args),
    Arenas(arenas::Args),
    Ctl(ctl::Args),
    Keep(keep::Args),
    GuestUser(guest_user::Args),
    /// Boot a real guest on served disks
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Guest(tools::Args),
    /// Enumerate the states that a crash may leave, recover and check them
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Explore(tools::Args),
    /// Simulate block traces on SSDs with different flash translation layers
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Flash(tools::Args),
    /// Convert and describe block traces
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Trace(tools::Args),
    #[command(hide = true)]
    Man(man::Args),
    #[command(hide = true)]
    Completions(man::CompletionsArgs),
}

/// How much is logged, and how.
#[derive(clap::Args, Debug, Clone)]
pub struct Logging {
    /// Log more to stderr: -v for debug messages, -vv for everything. RUST_LOG overrides it
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// Format of log messages: text or json
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value_t = LogFormat::Text,
        hide_possible_values = true,
        global = true
    )]
    pub log_format: LogFormat,
}

impl Logging {
    /// Has another command line log as this one does, as far as its own options do not say how.
    pub fn pass_on(&self, command: &mut Vec<OsString>) {
        let options = self.beside(command);
        let at = command.len().min(1);
        command.splice(at..at, options);
    }

    /// These options as another command line has to have them, which begins with its subcommand: those that it does not have.
    fn beside(&self, command: &[OsString]) -> Vec<OsString> {
        let whole = std::iter::once(OsString::from("afterimage")).chain(command.iter().cloned());
        // A mistake in it is its own program's to report.
        let Ok(matches) = Cli::command().try_get_matches_from(whole) else { return Vec::new() };
        let theirs = |id| {
            let source = matches.subcommand().and_then(|(_, matches)| matches.value_source(id));
            source == Some(ValueSource::CommandLine)
        };
        let mut options = Vec::new();
        if !theirs("verbose") {
            options.resize(self.verbose.into(), "-v".into());
        }
        if self.log_format == LogFormat::Json && !theirs("log_format") {
            options.extend(["--log-format".into(), "json".into()]);
        }
        options
    }
}

/// How log messages look.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One readable line each.
    Text,
    /// One JSON object a line.
    Json,
}

const EXAMPLES: &str = "\
Examples:
  afterimage create disk.img 10G
  afterimage serve --disk disk.img,socket=/tmp/disk.sock --survives power-window=50ms \\
    --control /tmp/ctl.sock
  qemu-system-x86_64 -M q35,memory-backend=mem \\
    -object memory-backend-memfd,id=mem,size=1G,share=on \\
    -chardev socket,id=c0,path=/tmp/disk.sock,reconnect=1 \\
    -device vhost-user-blk-pci,chardev=c0,num-queues=1
  afterimage ctl /tmp/ctl.sock status
  afterimage ctl /tmp/ctl.sock pause -- cp --sparse=always disk.img backup.img";

/// QEMU's conventions for backend programs call the program without a subcommand: its options alone mean `serve`.
const BACKEND_PROGRAM_OPTIONS: [&str; 5] =
    ["--print-capabilities", "--blk-file", "--socket-path", "--fd", "--read-only"];

/// Inserts `serve` where the first argument is one of QEMU's backend-program options.
pub fn with_implied_serve(mut args: Vec<OsString>) -> Vec<OsString> {
    let implied = args.get(1).and_then(|a| a.to_str()).is_some_and(|first| {
        let name = first.split_once('=').map_or(first, |(name, _)| name);
        BACKEND_PROGRAM_OPTIONS.contains(&name)
    });
    if implied {
        args.insert(1, "serve".into());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_daemon_logs_as_its_keeper_unless_it_is_told_otherwise() {
        for (theirs, passed_on) in [
            (&["serve", "--disk", "a"][..], &["-v", "-v", "--log-format", "json"][..]),
            (&["serve", "-v", "--disk", "a"], &["--log-format", "json"]),
            (&["serve", "--log-format", "text"], &["-v", "-v"]),
            (&["-v", "serve", "--log-format=json"], &[]),
            (&["serve", "--wrong"], &[]),
        ] {
            let theirs: Vec<OsString> = theirs.iter().map(Into::into).collect();
            let ours = Logging { verbose: 2, log_format: LogFormat::Json };
            assert_eq!(ours.beside(&theirs), passed_on, "{theirs:?}");
            assert_eq!(Logging { verbose: 0, log_format: LogFormat::Text }.beside(&theirs), [""; 0]);
        }
    }

    /// QEMU asks for as many queues as the guest has processors unless it is told, and does not start where the daemon has fewer.
    #[test]
    fn qemus_command_lines_say_how_many_queues_there_are() {
        for text in [
            EXAMPLES,
            include_str!("../../../README.md"),
            include_str!("../../../docs/operations.md"),
            include_str!("../../../docs/control-disk.md"),
        ] {
            for device in text.split("vhost-user-blk-pci,").skip(1) {
                let options = device.split_whitespace().next().unwrap_or_default();
                assert!(options.split(',').any(|option| option == "num-queues=1"), "{options}");
            }
        }
    }

    #[test]
    fn qemu_conventions_need_no_subcommand() {
        let args = |list: &[&str]| list.iter().map(Into::into).collect::<Vec<OsString>>();
        assert_eq!(
            with_implied_serve(args(&["afterimage", "--blk-file=x"])),
            args(&["afterimage", "serve", "--blk-file=x"])
        );
        assert_eq!(
            with_implied_serve(args(&["afterimage", "check", "--fd"])),
            args(&["afterimage", "check", "--fd"])
        );
        assert_eq!(with_implied_serve(args(&["afterimage"])), args(&["afterimage"]));
    }
}
