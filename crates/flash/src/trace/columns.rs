//! Formats with one request a line in fixed columns: a table of them, and one reader and one writer for all.
//!
//! | format | layout as its publisher gives it |
//! |---|---|
//! | `msr` | README of the MSR Cambridge traces (SNIA IOTTA 388): `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime` |
//! | `spc` | Storage Performance Council, *SPC Trace File Format* 1.0.1 (UMass): `ASU,LBA,Size,Opcode,Timestamp` |
//! | `disksim` | DiskSim 4.0 manual, *ASCII* input: `time devno blkno count flags`, flags hexadecimal, bit 0 set for a read |
//! | `mqsim` | `traces/README.md` of MQSim: DiskSim's columns in nanoseconds |
//! | `alibaba` | README of Alibaba's block-traces (IISWC '20): `device_id,opcode,offset,length,timestamp` |
//! | `tencent` | README of Tencent's CBS traces (SNIA IOTTA 27917): `Timestamp,Offset,Size,IOType,VolumeID` |
//! | `systor` | README of the SYSTOR '17 traces (SNIA IOTTA 4964): `Timestamp,Response,IOType,LUN,Offset,Size` |
//! | `fiu` | README of FIU's traces (SNIA IOTTA 390, 391): `ts pid process lba size op major minor md5` |
//! | `cloudphysics` | Cydonia's `CPReader`, as CloudPhysics' traces are passed on: `ts,lba,op,size` |

use std::io::{self, Write};

use super::fields::{blank, comma, number, time};
use super::parser::{Parser, Reason};
use super::{Format, Kind, Request};

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    Time,
    /// A number of the address space, or the last part of one: `DiskNumber`.
    Device,
    /// A part of the address space's name. Its columns stand side by side.
    Name,
    Operation,
    Offset,
    Size,
    /// Nothing that the simulator needs.
    Other,
}

use Is::{Device, Name, Offset, Operation, Other, Size, Time};

/// A row of the table.
#[derive(Debug)]
pub struct Layout {
    format: Format,
    /// The first line of files that have one.
    pub header: &'static str,
    next: for<'a> fn(&mut &'a [u8]) -> Option<&'a [u8]>,
    separator: u8,
    columns: &'static [(&'static str, Is)],
    /// Columns that every line has.
    least: usize,
    /// More columns may follow.
    open: bool,
    time_ns: u64,
    /// Times are written with a fraction.
    fraction: bool,
    offset_bytes: u64,
    size_bytes: u64,
    kind: fn(&[u8]) -> Result<Kind, Reason>,
    /// As read and write are written.
    words: [&'static str; 2],
    /// Nanoseconds from the beginning of its clock to 1970, where its clock has a date.
    epoch_ns: Option<u64>,
}

const COMMAS: Layout = Layout {
    format: Format::Spc,
    header: "",
    next: comma,
    separator: b',',
    columns: &[],
    least: 0,
    open: false,
    time_ns: 1_000_000_000,
    fraction: true,
    offset_bytes: 1,
    size_bytes: 1,
    kind: word,
    words: ["R", "W"],
    epoch_ns: None,
};

const BLANKS: Layout = Layout { next: blank, separator: b' ', offset_bytes: 512, size_bytes: 512, ..COMMAS };

