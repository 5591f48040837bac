//! Log lines that a guest, its VMM or a client may cause for ever, and that are not to fill the log.
#![warn(missing_docs)]

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::info;

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

/// How many lines that a guest or its VMM causes are logged at once.
const LINES_MAX: u32 = 16;
/// After this time there is room for one more.
const LINE_PERIOD: Duration = Duration::from_secs(10);

/// Lines about one disk that may be caused for ever, each another one perhaps.
#[derive(Debug)]
pub struct Lines {
    name: String,
    room: Mutex<Room>,
}

#[derive(Debug)]
struct Room {
    lines: u32,
    since: Instant,
    left_out: u64,
}

impl Room {
    /// Notes a line. Where it is to be logged: how many before it were not.
    fn note(&mut self, now: Instant) -> Option<u64> {
        let periods = now.saturating_duration_since(self.since).as_secs() / LINE_PERIOD.as_secs();
        let periods = u32::try_from(periods).unwrap_or(u32::MAX);
        self.lines = self.lines.saturating_add(periods).min(LINES_MAX);
        self.since = if self.lines == LINES_MAX { now } else { self.since + LINE_PERIOD * periods };
        if self.lines == 0 {
            self.left_out += 1;
            return None;
        }
        self.lines -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Lines {
    /// Of a disk of this name.
    pub fn new(name: &str) -> Self {
        let room = Room { lines: LINES_MAX, since: Instant::now(), left_out: 0 };
        Self { name: name.to_owned(), room: Mutex::new(room) }
    }

    /// Of the disk.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether to log the next one. Says how many were left out before it.
    pub fn may(&self) -> bool {
        let left_out = self.room.lock().note(Instant::now());
        if let Some(lines @ 1..) = left_out {
            info!("{}: {lines} lines like the next one were left out", self.name);
        }
        left_out.is_some()
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

    #[test]
    fn lines_have_room_again_and_say_how_many_were_left_out() {
        let start = Instant::now();
        let mut room = Room { lines: LINES_MAX, since: start, left_out: 0 };
        let mut at = |ms: u64| room.note(start + Duration::from_millis(ms));
        assert!((0..16).all(|ms| at(ms) == Some(0)));
        assert_eq!((16..36).find_map(&mut at), None);
        assert_eq!([at(10_100), at(10_200), at(25_000), at(30_500)], [Some(20), None, Some(1), Some(0)]);
        assert_eq!((0..20).filter_map(|_| at(1_000_000)).sum::<u64>(), 0);
        assert_eq!(at(1_010_000), Some(4));
    }
}
