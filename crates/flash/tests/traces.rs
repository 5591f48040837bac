//! Every format: what real tools write, broken lines, compression, and anything at all.

use std::io::Write;
use std::path::{Path, PathBuf};

use afterimage_flash::scan::Traffic;
use afterimage_flash::trace::{
    open, Action, Class, Classes, Format, Kind, Merged, Options, Reader, Request, TraceError, Writer,
};
use afterimage_fuzz_kit::traces::{
    fuzz_read, vscsi, AFTERIMAGE, ALIBABA, BLKPARSE, BLKPARSE_PROGRAMS, CLOUDPHYSICS, DISKSIM, FIO2, FIO3,
    FIU, MQSIM, MSR, SPC, SYSTOR, TENCENT,
};
use proptest::prelude::*;

fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let file = dir.join(name);
    std::fs::write(&file, bytes).unwrap();
    file
}

fn read_all(file: &Path, options: &Options) -> Result<(Format, Vec<Request>, u64), TraceError> {
    let mut reader = open(file, options)?;
    let mut requests = Vec::new();
    while let Some(request) = reader.next_request()? {
        requests.push(request);
    }
    Ok((reader.format(), requests, reader.tally().broken))
}

fn request(time_ns: u64, device: u32, kind: Kind, offset: u64, bytes: u64) -> Request {
    Request { time_ns: Some(time_ns), device, kind, offset, bytes, class: Class::Home }
}

fn expected() -> Vec<(Format, &'static str, Vec<Request>)> {
    use Kind::{Discard, Read, Write};
    vec![
        (
            Format::Afterimage,
            AFTERIMAGE,
            vec![
                Request { class: Class::Log, ..request(0, 2, Write, 8192, 4608) },
                request(1000, 1, Read, 1024, 512),
                Request { class: Class::Journal, ..request(1000, 0, Write, 1 << 20, 8192) },
                request(2500, 0, Discard, 4096, 65_536),
                request(2500, 0, Discard, 8192, 4096),
            ],
        ),
        (
            Format::Blkparse,
            BLKPARSE,
            vec![
                request(0, 0, Write, 223_490 * 512, 56 * 512),
                request(10_492_242, 1, Read, 64 * 512, 4096),
                request(30_492_242, 0, Discard, 1024 * 512, 2048 * 512),
            ],
        ),
        (
            Format::Fio3,
            FIO3,
            vec![
                request(0, 0, Read, 0, 4096),
                request(20_000, 0, Write, 45_056, 4096),
                request(23_000, 0, Discard, 28_672, 8192),
            ],
        ),
        (Format::Fio2, FIO2, vec![request(0, 0, Read, 0, 4096), request(2_000_000, 0, Write, 4096, 512)]),
        (
            Format::Msr,
            MSR,
            vec![request(0, 0, Read, 383_496_192, 32_768), request(1_332_052_600, 1, Write, 2_822_144, 4096)],
        ),
        (
            Format::Spc,
            SPC,
            vec![
                request(0, 0, Write, 303_567 * 512, 3584),
                request(26_214_000, 1, Read, 55_590 * 512, 3072),
                request(1_500_000_000, 0, Write, 303_574 * 512, 3584),
            ],
        ),
        (
            Format::Disksim,
            DISKSIM,
            vec![
                request(0, 0, Write, 4096 * 512, 4096),
                request(12_500_000, 1, Read, 8192, 8192),
                request(13_250_000, 1, Read, 8192, 8192),
            ],
        ),
        (
            Format::Mqsim,
            MQSIM,
            vec![request(0, 0, Write, 4096 * 512, 4096), request(43_300, 1, Read, 8192, 8192)],
        ),
        (
            Format::Alibaba,
            ALIBABA,
            vec![
                request(0, 0, Write, 8_792_731_648, 16_384),
                request(1_500_000, 1, Read, 59_110_326_272, 360_448),
            ],
        ),
        (
            Format::Tencent,
            TENCENT,
            vec![
                request(0, 0, Read, 12_910_952 * 512, 128 * 512),
                request(1_000_000_000, 1, Write, 6_338_688 * 512, 4096),
            ],
        ),
        (
            Format::Systor,
            SYSTOR,
            vec![request(0, 0, Read, 899_056_122_368, 131_072), request(500_000, 1, Write, 4096, 8192)],
        ),
        (
            Format::Fiu,
            FIU,
            vec![request(0, 0, Read, 283_193_184 * 512, 4096), request(9000, 1, Write, 194_192 * 512, 8192)],
        ),
        (
            Format::Cloudphysics,
            CLOUDPHYSICS,
            vec![request(0, 0, Read, 6353 * 512, 4096), request(4_000_000, 0, Write, 6361 * 512, 512)],
        ),
    ]
}

