//! Writes logs as jbd2 does, from its documentation and not with the parser's code: for tests and seeds of fuzzing.
//!
//! ```text
//! Draft ─► [revoke blocks][descriptor][logged, escaped]...[commit], checksummed ─► journal block → content
//! ```

use std::collections::BTreeMap;
use std::fmt;

use afterimage_block::BlockError;

use super::checksum::{crc32_be, crc32c, uuid_seed};
use super::{AreaView, LogGeometry};
use crate::ids::{AreaBlock, Block, FsBlock, Tid, BLOCK_BYTES};

/// JBD2_MAGIC_NUMBER as it stands in a block.
pub const MAGIC_BYTES: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];

/// A transaction to be written.
#[derive(Clone, Default)]
pub struct Draft {
    /// Home blocks and their content.
    pub logged: Vec<(FsBlock, Box<Block>)>,
    /// Revoked blocks.
    pub revokes: Vec<FsBlock>,
    /// `h_commit_sec`.
    pub commit_sec: u64,
    /// Tags in a descriptor, if not as many as fit.
    pub tags_max: Option<usize>,
    /// Records in a revoke block, if not as many as fit.
    pub revokes_max: Option<usize>,
    /// Every tag has its UUID of 16 bytes, not only each descriptor's first.
    pub repeats_uuid: bool,
    /// The commit block is missing.
    pub uncommitted: bool,
}

/// A log being written: blocks that nothing was written to are zeroes.
#[derive(Clone)]
pub struct Encoder {
    geometry: LogGeometry,
    seed: u32,
    /// Where the next transaction begins.
    pub at: AreaBlock,
    /// Its id.
    pub tid: Tid,
    /// What was written.
    pub blocks: BTreeMap<AreaBlock, Box<Block>>,
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let logged: Vec<(u64, &[u8])> =
            self.logged.iter().map(|(home, block)| (home.0, &block[..5])).collect();
        f.debug_struct("Draft")
            .field("logged", &logged)
            .field("revokes", &self.revokes)
            .field("commit_sec", &self.commit_sec)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").field("at", &self.at).field("tid", &self.tid).finish_non_exhaustive()
    }
}

impl AreaView for Encoder {
    fn block<'a>(&'a mut self, at: AreaBlock, scratch: &'a mut Block) -> Result<&'a Block, BlockError> {
        *scratch = self.blocks.get(&at).map_or([0; BLOCK_BYTES], |block| **block);
        Ok(scratch)
    }
}

impl Encoder {
    /// An empty log whose first transaction will be `tid` at `at`.
    pub fn new(geometry: &LogGeometry, at: AreaBlock, tid: Tid) -> Self {
        let seed = uuid_seed(&geometry.uuid);
        Self { geometry: geometry.clone(), seed, at, tid, blocks: BTreeMap::new() }
    }

    fn signed(&self) -> bool {
        self.geometry.features.csum_v2 || self.geometry.features.csum_v3
    }

    fn end(&self) -> usize {
        BLOCK_BYTES - if self.signed() { 4 } else { 0 }
    }

    fn tag_bytes(&self) -> usize {
        let features = self.geometry.features;
        match (features.csum_v3, features.csum_v2, features.bits64) {
            (true, _, _) => 16,
            (_, true, true) => 14,
            (_, true, false) => 10,
            (_, _, true) => 12,
            (_, _, false) => 8,
        }
    }

    fn put(&mut self, block: Block) {
        self.blocks.insert(self.at, Box::new(block));
        self.at = self.geometry.after(self.at);
    }

    fn header(&self, kind: u32) -> Block {
        let mut block = [0; BLOCK_BYTES];
        block[..4].copy_from_slice(&MAGIC_BYTES);
        block[4..8].copy_from_slice(&kind.to_be_bytes());
        block[8..12].copy_from_slice(&self.tid.0.to_be_bytes());
        block
    }

    /// Puts the checksum of a block, whose four bytes at `at` are zero, there.
    fn sign(&self, block: &mut Block, at: usize) {
        if self.signed() {
            let crc = crc32c(self.seed, block);
            block[at..at + 4].copy_from_slice(&crc.to_be_bytes());
        }
    }

