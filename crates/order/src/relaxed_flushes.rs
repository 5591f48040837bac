//! Flushes that `guest-crash` acknowledged without a sync, and for how long a power cut could have taken each.

use std::time::Duration;

/// Times are those of one monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct RelaxedFlushes {
    /// No flush that is not durable was acknowledged earlier.
    oldest: Option<Duration>,
    newest: Duration,
    age_max: Duration,
}

impl RelaxedFlushes {
    pub(crate) fn acknowledged(&mut self, now: Duration) {
        self.oldest.get_or_insert(now);
        self.newest = now;
    }

    /// A sync that `begun` then has succeeded: it covers what had been acknowledged. Which of the flushes since is the
    /// oldest is not kept, so the begin stands for it.
    pub(crate) fn synced(&mut self, begun: Duration, now: Duration) {
        let Some(oldest) = self.oldest else { return };
        self.age_max = self.age_max.max(now.saturating_sub(oldest));
        self.oldest = (self.newest >= begun).then_some(oldest.max(begun));
    }

    /// The oldest age now, and the oldest that any flush reached.
    pub(crate) fn ages(&self, now: Duration) -> (Option<Duration>, Duration) {
        let age = self.oldest.map(|oldest| now.saturating_sub(oldest));
        (age, self.age_max.max(age.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_oldest_age_stays_when_a_sync_has_covered_it() {
        let mut flushes = RelaxedFlushes::default();
        assert_eq!(flushes.ages(ms(5)), (None, ms(0)));
        flushes.acknowledged(ms(10));
        flushes.acknowledged(ms(20));
        assert_eq!(flushes.ages(ms(40)), (Some(ms(30)), ms(30)));
        flushes.synced(ms(40), ms(50));
        assert_eq!(flushes.ages(ms(60)), (None, ms(40)));
        flushes.acknowledged(ms(70));
        assert_eq!(flushes.ages(ms(75)), (Some(ms(5)), ms(40)));
    }

    #[test]
    fn a_flush_during_a_sync_is_not_covered_by_it() {
        let mut flushes = RelaxedFlushes::default();
        flushes.acknowledged(ms(10));
        flushes.acknowledged(ms(30));
        flushes.synced(ms(20), ms(40));
        assert_eq!(flushes.ages(ms(50)), (Some(ms(30)), ms(30)));
        // An earlier sync that ends later takes nothing back.
        flushes.synced(ms(15), ms(60));
        assert_eq!(flushes.ages(ms(60)), (Some(ms(40)), ms(40)));
    }
}
