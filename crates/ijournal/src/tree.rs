//! Extent trees (`Documentation/filesystems/ext4/ifork.rst`): walked, whoever wrote them; and built, for directories.

use std::collections::BTreeSet;
use std::ops::Range;

use afterimage_journal::BLOCK_BYTES;

use crate::bytes::{put16, put32, u16_at, u32_at};
use crate::error::{corrupt, Error};
use crate::image::Block;
use crate::room::Room;

const MAGIC: u16 = 0xF30A;
const ENTRY: usize = 12;
/// `i_block`.
pub(crate) const ROOT_BYTES: usize = 60;
const ROOT_ENTRIES: usize = 4;
/// Entries of a block, and where its checksum is.
pub(crate) const NODE_ENTRIES: usize = (BLOCK_BYTES - ENTRY) / ENTRY;
pub(crate) const NODE_SUM: usize = ENTRY * (1 + NODE_ENTRIES);
/// `EXT4_MAX_EXTENT_DEPTH`.
const DEPTH_MAX: u16 = 5;
/// `EXT_INIT_MAX_LEN`: a longer length marks blocks that were never written.
const LEN_MAX: u32 = 32768;

/// A run of a file's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) logical: u32,
    pub(crate) len: u32,
    pub(crate) physical: u64,
    pub(crate) unwritten: bool,
}

/// A file's blocks in logical order, and those that the tree itself takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) extents: Vec<Extent>,
    pub(crate) nodes: Vec<u64>,
}

impl Tree {
    /// Reads a tree from its root. `node` has a block of it: as many bytes as it likes, behind the entries that it says it has.
    ///
    /// # Errors
    /// *Corrupt*: no tree, or one that names a block twice or where no file's can be. What `node` says.
    pub(crate) fn read(
        root: &[u8],
        room: &Room,
        node: &mut dyn FnMut(u64) -> Result<Vec<u8>, Error>,
    ) -> Result<Self, Error> {
        let mut walk = Walk { tree: Self::default(), seen: BTreeSet::new(), room, node };
        let depth = u16_at(root, 6);
        if depth > DEPTH_MAX {
            return corrupt(format!("an extent tree is {depth} levels deep"));
        }
        walk.node(root, ROOT_ENTRIES, depth, 0..1 << 32)?;
        let tree = walk.tree;
        let ranges = tree.ranges();
        match ranges.windows(2).find(|pair| pair[0].end > pair[1].start) {
            Some(pair) => corrupt(format!("block {} belongs to a file twice", pair[1].start)),
            None => Ok(tree),
        }
    }

    /// All of its blocks, ascending.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let data = self.extents.iter().map(|e| e.physical..e.physical + u64::from(e.len));
        let mut ranges: Vec<_> = data.chain(self.nodes.iter().map(|&n| n..n + 1)).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }

    /// How many blocks these are.
    pub(crate) fn blocks(&self) -> u64 {
        self.extents.iter().map(|e| u64::from(e.len)).sum::<u64>() + self.nodes.len() as u64
    }

    /// The block behind the last one that holds data.
    pub(crate) fn written_end(&self) -> u64 {
        let written = self.extents.iter().filter(|e| !e.unwritten);
        written.map(|e| u64::from(e.logical) + u64::from(e.len)).max().unwrap_or(0)
    }

    /// Where a file's first blocks lie, so many of them and no more; `None`: there are fewer, or among them holes or blocks that were never
    /// written.
    pub(crate) fn mapped(&self, count: u64) -> Option<Vec<u64>> {
        let mut blocks = Vec::new();
        for extent in &self.extents {
            let left = count - blocks.len() as u64;
            if left == 0 {
                break;
            }
            if extent.unwritten || extent.logical as usize != blocks.len() {
                return None;
            }
            blocks.extend(extent.physical..extent.physical + u64::from(extent.len).min(left));
        }
        (blocks.len() as u64 == count).then_some(blocks)
    }
}

