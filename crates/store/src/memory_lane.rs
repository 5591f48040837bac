//! The lane of images in memory where there is a ring too: small requests are copied by the queue's own thread, large
//! reads that come together are copied by the ring's worker threads, on as many processors as there are.
//!
//! Writes stay with the queue's thread whatever their size: they hold the file's lock, so two cannot run at once.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use afterimage_block::{wait_readable, Admitted, Completion, Geometry, Lane, Operation};

use crate::inline_lane::InlineLane;
use crate::ring_lane::RingLane;

/// From this size on, in bytes, copying takes longer than waking a worker.
const LARGE_BYTES: usize = 256 << 10;

pub(crate) struct MemoryLane {
    inline: InlineLane,
    ring: RingLane,
    /// Large reads since the last dispatch.
    large: Vec<Admitted>,
}

impl MemoryLane {
    pub fn new(inline: InlineLane, ring: RingLane) -> Self {
        Self { inline, ring, large: Vec::new() }
    }

    fn hand_out_large(&mut self) {
        // One alone is not worth a worker, and whoever waits for it would wait for the worker to wake up as well. Of several none is kept
        // here: this thread would answer none of the others while it copies.
        let alone = self.large.len() == 1 && self.in_flight() == 1;
        for request in self.large.drain(..) {
            if alone {
                self.inline.take(request);
            } else {
                self.ring.take(request);
            }
        }
    }
}

impl Lane for MemoryLane {
    fn geometry(&self) -> Geometry {
        self.inline.geometry()
    }

    fn refuse(&mut self, refusal: Completion) {
        self.inline.refuse(refusal);
    }

    fn take(&mut self, request: Admitted) {
        let large = request.operation == Operation::Read && request.buffers.len() >= LARGE_BYTES;
        if large {
            self.large.push(request);
        } else {
            self.inline.take(request);
        }
    }

    fn dispatch(&mut self) {
        self.hand_out_large();
        self.ring.dispatch();
        self.inline.dispatch();
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.hand_out_large();
        self.inline.reap(completions);
        if self.ring.in_flight() > 0 {
            self.ring.reap(completions);
        }
    }

    fn in_flight(&self) -> usize {
        self.large.len() + self.inline.in_flight() + self.ring.in_flight()
    }

    fn wait(&mut self, also: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        self.hand_out_large();
        if self.inline.in_flight() > 0 {
            Ok(())
        } else if self.ring.in_flight() > 0 {
            self.ring.wait(also, timeout)
        } else {
            wait_readable(also, timeout)
        }
    }
}