/// See the module.
pub static LAYOUTS: [Layout; 9] = [
    Layout {
        format: Format::Msr,
        header: "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime",
        columns: &[
            ("timestamp", Time),
            ("host name", Name),
            ("disk number", Device),
            ("type", Operation),
            ("offset", Offset),
            ("size", Size),
            ("response time", Other),
        ],
        least: 6,
        open: true,
        time_ns: 100,
        fraction: false,
        words: ["Read", "Write"],
        // From 1601 on.
        epoch_ns: Some(11_644_473_600_000_000_000),
        ..COMMAS
    },
    Layout {
        format: Format::Spc,
        header: "ASU,LBA,Size,Opcode,Timestamp",
        columns: &[("ASU", Device), ("LBA", Offset), ("size", Size), ("opcode", Operation), ("time", Time)],
        least: 5,
        open: true,
        offset_bytes: 512,
        words: ["r", "w"],
        ..COMMAS
    },
    Layout { format: Format::Disksim, time_ns: 1_000_000, ..DISKSIM },
    Layout { format: Format::Mqsim, time_ns: 1, fraction: false, ..DISKSIM },
    Layout {
        format: Format::Alibaba,
        header: "device_id,opcode,offset,length,timestamp",
        columns: &[
            ("device", Device),
            ("opcode", Operation),
            ("offset", Offset),
            ("length", Size),
            ("timestamp", Time),
        ],
        least: 5,
        time_ns: 1000,
        fraction: false,
        epoch_ns: Some(0),
        ..COMMAS
    },
    Layout {
        format: Format::Tencent,
        header: "Timestamp,Offset,Size,IOType,VolumeID",
        columns: &[
            ("timestamp", Time),
            ("offset", Offset),
            ("size", Size),
            ("type", Operation),
            ("volume", Device),
        ],
        least: 5,
        offset_bytes: 512,
        size_bytes: 512,
        kind: digit,
        words: ["0", "1"],
        epoch_ns: Some(0),
        ..COMMAS
    },
    Layout {
        format: Format::Systor,
        header: "Timestamp,Response,IOType,LUN,Offset,Size",
        columns: &[
            ("timestamp", Time),
            ("response time", Other),
            ("type", Operation),
            ("LUN", Device),
            ("offset", Offset),
            ("size", Size),
        ],
        least: 6,
        epoch_ns: Some(0),
        ..COMMAS
    },
    Layout {
        format: Format::Fiu,
        columns: &[
            ("time", Time),
            ("process number", Other),
            ("process", Other),
            ("LBA", Offset),
            ("size", Size),
            ("operation", Operation),
            ("major number", Device),
            ("minor number", Device),
            ("MD5", Other),
        ],
        least: 8,
        open: true,
        time_ns: 1,
        fraction: false,
        ..BLANKS
    },
    Layout {
        format: Format::Cloudphysics,
        header: "ts,lba,op,size",
        columns: &[("time", Time), ("LBA", Offset), ("operation", Operation), ("size", Size)],
        least: 4,
        time_ns: 1000,
        fraction: false,
        offset_bytes: 512,
        words: ["r", "w"],
        ..COMMAS
    },
];

const DISKSIM: Layout = Layout {
    columns: &[("time", Time), ("device", Device), ("block", Offset), ("count", Size), ("flags", Operation)],
    least: 5,
    kind: flags,
    words: ["1", "0"],
    ..BLANKS
};

/// The row of a format that has one.
pub fn layout(format: Format) -> Option<&'static Layout> {
    LAYOUTS.iter().find(|layout| layout.format == format)
}

fn word(text: &[u8]) -> Result<Kind, Reason> {
    let is = |words: [&str; 2]| words.iter().any(|word| text.eq_ignore_ascii_case(word.as_bytes()));
    match () {
        () if is(["r", "read"]) => Ok(Kind::Read),
        () if is(["w", "write"]) => Ok(Kind::Write),
        () => Err(Reason::Operation),
    }
}

fn digit(text: &[u8]) -> Result<Kind, Reason> {
    match text {
        b"0" => Ok(Kind::Read),
        b"1" => Ok(Kind::Write),
        _ => Err(Reason::Operation),
    }
}

fn flags(text: &[u8]) -> Result<Kind, Reason> {
    let digits = std::str::from_utf8(text).map_err(|_| Reason::NotANumber("flags"))?;
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    let flags = u64::from_str_radix(digits, 16).map_err(|_| Reason::NotANumber("flags"))?;
    Ok(if flags & 1 == 1 { Kind::Read } else { Kind::Write })
}

