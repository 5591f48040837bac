//! The ideal page map.

use std::collections::HashMap;

use super::flash::Flash;
use super::{Naive, Tally, READ};

pub struct Page {
    pub flash: Flash,
    map: HashMap<u32, (usize, usize)>,
    frontier: Option<usize>,
}

impl Page {
    pub fn new(blocks: usize, p: usize) -> Self {
        Self { flash: Flash::new(blocks, p), map: HashMap::new(), frontier: None }
    }

    fn frontier(&mut self) -> usize {
        match self.frontier {
            Some(block) if !self.flash.full(block) => block,
            old => {
                if let Some(old) = old {
                    self.flash.close(old);
                }
                let block = self.flash.take();
                self.frontier = Some(block);
                block
            }
        }
    }

    fn collect(&mut self) {
        let victim = self.flash.victim(&[self.frontier], |_| true).expect("a victim");
        for page in 0..self.flash.p {
            let held = self.flash.blocks[victim].pages[page];
            if held.live {
                let to = self.frontier();
                let at = self.flash.copy((victim, page), to, "collect");
                self.map.insert(held.owner, at);
            }
        }
        self.flash.release(victim, "collect");
    }
}

impl Naive for Page {
    fn write(&mut self, lpn: u32, stamp: u32) {
        if self.flash.free() <= 3 {
            self.collect();
            while self.flash.free() < 4 {
                self.collect();
            }
        }
        let block = self.frontier();
        self.discard(lpn);
        let at = self.flash.program(block, lpn, stamp, "host");
        self.map.insert(lpn, at);
    }

    fn read(&mut self, lpn: u32) -> Option<u32> {
        let (block, page) = *self.map.get(&lpn)?;
        self.flash.count("host", READ);
        Some(self.flash.blocks[block].pages[page].stamp)
    }

    fn discard(&mut self, lpn: u32) {
        if let Some(at) = self.map.remove(&lpn) {
            self.flash.kill(at);
        }
    }

    fn tally(&self) -> &Tally {
        &self.flash.tally
    }
}
