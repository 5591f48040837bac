//! The quick path beside the general one: whatever the text, the same requests, broken lines and state.

use std::io::Cursor;
use std::path::Path;

use proptest::prelude::*;

use super::super::lines::LINE_MAX;
use super::super::parser::Reason;
use super::super::reader::{Options, Reader};
use super::super::{detect, Kind, Writer};
use super::*;

/// The beginning of a text as the window has it: digits around it, which must not be taken for its own.
fn window(text: &[u8]) -> Window {
    let mut window = [b'7'; BEFORE + WIDTH];
    let seen = text.len().min(WIDTH);
    window[BEFORE..BEFORE + seen].copy_from_slice(&text[..seen]);
    window
}

fn parser(format: Format) -> Parser {
    Parser::new(format, b'D')
}

/// Lines of each format, usual and not.
fn lines(format: Format) -> Vec<&'static str> {
    let text = match format {
        Format::Afterimage => {
            "1000 log write 8192 4608 log|2000 disk1 read 1024 512 home|2500 disk0 zero 4096 65536 home\
             |2500 disk0 discard 8192 4096 journal|3600 disk0 flush 0 0 home|# file disk7 4096 a.img\
             |9999999999999999 a-name-of-more-than-16-bytes write 1048576 4096 home|# end 1 requests, 0 dropped\
             |# dropped 7|# afterimage-trace 1"
        }
        Format::Blkparse => {
            "  8,0    3        1     0.000000000  697  Q   W 223490 + 8 [kjournald]\
             |259,0 0 11 12345.009507758 0 D W 223490 + 56 [trace]\
             |  8,16   0        1     0.020000000    0  D  RA 64 + 8 [cat]\
             |  8,0    1        3     0.030000000  697  D FWFS [kworker/1:1H]\
             |  8,0    1        4     0.030000000  697  D FWS 0 + 0 [kworker/1:1H]\
             |  8,0    1        5     0.040000000  697  D  DS 1024 + 2048 [a name that is rather long for a process, but who knows]\
             |  8,0    1        6     0.050000000  697  P   N [fstrim]\
             |  8,0    1        7     0.050000000    0  m   N cfq697S / alloced|CPU3 (8,0):| Reads Queued:           0,        0KiB\
             |Total (8,0):|123,4567890123456 0 1 0.1 1 D W 8 + 8 [x]"
        }
        Format::Fio2 => {
            "fio version 2 iolog|disk0 add|disk0 write 45056 4096|disk0 wait 2000 0|/mnt/a read 0 4096|/mnt/a b read 0 4096\
             |/mnt/a datasync 0 0|/mnt/a trim 8192 4096|/a/very/long/path/of/a/file/that/is/read write 4096 4096|wait 5 0\
             |#x write 0 4096"
        }
        Format::Fio3 => {
            "fio version 3 iolog|21 disk0 add|189 disk0 write 45056 4096|190 /mnt/a read 0 4096|200 /mnt/a b read 0 4096\
             |201 /mnt/a sync 0 0|202 /mnt/a trim 8192 4096|9 /a/very/long/path/of/a/file/that/is/read write 4096 4096\
             |1234567890123456 wait 5 0"
        }
        Format::Msr => {
            "128166372003061629,hm,0,Read,383496192,32768,413|128166372016382155,hm,1,Write,2822144,4096,404\
             |1000,trace,0,Write,12345678912,4096,0|1000,a host with a long name,12,wRITE,4096,512|1000,,0,Read,4096,512,\
             |9223372036854775807,hm,0,Read,0,512,9"
        }
        Format::Spc => {
            "0,303567,3584,w,0.000000|1,55590,3072,R,0.026214|0,303574,3584,W,1.5,ignored|2,8,512,r,12345.123456789\
             |12345678901234567890,8,512,r,1.1|0,8,512,r,.5|0,8,512,r,7"
        }
        Format::Disksim => {
            "0.000000 0 4096 8 0|12.500000 1 16 16 1|13.25 1 16 16 0x11|1234567.123456 2 123456789012 8 1|13 0 8 8 a|1.1234567 0 8 8 0"
        }
        Format::Mqsim => "4800 0 4096 8 0|48100 1 16 16 1|1234567890123456 2 123456789012 8 1|13.5 0 8 8 11",
    };
    text.split('|').collect()
}

/// What tells one state of a parser from another.
fn state(parser: &Parser) -> String {
    let capture = &parser.capture;
    format!(
        "{} {:?} {:?} {} {:?} {} {:?} {} {}",
        parser.in_summary,
        parser.waited_us,
        capture.tally,
        capture.declared,
        capture.begun_ns,
        capture.begun,
        capture.ended,
        parser.devices(),
        parser.has_time()
    )
}

