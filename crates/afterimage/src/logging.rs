//! Log messages go to stderr through `tracing`; what a command answers goes to stdout.

use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::EnvFilter;

use crate::cli::{LogFormat, Logging};
use crate::unread::Unread;

/// What a program's log is to its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Somebody waits for the end of the work, and reads along.
    Beside,
    /// The same, but the answer is what counts: only warnings are shown unless more is asked for.
    Quiet,
    /// Guests wait for the work: it never waits for who reads ([`Unread`]).
    Unread,
}

/// Installs the subscriber. Later calls in one process (tests) have no effect.
pub fn start(options: &Logging, log: Log) {
    let level = match options.verbose {
        0 if log == Log::Quiet => "warn",
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    let asked = std::env::var_os(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let asked = asked.to_string_lossy();
    // An empty variable is what a unit file leaves that sets none; as a filter it would hide all but errors.
    let parsed = (!asked.trim().is_empty()).then(|| EnvFilter::try_new(&asked));
    let refused = matches!(parsed, Some(Err(_)));
    let filter = parsed.and_then(Result::ok).unwrap_or_else(|| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(match log {
            Log::Unread => BoxMakeWriter::new(Unread::new(options.log_format)),
            Log::Beside | Log::Quiet => BoxMakeWriter::new(std::io::stderr),
        })
        // It would be told of a message that cannot be written by a panic.
        .log_internal_errors(false);
    let result = match options.log_format {
        LogFormat::Text => builder.with_target(options.verbose > 0).with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    // Somebody else installed one before: in a test that is fine, and a program has only one call.
    drop(result);
    if refused {
        tracing::warn!("RUST_LOG={asked} is not a filter and has no effect: write it as in debug, or info,afterimage=debug");
    }
}