    /// Gives a descriptor, revoke or commit block that was changed a good checksum again.
    pub fn seal(&mut self, at: AreaBlock) {
        let Some(mut block) = self.blocks.get(&at).cloned() else { return };
        let field = match block[4..8] {
            [0, 0, 0, 1 | 5] => BLOCK_BYTES - 4,
            [0, 0, 0, 2] => 16,
            _ => return,
        };
        if self.signed() {
            block[field..field + 4].fill(0);
            self.sign(&mut block, field);
            self.blocks.insert(at, block);
        }
    }

    /// Writes a transaction behind what is there, and says how many blocks it took.
    pub fn transaction(&mut self, draft: &Draft) -> u32 {
        let (mut written, mut crc) = (0, !0);
        let record = if self.geometry.features.bits64 { 8 } else { 4 };
        let fit = (self.end() - 16) / record;
        for revokes in draft.revokes.chunks(draft.revokes_max.map_or(fit, |max| max.clamp(1, fit))) {
            let mut block = self.header(5);
            let used = 16 + revokes.len() * record;
            block[12..16].copy_from_slice(&(used as u32).to_be_bytes());
            for (i, revoked) in revokes.iter().enumerate() {
                let bytes = revoked.0.to_be_bytes();
                block[16 + i * record..][..record].copy_from_slice(&bytes[8 - record..]);
            }
            self.sign(&mut block, BLOCK_BYTES - 4);
            self.put(block);
            written += 1;
        }
        let uuid = |i: usize| if i == 0 || draft.repeats_uuid { 16 } else { 0 };
        let mut fit = 0;
        let mut at = 12;
        while at + self.tag_bytes() + uuid(fit) <= self.end() {
            at += self.tag_bytes() + uuid(fit);
            fit += 1;
        }
        for logged in draft.logged.chunks(draft.tags_max.map_or(fit, |max| max.clamp(1, fit))) {
            let mut descriptor = self.header(1);
            let mut contents = Vec::new();
            let mut at = 12;
            for (i, (home, content)) in logged.iter().enumerate() {
                let mut content = **content;
                let mut flags = 0u16;
                if content[..4] == MAGIC_BYTES {
                    content[..4].fill(0);
                    flags |= 1;
                }
                flags |= if uuid(i) == 0 { 2 } else { 0 } | if i + 1 == logged.len() { 8 } else { 0 };
                self.tag(&mut descriptor[at..], *home, flags, &content);
                at += self.tag_bytes();
                if uuid(i) > 0 {
                    descriptor[at..at + 16].copy_from_slice(&self.geometry.uuid);
                    at += 16;
                }
                contents.push(content);
            }
            self.sign(&mut descriptor, BLOCK_BYTES - 4);
            for block in std::iter::once(descriptor).chain(contents) {
                crc = crc32_be(crc, &block);
                self.put(block);
                written += 1;
            }
        }
        if !draft.uncommitted {
            let mut commit = self.header(2);
            commit[48..56].copy_from_slice(&draft.commit_sec.to_be_bytes());
            if self.geometry.features.checksum {
                commit[12] = 1;
                commit[13] = 4;
                commit[16..20].copy_from_slice(&crc.to_be_bytes());
            }
            self.sign(&mut commit, 16);
            self.put(commit);
            written += 1;
        }
        self.tid = self.tid.next();
        written
    }

    fn tag(&self, tag: &mut [u8], home: FsBlock, flags: u16, content: &Block) {
        let features = self.geometry.features;
        tag[..4].copy_from_slice(&(home.0 as u32).to_be_bytes());
        tag[6..8].copy_from_slice(&flags.to_be_bytes());
        if features.bits64 {
            tag[8..12].copy_from_slice(&((home.0 >> 32) as u32).to_be_bytes());
        }
        let crc = crc32c(crc32c(self.seed, &self.tid.0.to_be_bytes()), content);
        if features.csum_v3 {
            tag[12..16].copy_from_slice(&crc.to_be_bytes());
        } else if features.csum_v2 {
            tag[4..6].copy_from_slice(&(crc as u16).to_be_bytes());
        }
    }
}
