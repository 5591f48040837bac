//! What the guest has said while it was recorded.

use afterimage_protocol::report::{self, Ack, Agent};
use afterimage_trace::{EventKind, Recording};
use serde::{Deserialize, Serialize};

use crate::{ExploreError, Result};

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

/// All marks of a recording. What others reported is left out.
///
/// # Errors
/// A line cannot be read: what it promised would be asked for by nobody.
pub fn marks(recording: &Recording) -> Result<Vec<Mark>> {
    let lines = recording.events.iter().enumerate();
    lines.filter_map(|(event, entry)| mark(event, entry.at_ns, &entry.kind).transpose()).collect()
}

/// The events between which crashes are looked for: the marks `begin` and `end`, or all of `events` where they are missing.
pub fn bounds(marks: &[Mark], events: usize) -> (usize, usize) {
    let event = |name: &str| marks.iter().find(|mark| mark.name == name).map(|mark| mark.event);
    (event("begin").unwrap_or(0), event("end").unwrap_or(events))
}

/// Whether the workload came to its end while it was recorded.
///
/// # Errors
/// As [`marks`].
pub fn reached_end(recording: &Recording) -> Result<bool> {
    Ok(marks(recording)?.iter().any(|mark| mark.name == "end"))
}

fn mark(event: usize, at_ns: u64, kind: &EventKind) -> Result<Option<Mark>> {
    let EventKind::Mark { text } = kind else { return Ok(None) };
    let damaged = |error: report::ReportError| ExploreError::Corrupt(format!("the recording: {error}"));
    if let Some(report::Mark { mark: name }) = report::read(text, "mark").map_err(damaged)? {
        return Ok(Some(Mark { event, at_ns, name, record: None }));
    }
    Ok(match report::agent(text).map_err(damaged)? {
        Some(Agent::Ack(Ack { n, thread, slot, .. })) => {
            let record = Some(Record { n, thread, slot });
            Some(Mark { event, at_ns, name: format!("record {n}"), record })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_that_cannot_be_read_is_not_left_out() {
        let read = |text: &str| mark(7, 9, &EventKind::Mark { text: text.into() });
        let ack = r#"{"agent":"ack","n":3,"thread":1,"slot":2,"floor":0,"ns":5,"fsync_ns":2}"#;
        assert_eq!(read(ack).unwrap().unwrap().record, Some(Record { n: 3, thread: 1, slot: 2 }));
        assert_eq!(read(r#"{"mark":"v1"}"#).unwrap().unwrap().name, "v1");
        for others in [r#"{"saved":"v1"}"#, r#"{"agent":"churn","state":"busy"}"#] {
            assert_eq!(read(others).unwrap(), None);
        }
        for bad in
            [&ack[..40], &ack.replace("slot", "place"), r#"{"mark":"v1","more":1}"#, r#"{"mark":1}"#, "v1"]
        {
            assert!(matches!(read(bad), Err(ExploreError::Corrupt(_))), "{bad}");
        }
    }
}
