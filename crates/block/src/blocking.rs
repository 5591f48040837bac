//! One request at a time over a lane, for tests and offline tools.

use crate::{
    BlockError, Buffers, Completion, FlushKind, Lane, Operation, Request, Sector, Token, SECTOR_BYTES,
};

/// A lane whose calls return when the request has completed.
pub struct Blocking {
    lane: Box<dyn Lane>,
    next_token: u64,
    completions: Vec<Completion>,
}

impl Blocking {
    /// Takes over a lane with nothing in flight.
    pub fn new(lane: Box<dyn Lane>) -> Self {
        Self { lane, next_token: 0, completions: Vec::new() }
    }

    /// Fills `buf`, whose length is a multiple of 512, from `sector` on.
    ///
    /// # Errors
    /// As [`Blocking::request`].
    pub fn read(&mut self, sector: Sector, buf: &mut [u8]) -> Result<(), BlockError> {
        let buffers = Buffers::allocate(buf.len());
        self.request(Operation::Read, sector, buf.len() as u64 / SECTOR_BYTES, buffers.share())?;
        buffers.copy_to(0, buf);
        Ok(())
    }

    /// Stores `bytes`, whose length is a multiple of 512, from `sector` on.
    ///
    /// # Errors
    /// As [`Blocking::request`].
    pub fn write(&mut self, sector: Sector, bytes: &[u8]) -> Result<(), BlockError> {
        self.write_as(sector, bytes, false)
    }

    /// The same, completing as if flushed.
    ///
    /// # Errors
    /// As [`Blocking::request`].
    pub fn write_flushed(&mut self, sector: Sector, bytes: &[u8]) -> Result<(), BlockError> {
        self.write_as(sector, bytes, true)
    }

    fn write_as(&mut self, sector: Sector, bytes: &[u8], flushed: bool) -> Result<(), BlockError> {
        let sectors = bytes.len() as u64 / SECTOR_BYTES;
        self.request(Operation::Write { flushed }, sector, sectors, Buffers::from_bytes(bytes))
    }

    /// Flushes; see [`FlushKind`].
    ///
    /// # Errors
    /// As [`Blocking::request`].
    pub fn flush(&mut self, kind: FlushKind) -> Result<(), BlockError> {
        self.request(Operation::Flush(kind), Sector(0), 0, Buffers::empty())
    }

    /// Discards a range.
    ///
    /// # Errors
    /// As [`Blocking::request`].
    pub fn discard(&mut self, sector: Sector, sectors: u64) -> Result<(), BlockError> {
        self.request(Operation::Discard { flushed: false }, sector, sectors, Buffers::empty())
    }

    /// Makes a range read as zeroes.
    ///
    /// # Errors
    /// As [`Blocking::request`].
    pub fn write_zeroes(&mut self, sector: Sector, sectors: u64, unmap: bool) -> Result<(), BlockError> {
        self.request(Operation::WriteZeroes { unmap, flushed: false }, sector, sectors, Buffers::empty())
    }

    /// Any request, waited for.
    ///
    /// # Errors
    /// What the disk answers: the request is refused, or it or an earlier one has failed.
    ///
    /// # Panics
    /// Where the lane answers something other than this request: it breaks its contract.
    pub fn request(
        &mut self,
        operation: Operation,
        sector: Sector,
        sectors: u64,
        buffers: Buffers,
    ) -> Result<(), BlockError> {
        let token = Token(self.next_token);
        self.next_token += 1;
        self.lane.submit(Request { token, operation, sector, sectors, buffers });
        self.lane.dispatch();
        loop {
            self.lane.reap(&mut self.completions);
            match self.completions.pop() {
                Some(completion) => {
                    assert_eq!(
                        completion.token, token,
                        "a lane completed a request that was never submitted"
                    );
                    // It counts as posted from here on.
                    self.lane.reap(&mut self.completions);
                    assert!(self.completions.is_empty(), "a lane completed a request twice");
                    return completion.result;
                }
                None => self
                    .lane
                    .wait(&[], None)
                    .map_err(|e| BlockError::io("waiting for a request to complete", e))?,
            }
        }
    }
}
