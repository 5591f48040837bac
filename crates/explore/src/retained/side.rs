//! One disk, and what a replay of the journals on it would make of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use afterimage_block::{BlockError, Sector};
use afterimage_journal::layout::superblock::JournalSuperblock;
use afterimage_journal::layout::{self, Found, Layout, Source};
use afterimage_journal::log::oracle::replay;
use afterimage_journal::log::{AreaView, LogGeometry};
use afterimage_journal::{AreaBlock, Block, BLOCK_BYTES};
use afterimage_trace::Sparse;

/// Content that is written by a replay, by block of the disk.
pub(super) type Homes = BTreeMap<u64, Arc<Block>>;

/// See the module. Clones are cheap.
#[derive(Clone)]
pub(super) struct Side {
    pub content: Sparse,
    /// File systems whose journals can be retained.
    pub layouts: Arc<Vec<Layout>>,
    /// What a replay writes.
    pub homes: Arc<Homes>,
}

/// Blocks whose content, or what a replay makes of them, has changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Touched {
    /// Another file system, or another journal: anything may have.
    pub all: bool,
    pub blocks: Vec<u64>,
    /// A journal was written to.
    pub journal: bool,
}

struct Bytes<'a>(&'a Sparse);

impl Source for Bytes<'_> {
    fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError> {
        self.0.read_at(buf, sector.0 * 512);
        Ok(())
    }
}

/// A journal as it stands on a disk.
struct On<'a>(&'a Sparse, &'a Layout);

impl AreaView for On<'_> {
    fn block<'a>(&'a mut self, at: AreaBlock, scratch: &'a mut Block) -> Result<&'a Block, BlockError> {
        match self.1.home_of(at) {
            Some(home) => self.0.read_at(scratch, home.sector(self.1.start).0 * 512),
            None => scratch.fill(0),
        }
        Ok(scratch)
    }
}

/// A block of a content; shorter at the end.
pub(super) fn block_of(content: &Sparse, block: u64) -> Block {
    let mut bytes = [0; BLOCK_BYTES];
    let offset = block * BLOCK_BYTES as u64;
    let len = content.len().saturating_sub(offset).min(BLOCK_BYTES as u64) as usize;
    content.read_at(&mut bytes[..len], offset);
    bytes
}

/// The blocks of the disk that a file system's journal occupies, as `[from, to)`.
pub(super) fn journal_ranges(layout: &Layout) -> impl Iterator<Item = (u64, u64)> + '_ {
    layout.journal.iter().map(|extent| {
        let from = extent.home.sector(layout.start).0 / 8;
        (from, from + u64::from(extent.blocks))
    })
}

impl Side {
    pub fn new(content: Sparse) -> Self {
        let mut side = Self { content, layouts: Arc::default(), homes: Arc::default() };
        side.layouts = Arc::new(side.find());
        side.replay();
        side
    }

    fn find(&self) -> Vec<Layout> {
        let found = layout::find(&mut Bytes(&self.content), self.content.len() / 512).unwrap_or_default();
        let file_system = |found| match found {
            Found::FileSystem(layout) => Some(layout),
            Found::Passthrough { .. } => None,
        };
        found.into_iter().filter_map(file_system).collect()
    }

    pub fn in_journal(&self, block: u64) -> bool {
        self.layouts.iter().flat_map(journal_ranges).any(|(from, to)| (from..to).contains(&block))
    }

    pub fn is_superblock(&self, block: u64) -> bool {
        self.layouts.iter().any(|layout| (layout.start.0 * 512 + 1024) / BLOCK_BYTES as u64 == block)
    }

    pub fn journal_superblock(&self, layout: &Layout) -> Option<JournalSuperblock> {
        let mut scratch = [0; BLOCK_BYTES];
        let block = On(&self.content, layout).block(AreaBlock(0), &mut scratch).ok().copied()?;
        JournalSuperblock::parse(&block).ok()
    }

