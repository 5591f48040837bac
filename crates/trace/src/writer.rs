//! Records into chunks, compressed.
//!
//! ```text
//! record ─► raw ─(CHUNK_BYTES, or told to)─► compressor ─ flush ─► pad ─► chunk header, chunk ─► file
//! ```
//!
//! A crash at any point leaves whole chunks and at most one cut one: chunks are written in order, each in one call.

use std::io::{self, Write};

use afterimage_format::recording::{
    ChunkHeader, Extent, FileHeader, RecordHeader, RecordKind, TargetBody, FLAG_FAILED, FLAG_FLUSHED,
    FLAG_UNMAP, LAYER_GUEST, LAYER_STORAGE, MARK_BYTES_MAX, OWN_BASE, ROLE_DISK, ROLE_LOG, TARGETS_MAX,
    TARGET_BYTES_MAX, WINDOW_LOG_MAX,
};
use zerocopy::IntoBytes as _;
use zstd::stream::raw::{CParameter, Encoder, InBuffer, Operation, OutBuffer};

use crate::error::{Result, TraceError};
use crate::{Event, EventKind, Layer, Op, Role, Run, Sparse, TargetId, PAGE_BYTES};

/// Raw bytes after which a chunk is closed. Small, since the compressor's window reaches over chunks anyway: what a
/// crash of the recorder costs is one chunk.
const CHUNK_BYTES: usize = 1 << 20;
/// Fast enough for the thread beside a guest; what makes recordings small are the long matches.
const LEVEL: i32 = 3;
/// The smallest window that is worth choosing.
const WINDOW_LOG_MIN: u32 = 16;
/// Base-2 logarithm of what level 3 sees by itself: beyond, long-distance matching finds what it does not.
const LONG_LOG: u32 = 21;

pub(crate) type About = serde_json::Map<String, serde_json::Value>;

/// What a finished file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Bytes of records before compression.
    pub raw_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

pub(crate) struct RecordWriter<W> {
    out: W,
    /// For messages.
    path: String,
    encoder: Encoder<'static>,
    raw: Vec<u8>,
    stored: Vec<u8>,
    chunks: u32,
    last_ns: u64,
    targets: usize,
    target_bytes: u64,
    written: Written,
}

impl<W: Write> RecordWriter<W> {
    /// `raw_bytes_max`: what will be written at most, as far as it is known: less needs less memory and time to begin.
    pub fn new(mut out: W, path: String, raw_bytes_max: u64) -> Result<Self> {
        let window_log = (raw_bytes_max | 1).ilog2().saturating_add(1).clamp(WINDOW_LOG_MIN, WINDOW_LOG_MAX);
        let compressor = TraceError::io("setting up the compressor");
        let encoder = (|| {
            let mut encoder = Encoder::new(LEVEL)?;
            encoder.set_parameter(CParameter::WindowLog(window_log))?;
            encoder.set_parameter(CParameter::EnableLongDistanceMatching(window_log > LONG_LOG))?;
            Ok(encoder)
        })()
        .map_err(compressor)?;
        let header = FileHeader::sealed();
        out.write_all(&header).map_err(TraceError::io(format!("writing {path}")))?;
        Ok(Self {
            out,
            path,
            encoder,
            raw: Vec::new(),
            stored: Vec::new(),
            chunks: 0,
            last_ns: 0,
            targets: 0,
            target_bytes: 0,
            written: Written { raw_bytes: 0, file_bytes: header.len() as u64 },
        })
    }

    pub fn about(&mut self, about: &About) -> Result<()> {
        let text = serde_json::to_vec(about)
            .map_err(|e| TraceError::Unsupported(format!("`about` is no JSON: {e}")))?;
        self.record(RecordKind::About, header(), &[&text])
    }

    /// A target; its number is how many there were before. `same_as`: an earlier one with the same base.
    pub fn target(
        &mut self,
        layer: Layer,
        role: Role,
        base: &Sparse,
        same_as: Option<TargetId>,
    ) -> Result<()> {
        self.target_bytes = self.target_bytes.saturating_add(base.len());
        if self.targets == TARGETS_MAX || self.target_bytes > TARGET_BYTES_MAX {
            let text = format!("more than {TARGETS_MAX} targets, or of {TARGET_BYTES_MAX} bytes in all");
            return Err(TraceError::Unsupported(text));
        }
        let target = self.targets as u16;
        self.targets += 1;
        let (role, index) = match role {
            Role::Disk(index) => (ROLE_DISK, index),
            Role::Log => (ROLE_LOG, 0),
        };
        let body = TargetBody {
            layer: if layer == Layer::Guest { LAYER_GUEST } else { LAYER_STORAGE },
            role,
            index: index.into(),
            same_as: same_as.map_or(OWN_BASE, |t| t.0).into(),
            reserved: 0.into(),
            bytes: base.len().into(),
        };
        self.record(RecordKind::Target, header(), &[body.as_bytes()])?;
        if same_as.is_some() {
            return Ok(());
        }
        for (index, page) in base.pages().filter(|(_, page)| page.iter().any(|b| *b != 0)) {
            let offset = index * PAGE_BYTES as u64;
            let len = (base.len() - offset).min(PAGE_BYTES as u64);
            let extent = Extent { offset: offset.into(), len: len.into() };
            let header = RecordHeader { target: target.into(), ..header() };
            self.record(RecordKind::Base, header, &[extent.as_bytes(), &page[..len as usize]])?;
        }
        Ok(())
    }

