//! Who may hand commits over beside a disk's queues: the guest that said so, until it has left.
//!
//! What comes over the queues of a disk ends with their connection. A commit that is handed over comes over another one, of which nobody
//! knows whether it ends before or after: one that were taken when the guest has left could be written into the journal of the next. So a guest
//! has a number, a hand-over names it, and who has left is told only when the last one that had begun is over.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// See the module. Guests are numbered from 0, for each daemon anew.
#[derive(Debug, Default)]
pub struct Hands {
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    guest: u64,
    under_way: usize,
}

/// A hand-over that is under way. Dropped when no part of it is.
#[derive(Debug)]
pub struct Hand(Arc<Hands>);

impl Hands {
    /// The guest that there is, or that comes next.
    pub fn guest(&self) -> u64 {
        self.state.lock().guest
    }

    /// Begins a hand-over of that guest; `None` where it has left.
    pub fn begin(self: &Arc<Self>, guest: u64) -> Option<Hand> {
        let mut state = self.state.lock();
        (state.guest == guest).then(|| {
            state.under_way += 1;
            Hand(Arc::clone(self))
        })
    }

    /// The disk's queues are stopped, perhaps because another kernel was started: none is under way when this returns. Where the guest has
    /// `left`, none of its hand-overs begins any more.
    pub(super) fn stopped(&self, left: bool) {
        let mut state = self.state.lock();
        state.guest += u64::from(left);
        self.idle.wait_while(&mut state, |state| state.under_way > 0);
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.under_way -= 1;
        if state.under_way == 0 {
            self.0.idle.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_has_left_hands_nothing_over() {
        let hands = Arc::new(Hands::default());
        let first = hands.guest();
        let hand = hands.begin(first).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (told, left) = (Arc::clone(&over), Arc::clone(&hands));
        let leaving = std::thread::spawn(move || {
            left.stopped(true);
            assert!(told.load(Ordering::SeqCst), "one was under way");
        });
        while hands.guest() == first {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(hands.begin(first).is_none(), "it has left");
        let next = hands.begin(hands.guest()).expect("the next guest need not wait");
        drop(next);
        over.store(true, Ordering::SeqCst);
        drop(hand);
        leaving.join().unwrap();
        let stays = hands.guest();
        hands.stopped(false);
        assert_eq!(hands.guest(), stays);
    }
}
