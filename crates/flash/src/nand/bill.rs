//! What was done, by cause, and how long it took: one operation at a time, as the study has it.

use crate::counts::{Cause, Counts};
use crate::geometry::Timing;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Bill {
    pub timing: Timing,
    pub counts: Counts,
    /// Programs that `counts` has forgotten.
    programs_before: u64,
    /// Nanoseconds.
    pub busy_ns: u64,
}

impl Bill {
    pub fn new(timing: Timing) -> Self {
        Self { timing, counts: Counts::default(), programs_before: 0, busy_ns: 0 }
    }

    /// Since the flash was new.
    #[inline]
    pub fn programs(&self) -> u64 {
        self.programs_before + self.counts.total().programs
    }

    pub fn reset(&mut self) {
        *self = Self { programs_before: self.programs(), ..Self::new(self.timing) };
    }

    #[inline]
    pub fn program(&mut self, cause: Cause, pages: u64) {
        self.counts.program(cause, pages);
        self.busy_ns += pages * self.timing.program_ns;
    }

    #[inline]
    pub fn read(&mut self, cause: Cause, pages: u64) {
        self.counts.read(cause, pages);
        self.busy_ns += pages * self.timing.read_ns;
    }

    #[inline]
    pub fn read_spare(&mut self, pages: u64) {
        self.counts.spare_reads += pages;
        self.busy_ns += pages * self.timing.spare_read_ns;
    }

    #[inline]
    pub fn copy(&mut self, cause: Cause, pages: u64) {
        self.read(cause, pages);
        self.program(cause, pages);
    }

    #[inline]
    pub fn erase(&mut self, cause: Cause) {
        self.counts.erase(cause);
        self.busy_ns += self.timing.erase_ns;
    }

    /// Whether the causes add up, and the time follows from the counts; `erases` are those that the blocks count.
    pub fn check(&self, erases: u64) -> Result<(), String> {
        let total = self.counts.total();
        if self.counts.sum() != total {
            return Err(format!("causes add up to {:?}, total {total:?}", self.counts.sum()));
        }
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