    /// To be called when `[offset, offset + len)` of the content has changed.
    pub fn changed(&mut self, offset: u64, len: u64) -> Touched {
        let blocks = offset / BLOCK_BYTES as u64..(offset + len).div_ceil(BLOCK_BYTES as u64);
        let mut touched = Touched { blocks: blocks.clone().collect(), ..Touched::default() };
        let layouts = self.find();
        let places = |layouts: &[Layout]| -> Vec<_> {
            layouts.iter().map(|l| (l.start, l.uuid, l.journal.clone())).collect()
        };
        touched.all = places(&layouts) != places(&self.layouts);
        self.layouts = Arc::new(layouts);
        let mut ranges = self.layouts.iter().flat_map(journal_ranges);
        touched.journal = ranges.any(|(from, to)| from < blocks.end && blocks.start < to);
        drop(ranges);
        if touched.journal || touched.all {
            let before = Arc::clone(&self.homes);
            self.replay();
            let now = &self.homes;
            let same = |a: &Homes, block: &u64, content: &Arc<Block>| {
                a.get(block).is_some_and(|other| Arc::ptr_eq(other, content))
            };
            touched.blocks.extend(before.iter().filter(|(b, c)| !same(now, b, c)).map(|(b, _)| *b));
            touched.blocks.extend(now.iter().filter(|(b, c)| !same(&before, b, c)).map(|(b, _)| *b));
        }
        touched
    }

    /// What a guest's own recovery writes. Content that stays the same stays the same piece of memory.
    fn replay(&mut self) {
        let mut homes = Homes::new();
        for layout in self.layouts.iter() {
            let Some(superblock) = self.journal_superblock(layout) else { continue };
            let Some(start) = superblock.start() else { continue };
            let geometry = LogGeometry { fs_blocks: layout.blocks, ..LogGeometry::new(&superblock, layout) };
            // A log that recovery gives up on is not replayed.
            let replayed = replay(&mut On(&self.content, layout), &geometry, start, superblock.sequence());
            for (home, content) in replayed.map(|r| r.writes).unwrap_or_default() {
                let block = home.sector(layout.start).0 / 8;
                let known = self.homes.get(&block).filter(|known| ***known == *content);
                homes.insert(block, known.map_or_else(|| Arc::from(content), Arc::clone));
            }
        }
        self.homes = Arc::new(homes);
    }

    /// What is wrong with a journal that says that it is empty, in half a sentence. `guest` is the disk without a daemon: a
    /// sequence that the guest itself has written may be older than one that the daemon had raised.
    pub fn journal_fault(&self, before: &Self, guest: &Self) -> Option<String> {
        /// JBD2_MAGIC_NUMBER
        const MAGIC: u32 = 0xc03b_3998;
        for layout in self.layouts.iter() {
            let Some(superblock) = self.journal_superblock(layout) else { continue };
            if superblock.start().is_some() {
                continue;
            }
            let sequence = superblock.sequence();
            let older = |side: &Self| {
                let other = side.journal_superblock(layout).filter(|other| other.uuid() == superblock.uuid());
                other.filter(|other| other.sequence().is_after(sequence))
            };
            if let (Some(older), Some(_)) = (older(before), older(guest)) {
                return Some(format!(
                    "the empty journal's sequence went back from {} to {sequence}",
                    older.sequence()
                ));
            }
            for at in superblock.first().0..superblock.maxlen() {
                let mut block = [0; BLOCK_BYTES];
                // In memory: it does not fail.
                drop(On(&self.content, layout).block(AreaBlock(at), &mut block).map(|_| ()));
                let field =
                    |at: usize| u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
                let tid = afterimage_journal::Tid(field(8));
                if field(0) == MAGIC && !sequence.is_after(tid) {
                    return Some(format!(
                        "the empty journal's sequence is {sequence}, and its block {at} bears the id {tid}"
                    ));
                }
            }
        }
        None
    }
}
