//! Subscribers to durability and failure events.

use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TrySendError};
use std::sync::{Mutex, PoisonError};

use crate::Event;

/// How many unread events a subscriber may have before the newest are dropped for it.
const UNREAD_MAX: usize = 4096;

/// The list of subscribers.
#[derive(Debug, Default)]
pub(crate) struct Events(Mutex<Vec<SyncSender<Event>>>);

impl Events {
    pub(crate) fn subscribe(&self) -> Receiver<Event> {
        let (sender, receiver) = sync_channel(UNREAD_MAX);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        receiver
    }

    /// Delivers to everybody who still listens. Never blocks: a later event carries a larger sequence number, so a
    /// slow reader that misses one learns no less from the next.
    pub(crate) fn publish(&self, event: &Event) {
        let mut subscribers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.retain(|s| !matches!(s.try_send(event.clone()), Err(TrySendError::Disconnected(_))));
    }
}
