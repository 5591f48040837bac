//! Replies that wait for their time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

type Task = Box<dyn FnOnce() + Send>;

struct Waiting {
    due: Instant,
    /// Equal times run in the order in which they were asked for.
    turn: u64,
    task: Task,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Waiting {}
impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Waiting {
    /// The earliest is the greatest: the heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.turn).cmp(&(self.due, self.turn))
    }
}

#[derive(Default)]
struct State {
    heap: BinaryHeap<Waiting>,
    turns: u64,
    ended: bool,
}

struct Shared {
    state: Mutex<State>,
    news: Condvar,
}

/// A thread that runs tasks when they are due.
pub struct Clock {
    shared: Arc<Shared>,
}

impl Clock {
    /// Starts the thread; it ends when the clock is dropped, and runs what is left at once.
    pub fn start() -> io::Result<Clock> {
        let shared = Arc::new(Shared { state: Mutex::default(), news: Condvar::new() });
        let inner = Arc::clone(&shared);
        std::thread::Builder::new().name("powerfs-clock".to_owned()).spawn(move || run(&inner))?;
        Ok(Clock { shared })
    }

    /// Runs `task` at `due`, or now, on the caller's thread, if that has passed.
    pub fn at(&self, due: Instant, task: impl FnOnce() + Send + 'static) {
        if due <= Instant::now() {
            task();
            return;
        }
        let mut state = self.shared.state.lock();
        let turn = state.turns;
        state.turns += 1;
        state.heap.push(Waiting { due, turn, task: Box::new(task) });
        drop(state);
        self.shared.news.notify_one();
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.news.notify_one();
    }
}

fn run(shared: &Shared) {
    // The default slack of 50 µs would be half of a flash drive's write. Failing to lower it costs accuracy only.
    let _ = nix::sys::prctl::set_timerslack(1);
    let mut state = shared.state.lock();
    loop {
        let now = Instant::now();
        let due = state.heap.peek().map(|waiting| waiting.due);
        match due {
            Some(due) if due <= now || state.ended => {
                if let Some(waiting) = state.heap.pop() {
                    drop(state);
                    (waiting.task)();
                    state = shared.state.lock();
                }
            }
            Some(due) => {
                shared.news.wait_for(&mut state, due - now);
            }
            None if state.ended => return,
            None => shared.news.wait(&mut state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn tasks_run_in_order_of_their_time() {
        let clock = Clock::start().unwrap();
        let (sender, receiver) = mpsc::channel();
        let now = Instant::now();
        for delay_ms in [30, 10, 20] {
            let sender = sender.clone();
            clock.at(now + Duration::from_millis(delay_ms), move || sender.send(delay_ms).unwrap());
        }
        let order: Vec<u64> = receiver.iter().take(3).collect();
        assert_eq!(order, [10, 20, 30]);
        assert!(now.elapsed() >= Duration::from_millis(30));
    }
}
