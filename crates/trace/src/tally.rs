//! How much of what was recorded.

use serde::{Deserialize, Serialize};

use crate::{EventKind, Layer, Op, Recording};

/// Of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerTally {
    /// Writes.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Discards and zeroings.
    pub zeroes: u64,
    /// Flushes, or syncs of files.
    pub flushes: u64,
}

/// Of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Events in all: submissions, completions, publications and marks.
    pub events: u64,
    /// Above the daemon's ordering layer.
    pub guest: LayerTally,
    /// Below it.
    pub storage: LayerTally,
    /// Marks.
    pub marks: u64,
    /// Commits that were published.
    pub published: u64,
}

impl Tally {
    /// Counts a whole recording.
    pub fn of(recording: &Recording) -> Self {
        let mut tally = Self::default();
        for event in &recording.events {
            let target = match &event.kind {
                EventKind::Submit { target, .. } => Some(*target),
                _ => None,
            };
            let layer = target.and_then(|t| recording.targets.get(usize::from(t.0))).map(|t| t.layer);
            tally.count(layer, &event.kind);
        }
        tally
    }

    pub(crate) fn count(&mut self, layer: Option<Layer>, kind: &EventKind) {
        self.events += 1;
        match kind {
            EventKind::Mark { .. } => self.marks += 1,
            EventKind::Complete { .. } => {}
            EventKind::Publish { .. } => self.published += 1,
            EventKind::Submit { op, .. } => {
                let of_layer = match layer {
                    Some(Layer::Guest) => &mut self.guest,
                    _ => &mut self.storage,
                };
                match op {
                    Op::Write { data, .. } => {
                        of_layer.writes += 1;
                        of_layer.write_bytes += data.len() as u64;
                    }
                    Op::Zero { .. } => of_layer.zeroes += 1,
                    Op::Flush => of_layer.flushes += 1,
                }
            }
        }
    }
}
