//! The keeper's side: a store that outlives daemons.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::wire::{self, KeepError, Message, Operation, DISK_ENTRIES_MAX, DISK_FDS_MAX};
use super::CONNECTION;

/// What [`Keeper::handle`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// One request was answered.
    Request,
    /// The daemon closed its end.
    Closed,
}

/// Everything that was put and not deleted.
#[derive(Debug, Default)]
pub struct Keeper {
    entries: BTreeMap<Vec<u8>, (Vec<u8>, Vec<OwnedFd>)>,
}

impl Keeper {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many entries it holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether it holds the connection of a guest.
    pub fn holds_guests(&self) -> bool {
        self.entries.keys().any(|key| key.ends_with(CONNECTION.as_bytes()))
    }

    /// Receives and answers one request on a daemon's socket; blocks until there is one.
    ///
    /// # Errors
    /// The socket failed, or the daemon sent something that is not this protocol; the store is unchanged then,
    /// and the socket should be closed.
    pub fn handle(&mut self, socket: BorrowedFd<'_>) -> Result<Handled, KeepError> {
        let (message, fds) = match wire::receive(socket) {
            Ok(received) => received,
            Err(KeepError::Closed) => return Ok(Handled::Closed),
            // This message is lost, and nothing else: the next is a datagram of its own.
            Err(error @ KeepError::Descriptors) => {
                wire::send(socket, &reply(Operation::Refused, error.to_string().into_bytes()), &[])?;
                return Ok(Handled::Request);
            }
            Err(error) => {
                let _ = wire::send(socket, &reply(Operation::Refused, error.to_string().into_bytes()), &[]);
                return Err(error);
            }
        };
        let answer = match self.apply(message, fds, socket) {
            Ok(answer) => answer,
            Err(KeepError::Refused(why)) => reply(Operation::Refused, why.into_bytes()),
            Err(KeepError::Closed) => return Ok(Handled::Closed),
            Err(error) => return Err(error),
        };
        match wire::send(socket, &answer, &[]) {
            Ok(()) => Ok(Handled::Request),
            Err(KeepError::Closed) => Ok(Handled::Closed),
            Err(error) => Err(error),
        }
    }

    /// Serves one daemon until it closes its end.
    ///
    /// # Errors
    /// The daemon sends what is no message, or the socket fails.
    pub fn serve(&mut self, socket: BorrowedFd<'_>) -> Result<(), KeepError> {
        while self.handle(socket)? == Handled::Request {}
        Ok(())
    }

    /// Whether one more entry keeps its disk within the bounds.
    fn admit(&self, key: &[u8], fds: usize) -> Result<(), KeepError> {
        let disk = key.split_inclusive(|byte| *byte == b'/').next().unwrap_or_default();
        let others = self.entries.range(disk.to_vec()..).take_while(|(other, _)| other.starts_with(disk));
        let others = others.filter(|(other, _)| other.as_slice() != key);
        let (entries, held) = others.fold((0, 0), |(n, held), (_, (_, fds))| (n + 1, held + fds.len()));
        if entries >= DISK_ENTRIES_MAX || held + fds > DISK_FDS_MAX {
            return Err(KeepError::Refused(format!(
                "a disk may have {DISK_ENTRIES_MAX} entries and {DISK_FDS_MAX} descriptors"
            )));
        }
        Ok(())
    }

    fn apply(
        &mut self,
        message: Message,
        fds: Vec<OwnedFd>,
        socket: BorrowedFd<'_>,
    ) -> Result<Message, KeepError> {
        match message.operation {
            Operation::Hello => {}
            Operation::Put => {
                self.admit(&message.key, fds.len())?;
                self.entries.insert(message.key, (message.value, fds));
            }
            Operation::Delete => {
                self.entries.remove(&message.key);
            }
            Operation::DeletePrefix => self.entries.retain(|key, _| !key.starts_with(&message.key)),
            Operation::List => {
                for (key, (value, fds)) in &self.entries {
                    if key.starts_with(&message.key) {
                        let entry =
                            Message { operation: Operation::Entry, key: key.clone(), value: value.clone() };
                        wire::send(socket, &entry, &wire::borrow(fds))?;
                    }
                }
                return Ok(reply(Operation::End, Vec::new()));
            }
            Operation::Ack | Operation::Entry | Operation::End | Operation::Refused => {
                return Err(KeepError::Refused("an answer is not a request".into()));
            }
        }
        Ok(reply(Operation::Ack, Vec::new()))
    }
}

fn reply(operation: Operation, value: Vec<u8>) -> Message {
    Message { operation, key: Vec::new(), value }
}
