//! What the formats share: the state of reading one trace, and the checks that every request passes.

use rustc_hash::FxHashMap;

use super::class::{Captured, Class};
use super::columns::{layout, Layout};
use super::{Format, Kind, Request, MAX_ADDRESS, MAX_DISCARD, MAX_TRANSFER};

/// Why a line is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The line ends too early.
    #[error("the {0} is missing")]
    Missing(&'static str),
    /// A number was expected.
    #[error("the {0} is not a number in range")]
    NotANumber(&'static str),
    /// Neither read nor write.
    #[error("the operation is neither read nor write")]
    Operation,
    /// Not a line of this format.
    #[error("this is not a line of this format")]
    Shape,
    /// A request that is too large to be true.
    #[error("the request is larger than 1 GiB (a discard: 16 TiB)")]
    TooLarge,
    /// It ends beyond any device.
    #[error("the request lies beyond 64 PiB")]
    TooFar,
    /// No line is that long.
    #[error("the line is longer than 64 KiB")]
    TooLong,
    /// A name that would fill memory, were there many of them.
    #[error("the name of the device or file is longer than 4 KiB")]
    NameTooLong,
    /// More address spaces than anybody has: their names would fill memory.
    #[error("there are more devices or files than 1048576, or their names take more than 64 MiB")]
    TooManyNames,
    /// A class that there is none of.
    #[error("the class is neither home nor log nor journal")]
    Class,
    /// The daemon says that its trace has a hole.
    #[error("{0} requests are missing here: the daemon that wrote the trace dropped them")]
    Dropped(u64),
    /// The end of a capture is not there.
    #[error("the trace stops here without its end: its daemon was killed, or still writes")]
    Cut,
}

/// Which of a blktrace's events count as the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Action {
    /// Issued if there are such events, else queued, else completed.
    Auto,
    /// Q: queued by the file system.
    Queued,
    /// D: issued to the device.
    Issued,
    /// C: completed.
    Completed,
}

/// The state of reading one trace.
#[derive(Debug)]
pub struct Parser {
    pub format: Format,
    /// Its columns, where it has fixed ones.
    pub layout: Option<&'static Layout>,
    /// blkparse: the event that counts.
    pub action: u8,
    /// blkparse: events that would have counted, had the beginning of the trace had any.
    pub preferred: &'static [u8],
    /// blkparse: inside the summary.
    pub in_summary: bool,
    /// fio version 2: microseconds waited so far; `None`: the log has no waits and so no times.
    pub waited_us: Option<u64>,
    /// afterimage: what its remarks have said.
    pub capture: Captured,
    /// Requests that the trace dates before its first one.
    pub early: u64,
    /// systor: requests that are neither read nor write.
    pub untyped: u64,
    /// blkparse: preferred events; fio version 2: waits in a log that was taken for one without.
    pub late: u64,
    devices: FxHashMap<Box<[u8]>, u32>,
    /// Bytes of all names.
    name_bytes: usize,
    last: (Box<[u8]>, u32),
    first_ns: Option<u64>,
}

// A file of garbage, or one made for it, must not fill memory.
const NAME_MAX: usize = 4 << 10;
const NAMES_MAX: usize = 64 << 20;
const DEVICES_MAX: usize = 1 << 20;

impl Parser {
    pub fn new(format: Format, action: u8) -> Self {
        Self {
            format,
            layout: layout(format),
            action,
            preferred: &[],
            in_summary: false,
            waited_us: None,
            capture: Captured::default(),
            early: 0,
            untyped: 0,
            late: 0,
            devices: FxHashMap::default(),
            name_bytes: 0,
            last: (Box::default(), u32::MAX),
            first_ns: None,
        }
    }

    /// The number of an address space, new or known.
    #[inline]
    pub fn device(&mut self, name: &[u8]) -> Result<u32, Reason> {
        if *self.last.0 == *name && self.last.1 != u32::MAX {
            return Ok(self.last.1);
        }
        let number = match self.devices.get(name) {
            Some(number) => *number,
            None if name.len() > NAME_MAX => return Err(Reason::NameTooLong),
            None if self.devices.len() >= DEVICES_MAX || self.name_bytes + name.len() > NAMES_MAX => {
                return Err(Reason::TooManyNames);
            }
            None => {
                let number = self.devices.len() as u32;
                self.name_bytes += name.len();
                self.devices.insert(name.into(), number);
                number
            }
        };
        self.last = (name.into(), number);
        Ok(number)
    }

    /// Address spaces met so far.
    pub fn devices(&self) -> u32 {
        self.devices.len() as u32
    }

    /// Whether there was a request with a time.
    pub fn has_time(&self) -> bool {
        self.first_ns.is_some()
    }

    /// When the first request was made, nanoseconds since 1970, where the trace has dates or says when it begins.
    pub fn first_absolute_ns(&self) -> Option<u64> {
        let first_ns = self.first_ns?;
        match self.layout {
            Some(layout) => layout.since_1970_ns(first_ns),
            None => self.capture.begun_ns?.checked_add(first_ns),
        }
    }

    /// The time since the first request, which this may be.
    #[inline]
    pub fn since_first(&mut self, time_ns: Option<u64>) -> Option<u64> {
        let time = time_ns?;
        let first = *self.first_ns.get_or_insert(time);
        self.early += u64::from(time < first);
        Some(time.saturating_sub(first))
    }

    /// Checks ranges and makes the time relative to the first request. Nothing for a request of no bytes.
    #[inline]
    pub fn request(
        &mut self,
        time_ns: Option<u64>,
        device: &[u8],
        kind: Kind,
        offset: Option<u64>,
        bytes: Option<u64>,
    ) -> Result<Option<Request>, Reason> {
        let offset = offset.ok_or(Reason::TooFar)?;
        let bytes = bytes.ok_or(Reason::TooLarge)?;
        if bytes == 0 {
            return Ok(None);
        }
        if bytes > if kind == Kind::Discard { MAX_DISCARD } else { MAX_TRANSFER } {
            return Err(Reason::TooLarge);
        }
        if offset > MAX_ADDRESS - bytes {
            return Err(Reason::TooFar);
        }
        let device = self.device(device)?;
        Ok(Some(Request {
            time_ns: self.since_first(time_ns),
            device,
            kind,
            offset,
            bytes,
            class: Class::Home,
        }))
    }
}
