//! Reading and parsing in a thread of its own, so that the simulation does not wait for it.

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::mpsc::{sync_channel, Receiver};
use std::thread::{spawn, JoinHandle};

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
    /// The reading thread, until it has been seen to end.
    thread: Option<JoinHandle<()>>,
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
        let thread = spawn(move || loop {
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
        Ok(Self { from, thread: Some(thread), tally: None })
    }

    /// The next requests; `None` at the end.
    ///
    /// # Errors
    /// As [`Merged::next_request`], after the requests before the error.
    ///
    /// # Panics
    /// Where reading did: that is a defect, and no end of the trace.
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
            // The reading thread ends only after it has said how, or by a panic.
            Err(_) => match self.thread.take().map(JoinHandle::join) {
                Some(Err(panic)) => resume_unwind(panic),
                _ => Ok(None),
            },
        }
    }

    /// What was read, once the end was reached.
    pub fn tally(&self) -> Option<&Tally> {
        self.tally.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, AssertUnwindSafe};

    use super::*;

    #[test]
    fn a_reader_that_panics_is_no_end_of_the_trace() {
        let (to, from) = sync_channel(AHEAD);
        let thread = spawn(move || {
            to.send(Ok(Message::Batch(Vec::new()))).unwrap();
            panic!("on purpose");
        });
        let mut trace = Prefetch { from, thread: Some(thread), tally: None };
        assert_eq!(trace.next_batch().unwrap(), Some(Vec::new()));
        let panic = catch_unwind(AssertUnwindSafe(|| trace.next_batch())).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    }
}
