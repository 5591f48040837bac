//! Traces in any of the formats that are read.

use std::io::{self, Write};

use super::columns::{layout, Layout};
use super::{vscsi, Class, Format, Kind, Merged, Request};

/// Writes requests as lines of a format. What a format cannot say is left out or rounded as [`Writer::request`] says.
pub struct Writer<W> {
    out: W,
    format: Format,
    layout: Option<&'static Layout>,
    /// By the format's clock, where it has dates and the trace has one.
    begun_ns: u64,
    sequence: u64,
    opened: Vec<bool>,
    waited_us: u64,
    dropped: u64,
    /// Requests that the format has no word for: discards but in afterimage's, blkparse's and fio's; of CloudPhysics' formats, which know
    /// one disk, those of others.
    pub left_out: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn new(mut out: W, format: Format) -> io::Result<Self> {
        match format {
            Format::Fio2 => writeln!(out, "fio version 2 iolog")?,
            Format::Fio3 => writeln!(out, "fio version 3 iolog")?,
            Format::Afterimage => writeln!(out, "# afterimage-trace 1")?,
            _ => {}
        }
        Ok(Self {
            out,
            format,
            layout: layout(format),
            begun_ns: 0,
            sequence: 0,
            opened: Vec::new(),
            waited_us: 0,
            dropped: 0,
            left_out: 0,
        })
    }

    /// Says what a trace that is going to be converted says of itself: when it begins, and its files in their order.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn origin(&mut self, trace: &Merged) -> io::Result<()> {
        if self.format != Format::Afterimage {
            self.begun_ns = self.layout.zip(trace.begun_ns()).and_then(|(l, ns)| l.dated_ns(ns)).unwrap_or(0);
            return Ok(());
        }
        let known = trace.formats().iter().all(|format| *format == Format::Afterimage);
        writeln!(self.out, "# converted{}", if known { "" } else { ": the classes are not known" })?;
        if let Some(ns) = trace.begun_ns() {
            writeln!(self.out, "# begun {ns} ns since 1970")?;
        }
        (0..trace.devices()).try_for_each(|dev| self.file(dev))
    }

    /// Says that requests are missing here.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn missing(&mut self, requests: u64) -> io::Result<()> {
        self.dropped = self.dropped.saturating_add(requests);
        if requests > 0 && self.format == Format::Afterimage {
            writeln!(self.out, "# dropped {requests}")?;
        }
        Ok(())
    }

    /// Writes a request. Missing times become 0; formats in sectors round outwards; what a format has no word for is left out and counted.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn request(&mut self, r: &Request) -> io::Result<()> {
        let time = r.time_ns.unwrap_or(0);
        let (sector, sectors) = (r.offset / 512, (r.offset + r.bytes).div_ceil(512) - r.offset / 512);
        let dev = r.device;
        let has_discards =
            matches!(self.format, Format::Afterimage | Format::Blkparse | Format::Fio2 | Format::Fio3);
        let has_devices = self.format != Format::Vscsi && self.layout.is_none_or(Layout::has_devices);
        if (r.kind == Kind::Discard && !has_discards) || (dev > 0 && !has_devices) {
            self.left_out += 1;
            return Ok(());
        }
        self.sequence += 1;
        if let Some(layout) = self.layout {
            return layout.write(&mut self.out, r, self.begun_ns.saturating_add(time));
        }
        match self.format {
            Format::Blkparse => {
                let rwbs = match r.kind {
                    Kind::Read => "R",
                    Kind::Write => "W",
                    Kind::Discard => "D",
                };
                let (s, ns) = (time / 1_000_000_000, time % 1_000_000_000);
                writeln!(
                    self.out,
                    "{},{} 0 {} {s}.{ns:09} 0 D {rwbs} {sector} + {sectors} [trace]",
                    259 + (dev >> 20),
                    dev & 0xf_ffff,
                    self.sequence
                )
            }
            Format::Afterimage => self.capture(r, time),
            Format::Fio2 | Format::Fio3 => self.fio(r, time / 1000),
            _ => vscsi::write(&mut self.out, r, time, self.sequence),
        }
    }

    /// Whether this address space is met for the first time.
    fn is_new(&mut self, dev: usize) -> bool {
        if self.opened.len() <= dev {
            self.opened.resize(dev + 1, false);
        }
        !std::mem::replace(&mut self.opened[dev], true)
    }

    /// Names an address space that was not named yet.
    fn file(&mut self, dev: u32) -> io::Result<()> {
        if self.is_new(dev as usize) {
            writeln!(self.out, "# file disk{dev} 0")?;
        }
        Ok(())
    }

    fn capture(&mut self, r: &Request, ns: u64) -> io::Result<()> {
        let dev = r.device;
        self.file(dev)?;
        let operation = match r.kind {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Discard => "discard",
        };
        let class = match r.class {
            Class::Home => "home",
            Class::Log => "log",
            Class::Journal => "journal",
        };
        writeln!(self.out, "{ns} disk{dev} {operation} {} {} {class}", r.offset, r.bytes)
    }

    fn fio(&mut self, r: &Request, us: u64) -> io::Result<()> {
        let dev = r.device as usize;
        let stamp = if self.format == Format::Fio3 { format!("{us} ") } else { String::new() };
        if self.is_new(dev) {
            writeln!(self.out, "{stamp}disk{dev} add\n{stamp}disk{dev} open")?;
        }
        if self.format == Format::Fio2 && us > self.waited_us {
            writeln!(self.out, "disk{dev} wait {} 0", us - self.waited_us)?;
            self.waited_us = us;
        }
        let action = match r.kind {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Discard => "trim",
        };
        writeln!(self.out, "{stamp}disk{dev} {action} {} {}", r.offset, r.bytes)
    }

    /// Ends the trace and gives the output back.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        if self.format == Format::Afterimage {
            writeln!(self.out, "# end {} requests, {} dropped", self.sequence, self.dropped)?;
        }
        self.cut()
    }

    /// Gives the output back without an end: that of what was converted is missing, too.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn cut(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}
