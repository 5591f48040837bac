//! One connection of the control socket: what has come and is no whole line yet, what is still to be sent, and what it waits
//! for. No thread, no clock, no socket.

use std::time::Duration;

use afterimage_order::Unread;

use super::{RequestError, LINE_BYTES_MAX};

/// How long a client may take for taking an answer.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// A connection's number; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What a connection has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The disk whose image goes along, as a descriptor, with the first of them.
    pub image: Option<usize>,
}

/// What a connection is doing.
#[derive(Debug)]
pub(super) enum State {
    /// Its next request is awaited.
    Idle,
    /// A worker puts its answer into words.
    Answer,
    /// A flush that began after its request will answer it.
    Flush,
    /// It waits for a sequence number.
    Wait(Wait),
    /// It asked for a pause that is being reached.
    Pause,
    /// It ended a pause; writes are about to go on.
    Resume,
    /// It waits for the daemon's end.
    Stop,
    /// It gets events until it goes.
    Events(Unread),
}

#[derive(Debug)]
pub(super) struct Wait {
    pub sequence: u64,
    pub until: Option<Duration>,
    /// The group was looked at after the request came: the outcome may be judged by it.
    pub looked: bool,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub state: State,
    /// It ends with the answer that is being sent.
    pub closing: bool,
    /// The client sends nothing any more.
    pub ended: bool,
    /// When bytes last came or went.
    pub active_at: Duration,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    image: Option<usize>,
    /// When the answer must have been taken.
    answer_until: Duration,
}

impl Connection {
    pub fn new(now: Duration) -> Self {
        Self {
            state: State::Idle,
            closing: false,
            ended: false,
            active_at: now,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            image: None,
            answer_until: Duration::MAX,
        }
    }

    pub fn has_output(&self) -> bool {
        self.sent < self.output.len()
    }

    /// How many bytes [`Connection::receive`] takes now; 0 while a request is being answered.
    pub fn room(&self) -> usize {
        if matches!(self.state, State::Idle) && !self.has_output() && !self.ended && !self.closing {
            (LINE_BYTES_MAX + 1).saturating_sub(self.input.len())
        } else {
            0
        }
    }

    /// Bytes came; none means that no more will.
    pub fn receive(&mut self, now: Duration, bytes: &[u8]) {
        let room = self.room();
        debug_assert!(bytes.len() <= room, "more than there is room for");
        self.input.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.ended |= bytes.is_empty();
        self.active_at = now;
    }

    /// Cuts the first line off what has come.
    pub fn take_line(&mut self) -> Result<Option<Vec<u8>>, RequestError> {
        let Some(end) = self.input.iter().position(|b| *b == b'\n') else {
            return if self.input.len() > LINE_BYTES_MAX { Err(RequestError::TooLong) } else { Ok(None) };
        };
        let rest = self.input.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.input, rest);
        line.pop();
        Ok(Some(line))
    }

    /// What is sent next, instead of all there was; the disk's image goes along with its first byte.
    pub fn send(&mut self, now: Duration, line: Vec<u8>, image: Option<usize>) {
        self.output = line;
        (self.sent, self.image) = (0, image);
        self.answer_until = now.saturating_add(ANSWER_WAIT);
    }

    /// What is to be sent, if anything.
    pub fn output(&self) -> Option<Output<'_>> {
        let image = self.image.filter(|_| self.sent == 0);
        self.has_output().then(|| Output { bytes: &self.output[self.sent..], image })
    }

    /// So many bytes of it went out. Whether that was all.
    pub fn sent(&mut self, now: Duration, bytes: usize) -> bool {
        self.sent = (self.sent + bytes).min(self.output.len());
        self.active_at = now;
        if self.has_output() {
            return false;
        }
        self.output.clear();
        (self.sent, self.image) = (0, None);
        true
    }

    /// When the answer must have been taken.
    pub fn answer_until(&self) -> Option<Duration> {
        self.has_output().then_some(self.answer_until)
    }

    /// Bytes and events that are held for it.
    pub fn held(&self) -> (usize, usize) {
        let events = if let State::Events(unread) = &self.state { unread.len() } else { 0 };
        (self.input.len() + self.output.len(), events)
    }
}
