//! What a usual line is, format by format. `None`: not this one, and nothing has changed.

use super::super::blkparse::is_device;
use super::super::capture::Class;
use super::super::fields::number;
use super::super::parser::Parser;
use super::super::{Kind, Request, MAX_ADDRESS, MAX_DISCARD, MAX_TRANSFER};
use super::marks::Marks;
use super::sight::{has, word, Field, Sight};

/// What a line gave.
pub enum Read {
    Request(Request),
    Nothing,
}

const SECTOR_BYTES: u64 = 512;

/// An address space that a line names.
struct Device<'a> {
    known: Option<u32>,
    key: u128,
    name: &'a [u8],
}

impl<'a> Device<'a> {
    /// `valid`: whether the format takes this for a name; asked only about names not met before.
    #[inline(always)]
    fn of<M: Marks>(
        parser: &Parser,
        sight: &Sight<'a, M>,
        field: Field,
        valid: impl FnOnce(&[u8]) -> bool,
    ) -> Option<Self> {
        let key = sight.key(field)?;
        let known = parser.names.get(key);
        if known.is_some() {
            return Some(Self { known, key, name: &[] });
        }
        let name = sight.bytes(field)?;
        valid(name).then_some(Self { known, key, name })
    }

    #[inline(always)]
    fn number(self, parser: &mut Parser) -> u32 {
        match self.known {
            Some(number) => number,
            None => Self::learn(parser, self.key, self.name),
        }
    }

    #[inline(never)]
    fn learn(parser: &mut Parser, key: u128, name: &[u8]) -> u32 {
        let number = parser.device(name);
        parser.names.put(key, number);
        number
    }
}

/// The request, if its ranges are good.
#[inline(always)]
fn request(
    parser: &mut Parser,
    time_ns: Option<u64>,
    device: Device<'_>,
    kind: Kind,
    offset: u64,
    bytes: u64,
) -> Option<Request> {
    let most = if kind == Kind::Discard { MAX_DISCARD } else { MAX_TRANSFER };
    if bytes == 0 || bytes > most || offset > MAX_ADDRESS - bytes {
        return None;
    }
    let time_ns = parser.since_first(time_ns);
    Some(Request { time_ns, device: device.number(parser), kind, offset, bytes })
}

const READ: u64 = word(b"read");
const WRITE: u64 = word(b"write");

/// One of the two; this way round the choice costs no jump that is guessed wrong.
#[inline(always)]
fn read_or_write(read: bool, write: bool) -> Option<Kind> {
    (read | write).then_some(if read { Kind::Read } else { Kind::Write })
}

#[inline(always)]
pub fn afterimage<M: Marks>(parser: &mut Parser, mut sight: Sight<'_, M>) -> Option<Read> {
    const DISCARD: u64 = word(b"discard");
    const ZERO: u64 = word(b"zero");
    const FLUSH: u64 = word(b"flush");
    const HOME: u64 = word(b"home");
    const LOG: u64 = word(b"log");
    const JOURNAL: u64 = word(b"journal");
    let time_ns = sight.single();
    let time_ns = sight.number(time_ns)?;
    let file = sight.single();
    let (operation, offset, length) = transfer(&mut sight)?;
    let class = sight.single();
    let class = match sight.word(class)? {
        HOME => Class::Home,
        LOG => Class::Log,
        JOURNAL => Class::Journal,
        _ => return None,
    };
    if !sight.is_over() {
        return None;
    }
    let kind = match read_or_write(operation == READ, operation == WRITE) {
        Some(kind) => kind,
        None if operation == DISCARD || operation == ZERO => Kind::Discard,
        None if operation == FLUSH => {
            parser.capture.flushed(class);
            return Some(Read::Nothing);
        }
        None => return None,
    };
    let file = Device::of(parser, &sight, file, |_| true)?;
    let request = request(parser, Some(time_ns), file, kind, offset, length)?;
    Some(if parser.capture.count(class, kind, length) { Read::Request(request) } else { Read::Nothing })
}

#[inline(always)]
pub fn blkparse<M: Marks>(parser: &mut Parser, mut sight: Sight<'_, M>) -> Option<Read> {
    let device = sight.blank();
    let _cpu = sight.blank();
    let _sequence = sight.blank();
    let time = sight.blank();
    let _process = sight.blank();
    let action = sight.blank();
    let device = Device::of(parser, &sight, device, is_device)?;
    if sight.byte(action) != Some(parser.action) {
        sight.bytes(action)?;
        parser.in_summary = false;
        return Some(Read::Nothing);
    }
    let time_ns = sight.time(time, 9)?;
    let rwbs = sight.blank();
    let rwbs = sight.word(rwbs)?;
    let discard = has(rwbs, b'D');
    let kind = read_or_write(has(rwbs, b'R'), has(rwbs, b'W'));
    let kind = if discard { Kind::Discard } else { kind? };
    let sector = sight.blank();
    let sector = sight.number(sector)?;
    let plus = sight.blank();
    if sight.byte(plus) != Some(b'+') {
        return None;
    }
    let count = sight.blank();
    let count = sight.short(count)?;
    // At most 16 digits, at most 8: no overflow.
    let (offset, bytes) = (sector.wrapping_mul(SECTOR_BYTES), count.wrapping_mul(SECTOR_BYTES));
    let request = request(parser, Some(time_ns), device, kind, offset, bytes)?;
    parser.in_summary = false;
    Some(Read::Request(request))
}

