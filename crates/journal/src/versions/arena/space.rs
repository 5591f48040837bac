//! Which slots are free, and which of them have memory.
//!
//! ```text
//! cold (no memory) ── warm a run ──► hot (faulted in) ── pop ──► in use ── push ──► hot
//!        ▲                            └─ trim: the longest unused ones ─┘
//!        └────────────────────────────────────────┘
//! ```
//!
//! The hot ones are a stack: a slot freed a moment ago is still in the processor's caches.

/// Free slots.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// The most recently freed last.
    hot: Vec<u32>,
    /// Runs `(first, slots)`, the lowest last.
    cold: Vec<(u32, u32)>,
}

impl Space {
    /// Nothing but cold slots, given in ascending order.
    pub(super) fn cold(free: impl Iterator<Item = u32>) -> Self {
        let mut cold = runs(free);
        cold.reverse();
        Self { hot: Vec::new(), cold }
    }

    /// Adds slots above all others.
    pub(super) fn grow(&mut self, first: u32, slots: u32) {
        if slots > 0 {
            self.cold.insert(0, (first, slots));
        }
    }

    /// A slot that has memory.
    pub(super) fn pop(&mut self) -> Option<u32> {
        self.hot.pop()
    }

    pub(super) fn push(&mut self, slot: u32) {
        self.hot.push(slot);
    }

    /// Free slots that have memory.
    pub(super) fn hot_slots(&self) -> u32 {
        self.hot.len() as u32
    }

    /// The lowest run of cold slots, at most `slots_max` long. It stays cold until [`Space::warm`].
    pub(super) fn coldest_run(&self, slots_max: u32) -> Option<(u32, u32)> {
        self.cold.last().map(|&(first, slots)| (first, slots.min(slots_max)))
    }

    /// The first slots of the run that [`Space::coldest_run`] named have memory now.
    pub(super) fn warm(&mut self, slots: u32) {
        let Some((first, all)) = self.cold.pop() else { return };
        if slots < all {
            self.cold.push((first + slots, all - slots));
        }
        // The lowest is taken first: the file fills from its beginning.
        self.hot.extend((first..first + slots.min(all)).rev());
    }

    /// Takes all hot slots but the `keep` most recently freed ones, as ascending runs, and makes them cold.
    pub(super) fn cool(&mut self, keep: u32) -> Vec<(u32, u32)> {
        let count = self.hot.len().saturating_sub(keep as usize);
        let mut slots: Vec<u32> = self.hot.drain(..count).collect();
        slots.sort_unstable();
        let cooled = runs(slots.into_iter());
        let mut all: Vec<(u32, u32)> = std::mem::take(&mut self.cold);
        all.extend(&cooled);
        all.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(all.len());
        for (first, slots) in all {
            match merged.last_mut() {
                Some((start, length)) if *start + *length == first => *length += slots,
                _ => merged.push((first, slots)),
            }
        }
        merged.reverse();
        self.cold = merged;
        cooled
    }
}

/// Ascending numbers as runs.
pub(super) fn runs(slots: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for slot in slots {
        match runs.last_mut() {
            Some((first, length)) if *first + *length == slot => *length += 1,
            _ => runs.push((slot, 1)),
        }
    }
    runs
}
