//! Planted faults: a run of the explorer that does not find them proves nothing.
//!
//! ```text
//!   guest recording ─► layers: replay or direct ─► storage stream ─► a fault changes the stream ─► crash states
//!                                                                                                    │
//!                                            own recovery (a fault may change it, too) ◄─────────────┘
//! ```
//!
//! None of them needs broken code: each is what the storage of an honest run would have seen had the daemon made the
//! mistake, so that the program that ships can plant them. Mistakes in the code itself are the mutations of
//! `afterimage_order`, which only tests can make.

mod hunt;
mod streams;
pub(crate) mod tail;

use std::str::FromStr;

use afterimage_order::Contract;
use afterimage_trace::Recording;

pub use hunt::{hunt, survey, Found, Survey};

use crate::layers::{direct, replay_noted, Floor, LayersOptions};
use crate::log_recovery::RecoveryOptions;
use crate::prefix::Breach;
use crate::{ExploreError, Result};

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// `power`: one sync of an image is skipped, and its flush acknowledged all the same.
    SkipImageSync,
    /// `power`: a flush is acknowledged before its sync, which ends when the next flush comes.
    EarlyFlush,
    /// `power-window`: flushes are acknowledged, the images are synced twice a window, and nothing puts what goes there into an order.
    NoOrder,
    /// `power-window`: one sync of the log is skipped.
    SkipLogSync,
    /// `power-window`: the log is never synced.
    DropLogSyncs,
    /// `power-window`: the images are never synced.
    DropHomeSyncs,
    /// `power-window`: records go home before the log's sync.
    HomeBeforeLog,
    /// `power-window`: recovery loses the log's newest durable records, and nothing shows it.
    LoseLogTail,
    /// Retained journals: a transaction's home writes are records of their own.
    SplitHomeSets,
    /// Retained journals: the home writes of one transaction in five never reach the log.
    ForgetHomeSets,
    /// Retained journals: home writes are in the log before the guest has written the commit block.
    SetsBeforeCommit,
}

/// A fault's name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a planted fault: use one of {names}", names = Fault::names())]
pub struct UnknownFault(String);

