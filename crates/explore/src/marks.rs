//! What the guest has said while it was recorded.

use afterimage_trace::{EventKind, Recording};
use serde::{Deserialize, Serialize};

/// Something that was true for the guest at an event: what it relied on had been acknowledged before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The event. Every request whose completion the guest had seen completed before it.
    pub event: usize,
    /// When it arrived, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// The application's state from here on, or `begin` and `end`.
    pub name: String,
    /// The agent says that this record is on the disk.
    pub record: Option<Record>,
}

/// One of the agent's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its number.
    pub n: u64,
    /// The thread, and so the file, that wrote it.
    pub thread: u32,
    /// Its place in the file.
    pub slot: u64,
}

impl Mark {
    /// Whether it names a state of the application.
    pub fn names_state(&self) -> bool {
        self.record.is_none() && self.name != "begin" && self.name != "end"
    }
}

/// All marks of a recording. Lines that are none are left out.
pub fn marks(recording: &Recording) -> Vec<Mark> {
    let lines = recording.events.iter().enumerate();
    lines.filter_map(|(event, entry)| mark(event, entry.at_ns, &entry.kind)).collect()
}

/// The events between which crashes are looked for: the marks `begin` and `end`, or all of `events` where they are missing.
pub fn bounds(marks: &[Mark], events: usize) -> (usize, usize) {
    let event = |name: &str| marks.iter().find(|mark| mark.name == name).map(|mark| mark.event);
    (event("begin").unwrap_or(0), event("end").unwrap_or(events))
}

/// Whether the workload came to its end while it was recorded.
pub fn reached_end(recording: &Recording) -> bool {
    marks(recording).iter().any(|mark| mark.name == "end")
}

fn mark(event: usize, at_ns: u64, kind: &EventKind) -> Option<Mark> {
    let EventKind::Mark { text } = kind else { return None };
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    if let Some(name) = json.get("mark").and_then(serde_json::Value::as_str) {
        return Some(Mark { event, at_ns, name: name.to_owned(), record: None });
    }
    if json.get("agent").and_then(serde_json::Value::as_str) == Some("ack") {
        let number = |key: &str| json.get(key).and_then(serde_json::Value::as_u64);
        let n = number("n")?;
        let thread = number("thread").unwrap_or_default() as u32;
        let record = Record { n, thread, slot: number("slot").unwrap_or_default() };
        return Some(Mark { event, at_ns, name: format!("record {n}"), record: Some(record) });
    }
    None
}
