//! What is said on the control socket.

use serde::{Deserialize, Serialize};

pub use afterimage_protocol::status::{
    ArenaStatus, Classes, ControlDiskStatus, DiskStatus, FileSystemStatus, LogStatus, OperationStatus,
    ReplayStatus, SequenceStatus, StatusAnswer, StorageStatus,
};

/// Longest request line in bytes, without its newline.
pub const LINE_BYTES_MAX: usize = 4096;
/// How long a pause lasts where the request does not say, in milliseconds.
pub const PAUSE_MS_DEFAULT: u64 = 60_000;
/// Longest pause, in milliseconds: a guest gives up on a disk that is silent for long.
pub const PAUSE_MS_MAX: u64 = 600_000;
/// Longest time that a wait for a sequence number may be given, in milliseconds.
pub const WAIT_MS_MAX: u64 = 86_400_000;

/// Longest hold, the time that reaching it takes included: a guest does not notice it.
pub const HOLD_MS: u64 = 100;
/// Ranges in one answer to `changed`.
pub const CHANGED_MAX: usize = 1000;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// What is going on.
    Status {},
    /// Make everything that has completed durable; answers with the sequence number up to which it is.
    Flush {},
    /// Wait until a sequence number is durable.
    Wait {
        /// The number.
        sequence: u64,
        /// Give up after this long; without it, never.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
    },
    /// Send durability and failure events until the connection ends.
    Events {},
    /// End in order.
    Stop {},
    /// Hold new writes with everything before them home and synced, until `resume`, the end of this connection, or
    /// the end of the time.
    Pause {
        /// At most this long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u64>,
    },
    /// Let writes go on.
    Resume {},
    /// Note which parts of the images change, for a copy that this connection makes, until it ends.
    Track {},
    /// What has changed in an image since `track` or since it was last told.
    Changed {
        /// The disk's place in the group.
        disk: u64,
    },
    /// Bring into the images what has completed, while writes go on: a hold that follows is reached soon.
    Approach {},
    /// As `pause`, for the end of a tracked copy: no longer than [`HOLD_MS`] from the request on, and what the images hold need not
    /// be durable.
    Hold {},
    /// Hand over an image's file for reading.
    Image {
        /// The disk's place in the group.
        disk: u64,
    },
}

/// Why a line is not a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// More than [`LINE_BYTES_MAX`].
    #[error("the request has more than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// Not one JSON object that names a command with its own fields.
    #[error("not a request: {0}")]
    Malformed(String),
    /// A number outside its range.
    #[error("`{field}` must be {range}")]
    OutOfRange {
        /// Which one.
        field: &'static str,
        /// What is allowed.
        range: &'static str,
    },
}

/// Parses one request line. Pure; never panics, whatever the bytes.
///
/// # Errors
/// It is no request.
pub fn parse_request(line: &[u8]) -> Result<Request, RequestError> {
    if line.len() > LINE_BYTES_MAX {
        return Err(RequestError::TooLong);
    }
    // serde skips unknown arrays as readily as objects when it buffers a tagged enum; an object is demanded here.
    if line.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return Err(RequestError::Malformed(
            "a JSON object is needed, such as {\"command\":\"status\"}".to_owned(),
        ));
    }
    let request: Request =
        serde_json::from_slice(line).map_err(|e| RequestError::Malformed(e.to_string()))?;
    match &request {
        Request::Pause { for_ms: Some(ms) } if !(1..=PAUSE_MS_MAX).contains(ms) => {
            Err(RequestError::OutOfRange { field: "for_ms", range: "1 to 600000" })
        }
        Request::Wait { timeout_ms: Some(ms), .. } if *ms > WAIT_MS_MAX => {
            Err(RequestError::OutOfRange { field: "timeout_ms", range: "at most 86400000" })
        }
        _ => Ok(request),
    }
}

/// Whether a request was done; the first member of every answer but events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    /// It was not.
    Refused(Refusal),
    /// `status`
    Status(Box<StatusAnswer>),
    /// `wait`
    Wait(WaitAnswer),
    /// `image`
    Image(ImageAnswer),
    /// `changed`
    Changed(ChangedAnswer),
    /// `flush`, `pause`, `hold`
    Sequence(SequenceAnswer),
    /// `stop`, `resume`, `track`, `approach`, and the first line of `events`
    Done(DoneAnswer),
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// `false`
    pub ok: bool,
    /// One sentence.
    pub error: String,
}