#[test]
fn every_format_is_recognised_and_read_exactly() {
    let dir = tempfile::tempdir().unwrap();
    for (format, text, requests) in expected() {
        let file = write(dir.path(), format.name(), text.as_bytes());
        let strict = Options { strict: true, ..Options::default() };
        assert_eq!(read_all(&file, &strict).unwrap(), (format, requests.clone(), 0), "{format}");
        let windows = text.replace('\n', "\r\n");
        let file = write(dir.path(), format.name(), windows.as_bytes());
        assert_eq!(read_all(&file, &strict).unwrap().1, requests, "{format} with CR LF");
    }
    let named: Vec<Format> = expected().iter().map(|(format, ..)| *format).chain([Format::Vscsi]).collect();
    assert!(Format::ALL.iter().all(|format| named.contains(format)), "each format has a trace");
}

#[test]
fn gzip_and_zstd_are_detected_also_in_several_members() {
    let dir = tempfile::tempdir().unwrap();
    for (format, text, requests) in expected() {
        let (one, two) = text.split_at(text.len() / 2);
        let gzip = |part: &str| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(part.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        let zst = |part: &str| zstd::encode_all(part.as_bytes(), 1).unwrap();
        for (name, bytes) in [("gz", [gzip(one), gzip(two)].concat()), ("zst", [zst(one), zst(two)].concat())]
        {
            let file = write(dir.path(), name, &bytes);
            assert_eq!(
                read_all(&file, &Options::default()).unwrap(),
                (format, requests.clone(), 0),
                "{name}"
            );
            let cut = write(dir.path(), "cut", &bytes[..bytes.len() - 9]);
            let damaged = read_all(&cut, &Options::default());
            if format == Format::Afterimage {
                // What a killed daemon leaves is read as far as it goes.
                match damaged {
                    Ok((_, read, broken)) => assert!(requests.starts_with(&read) && broken >= 1, "{name}"),
                    // Nothing but its header had been flushed.
                    Err(error) => assert!(matches!(error, TraceError::NoRequests { .. }), "{error}"),
                }
                continue;
            }
            assert!(matches!(damaged, Err(TraceError::Io { .. })), "{format} {name}: {damaged:?}");
        }
    }
}

#[test]
fn broken_lines_are_counted_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let text =
        "0,1,512,w,0.0\n0,1,512,x,0.1\n\n# a comment\n0,1,,w,0.2\n0,2,512,r,0.3\n0,2\n0,1,99999999999,w,1\n0,9,512,w,2\n";
    let file = write(dir.path(), "t.spc", text.as_bytes());
    let mut reader = open(&file, &Options::default()).unwrap();
    while reader.next_request().unwrap().is_some() {}
    let tally = reader.tally();
    assert_eq!((tally.requests, tally.broken, tally.lines), (3, 4, 9));
    let named: Vec<(u64, &str)> = tally.broken_first.iter().map(|b| (b.line, b.reason.as_str())).collect();
    assert_eq!(
        named,
        [
            (2, "the operation is neither read nor write"),
            (5, "the size is not a number in range"),
            (7, "the size is missing"),
            (8, "the request is larger than 1 GiB (a discard: 16 TiB)"),
        ]
    );
    let strict = read_all(&file, &Options { strict: true, ..Options::default() }).unwrap_err();
    assert_eq!(
        strict.to_string(),
        format!("{}:2: the operation is neither read nor write (--strict)", file.display())
    );
}

