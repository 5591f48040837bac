//! The flash recounts itself.

use super::Flash;

impl Flash {
    /// Recounts everything and compares: free + live + dead = total in every block, erases by block = by cause =
    /// in all, reads and programs likewise, and the busy time follows from the counts.
    pub fn check(&self) -> Result<(), String> {
        let p = self.geometry.pages_per_block;
        for b in 0..self.geometry.blocks as usize {
            let words = || (0..self.words).map(|word| self.blocks.bits(b, word));
            let fill = self.blocks.fill(b);
            let used: u32 = words().map(|w| w.programmed.count_ones()).sum();
            let live: u32 = words().map(|w| w.live.count_ones()).sum();
            if live != u32::from(fill.live) {
                return Err(format!("block {b}: {live} live pages, {} counted", fill.live));
            }
            if words().any(|w| w.live & !w.programmed != 0) {
                return Err(format!("block {b}: a live page was never programmed"));
            }
            let dead = used - live;
            let free = p - used;
            if free + live + dead != p || used > u32::from(fill.next) {
                return Err(format!("block {b}: free {free} + live {live} + dead {dead} is not {p}"));
            }
        }
        if self.counts.sum() != self.counts.total() {
            return Err(format!("causes add up to {:?}, total {:?}", self.counts.sum(), self.counts.total()));
        }
        let total = self.counts.total();
        let erases = self.wear.total(self.blocks.erases());
        if erases != total.erases {
            return Err(format!("blocks were erased {erases} times, counted {}", total.erases));
        }
        let t = &self.timing;
        let ns = total.reads * t.read_ns
            + total.programs * t.program_ns
            + total.erases * t.erase_ns
            + self.counts.spare_reads * t.spare_read_ns;
        if ns != self.busy_ns {
            return Err(format!("busy {} ns, the counts make {ns}", self.busy_ns));
        }
        Ok(())
    }
}
