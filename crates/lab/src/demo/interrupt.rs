//! Ctrl-C: says so and ends. Guests, daemons, mounts and folders are owned by guards that clean up after this process;
//! only the evidence of the scenario that was cut short has to be removed here.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Context, Result};

/// Watches for signals until the process ends.
#[derive(Debug)]
pub struct Interrupt {
    scratch: Arc<Mutex<Option<PathBuf>>>,
}

impl Interrupt {
    /// Begins to watch for SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// The system has no threads or descriptors left.
    pub fn watch() -> Result<Interrupt> {
        let scratch = Arc::new(Mutex::new(None));
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).context(|| "watch for signals".to_owned())?;
        let theirs: Arc<Mutex<Option<PathBuf>>> = Arc::clone(&scratch);
        std::thread::Builder::new()
            .name("demo-interrupt".to_owned())
            .spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    eprintln!("interrupted: guests, daemons and mounts are being removed");
                    let folder = theirs.lock().take();
                    if let Some(folder) = folder {
                        let _ = fs::remove_dir_all(&folder);
                        // Goes only when it is empty.
                        let _ = folder.parent().map(fs::remove_dir);
                    }
                    // Dies of the signal, as the shell that sent it expects; the guards see the end of their pipes.
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            })
            .context(|| "start a thread".to_owned())?;
        Ok(Interrupt { scratch })
    }

    /// The folder to remove if a signal comes; none between scenarios.
    pub fn scratch(&self, folder: Option<&Path>) {
        *self.scratch.lock() = folder.map(Path::to_path_buf);
    }
}
