//! The usual line of each format, read at once.
//!
//! ```text
//! window ─► separators, end of line (one bit a byte) ─► fields ─► numbers ─► Request
//!    └────────── anything unusual: the general path reads the line instead ──────┘
//! ```
//!
//! This path reads a line as the general one does, or says that it is not a usual one and has changed
//! nothing. So it knows no broken
//! lines, and what it takes for granted (up to 127 bytes, no tabs, no exponents, no number of more than 16 digits, ...)
//! costs time where it does not hold, nothing else.

mod formats;
mod marks;
mod names;
mod sight;
#[cfg(test)]
mod tests;

pub use marks::{of as mark, Marked, BLOCK};
pub use names::Names;
pub use sight::{Window, BEFORE, WIDTH};

use super::parser::Parser;
use super::{Format, Request};
use formats::Read;
use marks::Marks;
use sight::{look, End, Looked, Sight};

/// The beginning of a line.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    /// The line begins at [`BEFORE`].
    pub window: &'a Window,
    /// Its first 64 bytes.
    pub marked: Marked,
}

/// What stands between the fields of a format.
#[inline(always)]
pub fn separator(format: Format) -> u8 {
    if matches!(format, Format::Msr | Format::Spc) {
        b','
    } else {
        b' '
    }
}

/// Reads the line at the window's [`BEFORE`], if it is a usual one: how many bytes it has with its end. `put` takes the
/// request, if it is one that the simulator needs.
#[inline(always)]
pub fn line(parser: &mut Parser, seen: Seen<'_>, put: impl FnMut(Request)) -> Option<usize> {
    match look(seen.window, seen.marked, separator(parser.format)) {
        Looked::Narrow(marks, end) => fields(parser, seen.window, marks, end, put),
        Looked::Wide(marks, end) => fields_of_wide(parser, seen.window, marks, end, put),
        Looked::No => None,
    }
}

#[inline(always)]
fn fields<M: Marks>(
    parser: &mut Parser,
    window: &Window,
    marks: M,
    end: End,
    mut put: impl FnMut(Request),
) -> Option<usize> {
    let blanks = || Sight::between_blanks(window, marks, end);
    let single = || Sight::between_single(window, marks, end);
    let read = match parser.format {
        Format::Afterimage => formats::afterimage(parser, single()),
        Format::Blkparse => formats::blkparse(parser, blanks()),
        Format::Fio2 => formats::fio2(parser, single()),
        Format::Fio3 => formats::fio3(parser, single()),
        Format::Msr => formats::msr(parser, single()),
        Format::Spc => formats::spc(parser, single()),
        Format::Disksim => formats::disksim(parser, blanks()),
        Format::Mqsim => formats::mqsim(parser, blanks()),
    };
    if let Read::Request(request) = read? {
        put(request);
    }
    Some(end.next)
}

#[inline(never)]
fn fields_of_wide(
    parser: &mut Parser,
    window: &Window,
    marks: u128,
    end: End,
    put: impl FnMut(Request),
) -> Option<usize> {
    fields(parser, window, marks, end, put)
}
