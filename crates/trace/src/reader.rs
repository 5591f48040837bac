//! Chunks into records into a [`Recording`].
//!
//! What comes in is hostile until checked. Memory is bounded by the file's size: a chunk decodes to at most `RATIO_MAX`
//! times its stored bytes, which are there before anything is allocated for them; a base record is whole pages; the
//! compressor's window is at most 64 MiB.

use std::io::{self, Read};

use afterimage_format::recording::{ChunkHeader, FileHeader, RecordHeader, WINDOW_LOG_MAX};
use afterimage_format::{checksum, FormatError};
use zerocopy::FromBytes as _;
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use crate::builder::Builder;
use crate::error::{Result, TraceError};
use crate::Recording;

/// How a file of a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The recorder finished it.
    Finished,
    /// It was cut off, by a crash of the recorder or a full disk; what lies before is whole and was returned.
    Cut {
        /// The byte of the file from which on nothing was usable.
        at: u64,
    },
}

/// What went wrong, without the path.
pub(crate) enum Fault {
    Format(FormatError),
    Corrupt { at: u64, what: String },
    Io(io::Error),
}

impl Fault {
    pub fn of(self, path: &str) -> TraceError {
        match self {
            Self::Format(source) => TraceError::Format { path: path.to_owned(), source },
            Self::Corrupt { at, what } => TraceError::Corrupt { path: path.to_owned(), at, what },
            Self::Io(source) => TraceError::Io { what: format!("reading {path}"), source },
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Reads a whole recording.
pub(crate) fn read(input: impl Read, path: &str) -> Result<(Recording, Ending)> {
    read_stream(input).map_err(|fault| fault.of(path))
}

fn read_stream(mut input: impl Read) -> std::result::Result<(Recording, Ending), Fault> {
    let head = up_to(&mut input, size_of::<FileHeader>())?;
    FileHeader::parse(&head).map_err(Fault::Format)?;
    let mut records = Records::default();
    let mut decoder = Decoder::new()?;
    decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))?;
    let mut at = head.len() as u64;
    for number in 0.. {
        let begin = at;
        let corrupt = |what: String| Fault::Corrupt { at: begin, what };
        let raw = match next_chunk(&mut input, number)? {
            Next::Nothing => break,
            Next::Cut => return records.finish(at),
            Next::Damaged(what) => return Err(corrupt(what.to_owned())),
            Next::Chunk(header, stored) => {
                let raw = decode(&mut decoder, &stored[..header.compressed_bytes.get() as usize], &header)
                    .map_err(&corrupt)?;
                at += (size_of::<ChunkHeader>() + stored.len()) as u64;
                raw
            }
        };
        records.add(&raw).map_err(corrupt)?;
    }
    records.finish(at)
}

enum Next {
    Chunk(ChunkHeader, Vec<u8>),
    /// The file ends at the end of a chunk.
    Nothing,
    /// The file ends within this one.
    Cut,
    Damaged(&'static str),
}

fn next_chunk(input: &mut impl Read, number: u32) -> io::Result<Next> {
    let head = up_to(input, size_of::<ChunkHeader>())?;
    if head.is_empty() {
        return Ok(Next::Nothing);
    }
    if head.len() < size_of::<ChunkHeader>() {
        return Ok(Next::Cut);
    }
    let Some(header) = ChunkHeader::parse(&head, number) else {
        // A file system may leave zeroes where a file had grown before a power cut.
        let cut = head.iter().all(|b| *b == 0) && rest_is_zero(input)?;
        return Ok(if cut { Next::Cut } else { Next::Damaged("there is no chunk of the recording here") });
    };
    let stored = up_to(input, header.stored_bytes.get() as usize)?;
    if stored.len() < header.stored_bytes.get() as usize {
        return Ok(Next::Cut);
    }
    if checksum(&stored) == header.stored_crc.get() {
        return Ok(Next::Chunk(header, stored));
    }
    let last = rest_is_zero(input)?;
    Ok(if last { Next::Cut } else { Next::Damaged("the chunk's checksum does not match") })
}

/// Up to `bytes` bytes; fewer only at the end of the input. Allocates as they come.
fn up_to(input: &mut impl Read, bytes: usize) -> io::Result<Vec<u8>> {
    let mut got = Vec::new();
    input.take(bytes as u64).read_to_end(&mut got)?;
    Ok(got)
}

fn rest_is_zero(input: &mut impl Read) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(n) if buffer[..n].iter().all(|b| *b == 0) => {}
            Ok(_) => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// The raw bytes of a chunk.
fn decode(
    decoder: &mut Decoder<'_>,
    compressed: &[u8],
    header: &ChunkHeader,
) -> std::result::Result<Vec<u8>, String> {
    let mut raw = vec![0; header.raw_bytes.get() as usize];
    let mut input = InBuffer::around(compressed);
    let mut output = OutBuffer::around(&mut raw[..]);
    loop {
        let before = (input.pos(), output.pos());
        decoder.run(&mut input, &mut output).map_err(|e| format!("the compressed bytes are wrong: {e}"))?;
        if (input.pos(), output.pos()) == before {
            break;
        }
    }
    if input.pos() != compressed.len() || output.pos() != output.capacity() {
        return Err("the chunk decodes to another number of bytes than it says".to_owned());
    }
    Ok(raw)
}

/// Cuts the decoded stream into records.
#[derive(Default)]
struct Records {
    builder: Builder,
    /// The beginning of a record whose end has not come yet.
    rest: Vec<u8>,
}

impl Records {
    fn add(&mut self, raw: &[u8]) -> std::result::Result<(), String> {
        self.rest.extend_from_slice(raw);
        let mut at = 0;
        while let Ok((header, after)) = RecordHeader::read_from_prefix(&self.rest[at..]) {
            let bytes = header.payload_bytes.get() as usize;
            let Some(payload) = after.get(..bytes) else { break };
            self.builder.record(&header, payload)?;
            at += size_of::<RecordHeader>() + bytes;
        }
        self.rest.drain(..at);
        Ok(())
    }

    /// `at`: where in the file what was usable ends.
    fn finish(self, at: u64) -> std::result::Result<(Recording, Ending), Fault> {
        let ended = self.builder.ended();
        let ending = if ended { Ending::Finished } else { Ending::Cut { at } };
        let recording = self.builder.finish().map_err(|what| Fault::Corrupt { at, what })?;
        Ok((recording, ending))
    }
}
