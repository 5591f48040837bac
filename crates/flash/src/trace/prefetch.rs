//! Reading and parsing in a thread of its own, so that the simulation does not wait for it.

use std::path::PathBuf;
use std::sync::mpsc::{sync_channel, Receiver};

use super::reader::{Options, Tally, TraceError};
use super::{Merged, Request};

const BATCH: usize = 4096;
/// Batches under way: what bounds the memory.
const AHEAD: usize = 4;

enum Message {
    Batch(Vec<Request>),
    End(Box<Tally>),
}

/// Requests of a trace in batches, read ahead.
pub struct Prefetch {
    from: Receiver<Result<Message, TraceError>>,
    tally: Option<Tally>,
}

impl Prefetch {
    /// Opens the files and starts reading.
    ///
    /// # Errors
    /// As [`Merged::open`].
    pub fn open(files: &[PathBuf], options: &Options) -> Result<Self, TraceError> {
        let mut trace = Merged::open(files, options)?;
        let (to, from) = sync_channel(AHEAD);
        std::thread::spawn(move || loop {
            let mut batch = Vec::with_capacity(BATCH);
            let last = match trace.read_into(&mut batch, BATCH) {
                Ok(true) => None,
                Ok(false) => Some(Ok(Message::End(Box::new(trace.tally())))),
                Err(error) => Some(Err(error)),
            };
            // A receiver that went away has all it wants.
            if to.send(Ok(Message::Batch(batch))).is_err() {
                return;
            }
            if let Some(last) = last {
                drop(to.send(last));
                return;
            }
        });
        Ok(Self { from, tally: None })
    }

    /// The next requests; `None` at the end.
    ///
    /// # Errors
    /// As [`Merged::next_request`], after the requests before the error.
    pub fn next_batch(&mut self) -> Result<Option<Vec<Request>>, TraceError> {
        if self.tally.is_some() {
            return Ok(None);
        }
        match self.from.recv() {
            Ok(Ok(Message::Batch(batch))) => Ok(Some(batch)),
            Ok(Ok(Message::End(tally))) => {
                self.tally = Some(*tally);
                Ok(None)
            }
            Ok(Err(error)) => Err(error),
            // The reading thread ends only after it has said how.
            Err(_) => Ok(None),
        }
    }

    /// What was read, once the end was reached.
    pub fn tally(&self) -> Option<&Tally> {
        self.tally.as_ref()
    }
}
