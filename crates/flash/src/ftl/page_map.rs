//! The ideal page map: the whole map in RAM, greedy collection (or cost-benefit, `gc_policy`).
//!
//! ```text
//! write ─► enough free blocks? ─no─► collect: block with most dead pages ─► copies to the frontier ─► erase
//!             └─yes─► frontier block, next page; the old copy dies
//! ```
//!
//! Host writes and collected pages share one frontier [C]. Collection starts when at most `gc_low` blocks are free
//! and ends when `gc_high` are (docs/flash.md, The FTLs).

use super::{check_mapping, Ahead, Ftl, FtlError};
use crate::config::{Config, MergeFault};
use crate::counts::Cause;
use crate::device::Device;
use crate::ids::{Block, Lpn, Ppn, NONE};
use crate::nand::Flash;
use crate::table::{filled, prefetch};
use crate::victims::Victims;

/// The only kind of block.
const DATA: usize = 0;

/// The ideal page map.
#[derive(Debug)]
pub struct PageMap {
    dev: Device,
    map: Vec<u32>,
    frontier: Option<Block>,
    victims: Victims,
    low: u32,
    high: u32,
    fault: MergeFault,
}

impl PageMap {
    /// A new drive of `logical_pages`.
    pub fn new(config: &Config, logical_pages: u32) -> Self {
        let mut dev = config.device();
        let victims = Victims::new(&mut dev.flash, 1, config.gc_policy);
        Self {
            dev,
            map: filled(NONE, logical_pages as usize),
            frontier: None,
            victims,
            low: config.gc_low,
            high: config.gc_high.unwrap_or(4),
            fault: config.merge_fault,
        }
    }

    #[inline]
    fn frontier(&mut self) -> Result<Block, FtlError> {
        match self.frontier {
            Some(block) if !self.dev.flash.is_full(block) => Ok(block),
            full => {
                if let Some(block) = full {
                    let now = self.dev.flash.programs();
                    self.victims.insert(&mut self.dev.flash, block, DATA, now);
                }
                self.frontier = None;
                let block = self.dev.take()?;
                self.frontier = Some(block);
                Ok(block)
            }
        }
    }

    #[inline]
    fn make_room(&mut self) -> Result<(), FtlError> {
        if self.dev.pool.len() <= self.low {
            loop {
                let now = self.dev.flash.programs();
                let victim = match self.fault {
                    MergeFault::SecondBestVictim => {
                        self.victims.take_second(&mut self.dev.flash, DATA..DATA + 1, now)
                    }
                    _ => self.victims.take(&mut self.dev.flash, DATA..DATA + 1, now),
                };
                let (victim, _) = victim.ok_or(FtlError::NoSpace)?;
                self.empty(victim, Cause::Collect)?;
                if let Some(next) = self.victims.peek(&self.dev.flash, DATA) {
                    self.dev.flash.expect_source(next);
                }
                if self.dev.pool.len() >= self.high {
                    break;
                }
            }
        }
        Ok(())
    }

    fn empty(&mut self, victim: Block, cause: Cause) -> Result<(), FtlError> {
        self.dev.flash.each_live(victim, |_, owner| prefetch(&self.map, owner as usize));
        if self.fault == MergeFault::ForgetsAMove {
            self.dev.flash.lose_a_page(victim);
        }
        while self.dev.flash.live_in(victim) > 0 {
            let dst = self.frontier()?;
            let map = &mut self.map;
            self.dev.flash.move_live(victim, dst, cause, |owner, new| map[owner as usize] = new.0);
        }
        self.dev.release(victim, cause);
        Ok(())
    }

    fn level(&mut self, block: Block) -> Result<(), FtlError> {
        let dst = self.dev.take_most_worn()?;
        self.victims.remove(&mut self.dev.flash, block, DATA);
        let map = &mut self.map;
        self.dev.flash.move_live(block, dst, Cause::WearLevel, |owner, new| map[owner as usize] = new.0);
        self.dev.release(block, Cause::WearLevel);
        let now = self.dev.flash.programs();
        self.victims.insert(&mut self.dev.flash, dst, DATA, now);
        Ok(())
    }

    #[inline]
    fn kill(&mut self, lpn: Lpn) {
        let old = self.map[lpn.index()];
        if old != NONE {
            let block = self.dev.flash.invalidate(Ppn(old));
            let now = self.dev.flash.programs();
            self.victims.died(&mut self.dev.flash, block, DATA, now);
        }
    }
}

impl Ftl for PageMap {
    fn name(&self) -> &'static str {
        "page"
    }

    fn logical_pages(&self) -> u32 {
        self.map.len() as u32
    }

    fn flash(&self) -> &Flash {
        &self.dev.flash
    }

    fn flash_mut(&mut self) -> &mut Flash {
        &mut self.dev.flash
    }

    fn write(&mut self, lpn: Lpn) -> Result<(), FtlError> {
        self.make_room()?;
        let block = self.frontier()?;
        self.kill(lpn);
        self.map[lpn.index()] = self.dev.flash.program_next(block, lpn.0, Cause::Host).0;
        if let Some(cold) = self.dev.block_to_level(|flash, block| flash.is_queued(block)) {
            self.level(cold)?;
        }
        Ok(())
    }

    #[inline]
    fn expect(&self, lpn: Lpn, ahead: Ahead) {
        match ahead {
            Ahead::Far => prefetch(&self.map, lpn.index()),
            Ahead::Near => {
                if let Some(ppn) = self.locate(lpn) {
                    self.dev.flash.expect_death(ppn);
                }
            }
            Ahead::Close => {
                if let Some(ppn) = self.locate(lpn) {
                    self.dev.flash.expect_requeue(ppn);
                }
            }
        }
    }

    fn discard(&mut self, lpn: Lpn) -> Result<(), FtlError> {
        self.kill(lpn);
        self.map[lpn.index()] = NONE;
        Ok(())
    }

    fn locate(&self, lpn: Lpn) -> Option<Ppn> {
        let ppn = self.map[lpn.index()];
        (ppn != NONE).then_some(Ppn(ppn))
    }

    fn check(&self) -> Result<(), String> {
        check_mapping(self, 0)
    }

    fn table_bytes(&self) -> u64 {
        self.map.len() as u64 * 4
    }
}
