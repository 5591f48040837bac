//! What a guest's own recovery makes of a log: three passes as `do_one_pass` in the kernel's fs/jbd2/recovery.c, with
//! nothing shared with [`super::parse`] but the checksum functions. Slow and plain: tests measure the rest against it.
//!
//! ```text
//! scan: where the log ends ─► revoke: block → youngest transaction that revokes it ─► replay: the rest, in log order
//! ```

use std::collections::HashMap;

use super::checksum::{crc32_be, crc32c, uuid_seed};
use super::{AreaView, LogGeometry};
use crate::error::JournalError;
use crate::ids::{AreaBlock, Block, FsBlock, Tid, BLOCK_BYTES};

/// What recovery does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Home blocks and what is written there, in that order; a block may occur again.
    pub writes: Vec<(FsBlock, Box<Block>)>,
    /// The first transaction that is not replayed. The kernel goes on with the id after it.
    pub end: Tid,
    /// The block after the last replayed transaction's commit block.
    pub next: AreaBlock,
    /// Blocks that were left out because their checksum is wrong: the kernel replays the rest and then fails the mount.
    pub damaged: Vec<FsBlock>,
    /// Transactions replayed.
    pub transactions: u32,
}

impl Replay {
    /// What home blocks hold afterwards, of those that are written.
    pub fn homes(&self) -> HashMap<FsBlock, Box<Block>> {
        self.writes.iter().cloned().collect()
    }
}

/// Replays the log from `tail_block` on, where transaction `tail_tid` is expected.
///
/// # Errors
/// *Corrupt* where the kernel gives up, and where it would write outside the file system or into the journal. I/O errors
/// of the view.
pub fn replay(
    view: &mut dyn AreaView,
    geometry: &LogGeometry,
    tail_block: AreaBlock,
    tail_tid: Tid,
) -> Result<Replay, JournalError> {
    if tail_block.0 < geometry.first.0 || tail_block.0 >= geometry.maxlen {
        return Err(corrupt(format!("the log cannot begin at {tail_block}")));
    }
    let mut pass =
        Pass { view, geometry, at: tail_block, walked: 0, tid: tail_tid, seed: uuid_seed(&geometry.uuid) };
    let (end, next) = pass.scan()?;
    let mut result = Replay {
        writes: Vec::new(),
        end,
        next,
        damaged: Vec::new(),
        transactions: end.0.wrapping_sub(tail_tid.0),
    };
    let mut revoked = HashMap::new();
    (pass.at, pass.tid, pass.walked) = (tail_block, tail_tid, 0);
    pass.revokes(end, &mut revoked)?;
    (pass.at, pass.tid, pass.walked) = (tail_block, tail_tid, 0);
    pass.replay(end, &revoked, &mut result)?;
    Ok(result)
}

struct Pass<'a> {
    view: &'a mut dyn AreaView,
    geometry: &'a LogGeometry,
    at: AreaBlock,
    walked: u32,
    tid: Tid,
    seed: u32,
}

/// A tag: home, flags, checksum.
type RawTag = (u64, u16, u32);

fn corrupt(what: String) -> JournalError {
    JournalError::Corrupt(format!("replay: {what}"))
}

