//! How a recording is to be explored: everything that a campaign, or the repetition of one state, has to know.

use std::sync::Arc;
use std::time::Duration;

use afterimage_order::Contract;
use afterimage_trace::{Layer, Recording, Role};
use serde::{Deserialize, Serialize};

use crate::campaign::Subject;
use crate::check::fsck::{self, Fsck};
use crate::check::pool::{Pool, PoolCheck, PoolOptions, PoolStats, CHECK_TIMEOUT};
use crate::check::Checker;
use crate::layers::{hands_over, retains};
use crate::log_recovery::{LogRecovery, RecoveryOptions};
use crate::marks::{bounds, marks};
use crate::model::{cuts, Model};
use crate::own::OwnRecovery;
use crate::prefix::Prefixes;
use crate::retained::{RetainedOracle, RetainedRecovery};
use crate::schedule::Picking;
use crate::state::SECTOR_BYTES;
use crate::stream::Stream;
use crate::tags::EXT4_MAGIC;
use crate::{process_rule, ExploreError, Result};

/// How far each state is taken.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// The daemon's own recovery, against all prefixes of the guest's history.
    Log,
    /// Also e2fsck: journal replay, orphans and summaries, and nothing else to mend.
    Fsck,
    /// Also mounted by a real guest's kernel, and the application's check.
    Mount,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Which stream crashes.
    pub layer: Layer,
    /// What a crash may leave of it.
    pub model: Model,
    /// How far states are taken.
    pub level: Level,
    /// How states are picked.
    pub picking: Picking,
    /// Of all draws.
    pub seed: u64,
    /// The contract that is judged.
    pub contract: String,
    /// The application's check: `records DIR`, `editor FILE` or `cmd COMMAND`, with the file system mounted at /mnt.
    pub check: Option<String>,
    /// How long the check may take for one state.
    #[serde(default = "check_timeout")]
    pub check_timeout: Duration,
    /// Options with which the guest mounts the file system to check it.
    pub mount_options: String,
    /// Bytes that a disk never tears apart, aligned: 512, or a larger power of two (see [`crate::model`]).
    pub atomic_bytes: u32,
    /// Of the daemon's recovery: the newest so many durable records are made to vanish. A planted fault; 0 in earnest.
    #[serde(default)]
    pub lose_records: usize,
}

impl Setup {
    /// As a recording suggests: what reaches storage under its contract, a disk with a volatile cache, the whole way.
    ///
    /// # Errors
    /// The recording does not say under which contract it was made.
    pub fn of(recording: &Recording) -> Result<Self> {
        let contract = recording.about_text("contract").unwrap_or("power").to_owned();
        let parsed = parse(&contract)?;
        let has_storage = recording.of_layer(Layer::Storage).next().is_some();
        let layer = if has_storage { Layer::Storage } else { Layer::Guest };
        Ok(Self {
            layer,
            // guest-crash promises nothing for a power cut.
            model: if parsed == Contract::GuestCrash { Model::Guest } else { Model::Disk },
            level: Level::Mount,
            picking: Picking::Rounds,
            seed: 1,
            contract,
            check: recording.about_text("check").filter(|check| !check.is_empty()).map(str::to_owned),
            check_timeout: CHECK_TIMEOUT,
            mount_options: recording.about_text("mount").unwrap_or_default().to_owned(),
            atomic_bytes: atomic_bytes(recording, layer),
            lose_records: 0,
        })
    }

