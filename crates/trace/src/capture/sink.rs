//! The file: text, plain or as one zstd frame that is flushed often.

use std::fs::File;
use std::io::{self, Write};
use std::time::Instant;

use zstd::stream::write::Encoder;

use super::line;
use super::queue::{Item, Queue};
use super::{Captured, Classify, FLUSH_EVERY};

/// Fast; lines compress to about a tenth.
const LEVEL: i32 = 3;
/// Text is handed on in pieces of about this size, whole lines each.
const TEXT_BYTES: usize = 256 << 10;

pub enum Sink {
    Plain(File),
    Zstd(Encoder<'static, File>),
}

impl Sink {
    pub fn new(file: File, compressed: bool) -> io::Result<Self> {
        Ok(if compressed {
            let mut encoder = Encoder::new(file, LEVEL)?;
            encoder.include_checksum(true)?;
            Self::Zstd(encoder)
        } else {
            Self::Plain(file)
        })
    }

    /// Hands text on when there is much.
    pub fn write_some(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        if text.len() >= TEXT_BYTES {
            self.write(text)?;
        }
        Ok(())
    }

    /// The rest, and the last line; then it is on the disk.
    pub fn finish(mut self, mut text: Vec<u8>, captured: Captured) -> io::Result<()> {
        text.extend_from_slice(line::end(captured).as_bytes());
        self.write(&mut text)?;
        self.end()
    }

    fn write(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        let written = match self {
            Self::Plain(file) => file.write_all(text),
            Self::Zstd(encoder) => encoder.write_all(text),
        };
        text.clear();
        written
    }

    /// What was written can be read.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Zstd(encoder) => encoder.flush(),
        }
    }

    fn end(self) -> io::Result<()> {
        let file = match self {
            Self::Plain(file) => file,
            Self::Zstd(encoder) => encoder.finish()?,
        };
        crate::file::sync(&file)
    }
}

/// Writes until the queue ends.
pub fn write_all(
    queue: &Queue,
    mut sink: Sink,
    header: &str,
    names: &[String],
    mut classify: Box<dyn Classify>,
) -> io::Result<Captured> {
    let mut text = header.as_bytes().to_vec();
    let mut used = Vec::new();
    let mut captured = Captured::default();
    let mut dirty = true;
    let mut flushed = Instant::now();
    loop {
        let taken = queue.take(&mut used, FLUSH_EVERY);
        dirty |= !taken.chunks.is_empty();
        for mut chunk in taken.chunks {
            for item in chunk.drain(..) {
                match item {
                    Item::Seen(seen) => {
                        let name = names.get(usize::from(seen.file.0)).map_or(line::OTHER, String::as_str);
                        line::push(&mut text, &seen, name, classify.class(&seen));
                        captured.lines += 1;
                    }
                    Item::Dropped(requests) => {
                        text.extend_from_slice(line::dropped(requests).as_bytes());
                        captured.dropped += requests;
                    }
                }
                sink.write_some(&mut text)?;
            }
            used.push(chunk);
        }
        if taken.ended {
            break;
        }
        if dirty && flushed.elapsed() >= FLUSH_EVERY {
            sink.write(&mut text)?;
            sink.flush()?;
            (dirty, flushed) = (false, Instant::now());
        }
    }
    sink.finish(text, captured)?;
    if captured.dropped > 0 {
        tracing::warn!(
            dropped = captured.dropped,
            "the trace has holes: its file did not keep up with the requests; it says where"
        );
    }
    Ok(captured)
}