fn number(block: &[u8], at: usize, bytes: usize) -> u64 {
    block[at..at + bytes].iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

impl Pass<'_> {
    fn signed(&self) -> bool {
        self.geometry.features.csum_v2 || self.geometry.features.csum_v3
    }

    /// The next block of the log, and a step forward; `None` once round.
    fn read(&mut self) -> Result<Option<Block>, JournalError> {
        if self.walked >= self.geometry.maxlen - self.geometry.first.0 {
            return Ok(None);
        }
        let mut scratch = [0; BLOCK_BYTES];
        let block = *self.view.block(self.at, &mut scratch)?;
        self.walked += 1;
        self.at.0 += 1;
        if self.at.0 >= self.geometry.maxlen {
            self.at.0 -= self.geometry.maxlen - self.geometry.first.0;
        }
        Ok(Some(block))
    }

    /// The type of a block of the current transaction.
    fn kind(&self, block: &Block) -> Option<u64> {
        let belongs = number(block, 0, 4) == 0xc03b3998 && number(block, 8, 4) == u64::from(self.tid.0);
        belongs.then(|| number(block, 4, 4))
    }

    fn verify(&self, block: &Block, at: usize) -> bool {
        let mut zeroed = *block;
        zeroed[at..at + 4].fill(0);
        !self.signed() || u64::from(crc32c(self.seed, &zeroed)) == number(block, at, 4)
    }

    fn tags(&self, block: &Block) -> Vec<RawTag> {
        let features = self.geometry.features;
        let size = if features.csum_v3 {
            16
        } else {
            8 + 4 * usize::from(features.bits64) + 2 * usize::from(features.csum_v2)
        };
        let end = BLOCK_BYTES - 4 * usize::from(self.signed());
        let (mut at, mut tags) = (12, Vec::new());
        while at + size <= end {
            let mut home = number(block, at, 4);
            if features.bits64 {
                home |= number(block, at + 8, 4) << 32;
            }
            let flags = number(block, at + 6, 2) as u16;
            let crc = if features.csum_v3 { number(block, at + 12, 4) } else { number(block, at + 4, 2) };
            tags.push((home, flags, crc as u32));
            at += size + if flags & 2 == 0 { 16 } else { 0 };
            if flags & 8 != 0 {
                break;
            }
        }
        tags
    }

    /// PASS_SCAN: the first transaction that does not count, and where it would begin.
    fn scan(&mut self) -> Result<(Tid, AreaBlock), JournalError> {
        let features = self.geometry.features;
        let mut good = (self.tid, self.at);
        let (mut end, mut crc, mut check_time, mut last_time) = (None, !0, false, 0);
        while let Some(block) = self.read()? {
            match self.kind(&block) {
                Some(1) => {
                    check_time |= !self.verify(&block, BLOCK_BYTES - 4);
                    crc = crc32_be(crc, &block);
                    for _ in self.tags(&block) {
                        let Some(content) = self.read()? else { return Ok(end.unwrap_or(good)) };
                        crc = crc32_be(crc, &content);
                    }
                }
                Some(2) => {
                    let time = number(&block, 48, 8);
                    if check_time {
                        if time >= last_time {
                            return Err(corrupt(format!(
                                "invalid checksum found in transaction {}",
                                self.tid
                            )));
                        }
                        break;
                    }
                    let mut sound = self.verify(&block, 16);
                    if features.checksum && end.is_none() {
                        let found = (block[12], block[13], number(&block, 16, 4));
                        sound &= found == (1, 4, crc.into()) || found == (0, 0, 0);
                    }
                    if !sound {
                        if time < last_time {
                            break;
                        }
                        end.get_or_insert(good);
                        if !features.async_commit {
                            break;
                        }
                    }
                    last_time = time;
                    crc = !0;
                    self.tid = Tid(self.tid.0.wrapping_add(1));
                    good = (self.tid, self.at);
                }
                Some(5) => check_time |= !self.verify(&block, BLOCK_BYTES - 4),
                _ => break,
            }
        }
        Ok(end.unwrap_or(good))
    }

    /// PASS_REVOKE: the youngest transaction that revokes a block.
    fn revokes(&mut self, end: Tid, revoked: &mut HashMap<u64, Tid>) -> Result<(), JournalError> {
        while self.tid != end {
            let Some(block) = self.read()? else { break };
            match self.kind(&block) {
                Some(1) => {
                    for _ in self.tags(&block) {
                        self.read()?;
                    }
                }
                Some(2) => self.tid = Tid(self.tid.0.wrapping_add(1)),
                Some(5) => {
                    let used = number(&block, 12, 4) as usize;
                    if used > BLOCK_BYTES - 4 * usize::from(self.signed()) {
                        return Err(corrupt(format!("a revoke block of {used} bytes")));
                    }
                    let record = if self.geometry.features.bits64 { 8 } else { 4 };
                    let mut at = 16;
                    while at + record <= used {
                        let home = number(&block, at, record);
                        // Transactions come in order: the last one to say so is the youngest.
                        revoked.insert(home, self.tid);
                        at += record;
                    }
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// PASS_REPLAY.
    fn replay(
        &mut self,
        end: Tid,
        revoked: &HashMap<u64, Tid>,
        result: &mut Replay,
    ) -> Result<(), JournalError> {
        while self.tid != end {
            let Some(block) = self.read()? else { break };
            match self.kind(&block) {
                Some(1) => {
                    for (home, flags, crc) in self.tags(&block) {
                        let Some(mut content) = self.read()? else { return Ok(()) };
                        let by = revoked.get(&home);
                        if by.is_some_and(|by| self.tid.0.wrapping_sub(by.0) as i32 <= 0) {
                            continue;
                        }
                        let own = crc32c(crc32c(self.seed, &self.tid.0.to_be_bytes()), &content);
                        let own = if self.geometry.features.csum_v3 { own } else { own & 0xffff };
                        if self.signed() && own != crc {
                            result.damaged.push(FsBlock(home));
                            continue;
                        }
                        let inside =
                            self.geometry.forbidden.iter().any(|(from, to)| from.0 <= home && home < to.0);
                        if home >= self.geometry.fs_blocks || inside {
                            return Err(corrupt(format!("block {home} can be nobody's home")));
                        }
                        if flags & 1 != 0 {
                            content[..4].copy_from_slice(&[0xc0, 0x3b, 0x39, 0x98]);
                        }
                        result.writes.push((FsBlock(home), Box::new(content)));
                    }
                }
                Some(2) => self.tid = Tid(self.tid.0.wrapping_add(1)),
                Some(5) => {}
                _ => break,
            }
        }
        Ok(())
    }
}
