//! Time, injected: the window rule is tested without sleeping.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};

/// A monotonic clock.
pub trait Clock: Send + Sync + Debug {
    /// Time since an origin that stays the same.
    fn now(&self) -> Duration;

    /// Asked by who is about to sleep until somebody else has done something. A clock on which nobody else gets to do anything
    /// meanwhile has it done here, and says `true`: what was waited for is to be looked at again.
    fn pass(&self) -> bool {
        false
    }
}

/// The time since the machine was booted, that of its suspends included (`CLOCK_BOOTTIME`): an acknowledgement grows old
/// while the host sleeps. `Instant` stands still then.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }
}

/// A clock that stands until it is moved.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// Moves time forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use afterimage_testing::{is_inside, is_root, skip, INSIDE};

    use super::*;

    /// In a time namespace whose boot time is ahead of its monotonic time, as after a suspend of that length.
    #[test]
    fn the_time_of_a_suspend_counts() {
        let suspended = |program: &str| {
            let mut command = Command::new("unshare");
            if !is_root() {
                command.args(["--user", "--map-root-user"]);
            }
            command.args(["--time", "--boottime", "1000000", program]);
            command
        };
        match suspended("true").output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                return skip(format!(
                    "no time namespaces: {}",
                    String::from_utf8_lossy(&output.stderr).trim()
                ))
            }
            Err(error) => return skip(format!("running unshare: {error}")),
        }
        let this = std::env::current_exe().unwrap();
        let output = suspended(this.to_str().unwrap())
            .args(["--exact", "clock::tests::suspended", "--ignored", "--nocapture"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    #[ignore = "run in a time namespace by the_time_of_a_suspend_counts"]
    fn suspended() {
        if !is_inside() {
            return skip("run by the_time_of_a_suspend_counts");
        }
        let monotonic = clock_gettime(ClockId::Monotonic);
        let slept = SystemClock.now().saturating_sub(Duration::new(monotonic.tv_sec as u64, 0));
        assert!(slept >= Duration::from_secs(999_999), "{slept:?} of 1000000 s");
    }
}