#[test]
fn a_killed_daemons_trace_is_read_to_its_last_whole_line() {
    let dir = tempfile::tempdir().unwrap();
    let whole = expected()[0].2.clone();
    let strict = Options { strict: true, ..Options::default() };
    let body = AFTERIMAGE.find("1000 log").unwrap();
    let first_end = body + AFTERIMAGE[body..].find('\n').unwrap();
    for end in first_end..AFTERIMAGE.len() - 1 {
        let file = write(dir.path(), "cut", &AFTERIMAGE.as_bytes()[..end]);
        let (_, read, broken) = read_all(&file, &Options::default()).unwrap();
        assert!(whole.starts_with(&read), "cut at {end}: {read:?}");
        let is_whole = |line: &&str| {
            let words: Vec<&str> = line.split(' ').collect();
            words.len() == 6 && ["home", "log", "journal"].contains(&words[5]) && words[2] != "flush"
        };
        let requests = AFTERIMAGE[body..end].lines().filter(is_whole).count();
        assert_eq!(read.len(), requests, "cut at {end}: no whole line is lost, no half one is taken");
        let has_end = AFTERIMAGE[..end].lines().any(|l| l.starts_with("# end"));
        assert_eq!(broken == 0, has_end, "cut at {end}");
        assert_eq!(read_all(&file, &strict).is_ok(), has_end, "cut at {end}");
    }
}

#[test]
fn a_zstd_frame_that_was_flushed_and_never_ended_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let cut = AFTERIMAGE.find("# end").unwrap();
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.write_all(&AFTERIMAGE.as_bytes()[..cut]).unwrap();
    encoder.flush().unwrap();
    let file = write(dir.path(), "t.zst", encoder.get_ref());
    let mut reader = open(&file, &Options::default()).unwrap();
    let mut requests = Vec::new();
    while let Some(request) = reader.next_request().unwrap() {
        requests.push(request);
    }
    assert_eq!(requests, expected()[0].2);
    let said = &reader.tally().broken_first[0];
    assert_eq!((said.line, said.reason.contains("without its end")), (14, true), "{said:?}");
}

#[test]
fn a_capture_says_what_is_broken_and_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let text = "\
# afterimage-trace 1
# file disk0 4096 a.img
10 disk0 write 0 4096 home
11 disk0 write 0 4096 hom
12 disk0 write 0 4096
13 disk0 append 0 4096 home
14 disk0 write -1 4096 home
15 disk0 write 0 4096 home x
# dropped 70000
99 disk0 read 0 4096 journal
# end 1 requests, 70000 dropped
";
    let file = write(dir.path(), "broken", text.as_bytes());
    let mut reader = open(&file, &Options::default()).unwrap();
    while reader.next_request().unwrap().is_some() {}
    let named: Vec<(u64, &str)> =
        reader.tally().broken_first.iter().map(|b| (b.line, b.reason.as_str())).collect();
    assert_eq!(
        named,
        [
            (4, "the class is neither home nor log nor journal"),
            (5, "the class is missing"),
            (6, "the operation is neither read nor write"),
            (7, "the offset is not a number in range"),
            (8, "this is not a line of this format"),
            (9, "70000 requests are missing here: the daemon that wrote the trace dropped them"),
        ]
    );
    assert_eq!(reader.tally().requests, 2);
    let strict = read_all(&file, &Options { strict: true, ..Options::default() }).unwrap_err();
    assert_eq!(
        strict.to_string(),
        format!("{}:4: the class is neither home nor log nor journal (--strict)", file.display())
    );
    let newer = write(dir.path(), "newer", text.replace("trace 1", "trace 2").as_bytes());
    assert!(matches!(read_all(&newer, &Options::default()), Err(TraceError::Unrecognised(_))));
}

#[test]
fn classes_are_counted_and_can_be_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "t", AFTERIMAGE.as_bytes());
    let options = Options { classes: Classes::of(&[Class::Home, Class::Log]), ..Options::default() };
    let mut reader = open(&file, &options).unwrap();
    let mut requests = Vec::new();
    while let Some(request) = reader.next_request().unwrap() {
        requests.push(request);
    }
    let mut expected = expected()[0].2.clone();
    expected.retain(|r| r.offset != 1 << 20);
    assert_eq!(requests, expected);
    let classes = reader.tally().classes.unwrap();
    assert_eq!((classes.journal.writes, classes.journal.write_bytes), (1, 8192));
    assert_eq!((classes.home.reads, classes.home.discards, classes.home.flushes), (1, 2, 1));
    assert_eq!((classes.log.writes, classes.log.flushes), (1, 1));
}

