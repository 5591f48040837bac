//! The lines of a trace: `time_ns file operation offset_bytes length_bytes class`.
//!
//! No class is the beginning of another one, so a line that was cut off is never a shorter whole one.

use std::ops::Range;

use super::{Captured, FileId, TracedFile};

/// The first line of a trace; the number is the format's version.
pub const MAGIC: &str = "# afterimage-trace 1";

/// What lines call a file that the header does not have.
pub const OTHER: &str = "other";

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureOp {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Makes the range read as zeroes and gives its space back.
    Discard,
    /// Makes the range read as zeroes.
    Zero,
    /// Makes what was written before durable.
    Flush,
}

impl CaptureOp {
    /// As lines spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Discard => "discard",
            Self::Zero => "zero",
            Self::Flush => "flush",
        }
    }
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// An image, outside every journal that is known.
    Home,
    /// The redo log.
    Log,
    /// A journal of a guest's file system.
    Journal,
}

impl Class {
    /// Of a request to an image whose journals lie there, in the image's order: that of its first byte.
    pub fn on_image(seen: &Seen, journals: &[Range<u64>]) -> Self {
        let before = journals.partition_point(|journal| journal.start <= seen.offset);
        let inside = before.checked_sub(1).is_some_and(|at| seen.offset < journals[at].end);
        match inside && seen.op != CaptureOp::Flush {
            true => Self::Journal,
            false => Self::Home,
        }
    }

    /// As lines spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::Log => "log",
            Self::Journal => "journal",
        }
    }
}

/// A request as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Nanoseconds since the trace began; never less than the one before.
    pub at_ns: u64,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub length: u64,
    /// Whose.
    pub file: FileId,
    /// What.
    pub op: CaptureOp,
}

/// The lines before the first request. `begun_ns`: since 1970.
pub fn header(about: &str, begun_ns: u128, files: &[TracedFile]) -> String {
    let mut text = format!("{MAGIC}\n");
    if !about.is_empty() {
        text.push_str(&format!("# {}\n", one_line(about)));
    }
    text.push_str(&format!("# begun {begun_ns} ns since 1970\n"));
    for file in files {
        let path = one_line(&file.path.display().to_string());
        text.push_str(&format!("# file {} {} {path}\n", file.name, file.bytes));
    }
    text.push_str("# time_ns file operation offset_bytes length_bytes class\n");
    text
}

/// The last line.
pub fn end(captured: Captured) -> String {
    format!("# end {} requests, {} dropped\n", captured.lines, captured.dropped)
}

/// Where requests went unseen.
pub fn dropped(requests: u64) -> String {
    format!("# dropped {requests}\n")
}

/// Nothing in a path may begin a line of its own.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Appends a line.
pub fn push(text: &mut Vec<u8>, seen: &Seen, name: &str, class: Class) {
    number(text, seen.at_ns);
    for word in [name, seen.op.name()] {
        text.push(b' ');
        text.extend_from_slice(word.as_bytes());
    }
    for value in [seen.offset, seen.length] {
        text.push(b' ');
        number(text, value);
    }
    text.push(b' ');
    text.extend_from_slice(class.name().as_bytes());
    text.push(b'\n');
}

/// `write!` costs three times as much, and there may be a million lines a second.
fn number(text: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_as_the_documentation_has_it() {
        let mut text = Vec::new();
        let seen = Seen { at_ns: 1_203_944, offset: 4096, length: 0, file: FileId(0), op: CaptureOp::Flush };
        push(&mut text, &seen, "disk0", Class::Home);
        let seen = Seen { at_ns: u64::MAX, offset: 0, length: 8192, file: FileId(1), op: CaptureOp::Zero };
        push(&mut text, &seen, "log", Class::Log);
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "1203944 disk0 flush 4096 0 home\n18446744073709551615 log zero 0 8192 log\n"
        );
    }

    #[test]
    fn a_journal_is_where_its_image_has_it() {
        let at = |offset, op| {
            let seen = Seen { at_ns: 0, offset, length: 4096, file: FileId(0), op };
            Class::on_image(&seen, &[4096..8192, 16384..20480])
        };
        let journal = [4096, 8191, 16384, 20479];
        assert!(journal.iter().all(|offset| at(*offset, CaptureOp::Write) == Class::Journal));
        assert!([0, 8192, 16383, 20480].iter().all(|offset| at(*offset, CaptureOp::Write) == Class::Home));
        assert_eq!(at(4096, CaptureOp::Flush), Class::Home);
    }

    #[test]
    fn no_class_begins_another() {
        let names = [Class::Home, Class::Log, Class::Journal].map(Class::name);
        for (i, a) in names.iter().enumerate() {
            assert!(names.iter().enumerate().all(|(j, b)| i == j || !b.starts_with(a)));
        }
    }

    #[test]
    fn a_path_stays_on_its_line() {
        let file = TracedFile { name: "disk0".into(), bytes: 512, path: "a\n1 disk0 write 0 1 home".into() };
        assert_eq!(header("x\ny", 0, &[file]).lines().count(), 5);
    }
}
