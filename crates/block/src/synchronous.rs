//! A lane that serves each request inside [`Lane::submit`]; nothing of it is ever in flight below.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::{wait_readable, Admitted, BlockError, Completion, Geometry, Lane};

/// See the module.
pub struct SynchronousLane<S> {
    geometry: Geometry,
    serve: S,
    done: Vec<Completion>,
}

impl<S: FnMut(&Admitted) -> Result<(), BlockError> + Send> SynchronousLane<S> {
    /// Of a disk of that geometry, whose requests are served by `serve`.
    pub fn new(geometry: Geometry, serve: S) -> Self {
        Self { geometry, serve, done: Vec::new() }
    }
}

impl<S: FnMut(&Admitted) -> Result<(), BlockError> + Send> Lane for SynchronousLane<S> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn refuse(&mut self, refusal: Completion) {
        self.done.push(refusal);
    }

    fn take(&mut self, request: Admitted) {
        let result = (self.serve)(&request);
        self.done.push(Completion { token: request.token, result });
    }

    fn dispatch(&mut self) {}

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        if self.done.is_empty() {
            wait_readable(also, timeout)
        } else {
            Ok(())
        }
    }
}
