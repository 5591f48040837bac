//! What is replayed: the requests of a recording.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use afterimage_bench_kit::{BenchError, Result};
use afterimage_trace::{EventKind, Layer, Op, Recording, Role, Sparse};

/// What a guest asked of its disk, and what was answered by then.
pub struct Tape {
    /// In the order of the recording.
    pub steps: Vec<Step>,
    /// How many of them are requests.
    pub requests: usize,
    /// What is written, one request after the other.
    pub data: Vec<u8>,
    base: Arc<Sparse>,
}

/// One step of a tape.
pub enum Step {
    /// The next request is made.
    Ask(Ask),
    /// The request of this number, counted from zero, is answered.
    Answered(usize),
}

/// A request. Offsets and lengths are in bytes.
#[derive(Clone, Copy)]
pub enum Ask {
    /// Writes `len` bytes of the tape's data from `at` on.
    Write { offset: u64, at: usize, len: usize },
    /// Writes zeroes.
    Zero { offset: u64, len: u64, unmap: bool },
    /// A flush.
    Flush,
}

impl Tape {
    /// A recording's.
    ///
    /// # Errors
    /// The recording has no guest's disk, or one that was asked for write-through.
    pub fn new(recording: &Recording) -> Result<Self> {
        let (disk, target) = recording
            .of_layer(Layer::Guest)
            .find(|(_, target)| target.role == Role::Disk(0))
            .ok_or_else(|| BenchError::Usage("the recording has no disk of a guest".to_owned()))?;
        let mut tape =
            Self { steps: Vec::new(), requests: 0, data: Vec::new(), base: Arc::clone(&target.base) };
        let mut numbers = BTreeMap::new();
        for event in &recording.events {
            match &event.kind {
                EventKind::Submit { target, id, op } if *target == disk => {
                    let ask = match op {
                        Op::Write { flushed: true, .. } | Op::Zero { flushed: true, .. } => {
                            let sentence =
                                "the recorded guest wrote through; record one with its write cache on";
                            return Err(BenchError::Usage(sentence.to_owned()));
                        }
                        Op::Write { offset, data, .. } => {
                            let at = tape.data.len();
                            tape.data.extend_from_slice(data);
                            Ask::Write { offset: *offset, at, len: data.len() }
                        }
                        Op::Zero { offset, len, unmap, .. } => {
                            Ask::Zero { offset: *offset, len: *len, unmap: *unmap }
                        }
                        Op::Flush => Ask::Flush,
                    };
                    numbers.insert(*id, tape.requests);
                    tape.requests += 1;
                    tape.steps.push(Step::Ask(ask));
                }
                EventKind::Complete { target, id, .. } if *target == disk => {
                    tape.steps.extend(numbers.remove(id).map(Step::Answered));
                }
                _ => {}
            }
        }
        tape.steps.extend(numbers.into_values().map(Step::Answered));
        Ok(tape)
    }

    /// An image as it was when the recording began.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn image(&self, path: &Path) -> Result<()> {
        let file = std::fs::File::create(path)?;
        file.set_len(self.base.len())?;
        for (index, page) in self.base.pages() {
            std::os::unix::fs::FileExt::write_all_at(&file, &page[..], index * page.len() as u64)?;
        }
        Ok(())
    }
}
