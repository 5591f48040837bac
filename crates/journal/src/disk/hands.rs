//! Who may hand commits over beside a disk's queues: the guest that said so, until it has left.
//!
//! What comes over the queues of a disk ends with their connection. A commit that is handed over comes over another one, of which nobody
//! knows whether it ends before or after: one that were taken when the guest has left could be written into the journal of the next. So a guest
//! has a number, a hand-over names it, and who has left is told only when the last one that had begun is over.
//!
//! A guest may also *lend* memory in which it publishes its commits. Nobody is told of each: whoever looks there has to look once more before
//! the guest counts as gone, or before another kernel may run in that memory. So queues that stop ask for what is lent and wait until it is
//! given back. Who only wants what is published by now asks for a *look*, and nothing is given back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How often somebody who waits for a look asks whether there will be one.
const LOOKS_AGAIN: Duration = Duration::from_millis(10);

/// See the module. Guests are numbered from 0, for each daemon anew.
#[derive(Debug, Default)]
pub struct Hands {
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    guest: u64,
    /// How many hand-overs have begun so far, and the numbers of those that are under way.
    begun: u64,
    under_way: Vec<u64>,
    lent: Vec<Arc<Lent>>,
}

impl State {
    fn is_asked_for(&self) -> bool {
        self.lent.iter().any(|lent| lent.asked.load(Ordering::Acquire))
    }
}

/// Called when memory is asked back: from any thread, and does not wait.
type Wake = Box<dyn Fn() + Send + Sync>;

struct Lent {
    asked: AtomicBool,
    /// The newest look that was asked for, and the newest that is over.
    look: AtomicU64,
    looked: AtomicU64,
    wake: Wake,
}

impl std::fmt::Debug for Lent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lent").field("asked", &self.asked).finish_non_exhaustive()
    }
}

/// A hand-over that is under way. Dropped when no part of it is.
#[derive(Debug)]
pub struct Hand {
    hands: Arc<Hands>,
    number: u64,
}

/// Memory that a guest has lent: what it publishes there until this is dropped is handed over by its right.
#[derive(Debug)]
pub struct Lending {
    hands: Arc<Hands>,
    lent: Arc<Lent>,
}

impl Lending {
    /// Whether somebody waits for its end: what is published by now is still to be taken.
    pub fn is_asked_back(&self) -> bool {
        self.lent.asked.load(Ordering::Acquire)
    }

    /// The newest look that somebody waits for: [`Lending::looked`] says that what is published by now was taken.
    pub fn look(&self) -> Option<u64> {
        let look = self.lent.look.load(Ordering::Acquire);
        (look > self.lent.looked.load(Ordering::Acquire)).then_some(look)
    }

    /// What had been published when that look was asked for is taken.
    pub fn looked(&self, look: u64) {
        self.lent.looked.store(look, Ordering::Release);
        let _state = self.hands.state.lock();
        self.hands.idle.notify_all();
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        let mut state = self.hands.state.lock();
        state.lent.retain(|lent| !Arc::ptr_eq(lent, &self.lent));
        self.hands.idle.notify_all();
    }
}

impl Hands {
    /// The guest that there is, or that comes next.
    pub fn guest(&self) -> u64 {
        self.state.lock().guest
    }

    /// Begins a hand-over of that guest; `None` where it has left.
    pub fn begin(self: &Arc<Self>, guest: u64) -> Option<Hand> {
        let mut state = self.state.lock();
        (state.guest == guest).then(|| {
            let number = state.begun;
            state.begun += 1;
            state.under_way.push(number);
            Hand { hands: Arc::clone(self), number }
        })
    }

    /// That guest lends memory; `None` where it has left. `wake` is called when it is asked back.
    pub fn lend(self: &Arc<Self>, guest: u64, wake: Wake) -> Option<Lending> {
        let mut state = self.state.lock();
        (state.guest == guest).then(|| {
            let (look, looked) = (AtomicU64::new(0), AtomicU64::new(0));
            let lent = Arc::new(Lent { asked: AtomicBool::new(false), look, looked, wake });
            state.lent.push(Arc::clone(&lent));
            Lending { hands: Arc::clone(self), lent }
        })
    }

    /// What was published before this was called is taken when it returns, or its read has ended; or `gives_up` says that nothing is taken now.
    pub(super) fn take_published(&self, gives_up: impl Fn() -> bool) {
        let mut state = self.state.lock();
        let ask = |lent: &Arc<Lent>| (Arc::clone(lent), lent.look.fetch_add(1, Ordering::AcqRel) + 1);
        let looks: Vec<(Arc<Lent>, u64)> = state.lent.iter().map(ask).collect();
        parking_lot::MutexGuard::unlocked(&mut state, || looks.iter().for_each(|(lent, _)| (lent.wake)()));
        let waits = |state: &State, (asked, look): &(Arc<Lent>, u64)| {
            asked.looked.load(Ordering::Acquire) < *look
                && state.lent.iter().any(|lent| Arc::ptr_eq(lent, asked))
        };
        while looks.iter().any(|look| waits(&state, look)) && !gives_up() {
            self.idle.wait_for(&mut state, LOOKS_AGAIN);
        }
    }

