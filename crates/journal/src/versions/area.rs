//! The journal area behind VMA's Table I: five operations between whoever watches a file system's commits (the
//! introspecting front end here, a paravirtual guest later) and what is remembered of them.
//!
//! ```text
//! LOG_OP_INIT      init      a control block for a file system
//! LOG_OP_MPROTECT  mprotect  a transaction's versions in, others out: all or nothing
//! LOG_OP_QUERY     query     how much is retained
//! LOG_OP_RECOVER   recover   what has to go home, in the order of the disk
//! LOG_OP_CLEANUP   cleanup   forget the file system
//! ```
//!
//! The paper's tuple is (machine address, block number); here the data's place is a journal block or a slot, whose content
//! the arena holds, and the version carries what is needed to know when it is home (VMA § 4.4). [`super::Versions`] offers the
//! operations together with the content.

use std::collections::HashMap;

use super::arena::VolumeId;
use crate::error::JournalError;
use crate::ids::{AreaBlock, FsBlock, Tid, BLOCK_BYTES};

/// Journal information: where a committed block's data is and where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Its place in the file system.
    pub home: FsBlock,
    /// The journal block that holds its content.
    pub at: AreaBlock,
    /// The transaction that committed it.
    pub tid: Tid,
    /// jbd2 zeroed the first four bytes (JBD2_FLAG_ESCAPE).
    pub escaped: bool,
}

/// Where a version stands on its way home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionState {
    /// Its home has not been written since the commit.
    Pending,
    /// A write of the same bytes has completed, and nothing was written there since.
    Home,
    /// Something else was written there after the commit, or is being written. A live guest may rely on that; the
    /// recovery of a dead guest's file system replays the version all the same, as the guest's own would.
    Overwritten,
    /// It was home, and something else was written there since, or is being written. Nothing waits for it, but the recovery of a dead
    /// guest's file system.
    Rewritten,
}

impl VersionState {
    /// Whether the version is not home yet.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Pending | Self::Overwritten)
    }

    /// What it is when something else is written to its home.
    pub(super) fn written_over(self) -> Self {
        match self {
            Self::Pending | Self::Overwritten => Self::Overwritten,
            Self::Home | Self::Rewritten => Self::Rewritten,
        }
    }
}

/// The newest committed version of a home block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The journal block that holds its content.
    pub at: AreaBlock,
    /// The transaction that committed it.
    pub tid: Tid,
    /// See [`Tuple::escaped`].
    pub escaped: bool,
    /// Where it stands.
    pub state: VersionState,
    /// Counts changes of `state` and of the version itself, so that a late completion cannot mistake one for another.
    pub generation: u32,
}

impl Version {
    /// With its home.
    pub fn tuple(&self, home: FsBlock) -> Tuple {
        Tuple { home, at: self.at, tid: self.tid, escaped: self.escaped }
    }
}

/// What [`JournalArea::query`] answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Versions retained.
    pub versions: u64,
    /// Those that would have to go home if the guest died now.
    pub pending: u64,
    /// Bytes of retained content, a block a version.
    pub data_bytes: u64,
    /// Bytes of journal information, as allocated: control block and hash table.
    pub information_bytes: u64,
}

/// One file system's versions (the paper's VM_JCB).
#[derive(Debug, Default)]
struct ControlBlock {
    /// Hashed with a key: a guest chooses its block numbers, and could make collisions of them.
    versions: HashMap<FsBlock, Version>,
    /// Versions that are not home.
    pending: u64,
    /// The same, by the transaction that committed them; none of them has none.
    open: HashMap<Tid, u64>,
}

impl ControlBlock {
    /// Whether a block of a range has a version. Of range and versions the smaller one is gone through.
    fn any(&self, from: FsBlock, to: FsBlock) -> bool {
        if to.0.saturating_sub(from.0) <= self.versions.len() as u64 {
            return (from.0..to.0).any(|b| self.versions.contains_key(&FsBlock(b)));
        }
        self.versions.keys().any(|home| (from.0..to.0).contains(&home.0))
    }

    /// A version came, or goes.
    fn count(&mut self, version: &Version, comes: bool) {
        if !version.state.is_open() {
            return;
        }
        let open = self.open.entry(version.tid).or_default();
        if comes {
            *open += 1;
            self.pending += 1;
        } else {
            *open -= 1;
            self.pending -= 1;
            if *open == 0 {
                self.open.remove(&version.tid);
            }
        }
    }
}

