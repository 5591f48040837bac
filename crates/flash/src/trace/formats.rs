//! One line in, at most one request out.

use super::parser::{Parser, Reason};
use super::{blkparse, capture, fio, vscsi, Format, Request};

impl Parser {
    /// Parses a line without its end, or a record. `None`: nothing that the simulator needs.
    #[inline]
    pub fn line(&mut self, line: &[u8]) -> Result<Option<Request>, Reason> {
        if self.format == Format::Vscsi {
            return vscsi::record(self, line);
        }
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
        match (self.format, self.layout) {
            (_, Some(layout)) => layout.line(self, line),
            (Format::Afterimage, _) => capture::line(self, line),
            (Format::Fio2, _) => fio::line(self, line, 2),
            (Format::Fio3, _) => fio::line(self, line, 3),
            _ => blkparse::line(self, line),
        }
    }
}