    /// The disk's queues are stopped, perhaps because another kernel was started: no hand-over that had begun before this was called is under way
    /// when it returns, and what was published before is over. Where the guest has `left`, none of its hand-overs begins any more. Nobody waits
    /// for those that begin meanwhile: a guest may see to it that there is always one.
    pub(super) fn stopped(&self, left: bool) {
        let mut state = self.state.lock();
        state.guest += u64::from(left);
        let begun = state.begun;
        let lent = state.lent.clone();
        parking_lot::MutexGuard::unlocked(&mut state, || {
            for lent in lent {
                lent.asked.store(true, Ordering::Release);
                (lent.wake)();
            }
        });
        let waits = |state: &mut State| state.under_way.iter().any(|n| *n < begun) || state.is_asked_for();
        self.idle.wait_while(&mut state, waits);
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let mut state = self.hands.state.lock();
        state.under_way.retain(|number| *number != self.number);
        self.hands.idle.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

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

    /// The guest that stays, or the next one, may hand over without a pause.
    #[test]
    fn a_stop_waits_for_what_had_begun_and_for_no_more() {
        let hands = Arc::new(Hands::default());
        for left in [false, true] {
            let first = hands.begin(hands.guest()).unwrap();
            let (asked, waits) = std::sync::mpsc::channel();
            let lending = hands.lend(hands.guest(), Box::new(move || asked.send(()).unwrap())).unwrap();
            let stopped = Arc::clone(&hands);
            let stopping = std::thread::spawn(move || stopped.stopped(left));
            waits.recv().unwrap();
            let next = hands.begin(hands.guest()).unwrap();
            drop(lending);
            std::thread::sleep(2 * LOOKS_AGAIN);
            assert!(!stopping.is_finished(), "one that had begun is under way");
            drop(first);
            let until = Instant::now() + Duration::from_secs(20);
            while !stopping.is_finished() {
                assert!(Instant::now() < until, "it waits for what has begun since");
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(next);
        }
    }

    #[test]
    fn what_was_lent_is_given_back_before_queues_count_as_stopped() {
        let hands = Arc::new(Hands::default());
        assert!(hands.lend(hands.guest() + 1, Box::new(|| ())).is_none(), "nobody's");
        for left in [false, true] {
            let (asked, waits) = std::sync::mpsc::channel();
            let lending = hands.lend(hands.guest(), Box::new(move || asked.send(()).unwrap())).unwrap();
            assert!(!lending.is_asked_back());
            let (given, stopped) = (Arc::new(AtomicBool::new(false)), Arc::clone(&hands));
            let back = Arc::clone(&given);
            let stopping = std::thread::spawn(move || {
                stopped.stopped(left);
                assert!(back.load(Ordering::SeqCst), "it was lent still");
            });
            waits.recv().unwrap();
            assert!(lending.is_asked_back());
            // The guest that stays may lend again meanwhile, and nobody waits for that.
            let next = hands.lend(hands.guest(), Box::new(|| ())).unwrap();
            std::thread::sleep(2 * LOOKS_AGAIN);
            given.store(true, Ordering::SeqCst);
            drop(lending);
            stopping.join().unwrap();
            drop(next);
        }
    }

    #[test]
    fn a_look_is_waited_for_until_it_is_over() {
        let hands = Arc::new(Hands::default());
        hands.take_published(|| false);
        let (asked, waits) = std::sync::mpsc::channel();
        let lending = hands.lend(hands.guest(), Box::new(move || asked.send(()).unwrap())).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let taken = || {
            over.store(false, Ordering::SeqCst);
            let (told, hands) = (Arc::clone(&over), Arc::clone(&hands));
            std::thread::spawn(move || {
                hands.take_published(|| false);
                assert!(told.load(Ordering::SeqCst), "nobody had looked");
            })
        };
        assert_eq!(lending.look(), None, "nobody waits");
        for look in 1..4 {
            let taken = taken();
            waits.recv().unwrap();
            assert_eq!((lending.look(), lending.is_asked_back()), (Some(look), false));
            // The one before is over, which is not enough.
            lending.looked(look - 1);
            std::thread::sleep(2 * LOOKS_AGAIN);
            over.store(true, Ordering::SeqCst);
            lending.looked(look);
            taken.join().unwrap();
            assert_eq!(lending.look(), None);
        }
        hands.take_published(|| true);
        let taken = taken();
        (0..2).for_each(|_| waits.recv().unwrap());
        over.store(true, Ordering::SeqCst);
        drop(lending);
        taken.join().unwrap();
    }
}