    pub fn event(&mut self, event: &Event) -> Result<()> {
        let after_ns = event
            .at_ns
            .checked_sub(self.last_ns)
            .ok_or_else(|| TraceError::Unsupported("an event is older than the one before it".to_owned()))?;
        self.last_ns = event.at_ns;
        let mut header = RecordHeader { after_ns: after_ns.into(), ..header() };
        match &event.kind {
            EventKind::Submit { target, id, op } => {
                header.target = target.0.into();
                header.id = (*id).into();
                self.submission(header, op)
            }
            EventKind::Complete { target, id, ok } => {
                header.target = target.0.into();
                header.id = (*id).into();
                header.flags = if *ok { 0 } else { FLAG_FAILED };
                self.record(RecordKind::Complete, header, &[])
            }
            EventKind::Publish { target, slot, runs } => {
                header.target = target.0.into();
                header.id = (*slot).into();
                let extent =
                    |run: &Run| Extent { offset: run.offset.into(), len: (run.data.len() as u64).into() };
                let extents: Vec<Extent> = runs.iter().map(extent).collect();
                let parts = extents.iter().zip(runs.iter());
                let payload: Vec<&[u8]> =
                    parts.flat_map(|(extent, run)| [extent.as_bytes(), &run.data]).collect();
                self.record(RecordKind::Publish, header, &payload)
            }
            EventKind::Mark { text } if text.len() > MARK_BYTES_MAX => {
                Err(TraceError::Unsupported(format!("a mark of {} bytes", text.len())))
            }
            EventKind::Mark { text } => self.record(RecordKind::Mark, header, &[text.as_bytes()]),
        }
    }

    fn submission(&mut self, mut header: RecordHeader, op: &Op) -> Result<()> {
        let flag = |yes: bool, flag| if yes { flag } else { 0 };
        match op {
            Op::Write { offset, data, flushed } => {
                header.flags = flag(*flushed, FLAG_FLUSHED);
                let extent = Extent { offset: (*offset).into(), len: (data.len() as u64).into() };
                self.record(RecordKind::Write, header, &[extent.as_bytes(), data])
            }
            Op::Zero { offset, len, unmap, flushed } => {
                header.flags = flag(*flushed, FLAG_FLUSHED) | flag(*unmap, FLAG_UNMAP);
                let extent = Extent { offset: (*offset).into(), len: (*len).into() };
                self.record(RecordKind::Zero, header, &[extent.as_bytes()])
            }
            Op::Flush => self.record(RecordKind::Flush, header, &[]),
        }
    }

    fn record(&mut self, kind: RecordKind, mut header: RecordHeader, payload: &[&[u8]]) -> Result<()> {
        let bytes: usize = payload.iter().map(|part| part.len()).sum();
        let bytes = u32::try_from(bytes)
            .map_err(|_| TraceError::Unsupported(format!("a request of {bytes} bytes")))?;
        header.kind = kind.code();
        header.payload_bytes = bytes.into();
        for part in [header.as_bytes()].iter().chain(payload) {
            let mut rest = *part;
            while !rest.is_empty() {
                let n = rest.len().min(CHUNK_BYTES - self.raw.len());
                self.raw.extend_from_slice(&rest[..n]);
                rest = &rest[n..];
                if self.raw.len() == CHUNK_BYTES {
                    self.close_chunk()?;
                }
            }
        }
        Ok(())
    }

    /// Writes what there is as a chunk.
    pub fn close_chunk(&mut self) -> Result<()> {
        if self.raw.is_empty() {
            return Ok(());
        }
        self.stored.clear();
        compress(&mut self.encoder, &self.raw, &mut self.stored)
            .map_err(TraceError::io(format!("compressing for {}", self.path)))?;
        let (compressed_bytes, raw_bytes) = (self.stored.len() as u32, self.raw.len() as u32);
        let stored_bytes = compressed_bytes.max(ChunkHeader::stored_bytes_min(raw_bytes));
        self.stored.resize(stored_bytes as usize, 0);
        let header = ChunkHeader::seal(self.chunks, compressed_bytes, raw_bytes, &self.stored);
        self.stored.splice(..0, header.as_bytes().iter().copied());
        self.out.write_all(&self.stored).map_err(TraceError::io(format!("writing {}", self.path)))?;
        self.chunks += 1;
        self.written.raw_bytes += u64::from(raw_bytes);
        self.written.file_bytes += self.stored.len() as u64;
        self.raw.clear();
        Ok(())
    }

    /// The orderly end.
    pub fn end(mut self) -> Result<(Written, W)> {
        self.record(RecordKind::End, header(), &[])?;
        self.close_chunk()?;
        self.out.flush().map_err(TraceError::io(format!("writing {}", self.path)))?;
        Ok((self.written, self.out))
    }
}

/// Everything given so far can be decoded from what this appends to `out`.
fn compress(encoder: &mut Encoder<'_>, raw: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = vec![0; 128 << 10];
    let mut input = InBuffer::around(raw);
    loop {
        let mut output = OutBuffer::around(&mut buffer[..]);
        let given = input.pos() == raw.len();
        let left = if given { encoder.flush(&mut output)? } else { encoder.run(&mut input, &mut output)? };
        out.extend_from_slice(output.as_slice());
        if given && left == 0 {
            return Ok(());
        }
    }
}

fn header() -> RecordHeader {
    RecordHeader {
        kind: 0,
        flags: 0,
        target: 0.into(),
        payload_bytes: 0.into(),
        after_ns: 0.into(),
        id: 0.into(),
    }
}
