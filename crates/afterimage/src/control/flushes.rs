//! Who rides on which flush. At most one runs, and who asks meanwhile shares the next: the running one may have begun too early
//! for it.

use super::connection::ConnectionId;

#[derive(Debug, Default)]
pub(super) struct Flushes {
    running: Option<Vec<ConnectionId>>,
    waiting: Vec<ConnectionId>,
}

impl Flushes {
    /// Whether a flush is to be started.
    pub fn join(&mut self, id: ConnectionId) -> bool {
        self.waiting.push(id);
        self.start()
    }

    /// The running one is done: its riders, and whether the next is to be started.
    pub fn done(&mut self) -> (Vec<ConnectionId>, bool) {
        (self.running.take().unwrap_or_default(), self.start())
    }

    fn start(&mut self) -> bool {
        if self.running.is_some() || self.waiting.is_empty() {
            return false;
        }
        self.running = Some(std::mem::take(&mut self.waiting));
        true
    }

    pub fn forget(&mut self, id: ConnectionId) {
        self.waiting.retain(|other| *other != id);
        self.running.iter_mut().for_each(|riders| riders.retain(|other| *other != id));
    }

    pub fn has(&self, id: ConnectionId) -> bool {
        self.waiting.iter().chain(self.running.iter().flatten()).any(|other| *other == id)
    }
}
