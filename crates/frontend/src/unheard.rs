//! Kicks of a queue in whose ring nothing has ever appeared.
//!
//! A VMM that does not share its guest's memory (QEMU's `share=off`) hands over a file to which the guest never writes: the guest
//! waits for ever for its first answer, and only its kick arrives. One kick without a request is ordinary: QEMU rings a
//! queue when it starts it, and an eventfd may still hold what was rung before. The next one is the guest's, which makes
//! its request available first. There may be no third: a driver with EVENT_IDX rings once until it is answered.

/// Kicks without a request that are ordinary.
const ORDINARY: u32 = 1;

/// The kicks since the queue's start.
#[derive(Debug, Default)]
pub(crate) struct Unheard(u32);

impl Unheard {
    /// Notes a kick without a request, of a queue that never had any. Returns whether to warn: once.
    pub fn note(&mut self) -> bool {
        self.0 = self.0.saturating_add(1);
        self.0 == ORDINARY + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vmms_own_kick_says_nothing_and_the_guests_does_once() {
        let mut unheard = Unheard::default();
        assert_eq!([(); 4].map(|()| unheard.note()), [false, true, false, false]);
    }
}
