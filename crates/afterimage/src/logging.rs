//! Log messages go to stderr through `tracing`; what a command answers goes to stdout.

use std::fmt;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
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
    let text = || tracing_subscriber::fmt::format().with_target(options.verbose > 0).with_ansi(false);
    let json = || tracing_subscriber::fmt::format().json().flatten_event(true);
    let result = match (options.log_format, is_journal()) {
        (LogFormat::Text, false) => builder.event_format(text()).try_init(),
        (LogFormat::Text, true) => {
            builder.event_format(Prioritised(text().without_time().with_level(false))).try_init()
        }
        (LogFormat::Json, false) => builder.event_format(json()).fmt_fields(JsonFields::new()).try_init(),
        (LogFormat::Json, true) => {
            builder.event_format(Prioritised(json())).fmt_fields(JsonFields::new()).try_init()
        }
    };
    // Somebody else installed one before: in a test that is fine, and a program has only one call.
    drop(result);
    if refused {
        tracing::warn!(
            "RUST_LOG={asked} is not a filter, and is ignored: write debug, or info,afterimage=debug"
        );
    }
}

/// Whether stderr leads to the journal itself (systemd.exec(5), `JOURNAL_STREAM`): it has its own clock, and reads a line's priority.
pub(crate) fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let stderr = std::fs::metadata("/proc/self/fd/2");
    stderr.is_ok_and(|found| stream == format!("{}:{}", found.dev(), found.ino()))
}

/// What begins a line of that priority (sd-daemon(3)).
pub(crate) fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// One sentence to stderr; what cannot be written is lost.
pub(crate) fn say_error(sentence: &str) {
    let priority = if is_journal() { priority(Level::ERROR) } else { "" };
    drop(writeln!(io::stderr(), "{priority}{sentence}"));
}

/// Lines for the journal.
struct Prioritised<F>(F);

impl<S, N, F> FormatEvent<S, N> for Prioritised<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        writer.write_str(priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}
