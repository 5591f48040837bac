//! What the requests of afterimage's own capture are for, counted.

use serde::Serialize;

use super::Kind;

/// What a request of a capture is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// An image, outside every journal that the daemon knew.
    Home,
    /// The redo log.
    Log,
    /// A journal of a guest's file system.
    Journal,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::Home, Self::Log, Self::Journal];

    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"home" => Some(Self::Home),
            b"log" => Some(Self::Log),
            b"journal" => Some(Self::Journal),
            _ => None,
        }
    }
}

/// A choice of classes; all by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes([bool; 3]);

impl Default for Classes {
    fn default() -> Self {
        Self([true; 3])
    }
}

impl Classes {
    /// These.
    pub fn of(classes: &[Class]) -> Self {
        Self(Class::ALL.map(|class| classes.contains(&class)))
    }

    fn has(self, class: Class) -> bool {
        self.0[class as usize]
    }
}

/// Requests and bytes of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ClassTally {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Discards and zeroings.
    pub discards: u64,
    /// Bytes of these.
    pub discard_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}

impl ClassTally {
    /// Adds another count; bytes as [`Traffic::add`](crate::scan::Traffic::add) does.
    pub fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.writes += other.writes;
        self.write_bytes = self.write_bytes.saturating_add(other.write_bytes);
        self.discards += other.discards;
        self.discard_bytes = self.discard_bytes.saturating_add(other.discard_bytes);
        self.flushes += other.flushes;
    }
}

/// What a capture holds by class, before any choice of classes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ByClass {
    /// [`Class::Home`]
    pub home: ClassTally,
    /// [`Class::Log`]
    pub log: ClassTally,
    /// [`Class::Journal`]
    pub journal: ClassTally,
}

impl ByClass {
    fn of(&mut self, class: Class) -> &mut ClassTally {
        match class {
            Class::Home => &mut self.home,
            Class::Log => &mut self.log,
            Class::Journal => &mut self.journal,
        }
    }

    pub(super) fn has_requests(&self) -> bool {
        [self.home, self.log, self.journal].iter().any(|c| c.reads + c.writes + c.discards > 0)
    }

    /// Adds another count.
    pub fn add(&mut self, other: &Self) {
        self.home.add(&other.home);
        self.log.add(&other.log);
        self.journal.add(&other.journal);
    }
}

/// What a capture has said so far.
#[derive(Debug, Default)]
pub struct Captured {
    /// The classes that are wanted.
    pub classes: Classes,
    /// Of all classes.
    pub tally: ByClass,
    /// The header was there.
    pub begun: bool,
    /// The last line was there.
    pub ended: bool,
    /// Files named before the first request.
    pub declared: u32,
    /// When the trace begins, nanoseconds since 1970.
    pub begun_ns: Option<u64>,
}

impl Captured {
    /// Counts a flush.
    #[inline]
    pub fn flushed(&mut self, class: Class) {
        self.tally.of(class).flushes += 1;
    }

    /// Counts a request; whether its class is wanted.
    #[inline(always)]
    pub fn count(&mut self, class: Class, kind: Kind, request_bytes: u64) -> bool {
        let tally = self.tally.of(class);
        let (requests, bytes) = match kind {
            Kind::Read => (&mut tally.reads, &mut tally.read_bytes),
            Kind::Write => (&mut tally.writes, &mut tally.write_bytes),
            Kind::Discard => (&mut tally.discards, &mut tally.discard_bytes),
        };
        *requests += 1;
        *bytes = bytes.saturating_add(request_bytes);
        self.classes.has(class)
    }
}
