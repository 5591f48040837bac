//! Subscribers to durability and failure events.

use std::collections::VecDeque;
use std::mem::discriminant;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

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

#[derive(Debug, Default)]
struct Inbox {
    state: Mutex<InboxState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct InboxState {
    unread: Unread,
    /// Nobody publishes any more.
    ended: bool,
}

impl Inbox {
    fn change(&self, change: impl FnOnce(&mut InboxState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

/// What one subscriber has not read yet; dropped, it costs nothing any more.
#[derive(Debug)]
pub struct Subscription(Arc<Inbox>);

impl Subscription {
    /// Waits for the next event; `None` when the group is gone.
    pub fn next(&self) -> Option<Event> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match state.unread.pop() {
                Some(event) => return Some(event),
                None if state.ended => return None,
                None => state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// The next event that is there already.
    pub fn try_next(&self) -> Option<Event> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).unread.pop()
    }
}

/// The list of subscribers.
#[derive(Debug, Default)]
pub(crate) struct Events(Mutex<Vec<Weak<Inbox>>>);

impl Events {
    pub(crate) fn subscribe(&self) -> Subscription {
        let inbox = Arc::default();
        let mut subscribers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that left, also where nothing is ever published.
        subscribers.retain(|subscriber| subscriber.strong_count() > 0);
        subscribers.push(Arc::downgrade(&inbox));
        Subscription(inbox)
    }

    /// Delivers to everybody who still listens. Never waits for a reader.
    pub(crate) fn publish(&self, event: &Event) {
        let subscribers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for inbox in subscribers.iter().filter_map(Weak::upgrade) {
            inbox.change(|state| state.unread.push(event.clone()));
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let subscribers = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for inbox in subscribers.iter().filter_map(Weak::upgrade) {
            inbox.change(|state| state.ended = true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_learns_where_things_stand_within_bounds() {
        let events = Events::default();
        let subscription = events.subscribe();
        events.publish(&Event::Failed { reason: "first".into() });
        for sequence in 1..=10_000 {
            events.publish(&Event::Durable { sequence });
            events.publish(&Event::Home { sequence });
        }
        let seen: Vec<Event> = std::iter::from_fn(|| subscription.try_next()).collect();
        assert_eq!(seen.len(), UNREAD_MAX);
        assert!(matches!(seen[0], Event::Failed { .. }), "what nothing later covers stays");
        assert!(matches!(seen[UNREAD_MAX - 2], Event::Durable { sequence: 10_000 }));
        assert!(matches!(seen[UNREAD_MAX - 1], Event::Home { sequence: 10_000 }));
    }

    #[test]
    fn who_left_is_forgotten_although_nothing_happens() {
        let events = Events::default();
        let stays = events.subscribe();
        (0..1000).for_each(|_| drop(events.subscribe()));
        let listed = || events.0.lock().unwrap().len();
        assert!(listed() <= 2, "{} subscribers are remembered", listed());
        drop(events);
        assert!(stays.next().is_none());
    }
}
