//! Log messages go to stderr through `tracing`; what a command answers goes to stdout.

use tracing_subscriber::EnvFilter;

use crate::cli::{LogFormat, Logging};

/// Installs the subscriber. Later calls in one process (tests) have no effect.
///
/// `quiet`: the command's answer is what counts, so that only warnings are shown unless more is asked for.
pub fn start(options: &Logging, quiet: bool) {
    let level = match options.verbose {
        0 if quiet => "warn",
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
        .with_writer(std::io::stderr)
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
