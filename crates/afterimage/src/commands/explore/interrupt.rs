//! Ctrl-C and SIGTERM end a campaign in order: what was found so far is kept and reported.

use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::failure::Failure;

/// A flag that the first signal raises; the second one ends the program at once.
pub fn flag() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(|e| Failure::failed(format!("cannot watch for signals: {e}")))?;
    }
    Ok(flag)
}
