//! A guest's stream on a disk without a daemon.

use std::collections::BTreeMap;
use std::sync::Arc;

use afterimage_journal::{Block, BLOCK_BYTES};
use afterimage_trace::Sparse;

use super::side::{Side, Touched};

/// See the module. Clones are cheap.
#[derive(Clone)]
pub(super) struct Plain {
    pub side: Side,
    /// Versions of a block that were committed since it was last written, also those that the log does not hold any more.
    versions: Arc<BTreeMap<u64, Arc<Vec<Arc<Block>>>>>,
}

impl Plain {
    pub fn new(content: Sparse) -> Self {
        let side = Side::new(content);
        let versions = side.homes.iter().map(|(b, v)| (*b, Arc::new(vec![Arc::clone(v)]))).collect();
        Self { side, versions: Arc::new(versions) }
    }

    /// A request, or a part of one; `None`: zeroes.
    pub fn apply(&mut self, offset: u64, len: u64, data: Option<&[u8]>) -> Touched {
        match data {
            Some(data) => self.side.content.write_at(data, offset),
            None => self.side.content.zero_at(offset, len),
        }
        let before = Arc::clone(&self.side.homes);
        let touched = self.side.changed(offset, len);
        let written = offset / BLOCK_BYTES as u64..(offset + len).div_ceil(BLOCK_BYTES as u64);
        let committed: Vec<(u64, Arc<Block>)> = match touched.journal || touched.all {
            true => {
                let new =
                    |(b, v): &(&u64, &Arc<Block>)| !before.get(b).is_some_and(|old| Arc::ptr_eq(old, v));
                self.side.homes.iter().filter(new).map(|(b, v)| (*b, Arc::clone(v))).collect()
            }
            false => Vec::new(),
        };
        if committed.is_empty() && self.versions.range(written.clone()).next().is_none() {
            return touched;
        }
        let versions = Arc::make_mut(&mut self.versions);
        for block in written {
            versions.remove(&block);
        }
        for (block, version) in committed {
            Arc::make_mut(versions.entry(block).or_default()).push(version);
        }
        touched
    }

    /// Whether `found` may stand at `block` after a recovery of this disk. See the [module above](super).
    pub fn allows(&self, block: u64, found: &Block) -> bool {
        let home = self.side.homes.get(&block);
        if home.is_some_and(|home| **home == *found) {
            return true;
        }
        if (home.is_none() || self.side.is_superblock(block))
            && *found == super::side::block_of(&self.side.content, block)
        {
            return true;
        }
        home.is_none()
            && self.versions.get(&block).is_some_and(|versions| versions.iter().any(|v| **v == *found))
    }
}