#[test]
fn a_guest_may_have_nothing_of_what_was_chosen_where_another_has_some() {
    let dir = tempfile::tempdir().unwrap();
    let capture = |name: &str, begun: u64, class: &str| {
        let lines = format!("10 disk0 write 0 512 {class}\n20 disk0 write 512 512 {class}\n");
        let text = format!("# afterimage-trace 1\n# begun {begun}\n# file disk0 1\n{lines}# end\n");
        write(dir.path(), name, text.as_bytes())
    };
    let files = [capture("a", 1000, "home"), capture("b", 1300, "journal")];
    let read = |class| {
        let options = Options { classes: Classes::of(&[class]), ..Options::default() };
        let mut merged = Merged::open(&files, &options)?;
        let seen: Vec<_> = std::iter::from_fn(|| merged.next_request().unwrap()).collect();
        let tally = merged.tally();
        assert_eq!((tally.broken, tally.classes.unwrap().home.writes), (0, 2), "{class:?}");
        Ok::<_, TraceError>(seen.iter().map(|r| (r.time_ns.unwrap(), r.device)).collect::<Vec<_>>())
    };
    // Its place among the devices, and its part in the clock, it has all the same.
    assert_eq!(read(Class::Home).unwrap(), [(0, 0), (10, 0)]);
    assert_eq!(read(Class::Journal).unwrap(), [(300, 1), (310, 1)]);
    let none = read(Class::Log).unwrap_err();
    assert_eq!(
        none.to_string(),
        format!("{}: the trace has no request of the chosen classes", files[0].display())
    );
}

#[test]
fn captures_of_daemons_that_ran_together_keep_their_order_and_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let capture = |begun: u64, lines: &str| {
        format!("# afterimage-trace 1\n# begun {begun}\n# file disk0 1\n# file disk1 1\n# file log 1\n{lines}# end\n")
    };
    let a = write(
        dir.path(),
        "a",
        capture(1_000_000, "500 log write 0 512 log\n900 disk1 write 0 512 home\n").as_bytes(),
    );
    let b = write(dir.path(), "b", capture(1_000_300, "0 disk1 write 512 512 home\n").as_bytes());
    let mut merged = Merged::open(&[a, b], &Options::default()).unwrap();
    let mut seen = Vec::new();
    while let Some(r) = merged.next_request().unwrap() {
        seen.push((r.time_ns.unwrap(), r.device));
    }
    // The second daemon began 300 ns later, and its files lie behind those of the first, named or not.
    assert_eq!(seen, [(0, 4), (200, 2), (600, 1)]);
    assert_eq!(merged.tally().classes.unwrap().home.writes, 2);
}

#[test]
fn a_line_without_end_is_one_broken_line() {
    let dir = tempfile::tempdir().unwrap();
    let text = format!("0,1,512,w,0.0\n{}\n0,2,512,w,0.1\n{}", "x".repeat(3 << 20), "y".repeat(70_000));
    let file = write(dir.path(), "long", text.as_bytes());
    let spc = Options { format: Some(Format::Spc), ..Options::default() };
    let (_, requests, broken) = read_all(&file, &spc).unwrap();
    assert_eq!((requests.len(), broken), (2, 2));
}

#[test]
fn names_cannot_fill_memory() {
    let stream = |names: &mut dyn Iterator<Item = String>| {
        let mut text = String::from("fio version 2 iolog\n");
        names.for_each(|name| text += &format!("{name} write 0 4096\n"));
        let raw = Box::new(std::io::Cursor::new(text.into_bytes()));
        let mut reader = Reader::new(Path::new("names"), raw, &Options::default()).unwrap();
        while reader.next_request().unwrap().is_some() {}
        let first = reader.tally().broken_first.first().map(|b| b.reason.clone());
        (reader.tally().requests, reader.tally().broken, first)
    };
    let long = "the name of the device or file is longer than 4 KiB";
    let many = "there are more devices or files than 1048576, or their names take more than 64 MiB";
    let of = |len: usize| move |i: usize| format!("{i:0len$}");
    assert_eq!(stream(&mut [4096, 4097].into_iter().map(|len| of(len)(0))), (1, 1, Some(long.to_owned())));
    // One more than there may be, and a known one after it.
    let full = (64 << 20) / 4096;
    assert_eq!(stream(&mut (0..=full).chain([0]).map(of(4096))), (full as u64 + 1, 1, Some(many.to_owned())));
    assert_eq!(stream(&mut (0..=1 << 20).chain([0]).map(of(1))), ((1 << 20) + 1, 1, Some(many.to_owned())));
}

