//! DiskSim ASCII: `time devno blkno count flags`; blocks of 512 bytes, hexadecimal flags, bit 0 set for a read.
//! The time is in milliseconds; MQSim uses the same columns with nanoseconds.

use super::fields::{blank, number, time};
use super::parser::{Parser, Reason};
use super::{Kind, Request};

pub fn line(parser: &mut Parser, mut rest: &[u8], unit_ns: u64) -> Result<Option<Request>, Reason> {
    let at = time(blank(&mut rest).ok_or(Reason::Missing("time"))?, unit_ns)?;
    let device = blank(&mut rest).ok_or(Reason::Missing("device"))?;
    number(device, "device")?;
    let block = number(blank(&mut rest).ok_or(Reason::Missing("block"))?, "block")?;
    let count = number(blank(&mut rest).ok_or(Reason::Missing("count"))?, "count")?;
    let flags = blank(&mut rest).ok_or(Reason::Missing("flags"))?;
    let digits = std::str::from_utf8(flags).map_err(|_| Reason::NotANumber("flags"))?;
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    let flags = u64::from_str_radix(digits, 16).map_err(|_| Reason::NotANumber("flags"))?;
    if blank(&mut rest).is_some() {
        return Err(Reason::Shape);
    }
    let kind = if flags & 1 == 1 { Kind::Read } else { Kind::Write };
    parser.request(Some(at), device, kind, block.checked_mul(512), count.checked_mul(512))
}