/// Reads the text line by line both ways; how many lines the quick path took.
fn compare(format: Format, waits: bool, text: &[u8]) -> Result<usize, TestCaseError> {
    let (mut general, mut quick) = (parser(format), parser(format));
    if waits {
        general.waited_us = Some(0);
        quick.waited_us = Some(0);
    }
    let mut taken = 0;
    let mut rest = text;
    while let Some(end) = rest.iter().position(|b| *b == b'\n') {
        let shown = String::from_utf8_lossy(&rest[..end]).into_owned();
        let wanted = general.line(&rest[..end]);
        let window = window(rest);
        let marked = mark(window[BEFORE..].first_chunk().unwrap(), separator(format));
        let seen = Seen { window: &window, marked };
        let mut request = None;
        let bytes = line(&mut quick, seen, |r| request = Some(r));
        let read = match bytes {
            Some(bytes) => (Ok(request), bytes),
            None => (quick.line(&rest[..end]), end + 1),
        };
        taken += usize::from(bytes.is_some());
        prop_assert_eq!(&read, &(wanted, end + 1), "{}: {:?}", format, shown);
        prop_assert_eq!(state(&quick), state(&general), "{}: {:?}", format, shown);
        rest = &rest[end + 1..];
    }
    Ok(taken)
}

#[test]
fn usual_lines_are_taken() {
    for format in Format::ALL {
        let lines = lines(format);
        for end in ["\n", "\r\n"] {
            let text: String = lines.iter().map(|line| format!("{line}{end}")).collect();
            let taken = compare(format, true, text.as_bytes()).unwrap();
            assert!(taken * 5 >= lines.len() * 2, "{format}: {taken} of {}", lines.len());
        }
        let mut writer = Writer::new(Vec::new(), format).unwrap();
        for i in 0..1000_u64 {
            let kind = if i % 3 == 0 { Kind::Read } else { Kind::Write };
            let device = (i % 40) as u32;
            let offset = (i * 0x9e37_79b9) % (1 << 35) * 512;
            let time_ns = Some(i * 123_456_789);
            writer.request(&Request { time_ns, device, kind, offset, bytes: (1 + i % 256) * 512 }).unwrap();
        }
        let text = writer.finish().unwrap();
        let lines = text.iter().filter(|b| **b == b'\n').count();
        let taken = compare(format, true, &text).unwrap();
        // The rest are headers, comments, and for fio an address space's first lines.
        assert!(taken + 100 >= lines, "{format}: {taken} of {lines}");
    }
}

#[test]
fn numbers_of_every_length_are_read_or_left() {
    // Each number of a line in turn becomes one of up to 24 digits: the smallest, the largest, and those around 2^64.
    let lengths = (1..=24).flat_map(|len| ["1", "9"].map(|digit| digit.repeat(len)));
    let around = [u64::MAX - 1, u64::MAX].map(|n| n.to_string());
    let numbers: Vec<String> = lengths.chain(around).chain(["18446744073709551616".to_owned()]).collect();
    for format in Format::ALL {
        for line in lines(format) {
            let starts = (0..line.len()).filter(|at| {
                let digit = |at: usize| line.as_bytes()[at].is_ascii_digit();
                digit(*at) && (*at == 0 || !digit(*at - 1))
            });
            for start in starts {
                let end = line[start..].find(|c: char| !c.is_ascii_digit()).map_or(line.len(), |n| start + n);
                for number in &numbers {
                    let text = format!("{}{number}{}\n", &line[..start], &line[end..]);
                    compare(format, true, text.as_bytes()).unwrap();
                }
            }
        }
    }
}

/// What is put into a line.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        " ",
        "  ",
        ",",
        ".",
        "\t",
        "\r",
        "\n",
        "\r\n",
        "\x0b",
        "\x0c",
        "\0",
        "#",
        "+",
        "-",
        "[",
        "0",
        "9",
        "e",
        "x",
        "D",
        "R",
        "/",
        ":",
        "\u{e9}",
        "0000000000000000",
        "00000000",
        "4294967296",
        "99999999",
        "100000000",
        "9999999999999999",
        "10000000000000000",
        "9999999999999999999",
        "18446744073709551615",
        "18446744073709551616",
        "1073741825",
        "1e5",
        "0x1",
        "write",
        "Read",
        "wait",
        "home",
        "journal",
        " write 0 4096",
        ".000000001",
        ".0000000001",
        "1234567890123456789012345678901234567890",
    ];
    prop_oneof![
        8 => prop::sample::select(words.map(|w| w.as_bytes().to_vec()).to_vec()),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
    ]
}

/// Where, how many bytes go, what comes instead.
type Change = (u16, u8, Vec<u8>);

fn changed(line: &str, changes: Vec<Change>, end: &str) -> Vec<u8> {
    let mut bytes = line.as_bytes().to_vec();
    for (at, gone, piece) in changes {
        let from = usize::from(at) % (bytes.len() + 1);
        let to = (from + usize::from(gone)).min(bytes.len());
        bytes.splice(from..to, piece);
    }
    bytes.extend_from_slice(end.as_bytes());
    bytes
}