#[test]
fn sums_of_bytes_end_where_numbers_do() {
    let discards = (1 << 20) + 1;
    for (head, line) in [
        ("", "259,0 0 1 0.0 1 D D 0 + 34359738368 [x]\n"),
        ("# afterimage-trace 1\n", "1 disk0 discard 0 17592186044416 home\n"),
    ] {
        let raw = Box::new(std::io::Cursor::new((head.to_owned() + &line.repeat(discards)).into_bytes()));
        let mut reader = Reader::new(Path::new("t"), raw, &Options::default()).unwrap();
        let mut traffic = Traffic::default();
        while let Some(request) = reader.next_request().unwrap() {
            traffic.add(&request);
        }
        assert_eq!((traffic.discards, traffic.discard_bytes), (discards as u64, u64::MAX));
        if let Some(mut classes) = reader.tally().classes {
            classes.add(&classes.clone());
            assert_eq!((classes.home.discards, classes.home.discard_bytes), (2 * discards as u64, u64::MAX));
        }
    }
}

#[test]
fn what_was_taken_wrongly_from_a_beginning_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let notes = |text: &str| {
        let file = write(dir.path(), "t", text.as_bytes());
        let mut reader = open(&file, &Options::default()).unwrap();
        while reader.next_request().unwrap().is_some() {}
        let tally = serde_json::to_value(reader.tally()).unwrap();
        tally["notes"].as_array().map_or_else(String::new, |notes| {
            assert_eq!(notes.len(), 1);
            notes[0].as_str().unwrap().replace(file.to_str().unwrap(), "t")
        })
    };
    let late = "200,host,0,Write,0,512,1\n";
    let rest = "100,host,0,Write,0,512,1\n110,host,0,Read,0,512,1\n";
    assert_eq!(notes(rest), "");
    assert_eq!(
        notes(&[late, rest].concat()),
        "t: 2 requests are earlier than the first one; they are played as if at its time (sort the trace by time)"
    );
    let event = |what: char| format!("8,0 0 1 0.5 1 {what} W 0 + 8 [fio]\n");
    let queued = event('Q').repeat(12_000);
    assert_eq!(notes(&[event('D'), queued.clone()].concat()), "");
    assert_eq!(
        notes(&[queued, event('D'), event('D')].concat()),
        "t: the first 256 KiB have no event D, so that Q events were taken, but there are 2 later; name the event with --action"
    );
    let written = "/dev/x write 0 4096\n".repeat(20_000);
    let head = "fio version 2 iolog\n/dev/x wait 5 0\n";
    assert_eq!(notes(&[head, &written].concat()), "");
    assert_eq!(
        notes(&[&head[..20], &written, "/dev/x wait 5 0\n/dev/x write 0 4096\n"].concat()),
        "t: the first 256 KiB have no wait, so that the trace was taken for one without times, but there are 1 later"
    );
}

/// All that a reader says beside the requests.
fn notes(file: &Path, options: &Options) -> (Format, usize, Vec<String>) {
    let mut reader = open(file, options).unwrap();
    let mut requests = 0;
    while reader.next_request().unwrap().is_some() {
        requests += 1;
    }
    let name = file.display().to_string();
    (reader.format(), requests, reader.tally().notes.iter().map(|n| n.replace(&name, "t")).collect())
}

#[test]
fn commands_passed_through_and_the_summary_of_programs_are_no_requests() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "t", BLKPARSE_PROGRAMS.as_bytes());
    for action in [Action::Issued, Action::Completed] {
        let options = Options { strict: true, action, ..Options::default() };
        let (format, requests, broken) = read_all(&file, &options).unwrap();
        assert_eq!((format, broken), (Format::Blkparse, 0));
        let seen: Vec<_> = requests.iter().map(|r| (r.kind, r.offset, r.bytes)).collect();
        assert_eq!(
            seen,
            [(Kind::Write, 2048 * 512, 4096), (Kind::Discard, 4096 * 512, 1 << 20)],
            "{action:?}"
        );
    }
    // What is no title is broken as before.
    let strange = write(
        dir.path(),
        "t",
        format!("{BLKPARSE}  8,0 1 1 0.06 1 D W 0 + 8 [x]\nwhat is (this)\n").as_bytes(),
    );
    assert_eq!(read_all(&strange, &Options::default()).unwrap().2, 1);
}