struct Walk<'a> {
    tree: Tree,
    seen: BTreeSet<u64>,
    room: &'a Room,
    node: &'a mut dyn FnMut(u64) -> Result<Vec<u8>, Error>,
}

impl Walk<'_> {
    fn node(&mut self, bytes: &[u8], room: usize, depth: u16, logical: Range<u64>) -> Result<(), Error> {
        let entries = usize::from(u16_at(bytes, 2));
        let (magic, max, says) = (u16_at(bytes, 0), usize::from(u16_at(bytes, 4)), u16_at(bytes, 6));
        if magic != MAGIC
            || entries > max
            || max != room
            || says != depth
            || bytes.len() < ENTRY * (1 + entries)
        {
            return corrupt(format!(
                "a node of an extent tree says {magic:#x}, {entries} of {max}, depth {says}"
            ));
        }
        let mut next = logical.start;
        for i in 0..entries {
            let entry = &bytes[ENTRY * (1 + i)..][..ENTRY];
            let first = u64::from(u32_at(entry, 0));
            if first < next {
                return corrupt("the entries of an extent tree are not in order");
            }
            next = match depth {
                0 => self.extent(entry)?,
                _ => {
                    let end = match i + 1 < entries {
                        true => u64::from(u32_at(bytes, ENTRY * (2 + i))),
                        false => logical.end,
                    };
                    self.child(entry, depth - 1, first..end)?;
                    end.max(first + 1)
                }
            };
            if next > logical.end {
                return corrupt("an extent reaches over the next");
            }
        }
        Ok(())
    }

    fn extent(&mut self, entry: &[u8]) -> Result<u64, Error> {
        let raw = u32::from(u16_at(entry, 4));
        let unwritten = raw > LEN_MAX;
        let len = if unwritten { raw - LEN_MAX } else { raw };
        let logical = u32_at(entry, 0);
        let physical = u64::from(u16_at(entry, 6)) << 32 | u64::from(u32_at(entry, 8));
        if !self.room.has(&(physical..physical + u64::from(len))) {
            return corrupt(format!("an extent of {len} blocks at {physical}, where no file's can be"));
        }
        self.tree.extents.push(Extent { logical, len, physical, unwritten });
        Ok(u64::from(logical) + u64::from(len))
    }

    fn child(&mut self, entry: &[u8], depth: u16, logical: Range<u64>) -> Result<(), Error> {
        let block = u64::from(u16_at(entry, 8)) << 32 | u64::from(u32_at(entry, 4));
        if !self.room.has(&(block..block + 1)) || !self.seen.insert(block) {
            return corrupt(format!("block {block} is in an extent tree twice, or cannot be"));
        }
        self.tree.nodes.push(block);
        let content = (self.node)(block)?;
        if content.len() < ENTRY || u16_at(&content, 2) == 0 {
            return corrupt(format!("block {block} of an extent tree is empty"));
        }
        self.node(&content, NODE_ENTRIES, depth, logical)
    }
}

fn header(bytes: &mut [u8], entries: usize, room: usize, depth: u16) {
    put16(bytes, 0, MAGIC);
    put16(bytes, 2, entries as u16);
    put16(bytes, 4, room as u16);
    put16(bytes, 6, depth);
}

fn put_extents(bytes: &mut [u8], extents: &[Extent]) {
    for (i, extent) in extents.iter().enumerate() {
        let entry = &mut bytes[ENTRY * (1 + i)..][..ENTRY];
        put32(entry, 0, extent.logical);
        put16(entry, 4, extent.len as u16);
        put16(entry, 6, (extent.physical >> 32) as u16);
        put32(entry, 8, extent.physical as u32);
    }
}

/// The extents of a file without holes.
pub(crate) fn extents_of(blocks: &[u64]) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    for (logical, &physical) in blocks.iter().enumerate() {
        match extents.last_mut() {
            Some(last) if last.physical + u64::from(last.len) == physical && last.len < LEN_MAX => {
                last.len += 1
            }
            _ => extents.push(Extent { logical: logical as u32, len: 1, physical, unwritten: false }),
        }
    }
    extents
}

