//! Home writes under `power` and `guest-crash`: plain writes through a lane of the disk, gated and counted as a guest's.
//!
//! A death within a set leaves any part of it. Under `guest-crash` that is as good as whole: what the set came from is still
//! retained, and is written again.

use afterimage_block::{
    BlockError, Buffers, Completion, Disk, Lane, Operation, Request, Sector, Token, SECTOR_BYTES,
};
use parking_lot::Mutex;

use crate::home::{HomeError, HomeWriter, Joined};

/// The largest single write.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// As much is copied and in flight at once.
const IN_FLIGHT_BYTES_MAX: usize = 4 << 20;

/// See the module.
pub struct LaneHome {
    /// `None` after a failure of the lane itself.
    lane: Mutex<Option<Box<dyn Lane>>>,
}

impl LaneHome {
    /// Writes through a lane of this disk.
    ///
    /// # Errors
    /// The disk opens no lane.
    pub fn new(disk: &dyn Disk) -> Result<Self, BlockError> {
        Ok(Self { lane: Mutex::new(Some(disk.open_lane()?)) })
    }
}

impl HomeWriter for LaneHome {
    fn write_home(&self, blocks: &[(Sector, &[u8])]) -> Result<(), HomeError> {
        let set = Joined::new(blocks, WRITE_BYTES_MAX)?;
        let mut slot = self.lane.lock();
        // Put back when nothing is in flight: dropped otherwise, which waits until nothing is.
        let mut lane = slot
            .take()
            .ok_or_else(|| BlockError::Failed { reason: "an earlier home write broke off".into() })?;
        let mut first_error = Ok(());
        let mut runs = set.runs().iter().peekable();
        while first_error.is_ok() && runs.peek().is_some() {
            let mut in_flight_bytes = 0;
            while let Some(run) = runs.next_if(|run| in_flight_bytes + run.bytes <= IN_FLIGHT_BYTES_MAX) {
                in_flight_bytes += run.bytes;
                let buffers = Buffers::allocate(run.bytes);
                let mut at = 0;
                for part in set.parts(run) {
                    buffers.copy_from(at, part);
                    at += part.len();
                }
                lane.submit(Request {
                    token: Token(run.sector),
                    operation: Operation::Write { flushed: false },
                    sector: Sector(run.sector),
                    sectors: run.bytes as u64 / SECTOR_BYTES,
                    buffers,
                });
            }
            first_error = finish(lane.as_mut())?;
        }
        *slot = Some(lane);
        Ok(first_error?)
    }

    fn atomic_bytes_max(&self) -> Option<u64> {
        None
    }
}

/// Waits until nothing is in flight. The outer error is the lane's own.
fn finish(lane: &mut dyn Lane) -> Result<Result<(), BlockError>, BlockError> {
    let mut completions: Vec<Completion> = Vec::new();
    let mut result = Ok(());
    loop {
        lane.dispatch();
        lane.reap(&mut completions);
        for completion in completions.drain(..) {
            if result.is_ok() {
                result = completion.result;
            }
        }
        if lane.in_flight() == 0 {
            return Ok(result);
        }
        lane.wait(&[], None).map_err(|e| BlockError::io("waiting for a home write to complete", e))?;
    }
}