#[test]
fn a_mark_or_a_header_row_is_no_line() {
    let dir = tempfile::tempdir().unwrap();
    let strict = Options { strict: true, ..Options::default() };
    let mark = "\u{feff}";
    for (format, text, requests) in expected() {
        let file = write(dir.path(), "t", format!("{mark}{text}").as_bytes());
        assert_eq!(read_all(&file, &strict).unwrap(), (format, requests, 0), "{format}");
    }
    for header in [
        "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n",
        "\u{feff}TIMESTAMP,HostName,DiskNumber,Type,Offset,Size,ResponseTime\r\n",
    ] {
        let file = write(dir.path(), "t", format!("{header}{MSR}").as_bytes());
        let (format, requests, broken) = read_all(&file, &strict).unwrap();
        assert_eq!((format, requests.len(), broken), (Format::Msr, 2, 0), "{header:?}");
    }
    let other = write(dir.path(), "t", format!("when,where\n{MSR}").as_bytes());
    assert_eq!(read_all(&other, &Options::default()).unwrap().2, 1, "an unknown row is broken");
}

#[test]
fn gzip_may_be_padded_and_nothing_else_may_follow() {
    let dir = tempfile::tempdir().unwrap();
    let gzip = |part: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(part.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let (one, two) = MSR.split_at(MSR.len() / 2);
    for padding in [1, 511, 70_000, 1 << 20] {
        let zeroes = vec![0; padding];
        let file = write(dir.path(), "t.gz", &[gzip(one), zeroes.clone(), gzip(two), zeroes].concat());
        assert_eq!(read_all(&file, &Options::default()).unwrap().1.len(), 2, "{padding}");
    }
    let file = write(dir.path(), "t.gz", &[gzip(MSR), b"hello".to_vec()].concat());
    let error = read_all(&file, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("neither gzip nor padding"), "{error}");
}

#[test]
fn archives_and_other_compressions_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut tar = vec![0; 512];
    tar[..7].copy_from_slice(b"msr.csv");
    tar[257..263].copy_from_slice(b"ustar\0");
    tar.extend(MSR.as_bytes());
    tar.resize(10_240, 0);
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let utf16: Vec<u8> = "\u{feff}1,2".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (bytes, named) in [
        (tar.clone(), "a tar archive"),
        (gzip(&tar), "a tar archive"),
        (zstd::encode_all(&tar[..], 1).unwrap(), "a tar archive"),
        (gzip(&gzip(MSR.as_bytes())), "compressed twice"),
        (b"PK\x03\x04rest".to_vec(), "a zip archive"),
        (b"\xfd7zXZ\0rest".to_vec(), "compressed by xz"),
        (b"BZh91AY&SYrest".to_vec(), "compressed by bzip2"),
        (b"\x04\x22\x4d\x18rest".to_vec(), "compressed by lz4"),
        (b"\x5d\0\0\x80\0rest".to_vec(), "compressed by lzma"),
        (b"\x07tae\x01\0\0\0".to_vec(), "what blktrace writes"),
        (utf16, "text in UTF-16"),
    ] {
        let file = write(dir.path(), "t", &bytes);
        for format in [None, Some(Format::Msr)] {
            let error = read_all(&file, &Options { format, ..Options::default() }).unwrap_err();
            assert!(matches!(error, TraceError::Foreign { .. }), "{named}: {error}");
            assert!(error.to_string().contains(named), "{named}: {error}");
        }
    }
}

#[test]
fn guesses_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let of = |text: &str| notes(&write(dir.path(), "t", text.as_bytes()), &Options::default());
    let (format, _, said) = of("0 0 100 8 0\n12 0 200 8 1\n");
    assert_eq!(format, Format::Mqsim);
    assert_eq!(
        said,
        ["t: the times are taken for nanoseconds (mqsim), since none has a fraction; --format disksim takes milliseconds"]
    );
    let (format, _, said) = of("242.5 0 100 8 0\n242.6 0 200 8 0\n");
    assert_eq!(format, Format::Disksim);
    assert_eq!(
        said,
        ["t: the times are taken for milliseconds (disksim), since some have a fraction; --format mqsim takes nanoseconds"]
    );
    let named = Options { format: Some(Format::Disksim), ..Options::default() };
    let file = write(dir.path(), "t", DISKSIM.as_bytes());
    assert_eq!(notes(&file, &named).2, [""; 0], "nothing is guessed");
    let (_, requests, said) = of(SYSTOR);
    assert_eq!(
        (requests, &said[..]),
        (2, &["t: 1 requests are neither read nor write; they are passed over".to_owned()][..])
    );
}