/// All file systems of one disk.
#[derive(Debug, Default)]
pub struct JournalArea {
    blocks: HashMap<VolumeId, ControlBlock>,
    /// Of all file systems that there ever were: a late completion must not meet the number again.
    generation: u32,
}

impl JournalArea {
    /// LOG_OP_INIT: a control block for a file system. The block size must be a page's.
    ///
    /// # Errors
    /// *Unsupported* for another block size.
    pub fn init(&mut self, volume: VolumeId, block_bytes: usize) -> Result<(), JournalError> {
        if block_bytes != BLOCK_BYTES {
            return Err(JournalError::Unsupported(format!(
                "blocks of {block_bytes} bytes, not {BLOCK_BYTES}"
            )));
        }
        self.blocks.insert(volume, ControlBlock::default());
        Ok(())
    }

    /// LOG_OP_CLEANUP: forgets the file system and everything retained for it.
    pub fn cleanup(&mut self, volume: VolumeId) {
        self.blocks.remove(&volume);
    }

    /// LOG_OP_MPROTECT: records the versions of a transaction and drops others, all or nothing.
    ///
    /// # Errors
    /// *Unsupported* for a file system that was not initialised; nothing is changed then.
    pub fn mprotect(
        &mut self,
        volume: VolumeId,
        protect: &[Tuple],
        unprotect: &[FsBlock],
    ) -> Result<(), JournalError> {
        let control = self
            .blocks
            .get_mut(&volume)
            .ok_or_else(|| JournalError::Unsupported("a file system that was not initialised".to_owned()))?;
        for home in unprotect {
            if let Some(version) = control.versions.remove(home) {
                control.count(&version, false);
            }
        }
        for tuple in protect {
            self.generation = self.generation.wrapping_add(1);
            let version = Version {
                at: tuple.at,
                tid: tuple.tid,
                escaped: tuple.escaped,
                state: VersionState::Pending,
                generation: self.generation,
            };
            control.count(&version, true);
            if let Some(older) = control.versions.insert(tuple.home, version) {
                control.count(&older, false);
            }
        }
        Ok(())
    }

    /// How many of a transaction's versions are the newest and not home.
    pub fn open(&self, volume: VolumeId, tid: Tid) -> u64 {
        self.blocks.get(&volume).and_then(|control| control.open.get(&tid)).copied().unwrap_or(0)
    }

    /// LOG_OP_QUERY: how much is retained of a file system.
    pub fn query(&self, volume: VolumeId) -> Query {
        let Some(control) = self.blocks.get(&volume) else { return Query::default() };
        // hashbrown: a control byte a bucket, buckets a power of two of which 7/8 may be used.
        let capacity = control.versions.capacity() as u64;
        let buckets = if capacity == 0 { 0 } else { (capacity * 8 / 7).next_power_of_two() };
        let information_bytes =
            size_of::<ControlBlock>() as u64 + buckets * (size_of::<(FsBlock, Version)>() as u64 + 1);
        Query {
            versions: control.versions.len() as u64,
            pending: control.pending,
            data_bytes: control.versions.len() as u64 * BLOCK_BYTES as u64,
            information_bytes,
        }
    }

    /// Tables have room for what is known, and for no more.
    pub(crate) fn trim(&mut self) {
        for control in self.blocks.values_mut() {
            control.versions.shrink_to_fit();
            control.open.shrink_to_fit();
        }
    }

    /// LOG_OP_RECOVER: the versions that have to go home, in the order of the disk. `overwritten`: also those whose home
    /// was written with something else since, which only a dead guest's recovery may do.
    pub fn recover(&self, volume: VolumeId, overwritten: bool) -> Vec<Tuple> {
        let Some(control) = self.blocks.get(&volume) else { return Vec::new() };
        let wanted = |state| match state {
            VersionState::Pending => true,
            VersionState::Overwritten | VersionState::Rewritten => overwritten,
            VersionState::Home => false,
        };
        let mut tuples: Vec<Tuple> = control
            .versions
            .iter()
            .filter(|(_, v)| wanted(v.state))
            .map(|(home, v)| v.tuple(*home))
            .collect();
        tuples.sort_unstable_by_key(|t| t.home);
        tuples
    }

    /// The newest committed version of a block.
    pub fn version(&self, volume: VolumeId, home: FsBlock) -> Option<Version> {
        self.blocks.get(&volume)?.versions.get(&home).copied()
    }

