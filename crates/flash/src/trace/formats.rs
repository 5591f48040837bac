//! One line in, at most one request out.

use super::parser::{Parser, Reason};
use super::{blkparse, capture, disksim, fio, msr, spc, Format, Request};

impl Parser {
    /// Parses a line without its end. `None`: nothing that the simulator needs.
    #[inline]
    pub fn line(&mut self, line: &[u8]) -> Result<Option<Request>, Reason> {
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(None);
        }
        if line[0] == b'#' {
            return match self.format {
                Format::Afterimage => capture::remark(self, line).map(|()| None),
                _ => Ok(None),
            };
        }
        match self.format {
            Format::Afterimage => capture::line(self, line),
            Format::Blkparse => blkparse::line(self, line),
            Format::Fio2 => fio::line(self, line, 2),
            Format::Fio3 => fio::line(self, line, 3),
            Format::Msr => msr::line(self, line),
            Format::Spc => spc::line(self, line),
            Format::Disksim => disksim::line(self, line, 1_000_000),
            Format::Mqsim => disksim::line(self, line, 1),
        }
    }
}