#[test]
fn dated_traces_keep_their_times_beside_each_other() {
    let dir = tempfile::tempdir().unwrap();
    // The same second, by three clocks: 2019-12-31 16:00:00 UTC and a little.
    let msr = "132222816000001000,srv,0,Read,0,512,1\n132222816000005000,srv,0,Read,0,512,1\n";
    let files = [
        write(dir.path(), "a", msr.as_bytes()),
        write(dir.path(), "b", b"7,W,0,512,1577808000000300\n"),
        write(dir.path(), "c", b"1577808000.000000000,0.1,W,1,0,512\n"),
    ];
    let mut merged = Merged::open(&files, &Options::default()).unwrap();
    assert_eq!(merged.begun_ns(), Some(1_577_808_000_000_000_000));
    let seen: Vec<_> = std::iter::from_fn(|| merged.next_request().unwrap()).collect();
    let times: Vec<u64> = seen.iter().map(|r| r.time_ns.unwrap()).collect();
    assert_eq!(times, [0, 100_000, 300_000, 500_000]);
    // Written as it is read, dates included; a trace that counts from zero has none.
    let mut merged = Merged::open(&files[..1], &Options::default()).unwrap();
    let mut writer = Writer::new(Vec::new(), Format::Msr).unwrap();
    writer.origin(&merged).unwrap();
    while let Some(request) = merged.next_request().unwrap() {
        writer.request(&request).unwrap();
    }
    assert_eq!(
        String::from_utf8(writer.finish().unwrap()).unwrap(),
        msr.replace("srv", "trace").replace(",1\n", ",0\n")
    );
    let undated = [write(dir.path(), "d", b"100,srv,0,Read,0,512,1\n"), files[0].clone()];
    assert_eq!(Merged::open(&undated, &Options::default()).unwrap().begun_ns(), None);
}

#[test]
fn records_of_both_versions_are_read_and_a_cut_one_is_broken() {
    let dir = tempfile::tempdir().unwrap();
    let one = vscsi();
    let requests = vec![
        request(0, 0, Kind::Read, 6353 * 512, 4096),
        request(4_000_000, 0, Kind::Write, 6361 * 512, 512),
    ];
    let strict = Options { strict: true, ..Options::default() };
    let file = write(dir.path(), "t", &one);
    assert_eq!(read_all(&file, &strict).unwrap(), (Format::Vscsi, requests.clone(), 0));
    let mut writer = Writer::new(Vec::new(), Format::Vscsi).unwrap();
    requests.iter().for_each(|request| writer.request(request).unwrap());
    let two = writer.finish().unwrap();
    assert_eq!(two.len(), 80);
    let file = write(dir.path(), "t", &two);
    assert_eq!(read_all(&file, &strict).unwrap(), (Format::Vscsi, requests.clone(), 0));
    // Longer than the buffer, compressed, and cut in a record.
    let many = two.repeat(10_000);
    let file = write(dir.path(), "t", &zstd::encode_all(&many[..many.len() - 7], 1).unwrap());
    let (_, read, broken) = read_all(&file, &Options::default()).unwrap();
    assert_eq!((read.len(), broken), (19_999, 1));
    let error = read_all(&file, &strict).unwrap_err().to_string();
    assert!(error.contains(":20000: "), "{error}");
    assert!(matches!(
        read_all(&write(dir.path(), "t", &one[..31]), &strict),
        Err(TraceError::Unrecognised(_))
    ));
}

#[test]
fn nothing_is_an_error_and_never_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let any = Options::default();
    let spc = Options { format: Some(Format::Spc), ..Options::default() };
    for empty in ["", "\n\n  \n", "\u{feff}", "\u{feff}\n"] {
        let file = write(dir.path(), "empty", empty.as_bytes());
        assert!(matches!(read_all(&file, &any), Err(TraceError::Empty(_))));
        assert!(read_all(&file, &spc).is_err());
    }
    for strange in ["hello\nworld\n", "\u{0}\u{1}\u{2}", "1,2,3\n4,5,6\n", "<html>", "a b c d e\n"] {
        let file = write(dir.path(), "strange", strange.as_bytes());
        assert!(matches!(read_all(&file, &any), Err(TraceError::Unrecognised(_))), "{strange:?}");
        assert!(matches!(read_all(&file, &spc), Err(TraceError::NoRequests { .. })), "{strange:?}");
    }
    let header = write(dir.path(), "header", b"fio version 2 iolog\n/dev/x add\n");
    assert!(matches!(read_all(&header, &any), Err(TraceError::NoRequests { .. })));
    assert!(matches!(read_all(Path::new("/nonexistent/trace"), &any), Err(TraceError::Io { .. })));
    assert!(matches!(read_all(dir.path(), &any), Err(TraceError::Io { .. })));
}

