//! Subscribers to durability and failure events.

use std::collections::VecDeque;
use std::mem::discriminant;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use crate::Event;

/// How many events may wait unread.
const UNREAD_MAX: usize = 64;

/// Events that somebody has not read yet, in order and bounded.
///
/// Where too many wait, the oldest goes of which a later one of its kind says as much: a larger sequence number covers
/// a smaller one. So a slow reader learns where things stand, if not each step on the way.
#[derive(Clone, Debug, Default)]
pub struct Unread(VecDeque<Event>);

impl Unread {
    /// Adds the newest.
    pub fn push(&mut self, event: Event) {
        self.0.push_back(event);
        if self.0.len() > UNREAD_MAX {
            // There are fewer kinds than places, so one has a later one of its kind.
            let covered = (0..self.0.len()).find(|at| {
                let kind = discriminant(&self.0[*at]);
                self.0.range(at + 1..).any(|later| discriminant(later) == kind)
            });
            self.0.remove(covered.unwrap_or(0));
        }
    }

    /// Takes the oldest.
    pub fn pop(&mut self) -> Option<Event> {
        self.0.pop_front()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Called when there is something to read, from whatever thread it happened in.
type Wake = Box<dyn Fn() + Send + Sync>;

struct Inbox {
    unread: Mutex<Unread>,
    wake: Wake,
}

impl Inbox {
    fn unread(&self) -> MutexGuard<'_, Unread> {
        self.unread.lock()
    }
}

/// What one subscriber has not read yet; dropped, it costs nothing any more.
pub struct Subscription(Arc<Inbox>);

impl Subscription {
    /// The next event, if there is one.
    pub fn next(&self) -> Option<Event> {
        self.0.unread().pop()
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Subscription").field(&*self.0.unread()).finish()
    }
}

/// The list of subscribers.
#[derive(Default)]
pub(crate) struct Events(Mutex<Vec<Weak<Inbox>>>);

impl Events {
    pub(crate) fn subscribe(&self, wake: Wake) -> Subscription {
        let inbox = Arc::new(Inbox { unread: Mutex::default(), wake });
        let mut subscribers = self.0.lock();
        // Those that left, also where nothing is ever published.
        subscribers.retain(|subscriber| subscriber.strong_count() > 0);
        subscribers.push(Arc::downgrade(&inbox));
        Subscription(inbox)
    }

    /// Delivers to everybody who still listens. Never waits for a reader.
    pub(crate) fn publish(&self, event: &Event) {
        let subscribers = self.0.lock();
        for inbox in subscribers.iter().filter_map(Weak::upgrade) {
            inbox.unread().push(event.clone());
            (inbox.wake)();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_slow_reader_learns_where_things_stand_within_bounds() {
        let events = Events::default();
        let woken = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&woken);
        let subscription = events.subscribe(Box::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        }));
        events.publish(&Event::Failed { reason: "first".into() });
        for sequence in 1..=10_000 {
            events.publish(&Event::Durable { sequence });
            events.publish(&Event::Home { sequence });
        }
        let seen: Vec<Event> = std::iter::from_fn(|| subscription.next()).collect();
        assert_eq!(woken.load(Ordering::SeqCst), 20_001);
        assert_eq!(seen.len(), UNREAD_MAX);
        assert!(matches!(seen[0], Event::Failed { .. }), "what nothing later covers stays");
        assert!(matches!(seen[UNREAD_MAX - 2], Event::Durable { sequence: 10_000 }));
        assert!(matches!(seen[UNREAD_MAX - 1], Event::Home { sequence: 10_000 }));
    }

    #[test]
    fn who_left_is_forgotten_although_nothing_happens() {
        let events = Events::default();
        let stays = events.subscribe(Box::new(|| {}));
        (0..1000).for_each(|_| drop(events.subscribe(Box::new(|| {}))));
        let listed = || events.0.lock().len();
        assert!(listed() <= 2, "{} subscribers are remembered", listed());
        events.publish(&Event::Resumed);
        assert!(matches!(stays.next(), Some(Event::Resumed)));
    }
}