    /// The layer's name.
    pub fn layer_name(&self) -> &'static str {
        match self.layer {
            Layer::Guest => "guest",
            Layer::Storage => "storage",
        }
    }

    /// The window of the contract, where it has one.
    ///
    /// # Errors
    /// The contract is none.
    pub fn window(&self) -> Result<Option<Duration>> {
        Ok(match parse(&self.contract)? {
            Contract::PowerWindow { window } => Some(window),
            _ => None,
        })
    }

    /// Prepares a recording.
    ///
    /// # Errors
    /// The combination is not sound, or the recording does not fit.
    pub fn subject(&self, recording: &Recording) -> Result<Subject> {
        let mut stream = Stream::new(recording, self.layer)?;
        if !self.atomic_bytes.is_power_of_two() || !(512..=65536).contains(&self.atomic_bytes) {
            return Err(ExploreError::Usage(format!(
                "a disk does not tear units of {} bytes: name a power of two from 512 to 65536",
                self.atomic_bytes
            )));
        }
        stream.atomic_sectors = u64::from(self.atomic_bytes) / SECTOR_BYTES as u64;
        if self.layer == Layer::Storage && self.model == Model::Prefix {
            return Err(ExploreError::Usage(
                "the model prefix is for the guest's stream: nothing orders the files below the daemon; use --layer \
                 guest, or --model disk"
                    .to_owned(),
            ));
        }
        if self.layer == Layer::Guest && self.model == Model::Disk && hands_over(recording) {
            return Err(ExploreError::Usage(
                "the guest handed its commits over to a daemon, without a flush, and no disk with a volatile cache takes them: use \
                 --model guest or prefix with --layer guest, or leave both out"
                    .to_owned(),
            ));
        }
        if self.level == Level::Log && stream.log().is_none() {
            return Err(ExploreError::Usage(
                "the level log looks at the daemon's redo log, and there is none in this stream: use --level fsck or mount, \
                 or --survives power-window=50ms"
                    .to_owned(),
            ));
        }
        if self.layer == Layer::Storage && self.model == Model::Guest && retains(recording) {
            return Err(ExploreError::Usage(
                "when only processes die the retained journals outlive them, and they are no part of the recording's \
                 storage layer: leave --layer out, and deaths of guest and daemon are judged"
                    .to_owned(),
            ));
        }
        let cuts = cuts(&stream, self.model);
        if cuts.is_empty() {
            return Err(ExploreError::Usage(
                "nothing was written between the recording's begin and end: there is no crash to look at"
                    .to_owned(),
            ));
        }
        let log = stream.log().is_some();
        let own: Option<Arc<dyn OwnRecovery>> = match self.window()? {
            None if log => {
                return Err(ExploreError::Usage(format!(
                    "the recording has a redo log, and the contract to judge is {}",
                    self.contract
                )))
            }
            // The window holds for the disks themselves where no log is between; nothing recovers what the guest asked for.
            Some(window) if self.layer == Layer::Storage => {
                let options =
                    RecoveryOptions { lose_records: self.lose_records, ..RecoveryOptions::default() };
                if retains(recording) {
                    let oracle = Arc::new(RetainedOracle::of(recording)?);
                    let own = Arc::new(RetainedRecovery::new(oracle, window, options));
                    return Ok(Subject {
                        stream,
                        cuts,
                        own: Some(own),
                        picking: self.picking,
                        seed: self.seed,
                    });
                }
                let prefixes = Arc::new(Prefixes::of(recording)?);
                let recovery = LogRecovery::new(Arc::clone(&prefixes), window, log, options);
                if self.model == Model::Guest {
                    Some(Arc::new(process_rule::ProcessRule::new(recording, prefixes, recovery)))
                } else {
                    Some(Arc::new(recovery))
                }
            }
            _ => None,
        };
        Ok(Subject { stream, cuts, own, picking: self.picking, seed: self.seed })
    }
}

fn check_timeout() -> Duration {
    CHECK_TIMEOUT
}

/// What disks keep whole: the physical block that the daemon reports to its guests, where the guest's own sectors are passed
/// on; below a redo log nothing but sectors.
pub fn atomic_bytes(recording: &Recording, layer: Layer) -> u32 {
    let log = layer == Layer::Storage
        && recording.of_layer(Layer::Storage).any(|(_, target)| target.role == Role::Log);
    if log {
        512
    } else {
        4096
    }
}

