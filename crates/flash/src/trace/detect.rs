//! Which format a trace has, from its first lines.

use super::columns::{Layout, LAYOUTS};
use super::parser::{Action, Parser};
use super::{blkparse, capture, fio, Format};

/// Lines looked at.
const LINES: usize = 256;

/// The format that most of the first lines fit; at least half of them, or none is named. And what was guessed of it.
pub fn format(head: &[u8]) -> Option<(Format, Option<&'static str>)> {
    let lines = || head.split(|b| *b == b'\n').map(<[u8]>::trim_ascii).filter(|l| !l.is_empty()).take(LINES);
    let first = lines().next()?;
    let headers = [(capture::MAGIC, Format::Afterimage)]
        .into_iter()
        .chain(fio::HEADERS.into_iter().zip([Format::Fio2, Format::Fio3]))
        .chain(LAYOUTS.iter().map(|layout| (layout.header.as_bytes(), layout.format())));
    for (header, format) in headers {
        if !header.is_empty() && first.eq_ignore_ascii_case(header) {
            return Some((format, None));
        }
    }
    // DiskSim stands for MQSim, too.
    let columns = LAYOUTS.iter().map(Layout::format).filter(|format| *format != Format::Mqsim);
    let candidates = std::iter::once(Format::Blkparse).chain(columns);
    // The whole head is searched only where there are events at all.
    let event = if lines().any(|l| blkparse::action_of(l).is_some()) {
        action(head, Format::Blkparse, Action::Auto)
    } else {
        0
    };
    let fits = |format: Format| {
        let mut parser = Parser::new(format, event);
        let mut good = 0;
        let mut requests = 0;
        let mut all = 0;
        for line in lines().filter(|l| l[0] != b'#') {
            all += 1;
            if let Ok(request) = parser.line(line) {
                good += 1;
                requests += usize::from(request.is_some());
            }
        }
        // The last line may be cut off by the end of the head.
        (requests > 0 && (good + 1) * 2 > all).then_some(good)
    };
    let best = candidates.filter_map(|f| Some((fits(f)?, f))).max_by_key(|(good, _)| *good)?.1;
    if best != Format::Disksim {
        return Some((best, None));
    }
    // The same columns: milliseconds with a fraction are DiskSim's, whole nanoseconds are MQSim's.
    let times = lines().filter(|l| l[0] != b'#').filter_map(|l| l.split(u8::is_ascii_whitespace).next());
    let whole = times.into_iter().all(|time| time.iter().all(u8::is_ascii_digit));
    Some(match whole {
        true => (
            Format::Mqsim,
            Some("the times are taken for nanoseconds (mqsim), since none has a fraction; --format disksim takes milliseconds"),
        ),
        false => (
            Format::Disksim,
            Some("the times are taken for milliseconds (disksim), since some have a fraction; --format mqsim takes nanoseconds"),
        ),
    })
}

/// Those of blkparse's events that count, the best first.
const EVENTS: &[u8] = b"DQC";

/// The events that would have been chosen instead of this one, had the head had any.
pub fn preferred(event: u8, format: Format, wanted: Action) -> &'static [u8] {
    let free = format == Format::Blkparse && wanted == Action::Auto;
    EVENTS.iter().position(|e| free && *e == event).map_or(&[], |at| &EVENTS[..at])
}

/// The event of a blktrace that counts as the request; other formats have none.
pub fn action(head: &[u8], format: Format, wanted: Action) -> u8 {
    match wanted {
        _ if format != Format::Blkparse => 0,
        Action::Queued => b'Q',
        Action::Issued => b'D',
        Action::Completed => b'C',
        Action::Auto => {
            let seen =
                |action: u8| head.split(|b| *b == b'\n').any(|l| blkparse::action_of(l) == Some(action));
            EVENTS.iter().copied().find(|a| seen(*a)).unwrap_or(b'D')
        }
    }
}