/// Done, nothing to tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoneAnswer {
    /// `true`
    pub ok: bool,
}

/// An image's file. A descriptor that reads it comes along with the line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageAnswer {
    /// `true`
    pub ok: bool,
    /// Its name as it was when the daemon opened it, from the root.
    pub file: String,
    /// Its size.
    pub bytes: u64,
}

/// Parts of an image that may be other ones than when they were last told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangedAnswer {
    /// `true`
    pub ok: bool,
    /// Where each begins and ends, in bytes. The last one may reach beyond the image's end.
    pub ranges: Vec<(u64, u64)>,
    /// There are more of them.
    pub more: bool,
}

/// Done up to a point of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequenceAnswer {
    /// `true`
    pub ok: bool,
    /// The newest request that it covers.
    pub sequence: u64,
}

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitAnswer {
    /// `true`
    pub ok: bool,
    /// Whether the number is durable; `false` after the time was over.
    pub durable: bool,
    /// The number that was waited for.
    pub sequence: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_round_trips() {
        for request in [
            Request::Status {},
            Request::Flush {},
            Request::Wait { sequence: u64::MAX, timeout_ms: Some(5) },
            Request::Wait { sequence: 0, timeout_ms: None },
            Request::Events {},
            Request::Stop {},
            Request::Pause { for_ms: Some(1) },
            Request::Pause { for_ms: None },
            Request::Resume {},
            Request::Image { disk: 3 },
            Request::Track {},
            Request::Changed { disk: 1 },
            Request::Approach {},
            Request::Hold {},
        ] {
            let line = serde_json::to_vec(&request).unwrap();
            assert_eq!(parse_request(&line), Ok(request));
        }
    }

    #[test]
    fn what_is_not_exactly_a_request_is_refused() {
        for line in [
            &b""[..],
            b"status",
            b"{}",
            b"[\"status\"]",
            b"[{\"command\":\"status\"}]",
            b"{\"command\":\"status\",\"extra\":1}",
            b"{\"command\":\"Status\"}",
            b"{\"command\":\"status\"} {}",
            b"{\"command\":\"status\",\"command\":\"stop\"}",
            b"{\"command\":\"wait\"}",
            b"{\"command\":\"wait\",\"sequence\":-1}",
            b"{\"command\":\"wait\",\"sequence\":1.5}",
            b"{\"command\":\"wait\",\"sequence\":18446744073709551616}",
            b"{\"command\":\"wait\",\"sequence\":1,\"sequence\":2}",
            b"\xff\xfe",
            b"{\"command\":\"pause\",\"for_ms\":\"1\"}",
        ] {
            let text = String::from_utf8_lossy(line);
            assert!(matches!(parse_request(line), Err(RequestError::Malformed(_))), "{text}");
        }
        for line in [
            &b"{\"command\":\"pause\",\"for_ms\":0}"[..],
            b"{\"command\":\"pause\",\"for_ms\":600001}",
            b"{\"command\":\"wait\",\"sequence\":1,\"timeout_ms\":86400001}",
        ] {
            assert!(matches!(parse_request(line), Err(RequestError::OutOfRange { .. })));
        }
        assert_eq!(parse_request(&[b' '; LINE_BYTES_MAX + 1]), Err(RequestError::TooLong));
    }

    #[test]
    fn answers_are_told_apart_by_their_members() {
        let texts = [
            r#"{"ok":false,"error":"no"}"#,
            r#"{"ok":true,"durable":true,"sequence":4}"#,
            r#"{"ok":true,"sequence":4}"#,
            r#"{"ok":true}"#,
            r#"{"ok":true,"file":"/a.img","bytes":512}"#,
            r#"{"ok":true,"ranges":[[0,4096]],"more":false}"#,
        ];
        for text in texts {
            let answer: Answer = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&answer).unwrap(), text);
        }
        assert!(matches!(serde_json::from_str(texts[1]), Ok(Answer::Wait(_))));
        assert!(matches!(serde_json::from_str(texts[2]), Ok(Answer::Sequence(_))));
        assert!(matches!(serde_json::from_str(texts[4]), Ok(Answer::Image(_))));
        assert!(matches!(serde_json::from_str(texts[5]), Ok(Answer::Changed(_))));
    }
}
