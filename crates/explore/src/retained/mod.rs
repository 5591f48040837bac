//! The oracle of retained journals under `power-window`: what becomes durable is *recovery(prefix)*.
//!
//! ```text
//!   guest layer ─► plain disk, request by request ─► naive replay of its journal ─► R(k): what the guest's own recovery makes
//!                                                                                   │ of its first k requests
//!                                                                                   ▼ equal? block by block
//!   storage layer ─► records of the redo log, a set is one step ─► disk, step by step ─► D(j), recovered likewise
//!                                                                                   │
//!                                             digest of D(j) ─► the prefixes k that it stands for ─► window rule
//! ```
//!
//! The arena is lost with the power, and only images and log are left. So the daemon's own recovery has to leave one of the
//! D(j), by digest of the whole disk; and each D(j) has to be R(k) for some k that had been asked for when step j was
//! made. Everything is compared that anybody may still need:
//!
//! * Every block outside the journals, exactly, after the replay of whatever either disk still has in its journal. That of
//!   D is empty while retained, so nothing is replayed there; where the daemon has handed the journal back to the
//!   guest (a transaction too large for the log, a pause) it is not.
//! * Blocks that nobody needs may hold older content: those whose committed version the guest has let go of without writing
//!   it home (revoked, or its journal's tail went past it). Each may hold what the plain disk has or any
//!   version committed since it was last written. With the next write they count exactly again.
//! * The superblock of a file system may be the one in place or the one in the log: the kernel writes it past the journal.
//! * A journal that says that it is empty has no log blocks with ids that are still to come, and its sequence never goes
//!   back: or a later mount's recovery could take old blocks for its own.
//!
//! That nothing else has to be right is what `e2fsck` and mounts of the same states look at.

mod compare;
mod deaths;
mod journals;
mod oracle;
mod plain;
mod side;
mod steps;
mod trees;

use afterimage_block::{BlockError, Blocking, Sector};
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::{Block, BLOCK_BYTES};
use afterimage_trace::Op;

pub use deaths::{deaths, Death, DeathOptions};
pub(crate) use journals::{overlap, Journals};
pub use oracle::{Census, RetainedOracle, RetainedRecovery};
pub use trees::Deaths;

/// A mount reads its journal's superblock before it writes one, and recordings have no reads.
pub(crate) fn read_first(lane: &mut Blocking, op: &Op) -> std::result::Result<(), BlockError> {
    let Op::Write { offset, data, .. } = op else { return Ok(()) };
    let block: Option<&Block> = data[..].try_into().ok();
    match block.is_some_and(|block| JournalSuperblock::parse(block).is_ok()) {
        true => lane.read(Sector(offset / 512), &mut [0; BLOCK_BYTES]),
        false => Ok(()),
    }
}
