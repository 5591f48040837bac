//! Messages that are not to fill the log.

use std::time::{Duration, Instant};

/// How often what happens again and again is logged.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// Something that may happen for ever, and is not to fill the log.
#[derive(Debug, Default)]
pub struct Seldom {
    logged: Option<Instant>,
    silent: u64,
}

impl Seldom {
    /// Notes that it happened. Where it is to be logged: how often it has happened since it was logged last, this time included.
    pub fn note(&mut self, now: Instant) -> Option<u64> {
        self.silent += 1;
        if self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_PERIOD) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_for_ever_is_logged_at_first_and_then_once_a_minute_with_its_count() {
        let (mut seldom, start) = (Seldom::default(), Instant::now());
        let logged: Vec<_> = (0..150).map(|s| seldom.note(start + Duration::from_secs(s))).collect();
        let said: Vec<_> = (0..).zip(logged).filter_map(|(s, times)| Some((s, times?))).collect();
        assert_eq!(said, [(0, 1), (60, 60), (120, 60)]);
    }
}
