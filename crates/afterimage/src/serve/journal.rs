//! `--journal` and what belongs to it.

use std::path::PathBuf;

use afterimage_journal::group::JournalOptions;
use afterimage_order::Contract;

use super::args::{pick, place, Args};
use super::config::Config;
use crate::failure::Failure;
use crate::units::parse_size;

/// What the command line, and else the file, says of the guest's journals.
pub(super) fn options(args: &Args, config: &Config, contract: Contract) -> Result<JournalOptions, Failure> {
    let mut options = JournalOptions::passthrough();
    if let Some((mode, from_args)) = pick(&args.journal, &config.journal) {
        (options.retain, options.drop_journal) = match mode {
            "passthrough" => (false, false),
            "retain" => (true, false),
            // For the bench, which measures retention against it; not advertised, because it loses data.
            "drop-for-bench" => (true, true),
            other => {
                let place = place(args, "--journal", from_args);
                return Err(Failure::usage(format!(
                    "{place}: `{other}` is not known: write passthrough or retain"
                )));
            }
        };
    }
    if let Some((text, from_args)) = pick(&args.retain_max, &config.retain_max) {
        let place = place(args, "--retain-max", from_args);
        options.retain_bytes_max = parse_size(text).map_err(|e| Failure::usage(format!("{place}: {e}")))?;
        if options.retain_bytes_max < JournalOptions::RETAIN_MIN_BYTES {
            return Err(Failure::usage(format!(
                "{place} {text}: retaining needs at least {} bytes",
                JournalOptions::RETAIN_MIN_BYTES
            )));
        }
        if options.retain_bytes_max > JournalOptions::RETAIN_MAX_BYTES {
            return Err(Failure::usage(format!(
                "{place} {text}: at most {} bytes can be retained",
                JournalOptions::RETAIN_MAX_BYTES
            )));
        }
    }
    if let Some(folder) = args.arena.as_ref().or(config.arena.as_ref()) {
        options.arena_folder = PathBuf::from(folder);
    }
    options.accept_loss = args.accept_loss || config.accept_loss;
    options.vflush_at_truncation = args.vflush_at_truncation || config.vflush_at_truncation;
    if options.retain && contract == Contract::Power {
        return Err(Failure::usage(format!(
            "{} {} does not go with `power`: choose --survives power-window=50ms (a power cut loses at most the \
             last 50 ms of acknowledgements) or --survives guest-crash (a power cut leaves the disk undefined)",
            place(args, "--journal", args.journal.is_some()),
            options.mode()
        )));
    }
    // Of a file, only where it is at odds with itself: one that retains must go with a command line that does not.
    let of_file = args.journal.is_none();
    let alone = [
        ("--retain-max", args.retain_max.is_some(), config.retain_max.is_some()),
        ("--arena", args.arena.is_some(), config.arena.is_some()),
        ("--vflush-at-truncation", args.vflush_at_truncation, config.vflush_at_truncation),
    ];
    let useless = |(flag, in_args, in_file): (&str, bool, bool)| {
        (in_args || (in_file && of_file)).then(|| place(args, flag, in_args))
    };
    if let Some(place) = alone.into_iter().find_map(useless).filter(|_| !options.retain) {
        return Err(Failure::usage(format!(
            "{place} says how journals are retained: add --journal retain, or leave it out"
        )));
    }
    Ok(options)
}
