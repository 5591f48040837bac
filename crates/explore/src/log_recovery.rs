//! The daemon's own recovery of a crash state.
//!
//! ```text
//!   state (images, log) ─► Scratch media ─► Redo::open ─► everything home ─► images for the guest's recovery, digest
//!                                              └ refuses: the state is inconsistent, and the refusal says why
//! ```
//!
//! What runs is the code that `serve` runs after a crash, up to where it would take requests. Then everything goes home, as
//! it would at the orderly end, so that the images alone are the disks. Who a file is (path, inode, times, lock) is no part
//! of a crash state and not looked at.

use std::ops::RangeInclusive;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::Medium;
use afterimage_order::redo::{Config, Redo, TakeOverError};
use afterimage_order::{Replayed, VirtualClock};

use crate::hash;
use crate::layers::Configure;
use crate::own::{self, OwnRecovery};
use crate::prefix::{Breach, Prefixes};
use crate::state::{Image, Scratch};

/// How states are recovered.
#[derive(Clone, Default)]
pub struct RecoveryOptions {
    /// A mistake: the newest so many durable records are gone before recovery looks, and nothing in the log shows it.
    pub lose_records: usize,
    /// For proofs that mistakes are found: changes the configuration of the core under test.
    pub configure: Option<Configure>,
}

/// A state after recovery.
#[derive(Debug)]
pub struct Recovered {
    /// The disks, by index.
    pub images: Vec<Arc<Scratch>>,
    /// The log as recovery has left it; `None` for a contract without one.
    pub log: Option<Arc<Scratch>>,
    /// Digest of all disks, as in [`crate::prefix::Prefixes`].
    pub digest: u128,
    /// The sequence number up to which everything is there; 0 without a log.
    pub sequence: u64,
    /// What was in the log; `None`: nothing.
    pub replayed: Option<Replayed>,
}

/// The daemon would refuse to serve the state.
#[derive(Debug, thiserror::Error)]
#[error("the redo log is refused: {why}")]
pub struct Refused {
    /// The daemon's sentence.
    pub why: String,
}

/// Recovers a state whose media are the images by disk index, and then the log where there is one: the order of
/// [`crate::stream::Stream::media`].
///
/// # Errors
/// The daemon refuses: after a crash of honest storage that is an inconsistency.
pub fn recover(media: Vec<Image>, log: bool, options: &RecoveryOptions) -> Result<Recovered, Refused> {
    let mut images: Vec<Arc<Scratch>> =
        media.into_iter().map(|image| Arc::new(Scratch::new(image))).collect();
    let log = if log { images.pop() } else { None };
    let Some(log) = log else {
        let digest = images.iter().fold(0, |digest, image| digest ^ image.digest());
        return Ok(Recovered { images, log: None, digest, sequence: 0, replayed: None });
    };
    if options.lose_records > 0 {
        crate::fault::tail::lose_tail(&log, options.lose_records).map_err(|why| Refused { why })?;
    }
    // A daemon that panics at what a crash has left is as bad as one that refuses it. Media and core are thrown away then.
    let home = catch_unwind(AssertUnwindSafe(|| bring_home(&log, &images, options)));
    let (sequence, replayed) = home.unwrap_or_else(|panic| {
        let words =
            panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(Refused { why: format!("its recovery panics: {}", words.unwrap_or("it does not say why")) })
    })?;
    let digest = images.iter().fold(0, |digest, image| digest ^ image.digest());
    Ok(Recovered { images, log: Some(log), digest, sequence, replayed })
}

/// The sequence number up to which everything is there then, and what was in the log.
fn bring_home(
    log: &Arc<Scratch>,
    images: &[Arc<Scratch>],
    options: &RecoveryOptions,
) -> Result<(u64, Option<Replayed>), Refused> {
    match open(log, images, options) {
        Ok(core) => {
            core.going_home.all().map_err(|e| refused(&e))?;
            Ok((core.board.sequence.home.get().0, core.replayed()))
        }
        // The orderly end had brought everything home.
        Err(TakeOverError::Clean) => Ok((0, None)),
        Err(e) => Err(refused(&e)),
    }
}

fn open(
    log: &Arc<Scratch>,
    images: &[Arc<Scratch>],
    options: &RecoveryOptions,
) -> Result<Arc<Redo>, TakeOverError> {
    // New to this log, as one drawn at random would be, and the same for the same state.
    let digest = log.image().digest();
    let incarnation = hash::mix(digest as u64 ^ hash::mix((digest >> 64) as u64));
    let config = Config::new(
        Duration::from_secs(1),
        Arc::new(VirtualClock::default()),
        Arc::clone(log) as Arc<dyn Medium>,
        images.iter().map(|image| Arc::clone(image) as Arc<dyn Medium>).collect(),
        incarnation,
    );
    Redo::open(match &options.configure {
        Some(configure) => configure(config),
        None => config,
    })
}

fn refused(error: &dyn std::fmt::Display) -> Refused {
    Refused { why: error.to_string() }
}

/// The daemon's recovery under `power-window`, judged against the guest's history. Where there is no log, it is judged as it is.
#[derive(Clone)]
pub struct LogRecovery {
    prefixes: Arc<Prefixes>,
    window_ns: u64,
    log: bool,
    options: RecoveryOptions,
}

impl LogRecovery {
    /// For a recording with these prefixes, made under that window, with a log or without.
    pub fn new(prefixes: Arc<Prefixes>, window: Duration, log: bool, options: RecoveryOptions) -> Self {
        Self { prefixes, window_ns: window.as_nanos() as u64, log, options }
    }
}

impl OwnRecovery for LogRecovery {
    fn recover(&self, media: Vec<Image>) -> Result<own::Recovered, String> {
        let Recovered { images, digest, .. } =
            recover(media, self.log, &self.options).map_err(|e| e.to_string())?;
        let prefix = self.prefixes.find(digest).next().ok_or_else(|| Breach::NoPrefix.to_string())?;
        Ok(own::Recovered { disks: images, digest, prefix: prefix as u64 })
    }

    fn promised(&self, prefix: u64, crash: RangeInclusive<usize>) -> Result<usize, String> {
        let digest = self.prefixes.prefix(prefix as usize).digest;
        let k = self.prefixes.judge(digest, crash, 0, self.window_ns).map_err(|e| e.to_string())?;
        Ok(self.prefixes.covered(k))
    }
}
