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

use super::super_blocks::Form;
use super::superblock::Superblock;
use super::FtlError;
use crate::config::MergeFault;
use crate::counts::Cause;
use crate::ids::{Block, NONE};
use crate::nand::Packed;

/// How many victims ahead are asked for.
const DEPTH: usize = 6;
const STEPS_A_WRITE: usize = 2;

impl<F: Form> Superblock<F> {
    /// The slot whose block takes the next host write of superblock `sb`.
    #[inline]
    pub(super) fn host_slot(&mut self, sb: u32) -> Result<u16, FtlError> {
        let s = &self.supers[sb as usize];
        match s.open() {
            Some(open) if !self.dev.flash.is_full(s.block(open)) => Ok(open),
            _ => self.next_open(sb),
        }
    }

    fn next_open(&mut self, sb: u32) -> Result<u16, FtlError> {
        self.supers[sb as usize].set_open(None);
        loop {
            let s = &self.supers[sb as usize];
            if let Some(open) = s.open() {
                return Ok(open);
            }
            if let Some(slot) = s.slots().iter().copied().find(|slot| s.live_in(*slot) == 0) {
                // 1 Exchange: nothing to copy.
                self.reopen(sb, slot, Cause::Exchange)?;
            } else if s.held() >= self.limit || self.pays_itself(sb) {
                // 3 At its limit: it pays itself.
                self.collect_locally(sb)?;
            } else if self.dev.pool.len() > self.reserve {
                // 2 The pool has blocks to give.
                let slot = self.draw(sb)?;
                self.allocations += 1;
                self.supers[sb as usize].set_open(Some(slot));
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
        let extra = s.held() > self.needed(s.live);
        self.local_first && extra && self.dev.pool.len() <= self.reserve
    }

    /// A superblock gets a block from the pool.
    #[inline]
    fn draw(&mut self, sb: u32) -> Result<u16, FtlError> {
        let block = self.dev.take()?;
        self.holds(sb, block);
        Ok(self.supers[sb as usize].push(block))
    }

    /// Erases one of the superblock's blocks, which has no live page, and opens it for host writes.
    fn reopen(&mut self, sb: u32, slot: u16, cause: Cause) -> Result<(), FtlError> {
        let block = self.supers[sb as usize].block(slot);
        self.dev.erase(block, cause);
        let fresh = self.dev.trade(block)?;
        let s = &mut self.supers[sb as usize];
        if s.cold() == Some(slot) {
            s.set_cold(None);
        }
        s.set_open(Some(slot));
        s.replace(slot, fresh);
        self.holds(sb, fresh);
        Ok(())
    }

    #[inline]
    fn is_full(&self, sb: u32, slot: u16) -> bool {
        self.dev.flash.is_full(self.supers[sb as usize].block(slot))
    }

    /// The slot of the block with the fewest live pages, the first of equals, without `except`.
    fn fewest_live(&self, sb: u32, except: Option<u16>) -> Option<u16> {
        let s = &self.supers[sb as usize];
        let slots = s.slots().iter().copied();
        slots.filter(|slot| Some(*slot) != except).min_by_key(|slot| s.live_in(*slot))
    }

    /// Frees one block of a superblock that may not have more: vR + vW + 1E.
    fn collect_locally(&mut self, sb: u32) -> Result<(), FtlError> {
        let s = sb as usize;
        let cold = self.supers[s].cold().filter(|slot| !self.is_full(sb, *slot));
        self.supers[s].set_cold(cold);
        let victim = self.fewest_live(sb, cold).ok_or(FtlError::NoSpace)?;
        if self.supers[s].live_in(victim) == self.p {
            // Everything else is live: all the room there is is in the cold block.
            self.supers[s].set_open(Some(cold.ok_or(FtlError::NoSpace)?));
            self.supers[s].set_cold(None);
            return Ok(());
        }
        let dst = self.empty(sb, victim, cold, Cause::LocalCollect)?;
        let drawn = dst != cold;
        if self.hot_cold {
            let cold = dst.filter(|slot| !self.is_full(sb, *slot));
            self.supers[s].set_cold(cold);
        } else if drawn {
            // One frontier for all: the host goes on behind the collected pages.
            self.supers[s].set_open(dst);
        }
        if drawn {
            let block = self.supers[s].block(victim);
            self.supers[s].drop_slot(victim);
            self.dev.release(block, Cause::LocalCollect);
        } else {
            self.reopen(sb, victim, Cause::LocalCollect)?;
        }
        Ok(())
    }

    /// Copies the live pages of a slot's block behind those of `dst` and, when that is full, to a block of the pool;
    /// gives the slot that took the last one.
    #[inline]
    fn empty(
        &mut self,
        sb: u32,
        src: u16,
        mut dst: Option<u16>,
        cause: Cause,
    ) -> Result<Option<u16>, FtlError> {
        let s = sb as usize;
        while self.supers[s].live_in(src) > 0 {
            let to = match dst.filter(|slot| !self.is_full(sb, *slot)) {
                Some(slot) => slot,
                None => self.draw(sb)?,
            };
            dst = Some(to);
            let copied = self.copy(sb, self.supers[s].block(src), (to, self.supers[s].block(to)), cause);
            self.supers[s].died(src, copied);
            self.supers[s].born(to, copied);
        }
        Ok(dst)
    }

    /// Copies live pages of block `src` to the block of a slot; how many.
    #[inline]
    pub(super) fn copy(&mut self, sb: u32, src: Block, (slot, dst): (u16, Block), cause: Cause) -> u32 {
        let (owners, mut maps) = (&mut self.owners, self.maps.region(sb));
        let first = u32::from(slot) * self.p;
        self.dev.flash.pack(src, dst, cause, |Packed { word, live, pages, to }| {
            let Some((from, into)) = owners.pair((src, word), (dst, to, pages)) else { return live };
            maps.copied(from, into, live, first + to)
        })
    }

    /// Squeezes a superblock's emptiest blocks together until it needs one block less: xR + xW + kE.
    fn compact(&mut self, sb: u32) -> Result<(), FtlError> {
        let mut chosen = std::mem::take(&mut self.chosen);
        self.choose(sb, &mut chosen);
        let mut dst = None;
        for victim in chosen.iter().copied() {
            let block = self.supers[sb as usize].block(victim);
            if self.fault == MergeFault::ForgetsAMove && self.supers[sb as usize].live_in(victim) > 0 {
                self.dev.flash.lose_a_page(block);
                self.supers[sb as usize].died(victim, 1);
            }
            dst = self.empty(sb, victim, dst, Cause::Compact)?;
            self.supers[sb as usize].drop_slot(victim);
            self.dev.release(block, Cause::Compact);
        }
        self.chosen = chosen;
        self.settle(sb, dst);
        self.relist(sb, false);
        self.plan();
        Ok(())
    }

    /// The slots to compact: the fewest live pages first, of equals in the order the superblock got their blocks.
    fn choose(&self, sb: u32, chosen: &mut Vec<u16>) {
        chosen.clear();
        let s = &self.supers[sb as usize];
        let slots = s.slots();
        let keys = slots.iter().enumerate().map(|(position, slot)| Key::new(s.live_in(*slot), position));
        let mut live = 0;
        let mut add = |key: Key| {
            live += key.live();
            chosen.push(slots[key.position()]);
            chosen.len() as u32 > self.needed(live)
        };
        if self.fault == MergeFault::None && slots.len() <= FEW {
            let mut few = [Key::LAST; FEW];
            few.iter_mut().zip(keys).for_each(|(held, key)| *held = key);
            let _ = sorted(&few, slots.len()).into_iter().take(slots.len()).find(|key| add(*key));
        } else {
            let mut all: Vec<Key> = keys.collect();
            all.sort_unstable();
            if self.fault == MergeFault::FullestFirst {
                all.reverse();
            }
            let _ = all.into_iter().find(|key| add(*key));
        }
    }

    /// The next victims are noted, if they are not already.
    fn plan(&mut self) {
        let mut next = self.victim().unwrap_or(NONE);
        for _ in 0..DEPTH {
            // A head ends its queue.
            if next as usize >= self.supers.len() {
                break;
            }
            self.upcoming.note(next);
            [next, _] = self.links[next as usize];
        }
    }

    /// What the next compactions will touch is asked for, a part at each host write: a processor that is asked for all
    /// of it at once waits.
    #[inline]
    pub(super) fn expect_victims(&mut self) {
        for _ in 0..STEPS_A_WRITE {
            let Some((sb, step)) = self.upcoming.step() else { return };
            match step {
                0 => {
                    let mut chosen = std::mem::take(&mut self.expected);
                    self.choose(sb, &mut chosen);
                    for slot in &chosen {
                        let block = self.supers[sb as usize].block(*slot);
                        self.dev.flash.expect_merge(block);
                    }
                    self.expected = chosen;
                }
                1 | 2 => self.maps.expect_part(sb, step - 1, 2),
                _ => {
                    for slot in &self.expected {
                        let block = self.supers[sb as usize].block(*slot);
                        self.owners.expect(block);
                    }
                }
            }
        }
    }

    /// The last destination of a compaction takes the next pages of its kind, if it has more room than what does now.
    fn settle(&mut self, sb: u32, dst: Option<u16>) {
        let Some(dst) = dst.filter(|slot| !self.is_full(sb, *slot)) else { return };
        let s = &mut self.supers[sb as usize];
        let room = |slot: u16| self.p - self.dev.flash.next_page(s.block(slot));
        let held = if self.hot_cold { s.cold() } else { s.open() };
        if held.is_none_or(|held| room(dst) > room(held)) {
            if self.hot_cold {
                s.set_cold(Some(dst));
            } else {
                s.set_open(Some(dst));
            }
        }
    }
}

/// What decides which block is compacted first: live pages, then the position in the order of its superblock's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
struct Key(i32);

impl Key {
    /// Behind all others.
    const LAST: Self = Self(i32::MAX);
    /// Of the position: N + M are at most 2048, a block has at most 4096 pages.
    const BITS: u32 = 12;

    #[inline]
    fn new(live: u32, position: usize) -> Self {
        Self((live << Self::BITS) as i32 | position as i32)
    }

    #[inline]
    fn live(self) -> u32 {
        self.0 as u32 >> Self::BITS
    }

    #[inline]
    fn position(self) -> usize {
        self.0 as usize % (1 << Self::BITS)
    }
}

/// So few keys are sorted without comparing and branching.
const FEW: usize = 16;

/// The first `len` keys in order; the others are [`Key::LAST`].
///
/// A sort by comparisons mispredicts a branch for most of so few keys. Here a key's place is how many are smaller, which
/// the compiler counts for several keys at once.
#[inline]
fn sorted(keys: &[Key; FEW], len: usize) -> [Key; FEW] {
    let mut places = [0_i32; FEW];
    for other in &keys[..len] {
        for (place, key) in places.iter_mut().zip(keys) {
            *place = place.wrapping_add(i32::from(other < key));
        }
    }
    let mut sorted = [Key::LAST; FEW];
    for (place, key) in places.iter().zip(&keys[..len]) {
        sorted[*place as usize % FEW] = *key;
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_keys_are_sorted_as_many() {
        let mut random = crate::workload::Random::new(1);
        for len in 0..=FEW {
            let mut keys = [Key::LAST; FEW];
            (0..len).for_each(|i| keys[i] = Key::new(random.below(5) * 1024, i));
            let mut expected = keys;
            expected.sort_unstable();
            assert_eq!(sorted(&keys, len), expected);
        }
        let key = Key::new(4096, 2047);
        assert_eq!((key.live(), key.position()), (4096, 2047));
    }
}
