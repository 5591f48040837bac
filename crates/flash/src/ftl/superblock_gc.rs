//! How a superblock gets room: exchange, allocate, collect its own block, or compact another superblock.

use super::superblock::Superblock;
use super::FtlError;
use crate::counts::Cause;
use crate::ids::Block;

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
        let extra = s.blocks.len() as u32 > s.live.div_ceil(self.p);
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
            self.move_into(victim, block, Cause::LocalCollect);
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

    fn move_into(&mut self, src: Block, dst: Block, cause: Cause) {
        let maps = &mut self.maps;
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
        let s = sb as usize;
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(self.supers[s].blocks.iter().copied());
        order.sort_by_key(|b| self.dev.flash.live_in(*b));
        let mut live = 0;
        let mut chosen = 0;
        while chosen < order.len() {
            live += self.dev.flash.live_in(order[chosen]);
            chosen += 1;
            if chosen as u32 > live.div_ceil(self.p) {
                break;
            }
        }
        let mut dst: Option<Block> = None;
        for victim in order.drain(..).take(chosen) {
            while self.dev.flash.live_in(victim) > 0 {
                let block = match dst.filter(|b| !self.dev.flash.is_full(*b)) {
                    Some(block) => block,
                    None => {
                        let block = self.dev.take()?;
                        self.supers[s].blocks.push(block);
                        dst = Some(block);
                        block
                    }
                };
                self.move_into(victim, block, Cause::Compact);
            }
            self.drop_block(sb, victim);
            self.dev.release(victim, Cause::Compact);
        }
        self.order = order;
        self.settle(sb, dst);
        self.relist(sb, false);
        Ok(())
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
