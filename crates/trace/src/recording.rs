//! A recording in memory.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Sparse;

/// Above or below the daemon's ordering layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// What the guest asked its disks for.
    Guest,
    /// What reached the files below: images and redo log.
    Storage,
}

/// What a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The disk (layer guest) or image (layer storage) of that index in the group.
    Disk(u16),
    /// The group's redo log (layer storage).
    Log,
}

/// Index into [`Recording::targets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TargetId(pub u16);

/// One disk or file that was recorded.
#[derive(Clone, Debug)]
pub struct Target {
    /// Above or below.
    pub layer: Layer,
    /// What it is.
    pub role: Role,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its content when the recording began, all of it durable.
    pub base: Arc<Sparse>,
}

/// What was asked. Offsets and lengths are in bytes; at [`Layer::Guest`] they are multiples of 512.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Store bytes. With `flushed` completion means what that of a following flush would.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Arc<[u8]>,
        /// Complete as if flushed.
        flushed: bool,
    },
    /// The range reads as zeroes afterwards (discard and write-zeroes).
    Zero {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Space may be given back.
        unmap: bool,
        /// Complete as if flushed.
        flushed: bool,
    },
    /// At [`Layer::Guest`] a guest's flush, at [`Layer::Storage`] a sync of the file.
    Flush,
}

impl Op {
    /// Does to a target's content what it asks for.
    pub fn apply(&self, content: &mut Sparse) {
        match self {
            Op::Write { offset, data, .. } => content.write_at(data, *offset),
            Op::Zero { offset, len, .. } => content.zero_at(*offset, *len),
            Op::Flush => {}
        }
    }
}

/// Bytes that belong at a place, at [`Layer::Guest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte.
    pub offset: u64,
    /// The bytes.
    pub data: Arc<[u8]>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A request was made. `id` is unique within the recording.
    Submit {
        /// To whom.
        target: TargetId,
        /// The request's name.
        id: u64,
        /// What was asked.
        op: Op,
    },
    /// It was answered.
    Complete {
        /// By whom.
        target: TargetId,
        /// The request's name.
        id: u64,
        /// Whether it succeeded.
        ok: bool,
    },
    /// A guest's file system published a commit in memory that it has lent (docs/control-disk.md), and may say from here on that it is committed.
    /// The daemon takes it later, by submissions of its own: a write for each run, as it is here, that completes as if flushed.
    Publish {
        /// The disk that it belongs to.
        target: TargetId,
        /// The control disk's slot in which the memory was lent: one file system's.
        slot: u64,
        /// What would be written where, the commit block last.
        runs: Arc<[Run]>,
    },
    /// Something outside said so: a line of JSON from the guest (an acknowledgement of the agent, `explore mark`).
    Mark {
        /// The line.
        text: Arc<str>,
    },
}

/// One event. Its place in [`Recording::events`] is its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds since the recording began. Never decreases.
    pub at_ns: u64,
    /// What.
    pub kind: EventKind,
}

/// A recording.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// What was run and how, for people and for the checker: keys `command`, `contract`, `setup`, `mount`, `check`, …
    pub about: serde_json::Map<String, serde_json::Value>,
    /// What was recorded.
    pub targets: Vec<Target>,
    /// What happened, in order.
    pub events: Vec<Event>,
}

impl Recording {
    /// What a target holds when everything was done that it was asked before `event`, in the order of the submissions; of all events where that is
    /// how many there are.
    pub fn content_before(&self, target: TargetId, event: usize) -> Sparse {
        let mut content = (*self.targets[usize::from(target.0)].base).clone();
        for entry in &self.events[..event] {
            match &entry.kind {
                EventKind::Submit { target: of, op, .. } if *of == target => op.apply(&mut content),
                _ => {}
            }
        }
        content
    }

    /// A text entry of [`Recording::about`].
    pub fn about_text(&self, key: &str) -> Option<&str> {
        self.about.get(key).and_then(serde_json::Value::as_str)
    }

    /// The targets of a layer.
    pub fn of_layer(&self, layer: Layer) -> impl Iterator<Item = (TargetId, &Target)> {
        (0..).map(TargetId).zip(&self.targets).filter(move |(_, target)| target.layer == layer)
    }
}
