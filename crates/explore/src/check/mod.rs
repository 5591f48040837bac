//! Recovers a state as the guest would, and asks whether it is what a crash may leave.
//!
//! Every checker takes the guest's disks as they are after the daemon's own recovery and answers with an
//! [`Observation`]: what is there. Whether that may be there is judged elsewhere, against the contract and the marks.

pub mod apps;
pub mod fsck;
pub mod memo;
pub mod mount_per_state;
pub mod pool;
mod resident;
mod selftest;
#[cfg(test)]
mod tests;

pub use selftest::{selftest, SelfTest};

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::state::Scratch;
use crate::Result;

/// What a checker found.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "found")]
pub enum Observation {
    /// Sound, as far as this checker looks.
    Sound,
    /// Sound, and the application's state has this name (that of a mark, where it means one).
    Named {
        /// The name.
        state: String,
    },
    /// Sound, and these of the agent's records are there, as runs `[first, last]`; none is there that was written after the
    /// acknowledgement of one that is not.
    Records {
        /// Numbers of intact records.
        present: Vec<(u64, u64)>,
        /// Slots that hold neither zeroes nor a record, as thread and slot: one that was being written at the crash may be
        /// torn, one that was acknowledged and not being overwritten may not.
        torn: Vec<(u32, u64)>,
    },
    /// Nothing is known of it: the check took too long.
    NotJudged {
        /// One sentence.
        what: String,
    },
    /// No crash may leave this.
    Inconsistent {
        /// One sentence: which check failed, and how.
        what: String,
        /// The tool's own words.
        evidence: String,
    },
}

/// One way to look at recovered disks. Used by one thread at a time; several may work side by side.
pub trait Checker: Send {
    /// What it is called in reports: `e2fsck`, `mount`, …
    fn name(&self) -> &'static str;

    /// Looks. What it writes to the disks is lost to nobody.
    ///
    /// # Errors
    /// Nothing can be said about the state: a tool is missing, a guest died.
    fn check(&mut self, disks: &[Arc<Scratch>]) -> Result<Observation>;

    /// When the campaign's time is over: what takes longer gives up, with [`ExploreError::OutOfTime`](crate::ExploreError::OutOfTime).
    fn give_up_at(&mut self, _: Option<Instant>) {}
}
