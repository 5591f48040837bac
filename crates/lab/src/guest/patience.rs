//! How long a guest may take on a machine that has other work, too: what its threads wait for a processor of the host's does not count.
//!
//! ```text
//!   since its start ─ on no processor, although it could run ≤ limit
//! ```

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// However much it waits, it has no more than this many times its limit.
const TIMES_MAX: u32 = 5;

/// What is left of a machine's limit.
#[derive(Debug)]
pub(super) struct Patience {
    limit: Duration,
    started: Instant,
    /// The most that was seen: a thread that is gone says nothing.
    waited_ns: AtomicU64,
}

impl Patience {
    /// From now on.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, started: Instant::now(), waited_ns: AtomicU64::new(0) }
    }

    /// What a guest has to run within.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Of a machine's process.
    pub(super) fn left(&self, pid: u32) -> Duration {
        let seen = waited_ns(pid).unwrap_or(0);
        let waited = Duration::from_nanos(self.waited_ns.fetch_max(seen, Ordering::Relaxed).max(seen));
        allowed(self.limit, waited).saturating_sub(self.started.elapsed())
    }
}

fn allowed(limit: Duration, waited: Duration) -> Duration {
    (limit + waited).min(limit * TIMES_MAX)
}

/// What the thread that waited most has waited: a guest's processor is one thread (proc(5): `schedstat` is what it ran, what it waited to
/// run, and how often it did).
fn waited_ns(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads
        .filter_map(|thread| waited_of(&fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?))
        .max()
}

fn waited_of(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_processor_is_not_the_guests_time() {
        let second = Duration::from_secs(1);
        assert_eq!(waited_of("20404555346 88264336946 20705\n"), Some(88_264_336_946));
        assert_eq!(waited_of(""), None);
        assert_eq!(allowed(100 * second, 88 * second), 188 * second);
        assert_eq!(allowed(100 * second, 4000 * second), 500 * second);
        // Of a process that is none the limit is what it is.
        let patience = Patience::new(100 * second);
        assert!(patience.left(u32::MAX) <= 100 * second && patience.left(u32::MAX) > 90 * second);
    }

    #[test]
    fn who_shares_a_processor_is_seen_to_wait() {
        if waited_ns(std::process::id()).is_none() {
            return afterimage_testing::skip(
                "the kernel does not count what threads wait (CONFIG_SCHED_INFO)",
            );
        }
        let hog = || {
            // The first that there is for this process.
            let all = rustix::thread::sched_getaffinity(None).unwrap();
            let mut one = rustix::thread::CpuSet::new();
            one.set((0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(500) {}
        };
        let threads = [std::thread::spawn(hog), std::thread::spawn(hog)];
        std::thread::sleep(Duration::from_millis(400));
        let waited = waited_ns(std::process::id()).unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(waited > 50_000_000, "{waited} ns");
    }
}