/// 2000-01-01: times before it count from the trace's own beginning.
const DATED_NS: u64 = 946_684_800_000_000_000;

impl Layout {
    /// The format that it is the layout of.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Nanoseconds since 1970 of a time in a trace, where that is a date.
    pub fn since_1970_ns(&self, time_ns: u64) -> Option<u64> {
        time_ns.checked_sub(self.epoch_ns?).filter(|ns| *ns >= DATED_NS)
    }

    /// What a time in nanoseconds since 1970 is by its clock.
    pub fn dated_ns(&self, since_1970_ns: u64) -> Option<u64> {
        self.epoch_ns?.checked_add(since_1970_ns)
    }

    /// Whether it can tell address spaces apart.
    pub fn has_devices(&self) -> bool {
        self.columns.iter().any(|(_, is)| *is == Device)
    }

    /// Parses a line.
    #[inline]
    pub fn line(&self, parser: &mut Parser, line: &[u8]) -> Result<Option<Request>, Reason> {
        self.request(parser, line).or_else(|reason| {
            let is_header = !self.header.is_empty() && line.eq_ignore_ascii_case(self.header.as_bytes());
            if is_header {
                Ok(None)
            } else {
                Err(reason)
            }
        })
    }

    #[inline]
    fn request(&self, parser: &mut Parser, line: &[u8]) -> Result<Option<Request>, Reason> {
        let mut rest = line;
        let (mut at, mut offset, mut size) = (0, None, None);
        let mut kind = None;
        let (mut name_from, mut name_to) = (usize::MAX, 0);
        for (index, (name, is)) in self.columns.iter().enumerate() {
            let Some(field) = (self.next)(&mut rest) else {
                if index < self.least {
                    return Err(Reason::Missing(name));
                }
                break;
            };
            match is {
                Time => at = time(field, self.time_ns)?,
                Offset => offset = number(field, name)?.checked_mul(self.offset_bytes),
                Size => size = number(field, name)?.checked_mul(self.size_bytes),
                // Requests that were never answered: see SYSTOR '17's README.
                Operation if field.is_empty() && self.format == Format::Systor => kind = None,
                Operation => kind = Some((self.kind)(field)?),
                Device | Name => {
                    if *is == Device {
                        number(field, name)?;
                    }
                    let from = field.as_ptr() as usize - line.as_ptr() as usize;
                    (name_from, name_to) = (name_from.min(from), from + field.len());
                }
                Other => {}
            }
        }
        if !self.open && (self.next)(&mut rest).is_some() {
            return Err(Reason::Shape);
        }
        let Some(kind) = kind else {
            parser.untyped += 1;
            return Ok(None);
        };
        let device = line.get(name_from..name_to).unwrap_or_default();
        parser.request(Some(at), device, kind, offset, size)
    }

    /// Writes a request whose time is already by this clock. Sectors round outwards.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn write(&self, out: &mut impl Write, r: &Request, time_ns: u64) -> io::Result<()> {
        let start = r.offset / self.offset_bytes;
        let size = (r.offset + r.bytes - start * self.offset_bytes).div_ceil(self.size_bytes);
        for (index, (_, is)) in self.columns.iter().enumerate() {
            if index > 0 {
                out.write_all(&[self.separator])?;
            }
            match is {
                Time => {
                    write!(out, "{}", time_ns / self.time_ns)?;
                    if self.fraction {
                        let digits = self.time_ns.ilog10() as usize;
                        write!(out, ".{:0digits$}", time_ns % self.time_ns)?;
                    }
                }
                Device => write!(out, "{}", r.device)?,
                Name => out.write_all(b"trace")?,
                Operation => out.write_all(self.words[usize::from(r.kind != Kind::Read)].as_bytes())?,
                Offset => write!(out, "{start}")?,
                Size => write!(out, "{size}")?,
                Other => out.write_all(b"0")?,
            }
        }
        out.write_all(b"\n")
    }
}
