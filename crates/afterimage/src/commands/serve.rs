//! `afterimage serve`

pub use crate::serve::args::Args;

use crate::failure::Failure;
use crate::serve::daemon;
use crate::serve::settings::Settings;

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
    if args.check_options {
        return daemon::check_kept(&settings);
    }
    let keep = daemon::keep_from_environment()?;
    daemon::run(&settings, keep, args.json)
}
