//! The peer that is run here: a greedy page map on bucket lists and nothing else.
//!
//! Such a program is quoted (README.md beside this folder) at 15.8 M pages/s on 1 GB and 2.8 to 3.2 M on 32 GB, and the targets are rates on the machine
//! where it was measured. Run in turn with the simulator it says how fast today's machine is, so that a rate can be
//! judged on any machine. It is written plainly, as such a program is written first: no hints, no huge pages, no time,
//! causes or wear, and no rule of NAND is checked.

/// Pages a block.
const PAGES: u32 = 64;
const NONE: u32 = u32::MAX;
/// Collection begins when no more blocks than this are free.
const RESERVE: usize = 2;

/// The page map.
pub struct Bare {
    /// Logical page → physical page.
    map: Vec<u32>,
    /// Physical page → logical page; the page is live while `map` says so too.
    owner: Vec<u32>,
    /// Live pages a block.
    live: Vec<u32>,
    /// Full blocks by live pages, doubly linked; the heads lie behind the blocks.
    links: Vec<[u32; 2]>,
    free: Vec<u32>,
    /// The page that is programmed next.
    next: u32,
    host: u64,
    programs: u64,
}

impl Bare {
    /// An erased drive of `blocks` blocks, of which the share `spare` is not logical.
    pub fn new(blocks: u32, spare: f64) -> Self {
        let pages = (f64::from(blocks * PAGES) * (1.0 - spare)) as usize;
        let heads = blocks..=blocks + PAGES;
        let mut free: Vec<u32> = (0..blocks).rev().collect();
        let first = free.pop().unwrap_or(0);
        Self {
            map: vec![NONE; pages],
            owner: vec![NONE; (blocks * PAGES) as usize],
            live: vec![0; blocks as usize],
            links: (0..blocks).map(|_| [NONE; 2]).chain(heads.map(|head| [head; 2])).collect(),
            free,
            next: first * PAGES,
            host: 0,
            programs: 0,
        }
    }

    /// Logical pages.
    pub fn logical_pages(&self) -> u32 {
        self.map.len() as u32
    }

    /// Programs so far for each page the host wrote.
    pub fn write_amplification(&self) -> f64 {
        self.programs as f64 / self.host.max(1) as f64
    }

    /// Forgets what was counted.
    pub fn reset_counters(&mut self) {
        (self.host, self.programs) = (0, 0);
    }

    /// The host writes a page.
    pub fn write(&mut self, lpn: u32) {
        while self.free.len() <= RESERVE {
            self.collect();
        }
        let old = self.map[lpn as usize];
        if old != NONE {
            let block = old / PAGES;
            self.live[block as usize] -= 1;
            if block != self.next / PAGES {
                self.take_out(block);
                self.put_in(block);
            }
        }
        self.program(lpn);
        self.host += 1;
    }

    fn program(&mut self, lpn: u32) {
        let ppn = self.next;
        self.map[lpn as usize] = ppn;
        self.owner[ppn as usize] = lpn;
        self.live[(ppn / PAGES) as usize] += 1;
        self.programs += 1;
        self.next += 1;
        if self.next % PAGES == 0 {
            self.put_in(ppn / PAGES);
            self.next = self.free.pop().map_or(NONE, |block| block * PAGES);
        }
    }

    /// Moves the live pages of the block with the fewest, which is free then.
    fn collect(&mut self) {
        let blocks = self.live.len() as u32;
        let heads = blocks..=blocks + PAGES;
        let mut firsts = heads.map(|head| (head, self.links[head as usize][1]));
        let Some((_, victim)) = firsts.find(|(head, first)| first != head) else { return };
        self.take_out(victim);
        for ppn in victim * PAGES..(victim + 1) * PAGES {
            let lpn = self.owner[ppn as usize];
            if self.map[lpn as usize] == ppn {
                self.program(lpn);
            }
        }
        self.live[victim as usize] = 0;
        self.free.push(victim);
    }

    fn take_out(&mut self, block: u32) {
        let [before, behind] = self.links[block as usize];
        self.links[before as usize][1] = behind;
        self.links[behind as usize][0] = before;
    }

    fn put_in(&mut self, block: u32) {
        let head = self.live.len() as u32 + self.live[block as usize];
        let last = self.links[head as usize][0];
        self.links[block as usize] = [last, head];
        self.links[last as usize][1] = block;
        self.links[head as usize][0] = block;
    }
}

#[cfg(test)]
mod tests {
    use afterimage_flash::geometry::Geometry;
    use afterimage_flash::workload::Random;
    use afterimage_flash::{Config, FtlKind, Lpn};

    use super::*;

    #[test]
    fn every_page_has_one_live_copy_and_the_copies_are_as_many_as_the_simulators() {
        let (blocks, spare) = (512, 0.07);
        let mut bare = Bare::new(blocks, spare);
        let config = Config { geometry: Geometry::small(blocks, PAGES), spare, ..Config::default() };
        let mut page = config.build(FtlKind::Page, config.drive_blocks()).expect("a drive");
        let pages = bare.logical_pages().min(page.logical_pages());
        let mut random = Random::new(1);
        for lpn in (0..pages).chain((0..20 * pages).map(|_| random.below(pages))) {
            bare.write(lpn);
            page.write(Lpn(lpn)).expect("space");
        }
        let mut live = vec![0; blocks as usize];
        for (lpn, ppn) in (0..pages).zip(&bare.map) {
            assert_eq!(bare.owner[*ppn as usize], lpn);
            live[(ppn / PAGES) as usize] += 1;
        }
        assert_eq!(live, bare.live);
        let programs = page.flash().counts().total().programs as f64;
        let ratio = bare.programs as f64 / programs;
        assert!(
            (0.97..1.03).contains(&ratio),
            "{ratio}: the two drives have other free blocks at hand, no more"
        );
    }
}