/// A recording with a fault in it, and what is needed to judge its states.
#[derive(Clone)]
pub struct Planted {
    /// Guest layer and storage layer.
    pub recording: Recording,
    /// The contract that the daemon claims to keep.
    pub contract: Contract,
    /// How states are recovered.
    pub recovery: RecoveryOptions,
    /// What the daemon declared durable.
    pub floors: Vec<Floor>,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::SkipImageSync,
        Self::EarlyFlush,
        Self::NoOrder,
        Self::SkipLogSync,
        Self::DropLogSyncs,
        Self::DropHomeSyncs,
        Self::HomeBeforeLog,
        Self::LoseLogTail,
    ];

    /// Those of a daemon that retains journals: they need the stream of a guest with one, and
    /// [`LayersOptions::retain`].
    pub const RETAINED: [Self; 3] = [Self::SplitHomeSets, Self::ForgetHomeSets, Self::SetsBeforeCommit];

    fn names() -> String {
        let names = Self::ALL.into_iter().chain(Self::RETAINED).map(Self::name);
        names.collect::<Vec<_>>().join(", ")
    }

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SkipImageSync => "skip-image-sync",
            Self::EarlyFlush => "early-flush",
            Self::NoOrder => "no-order",
            Self::SkipLogSync => "skip-log-sync",
            Self::DropLogSyncs => "drop-log-syncs",
            Self::DropHomeSyncs => "drop-home-syncs",
            Self::HomeBeforeLog => "home-before-log",
            Self::LoseLogTail => "lose-log-tail",
            Self::SplitHomeSets => "split-home-sets",
            Self::ForgetHomeSets => "forget-home-sets",
            Self::SetsBeforeCommit => "sets-before-commit",
        }
    }

    /// What is wrong, in one sentence.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::SkipImageSync => "power: one sync of an image is skipped, and its flush acknowledged.",
            Self::EarlyFlush => "power: every flush is acknowledged before its sync has ended.",
            Self::NoOrder => "power-window: flushes are acknowledged without log and order; the images are synced twice a window.",
            Self::SkipLogSync => "power-window: one sync of the redo log is skipped.",
            Self::DropLogSyncs => "power-window: the redo log is never synced.",
            Self::DropHomeSyncs => "power-window: the images are never synced on the way home.",
            Self::HomeBeforeLog => "power-window: records go home before the log's sync.",
            Self::LoseLogTail => {
                "power-window: recovery loses the log's newest durable records, and nothing shows it."
            }
            Self::SplitHomeSets => {
                "power-window, retained journal: a transaction's home writes are records of their own."
            }
            Self::ForgetHomeSets => {
                "power-window, retained journal: the home writes of one transaction in five never reach the log."
            }
            Self::SetsBeforeCommit => {
                "power-window, retained journal: home writes are in the log before the guest's commit block."
            }
        }
    }

    /// Whether the contract whose promise it breaks is `power`; otherwise it is `power-window`.
    pub const fn breaks_power(self) -> bool {
        matches!(self, Self::SkipImageSync | Self::EarlyFlush)
    }

    /// Whether what was found is this mistake, where another one would be found, too: the window is kept, and only order is missing.
    pub fn is_shown_by(self, what: &str) -> bool {
        self != Self::NoOrder || what == Breach::NoPrefix.to_string()
    }

    /// The storage stream of the recording's guest layer, with the fault in it. `options` say how `power-window` is
    /// replayed; their seed chooses which sync is skipped, too.
    ///
    /// # Errors
    /// As [`crate::layers::replay`]; and the recording gives the fault nothing to act on.
    pub fn plant(self, recording: &Recording, options: &LayersOptions) -> Result<Planted> {
        let window = Contract::PowerWindow { window: options.window };
        let mut planted = match self {
            Self::SkipImageSync | Self::EarlyFlush => {
                let recording = direct(recording, Contract::Power)?;
                planted(recording, Contract::Power)
            }
            Self::NoOrder => {
                let mut recording = direct(recording, Contract::GuestCrash)?;
                recording.about.insert("contract".to_owned(), window.to_string().into());
                planted(recording, window)
            }
            _ => {
                let mut options = options.clone();
                if let Some(retain) = &mut options.retain {
                    retain.split_sets = self == Self::SplitHomeSets;
                    retain.forget_sets = self == Self::ForgetHomeSets;
                } else if Self::RETAINED.contains(&self) {
                    return Err(nothing_to_act_on("no retained journal: replay it with one"));
                }
                let replay = replay_noted(recording, &options)?;
                Planted { floors: replay.floors, ..planted(replay.recording, window) }
            }
        };
        let stream = &mut planted.recording;
        match self {
            Self::SkipImageSync => streams::skip_one_sync(stream, streams::Which::Images, options.seed)?,
            Self::EarlyFlush => streams::end_syncs_late(stream),
            Self::NoOrder => streams::sync_each_window(stream, options.window)?,
            Self::SkipLogSync => streams::skip_one_sync(stream, streams::Which::Log, options.seed)?,
            Self::DropLogSyncs => streams::drop_syncs(stream, streams::Which::Log),
            Self::DropHomeSyncs => streams::drop_syncs(stream, streams::Which::Images),
            Self::HomeBeforeLog => streams::home_before_log(stream)?,
            Self::LoseLogTail => planted.recovery.lose_records = 2,
            Self::SplitHomeSets | Self::ForgetHomeSets => {}
            Self::SetsBeforeCommit => streams::sets_before_commit(stream)?,
        }
        if self != Self::LoseLogTail {
            // Positions of events have moved; and what the daemon says it made durable is not what it is judged by.
            planted.floors.clear();
        }
        planted.recording.about.insert("fault".to_owned(), self.name().into());
        Ok(planted)
    }
}

fn planted(recording: Recording, contract: Contract) -> Planted {
    Planted { recording, contract, recovery: RecoveryOptions::default(), floors: Vec::new() }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(name: &str) -> std::result::Result<Self, UnknownFault> {
        let known = Self::ALL.into_iter().chain(Self::RETAINED).find(|fault| fault.name() == name);
        known.ok_or_else(|| UnknownFault(name.to_owned()))
    }
}

/// What a fault needs and a recording does not have.
fn nothing_to_act_on(what: &str) -> ExploreError {
    ExploreError::Usage(format!(
        "the fault cannot be planted: the recording has {what}; record a longer workload, or choose another fault"
    ))
}