fn parse(contract: &str) -> Result<Contract> {
    contract.parse().map_err(|e| ExploreError::Usage(format!("{contract} is no contract: {e}")))
}

/// What the workers of a campaign check with: the guests of the pool are shared.
pub struct Tools {
    level: Level,
    recovery: Recovery,
    pool: Option<Arc<Pool>>,
}

/// Who recovers a state's file system, and says whether that went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    /// The guest's kernel alone.
    Kernel,
    /// e2fsck; then a guest mounts the state as it was.
    Fsck,
    /// The guest's kernel, and e2fsck looks at what it leaves: e2fsck 1.47.0 cannot replay fast commits.
    KernelThenFsck,
}

/// `EXT4_FEATURE_COMPAT_FAST_COMMIT`, in the superblock's `s_feature_compat`.
const FAST_COMMIT: u32 = 0x400;

/// Whether the first disk is an ext4 with `fast_commit` when the recording begins.
pub(crate) fn commits_fast(recording: &Recording) -> Result<bool> {
    let layers = recording.of_layer(Layer::Guest).chain(recording.of_layer(Layer::Storage));
    let Some((disk, _)) = layers.into_iter().find(|(_, target)| target.role == Role::Disk(0)) else {
        return Ok(false);
    };
    let (begin, _) = bounds(&marks(recording)?, recording.events.len());
    let mut superblock = [0; 96];
    recording.content_before(disk, begin).read_at(&mut superblock, 1024);
    let compat = u32::from_le_bytes([superblock[92], superblock[93], superblock[94], superblock[95]]);
    Ok(superblock[56..58] == EXT4_MAGIC && compat & FAST_COMMIT != 0)
}

impl Setup {
    /// Tools for so many workers. Guests are started when they are needed.
    ///
    /// # Errors
    /// The file system cannot be checked.
    pub fn tools(&self, recording: &Recording, jobs: usize) -> Result<Tools> {
        let file_system = recording.about_text("file_system").unwrap_or("ext4").to_owned();
        if self.level == Level::Fsck {
            fsck::supports(&file_system)?;
        }
        let recovery = match file_system.starts_with("ext") {
            true if commits_fast(recording)? => Recovery::KernelThenFsck,
            true => Recovery::Fsck,
            false => Recovery::Kernel,
        };
        let by_kernel = recovery == Recovery::KernelThenFsck && self.level == Level::Fsck;
        let pool = (self.level == Level::Mount || by_kernel).then(|| {
            Pool::new(PoolOptions {
                guests: jobs,
                file_system,
                mount_options: self.mount_options.clone(),
                check_timeout: self.check_timeout,
                memo: recovery != Recovery::KernelThenFsck,
                ..PoolOptions::new(if by_kernel { PoolCheck::Mount } else { self.pool_check() })
            })
        });
        Ok(Tools { level: self.level, recovery, pool })
    }

    fn pool_check(&self) -> PoolCheck {
        self.check.as_deref().map_or(PoolCheck::Mount, PoolCheck::from_text)
    }
}

impl Tools {
    /// One worker's checkers.
    ///
    /// # Errors
    /// A program is missing.
    pub fn checkers(&self) -> Result<Vec<Box<dyn Checker>>> {
        let mut checkers: Vec<Box<dyn Checker>> = Vec::new();
        if self.level >= Level::Fsck && self.recovery == Recovery::Fsck {
            checkers.push(Box::new(Fsck::new()?));
        }
        if let Some(pool) = &self.pool {
            checkers.push(match self.recovery {
                Recovery::KernelThenFsck => Box::new(pool.checker().then(Fsck::new()?)),
                _ => Box::new(pool.checker()),
            });
        }
        Ok(checkers)
    }

    /// How far states are taken.
    pub fn level(&self) -> Level {
        self.level
    }

    /// What the guests have done, where there are any.
    pub fn pool(&self) -> Option<PoolStats> {
        self.pool.as_ref().map(|pool| pool.stats())
    }
}
