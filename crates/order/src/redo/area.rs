//! The circular record area: logical positions to bytes of the file.

use std::io;
use std::sync::Arc;

use afterimage_block::Medium;
use afterimage_format::log::RECORDS_OFFSET;

use crate::sequence::LogPosition;

/// See the module.
#[derive(Clone)]
pub(crate) struct Area {
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) bytes: u64,
}

impl Area {
    /// Splits a range where it wraps: file offset and length of the first part; the rest starts at the area's begin.
    fn split(&self, position: LogPosition, len: usize) -> (u64, usize) {
        let at = position.0 % self.bytes;
        (RECORDS_OFFSET + at, len.min((self.bytes - at) as usize))
    }

    pub(crate) fn read(&self, position: LogPosition, buf: &mut [u8]) -> io::Result<()> {
        let (offset, first) = self.split(position, buf.len());
        let (head, rest) = buf.split_at_mut(first);
        self.medium.read_at(head, offset)?;
        if !rest.is_empty() {
            self.medium.read_at(rest, RECORDS_OFFSET)?;
        }
        Ok(())
    }

    /// How many bytes from a position on are known to be zeroes; none beyond the wrap.
    pub(crate) fn zeroes_from(&self, position: LogPosition) -> u64 {
        let at = position.0 % self.bytes;
        self.medium.zeroes_from(RECORDS_OFFSET + at).min(self.bytes - at)
    }

    pub(crate) fn write(&self, position: LogPosition, bytes: &[u8]) -> io::Result<()> {
        let (offset, first) = self.split(position, bytes.len());
        self.medium.write_at(&bytes[..first], offset)?;
        if first < bytes.len() {
            self.medium.write_at(&bytes[first..], RECORDS_OFFSET)?;
        }
        Ok(())
    }
}
