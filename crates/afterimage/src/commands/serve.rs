//! `afterimage serve`

pub use crate::serve::args::Args;

use crate::failure::Failure;
use crate::serve::announce::can_announce;
use crate::serve::args::place;
use crate::serve::daemon;
use crate::serve::settings::Settings;
use crate::serve::trace::has_process_id;

/// What QEMU's vhost-user conventions ask a block backend for.
const CAPABILITIES: &str = r#"{"type":"block","features":["read-only","blk-file"]}"#;

/// Runs it.
///
/// # Errors
/// It cannot be served, or has failed while it was.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.print_capabilities {
        return super::print_line(CAPABILITIES);
    }
    let settings = Settings::build(args)?;
    can_announce(&settings, args.json)?;
    if args.check_options {
        return check_kept(args, &settings);
    }
    let keep = daemon::keep_from_environment()?;
    if keep.is_some() {
        check_kept(args, &settings)?;
    }
    settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    daemon::run(&settings, keep, args.json)
}

/// Whether these settings go with `keep`.
fn check_kept(args: &Args, settings: &Settings) -> Result<(), Failure> {
    if settings.recover_ijournal {
        return Err(Failure::usage(format!(
            "{} does not go with `keep`, which keeps the sessions of guests that live",
            place(args, "--recover-ijournal", args.recover_ijournal)
        )));
    }
    match &settings.trace {
        // The second daemon would find the first one's file, and its guests nobody.
        Some(path) if !has_process_id(path) => Err(Failure::usage(format!(
            "{} {}: under `keep` each daemon writes its own trace: put %p (the process id) into the name",
            place(args, "--trace", args.trace.is_some()),
            path.display()
        ))),
        _ => Ok(()),
    }
}