fn text_of(format: Format) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<u16>(), prop_oneof![4 => 0_u8..3, 1 => 0_u8..20], piece());
    let changes = prop_oneof![
        2 => Just(Vec::new()),
        3 => prop::collection::vec(change, 1..3),
    ];
    let end = prop::sample::select(vec!["\n", "\n", "\n", "\r\n", "\r\r\n", " \n", "\t\n", "\n\n"]);
    let line = (prop::sample::select(lines(format)), changes, end)
        .prop_map(|(line, changes, end)| changed(line, changes, end));
    prop::collection::vec(line, 1..40).prop_map(|lines| lines.concat())
}

/// What a trace is, read by the general path alone.
fn plainly(format: Format, text: &[u8]) -> (Vec<Request>, Vec<(u64, Reason)>) {
    let mut parser = Parser::new(format, detect::action(text, format, Options::default().action));
    if format == Format::Fio2 && text.windows(6).any(|w| w == b" wait ") {
        parser.waited_us = Some(0);
    }
    let (mut requests, mut broken) = (Vec::new(), Vec::new());
    let whole = text.strip_suffix(b"\n").unwrap_or(text);
    for (i, line) in whole.split(|b| *b == b'\n').enumerate() {
        let parsed = if line.len() > LINE_MAX { Err(Reason::TooLong) } else { parser.line(line) };
        match parsed {
            Ok(request) => requests.extend(request),
            Err(reason) => broken.push((i as u64 + 1, reason)),
        }
    }
    (requests, broken)
}

/// Gives its bytes in pieces of odd sizes.
struct Pieces(Cursor<Vec<u8>>, usize);

impl std::io::Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.1 = self.1 * 7 % 9973 + 1;
        let most = buffer.len().min(self.1);
        self.0.read(&mut buffer[..most])
    }
}

#[test]
fn it_does_not_matter_where_the_buffer_ends() {
    for format in Format::ALL {
        let lines = lines(format);
        let mut text = Vec::new();
        for i in 0.. {
            text.extend_from_slice(lines[i % lines.len()].as_bytes());
            match i % 1000 {
                0 => text.resize(text.len() + i % 70_000, b'x'),
                1..500 => text.push(b'\r'),
                _ => {}
            }
            text.push(b'\n');
            if text.len() > 1 << 20 {
                break;
            }
        }
        let (requests, broken) = plainly(format, &text);
        let options = Options { format: Some(format), ..Options::default() };
        let source = Pieces(Cursor::new(text.clone()), 5);
        let mut reader = Reader::new(Path::new("t"), Box::new(source), &options).unwrap();
        let mut read = Vec::new();
        while reader.read_into(&mut read, requests.len() + 1).unwrap() {}
        assert_eq!(read, requests, "{format}");
        let tally = reader.tally();
        let all = text.iter().filter(|b| **b == b'\n').count() as u64;
        assert_eq!((tally.lines, tally.requests), (all, requests.len() as u64), "{format}");
        let named: Vec<u64> = tally.broken_first.iter().map(|b| b.line).collect();
        let wanted: Vec<u64> = broken.iter().take(20).map(|(line, _)| *line).collect();
        assert_eq!((named, tally.broken), (wanted, broken.len() as u64), "{format}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn both_paths_read_the_same(
        (format, text) in prop::sample::select(Format::ALL.to_vec())
            .prop_flat_map(|format| (Just(format), text_of(format))),
        waits in any::<bool>(),
    ) {
        compare(format, waits, &text)?;
    }

    #[test]
    fn a_reader_reads_as_the_general_path_does(
        (format, text) in prop::sample::select(Format::ALL.to_vec())
            .prop_flat_map(|format| (Just(format), text_of(format))),
        batches in any::<bool>(),
        mut batch in 1_usize..9,
    ) {
        let (requests, broken) = plainly(format, &text);
        let options = Options { format: Some(format), ..Options::default() };
        let Ok(mut reader) = Reader::new(Path::new("t"), Box::new(Cursor::new(text.clone())), &options) else {
            // Nothing but white space.
            prop_assert!(requests.is_empty() && broken.is_empty());
            return Ok(());
        };
        let mut read = Vec::new();
        if batches {
            while let Ok(true) = reader.read_into(&mut read, batch) {
                batch += 5;
            }
        } else {
            while let Ok(Some(request)) = reader.next_request() {
                read.push(request);
            }
        }
        prop_assert_eq!(&read, &requests);
        let tally = reader.tally();
        let named: Vec<(u64, String)> =
            tally.broken_first.iter().map(|b| (b.line, b.reason.clone())).collect();
        let wanted: Vec<(u64, String)> = broken.iter().take(20).map(|(l, r)| (*l, r.to_string())).collect();
        // A capture without its end has one more.
        prop_assert!(named.starts_with(&wanted), "{:?} {:?}", named, wanted);
        let ends = u64::from(tally.broken > broken.len() as u64 && format == Format::Afterimage);
        prop_assert_eq!(tally.broken, broken.len() as u64 + ends);
        let ended = text.iter().filter(|b| **b == b'\n').count() as u64;
        prop_assert_eq!((tally.lines, tally.requests), (ended, requests.len() as u64));
    }
}
