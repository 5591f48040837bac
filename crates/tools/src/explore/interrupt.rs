//! Ctrl-C, SIGTERM and SIGHUP end a recording or a campaign in order: what there is so far is kept and reported.

use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use afterimage::failure::Failure;

/// As a shell reports the end by SIGINT.
pub const STATUS: u8 = 130;

/// A flag that the first signal raises; the second one ends the program at once.
pub fn flag() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, STATUS.into(), Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(|e| Failure::failed(format!("cannot watch for signals: {e}")))?;
    }
    Ok(flag)
}