#[test]
fn files_are_merged_by_time_and_keep_their_address_spaces() {
    let dir = tempfile::tempdir().unwrap();
    let a = write(dir.path(), "a", b"0,1,512,w,10.0\n0,2,512,w,12.0\n");
    let b = write(dir.path(), "b", b"0,7,512,w,5.0\n3,8,512,w,6.0\n");
    let mut merged = Merged::open(&[a, b], &Options::default()).unwrap();
    let mut seen = Vec::new();
    while let Some(r) = merged.next_request().unwrap() {
        seen.push((r.time_ns.unwrap() / 1_000_000, r.device, r.offset / 512));
    }
    // Each file's clock starts at its first request.
    assert_eq!(seen, [(0, 0, 1), (0, 1, 7), (1000, 2, 8), (2000, 0, 2)]);
    assert_eq!(merged.tally().requests, 4);
}

fn any_request() -> impl Strategy<Value = Request> {
    let kind = prop::sample::select(vec![Kind::Read, Kind::Write, Kind::Discard]);
    (0_u64..1 << 40, 0_u32..5, kind, 0_u64..1 << 40, 1_u64..1 << 12).prop_map(
        |(time, device, kind, at, len)| {
            // What every format can say: milliseconds, whole sectors.
            request(time / 1_000_000 * 1_000_000, device, kind, at * 512, len * 512)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_back(mut requests in prop::collection::vec(any_request(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        requests.sort_by_key(|r| r.time_ns);
        (requests[0].kind, requests[0].device) = (Kind::Write, 0);
        let first = requests[0].time_ns.unwrap();
        for format in Format::ALL {
            let mut writer = Writer::new(Vec::new(), format).unwrap();
            for request in &requests {
                writer.request(request).unwrap();
            }
            let discards =
                matches!(format, Format::Afterimage | Format::Blkparse | Format::Fio2 | Format::Fio3);
            let devices = !matches!(format, Format::Cloudphysics | Format::Vscsi);
            let kept: Vec<Request> = requests
                .iter()
                .copied()
                .filter(|r| (discards || r.kind != Kind::Discard) && (devices || r.device == 0))
                .collect();
            prop_assert_eq!(writer.left_out as usize, requests.len() - kept.len());
            let file = write(dir.path(), format.name(), &writer.finish().unwrap());
            let (_, read, broken) =
                read_all(&file, &Options { format: Some(format), strict: true, ..Options::default() }).unwrap();
            prop_assert_eq!(broken, 0);
            // Devices are numbered in order of appearance.
            let mut order = Vec::new();
            for (kept, read) in kept.iter().zip(&read) {
                if !order.contains(&kept.device) {
                    order.push(kept.device);
                }
                let device = order.iter().position(|d| *d == kept.device).unwrap() as u32;
                let has_time = read.time_ns.is_some();
                let time_ns = has_time.then(|| kept.time_ns.unwrap() - first);
                prop_assert!(has_time || format == Format::Fio2);
                prop_assert_eq!(*read, Request { device, time_ns, ..*kept });
            }
            prop_assert_eq!(read.len(), kept.len());
        }
    }

    #[test]
    fn anything_is_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzz_read(&bytes);
    }

    #[test]
    fn damaged_traces_are_read_without_a_panic(
        which in 0_usize..13,
        changes in prop::collection::vec((any::<u16>(), any::<u8>(), 0_u8..3), 1..12),
    ) {
        let mut bytes = expected()[which].1.as_bytes().to_vec();
        for (at, byte, what) in changes {
            let at = usize::from(at) % bytes.len();
            match what {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, b'9'),
                _ => { bytes.remove(at); }
            }
            if bytes.is_empty() {
                bytes.push(byte);
            }
        }
        fuzz_read(&bytes);
    }
}