/// How many blocks a tree of so many extents takes; `None`: more than two levels.
pub(crate) fn nodes_needed(extents: usize) -> Option<usize> {
    let nodes = if extents <= ROOT_ENTRIES { 0 } else { extents.div_ceil(NODE_ENTRIES) };
    (nodes <= ROOT_ENTRIES).then_some(nodes)
}

/// A tree in these blocks, as many as [`nodes_needed`]: its root, and their content without checksums.
pub(crate) fn build(extents: &[Extent], nodes: &[u64]) -> ([u8; ROOT_BYTES], Vec<(u64, Box<Block>)>) {
    let mut root = [0; ROOT_BYTES];
    if nodes.is_empty() {
        header(&mut root, extents.len(), ROOT_ENTRIES, 0);
        put_extents(&mut root, extents);
        return (root, Vec::new());
    }
    header(&mut root, nodes.len(), ROOT_ENTRIES, 1);
    let mut blocks = Vec::new();
    for (i, (part, &home)) in extents.chunks(NODE_ENTRIES).zip(nodes).enumerate() {
        let mut block = Box::new([0; BLOCK_BYTES]);
        header(block.as_mut_slice(), part.len(), NODE_ENTRIES, 0);
        put_extents(block.as_mut_slice(), part);
        blocks.push((home, block));
        let entry = &mut root[ENTRY * (1 + i)..][..ENTRY];
        put32(entry, 0, part[0].logical);
        put32(entry, 4, home as u32);
        put16(entry, 8, (home >> 32) as u16);
    }
    (root, blocks)
}

/// What of `from` is not in `other`; both ascending and without overlap.
pub(crate) fn without(from: &[Range<u64>], other: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut left, mut i) = (Vec::new(), 0);
    for range in from {
        let mut at = range.start;
        while i < other.len() && other[i].end <= at {
            i += 1;
        }
        let mut j = i;
        while j < other.len() && other[j].start < range.end {
            if other[j].start > at {
                left.push(at..other[j].start);
            }
            at = at.max(other[j].end);
            j += 1;
        }
        if at < range.end {
            left.push(at..range.end);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_built_is_read() {
        for count in [0, 1, 4, 5, 340, 341, 1360] {
            let blocks: Vec<u64> = (0..count).map(|i| 1000 + 2 * i).collect();
            let extents = extents_of(&blocks);
            let nodes: Vec<u64> = (0..nodes_needed(extents.len()).unwrap() as u64).map(|i| 10 + i).collect();
            let (root, content) = build(&extents, &nodes);
            let tree = Tree::read(&root, &Room::new(1 << 20), &mut |block| {
                Ok(content.iter().find(|(home, _)| *home == block).unwrap().1.to_vec())
            });
            let tree = tree.unwrap();
            assert_eq!((tree.mapped(count), &tree.nodes), (Some(blocks.clone()), &nodes));
            assert_eq!(tree.mapped(count / 2), Some(blocks[..count as usize / 2].to_vec()));
            assert_eq!(tree.mapped(count + 1), None);
        }
        assert_eq!(nodes_needed(1361), None);
    }

    fn ranges(cuts: &BTreeSet<u64>) -> Vec<Range<u64>> {
        let cuts: Vec<u64> = cuts.iter().copied().collect();
        cuts.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect()
    }

    proptest! {
        #[test]
        fn without_is_a_difference_of_sets(
            from in proptest::collection::btree_set(0u64..60, 0..12),
            other in proptest::collection::btree_set(0u64..60, 0..12),
        ) {
            let (from, other) = (ranges(&from), ranges(&other));
            let set = |ranges: &[Range<u64>]| ranges.iter().flat_map(Clone::clone).collect::<BTreeSet<u64>>();
            let expected: BTreeSet<u64> = set(&from).difference(&set(&other)).copied().collect();
            prop_assert_eq!(set(&without(&from, &other)), expected);
        }
    }
}