#[inline(always)]
pub fn fio2<M: Marks>(parser: &mut Parser, mut sight: Sight<'_, M>) -> Option<Read> {
    const WAIT: u64 = word(b"wait");
    let file = sight.single();
    let (operation, offset, length) = fio(&mut sight)?;
    // A comment may look like anything.
    let file = Device::of(parser, &sight, file, |name| name.first() != Some(&b'#'))?;
    if operation == WAIT {
        parser.waited_us = Some(parser.waited_us.unwrap_or(0).saturating_add(offset));
        return Some(Read::Nothing);
    }
    let kind = fio_kind(operation)?;
    let time_ns = match parser.waited_us {
        Some(us) => Some(us.checked_mul(1000)?),
        None => None,
    };
    request(parser, time_ns, file, kind, offset, length).map(Read::Request)
}

#[inline(always)]
pub fn fio3<M: Marks>(parser: &mut Parser, mut sight: Sight<'_, M>) -> Option<Read> {
    let time_us = sight.single();
    let time_us = sight.number(time_us)?;
    let file = sight.single();
    let (operation, offset, length) = fio(&mut sight)?;
    let kind = fio_kind(operation)?;
    let file = Device::of(parser, &sight, file, |_| true)?;
    // At most 16 digits.
    request(parser, Some(time_us.checked_mul(1000)?), file, kind, offset, length).map(Read::Request)
}

/// `action offset length` and nothing else: a file name with blanks is not usual.
#[inline(always)]
fn fio<M: Marks>(sight: &mut Sight<'_, M>) -> Option<(u64, u64, u64)> {
    let found = transfer(sight)?;
    sight.is_over().then_some(found)
}

/// `action offset length`.
#[inline(always)]
fn transfer<M: Marks>(sight: &mut Sight<'_, M>) -> Option<(u64, u64, u64)> {
    let operation = sight.single();
    let operation = sight.word(operation)?;
    let offset = sight.single();
    let offset = sight.number(offset)?;
    let length = sight.single();
    let length = sight.mostly_short(length)?;
    Some((operation, offset, length))
}

#[inline(always)]
fn fio_kind(operation: u64) -> Option<Kind> {
    const TRIM: u64 = word(b"trim");
    match read_or_write(operation == READ, operation == WRITE) {
        None if operation == TRIM => Some(Kind::Discard),
        kind => kind,
    }
}

#[inline(always)]
pub fn msr<M: Marks>(parser: &mut Parser, mut sight: Sight<'_, M>) -> Option<Read> {
    const LOWER: u64 = word(b"        ");
    let stamp = sight.single();
    let time_ns = sight.long(stamp)?.checked_mul(100)?;
    let host = sight.single();
    let disk = sight.single();
    let operation = sight.single();
    // Small letters: the bit of a blank.
    let operation = sight.word(operation)? | LOWER;
    let kind = read_or_write(operation == (READ | LOWER), operation == (WRITE | LOWER))?;
    let offset = sight.single();
    let offset = sight.number(offset)?;
    let size = sight.single();
    let size = sight.short(size)?;
    let disk_is_number = |_: &[u8]| sight.bytes(disk).is_some_and(|disk| number(disk, "").is_ok());
    let device = Device::of(parser, &sight, Field::join(host, disk), disk_is_number)?;
    request(parser, Some(time_ns), device, kind, offset, size).map(Read::Request)
}

#[inline(always)]
pub fn spc<M: Marks>(parser: &mut Parser, mut sight: Sight<'_, M>) -> Option<Read> {
    let asu = sight.single();
    let lba = sight.single();
    let lba = sight.number(lba)?;
    let size = sight.single();
    let size = sight.short(size)?;
    let operation = sight.single();
    let operation = sight.byte(operation)? | b' ';
    let kind = read_or_write(operation == b'r', operation == b'w')?;
    let time = sight.single();
    let time_ns = sight.time(time, 9)?;
    let asu = Device::of(parser, &sight, asu, is_number)?;
    let offset = lba.wrapping_mul(SECTOR_BYTES);
    request(parser, Some(time_ns), asu, kind, offset, size).map(Read::Request)
}

fn is_number(name: &[u8]) -> bool {
    number(name, "").is_ok()
}

#[inline(always)]
pub fn disksim<M: Marks>(parser: &mut Parser, mut sight: Sight<'_, M>) -> Option<Read> {
    let time = sight.blank();
    let time_ns = sight.time(time, 6)?;
    columns(parser, sight, time_ns)
}

#[inline(always)]
pub fn mqsim<M: Marks>(parser: &mut Parser, mut sight: Sight<'_, M>) -> Option<Read> {
    let time = sight.blank();
    let time_ns = sight.number(time)?;
    columns(parser, sight, time_ns)
}

/// What DiskSim and MQSim have in common.
#[inline(always)]
fn columns<M: Marks>(parser: &mut Parser, mut sight: Sight<'_, M>, time_ns: u64) -> Option<Read> {
    let device = sight.blank();
    let block = sight.blank();
    let block = sight.number(block)?;
    let count = sight.blank();
    let count = sight.short(count)?;
    let flags = sight.blank();
    let flags = sight.short(flags)?;
    if !sight.is_empty() {
        return None;
    }
    let device = Device::of(parser, &sight, device, is_number)?;
    // Hexadecimal, but the last digit alone says whether it is odd.
    let kind = if flags & 1 == 1 { Kind::Read } else { Kind::Write };
    let (offset, bytes) = (block.wrapping_mul(SECTOR_BYTES), count.wrapping_mul(SECTOR_BYTES));
    request(parser, Some(time_ns), device, kind, offset, bytes).map(Read::Request)
}