    /// The retained blocks of a range, in no order: for a discard, which may be much larger than what is retained.
    pub fn versions_in(&self, volume: VolumeId, from: FsBlock, to: FsBlock) -> Vec<(FsBlock, Version)> {
        let Some(control) = self.blocks.get(&volume) else { return Vec::new() };
        if to.0.saturating_sub(from.0) <= control.versions.len() as u64 {
            let find = |b| control.versions.get(&FsBlock(b)).map(|v| (FsBlock(b), *v));
            return (from.0..to.0).filter_map(find).collect();
        }
        let inside = |home: &FsBlock| (from.0..to.0).contains(&home.0);
        control.versions.iter().filter(|(home, _)| inside(home)).map(|(h, v)| (*h, *v)).collect()
    }

    /// Whether any block of a range has a version.
    pub fn any(&self, volume: VolumeId, from: FsBlock, to: FsBlock) -> bool {
        self.blocks.get(&volume).is_some_and(|control| control.any(from, to))
    }

    /// Moves a version on its way. Returns what it was, where there is one.
    pub fn set_state(&mut self, volume: VolumeId, home: FsBlock, state: VersionState) -> Option<Version> {
        let control = self.blocks.get_mut(&volume)?;
        let version = control.versions.get_mut(&home)?;
        let before = *version;
        self.generation = self.generation.wrapping_add(1);
        version.generation = self.generation;
        version.state = state;
        let after = *version;
        control.count(&before, false);
        control.count(&after, true);
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FS: VolumeId = VolumeId(3);

    fn tuple(home: u64, at: u32, tid: u32) -> Tuple {
        Tuple { home: FsBlock(home), at: AreaBlock(at), tid: Tid(tid), escaped: false }
    }

    #[test]
    fn the_five_operations() {
        let mut area = JournalArea::default();
        assert!(area.mprotect(FS, &[tuple(7, 1, 1)], &[]).is_err(), "not initialised");
        assert!(area.init(FS, 1024).is_err());
        area.init(FS, BLOCK_BYTES).unwrap();
        area.mprotect(FS, &[tuple(9, 2, 1), tuple(7, 3, 1)], &[]).unwrap();
        assert_eq!((area.query(FS).pending, area.open(FS, Tid(1))), (2, 2));
        assert_eq!(area.recover(FS, false), [tuple(7, 3, 1), tuple(9, 2, 1)]);
        // A newer version replaces, a revoke drops.
        area.mprotect(FS, &[tuple(9, 5, 2)], &[FsBlock(7)]).unwrap();
        assert_eq!((area.open(FS, Tid(1)), area.open(FS, Tid(2))), (0, 1));
        area.set_state(FS, FsBlock(9), VersionState::Overwritten);
        assert!(area.recover(FS, false).is_empty());
        assert_eq!(area.recover(FS, true), [tuple(9, 5, 2)]);
        area.set_state(FS, FsBlock(9), VersionState::Home);
        assert_eq!(area.open(FS, Tid(2)), 0);
        area.set_state(FS, FsBlock(9), VersionState::Home.written_over());
        assert_eq!((area.open(FS, Tid(2)), area.recover(FS, true)), (0, vec![tuple(9, 5, 2)]));
        assert_eq!(area.query(FS), Query { pending: 0, ..area.query(FS) });
        assert!(area.query(FS).information_bytes > 0);
        area.cleanup(FS);
        assert_eq!(area.query(FS), Query::default());
    }

    #[test]
    fn a_range_finds_what_lies_in_it() {
        let mut area = JournalArea::default();
        area.init(FS, BLOCK_BYTES).unwrap();
        let tuples: Vec<Tuple> = (0..20).map(|i| tuple(i * 10, i as u32 + 1, 1)).collect();
        area.mprotect(FS, &tuples, &[]).unwrap();
        for (from, to) in [(0, 1), (5, 15), (0, 1 << 40), (191, 1 << 40), (60, 60)] {
            let mut found: Vec<u64> =
                area.versions_in(FS, FsBlock(from), FsBlock(to)).iter().map(|(h, _)| h.0).collect();
            found.sort_unstable();
            assert_eq!(area.any(FS, FsBlock(from), FsBlock(to)), !found.is_empty());
            let expected: Vec<u64> = (0..20).map(|i| i * 10).filter(|h| (from..to).contains(h)).collect();
            assert_eq!(found, expected);
        }
    }
}
