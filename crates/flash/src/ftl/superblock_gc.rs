//! How a superblock gets room: exchange, allocate, collect its own block, or compact another superblock.
//!
//! Why Superblock may erase more than FAST: a block is never shared between superblocks, so one write to a superblock
//! without room needs a whole block of its own, where FAST appends a page to the common log. With enough spare blocks for
//! the superblocks that are being written that is cheap: each exchanges its own blocks. With fewer, they take each other's
//! blocks: u blocks to give, visited uniformly by s superblocks, make one block change hands every 1 / (1 − u/s) writes,
//! and each time 64 dead pages must be squeezed out of blocks that have few, which copies one to two blocks. No victim
//! order avoids that. Measured, 1,024 data blocks, 300,000 single-page writes that are uniform within some superblocks of
//! eight (erases, FAST / Superblock):
//!
//! ```text
//! superblocks written      4                16               32                128 (all)
//! 32 spare blocks     12,186 /  7,401  25,972 / 29,595  42,762 / 124,399  112,794 / 518,437
//! 72                   9,790 /  6,084  15,359 / 14,858  23,046 /  27,251   62,331 / 396,447
//! 154                  9,313 /  6,084  11,206 /  6,084  14,693 /  13,746   34,962 /  42,917
//! ```
//!
//! Superblock is ahead from four to five spare blocks for each superblock that is being written: as in the study, whose
//! guests write to few places at a time. `tests/closed_forms.rs` holds both ends.

use super::superblock::Superblock;
use super::FtlError;
use crate::config::MergeFault;
use crate::counts::Cause;
use crate::ids::{Block, NONE};
use crate::table::prefetch;

/// Which superblocks will be compacted next, and how much of them has been asked for.
#[derive(Debug, Default)]
pub(super) struct Upcoming {
    /// The last ones noted, in a ring.
    planned: [u32; Self::RING],
    /// Noted in all.
    noted: usize,
    /// Steps taken in all.
    steps: usize,
}

impl Upcoming {
    /// How many victims ahead.
    const DEPTH: usize = 3;
    /// Steps a victim.
    const STEPS: usize = 3;
    const STEPS_A_WRITE: usize = 2;
    const RING: usize = 8;

    fn add(&mut self, sb: u32) {
        self.planned[self.noted % Self::RING] = sb;
        self.noted += 1;
        // What the ring has lost is not worth asking for any more.
        self.steps = self.steps.max((self.noted.saturating_sub(Self::RING)) * Self::STEPS);
    }

    #[inline]
    fn step(&mut self) -> Option<(u32, usize)> {
        let (victim, step) = (self.steps / Self::STEPS, self.steps % Self::STEPS);
        if victim >= self.noted {
            return None;
        }
        self.steps += 1;
        Some((self.planned[victim % Self::RING], step))
    }
}

impl Superblock {
    /// The block that takes the next host write of superblock `sb`.
    #[inline]
    pub(super) fn host_block(&mut self, sb: u32) -> Result<Block, FtlError> {
        match self.supers[sb as usize].open {
            Some(open) if !self.dev.flash.is_full(open) => Ok(open),
            _ => self.next_open(sb),
        }
    }

    fn next_open(&mut self, sb: u32) -> Result<Block, FtlError> {
        self.supers[sb as usize].open = None;
        loop {
            if let Some(open) = self.supers[sb as usize].open {
                return Ok(open);
            }
            let empty = self.supers[sb as usize].blocks.iter().find(|b| self.dev.flash.live_in(**b) == 0);
            if let Some(block) = empty.copied() {
                // 1 Exchange: nothing to copy.
                self.reopen(sb, block, Cause::Exchange)?;
            } else if self.supers[sb as usize].blocks.len() as u32 >= self.limit || self.pays_itself(sb) {
                // 3 At its limit: it pays itself.
                self.collect_locally(sb)?;
            } else if self.dev.pool.len() > self.reserve {
                // 2 The pool has blocks to give.
                let block = self.dev.take()?;
                self.allocations += 1;
                let s = &mut self.supers[sb as usize];
                s.blocks.push(block);
                s.open = Some(block);
            } else {
                // 4 The pool is exhausted: the superblock written least recently gives an extra block back.
                self.relist(sb, false);
                let victim = self.victim().ok_or(FtlError::NoSpace)?;
                self.compact(victim)?;
            }
        }
    }

    /// With `local_first`: the pool is exhausted and this superblock has itself more blocks than its live pages need.
    fn pays_itself(&self, sb: u32) -> bool {
        let s = &self.supers[sb as usize];
        let extra = s.blocks.len() as u32 > self.needed(s.live);
        self.local_first && extra && self.dev.pool.len() <= self.reserve
    }

    /// Erases one of the superblock's blocks, which has no live page, and opens it for host writes.
    fn reopen(&mut self, sb: u32, block: Block, cause: Cause) -> Result<(), FtlError> {
        self.dev.erase(block, cause);
        let fresh = self.dev.trade(block)?;
        let s = &mut self.supers[sb as usize];
        if s.cold == Some(block) {
            s.cold = None;
        }
        s.open = Some(fresh);
        if let Some(slot) = s.blocks.iter_mut().find(|held| **held == block) {
            *slot = fresh;
        }
        Ok(())
    }

    /// The block with the fewest live pages, the first of equals, without `except`.
    fn fewest_live(&self, sb: u32, except: Option<Block>) -> Option<Block> {
        let blocks = self.supers[sb as usize].blocks.iter().copied();
        blocks.filter(|b| Some(*b) != except).min_by_key(|b| self.dev.flash.live_in(*b))
    }

    /// Frees one block of a superblock that may not have more: vR + vW + 1E.
    fn collect_locally(&mut self, sb: u32) -> Result<(), FtlError> {
        let s = sb as usize;
        let cold = self.supers[s].cold.filter(|b| !self.dev.flash.is_full(*b));
        self.supers[s].cold = cold;
        let victim = self.fewest_live(sb, cold).ok_or(FtlError::NoSpace)?;
        if self.dev.flash.live_in(victim) == self.p {
            // Everything else is live: all the room there is is in the cold block.
            self.supers[s].open = Some(cold.ok_or(FtlError::NoSpace)?);
            self.supers[s].cold = None;
            return Ok(());
        }
        let mut dst = cold;
        let mut drawn = false;
        while self.dev.flash.live_in(victim) > 0 {
            let block = match dst.filter(|b| !self.dev.flash.is_full(*b)) {
                Some(block) => block,
                None => {
                    let block = self.dev.take()?;
                    self.supers[s].blocks.push(block);
                    drawn = true;
                    dst = Some(block);
                    block
                }
            };
            self.move_into(sb, victim, block, Cause::LocalCollect);
        }
        if self.hot_cold {
            self.supers[s].cold = dst.filter(|b| !self.dev.flash.is_full(*b));
        } else if drawn {
            // One frontier for all: the host goes on behind the collected pages.
            self.supers[s].open = dst;
        }
        if drawn {
            self.drop_block(sb, victim);
            self.dev.release(victim, Cause::LocalCollect);
        } else {
            self.reopen(sb, victim, Cause::LocalCollect)?;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn move_into(&mut self, sb: u32, src: Block, dst: Block, cause: Cause) {
        let mut maps = self.maps.region(sb);
        self.dev.flash.move_live(src, dst, cause, |lpn, new| maps.programmed(lpn, new));
    }

    fn drop_block(&mut self, sb: u32, block: Block) {
        let s = &mut self.supers[sb as usize];
        s.blocks.retain(|held| *held != block);
        if s.open == Some(block) {
            s.open = None;
        }
        if s.cold == Some(block) {
            s.cold = None;
        }
    }

    /// Squeezes a superblock's emptiest blocks together until it needs one block less: xR + xW + kE.
    fn compact(&mut self, sb: u32) -> Result<(), FtlError> {
        let (mut order, mut drawn) = (std::mem::take(&mut self.order), std::mem::take(&mut self.drawn));
        self.choose(sb, &mut order);
        drawn.clear();
        let mut dst: Option<Block> = None;
        for victim in order.iter().map(|entry| Block(*entry as u32)) {
            if self.fault == MergeFault::ForgetsAMove {
                self.dev.flash.lose_a_page(victim);
            }
            while self.dev.flash.live_in(victim) > 0 {
                let block = match dst.filter(|b| !self.dev.flash.is_full(*b)) {
                    Some(block) => block,
                    None => {
                        let block = self.dev.take()?;
                        drawn.push(block);
                        dst = Some(block);
                        block
                    }
                };
                self.move_into(sb, victim, block, Cause::Compact);
            }
            self.dev.release(victim, Cause::Compact);
        }
        let gone = |block: Block| order.iter().any(|entry| *entry as u32 == block.0);
        let s = &mut self.supers[sb as usize];
        s.open = s.open.filter(|b| !gone(*b));
        s.cold = s.cold.filter(|b| !gone(*b));
        s.blocks.retain(|b| !gone(*b));
        s.blocks.extend(drawn.iter().copied());
        (self.order, self.drawn) = (order, drawn);
        self.settle(sb, dst);
        self.relist(sb, false);
        self.plan();
        Ok(())
    }

    /// The blocks to compact: the fewest live pages first, of equals in the order the superblock got them. An entry is
    /// live pages, position and, in its low half, the block.
    fn choose(&self, sb: u32, order: &mut Vec<u64>) {
        order.clear();
        let blocks = self.supers[sb as usize].blocks.iter().enumerate();
        order.extend(blocks.map(|(position, b)| {
            u64::from(self.dev.flash.live_in(*b)) << 48 | (position as u64) << 32 | u64::from(b.0)
        }));
        order.sort_unstable();
        if self.fault == MergeFault::FullestFirst {
            order.reverse();
        }
        let (mut live, mut chosen) = (0, 0);
        for entry in order.iter() {
            live += (entry >> 48) as u32;
            chosen += 1;
            if chosen > self.needed(live) {
                break;
            }
        }
        order.truncate(chosen as usize);
    }

    /// The next victims are noted, if they are not already.
    fn plan(&mut self) {
        let mut next = self.victim().unwrap_or(NONE);
        for _ in 0..Upcoming::DEPTH {
            if next == NONE {
                break;
            }
            if !self.upcoming.planned.contains(&next) {
                self.upcoming.add(next);
                prefetch(&self.supers, next as usize);
            }
            next = self.links[next as usize][0];
        }
    }

    /// What the next compactions will touch is asked for, a part at each host write: a processor that is asked for all
    /// of it at once waits.
    #[inline]
    pub(super) fn expect_victims(&mut self) {
        for _ in 0..Upcoming::STEPS_A_WRITE {
            let Some((sb, step)) = self.upcoming.step() else { return };
            match step {
                0 => {
                    let blocks = &self.supers[sb as usize].blocks;
                    blocks.iter().for_each(|b| self.dev.flash.expect_fill(*b));
                }
                1 => {
                    let mut order = std::mem::take(&mut self.order);
                    self.choose(sb, &mut order);
                    order.iter().for_each(|entry| self.dev.flash.expect_source(Block(*entry as u32)));
                    self.order = order;
                }
                _ => self.maps.expect_all(sb),
            }
        }
    }

    /// The last destination of a compaction takes the next pages of its kind, if it has more room than what does now.
    fn settle(&mut self, sb: u32, dst: Option<Block>) {
        let Some(dst) = dst.filter(|b| !self.dev.flash.is_full(*b)) else { return };
        let room = |held: Option<Block>| held.map_or(0, |b| self.p - self.dev.flash.next_page(b));
        let s = &self.supers[sb as usize];
        let held = if self.hot_cold { s.cold } else { s.open };
        if room(Some(dst)) > room(held) {
            let s = &mut self.supers[sb as usize];
            *(if self.hot_cold { &mut s.cold } else { &mut s.open }) = Some(dst);
        }
    }
}
