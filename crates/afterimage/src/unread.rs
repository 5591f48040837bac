//! The standard error of a program that must not wait for whoever reads it: a pager that pauses or a log driver that is stuck
//! would else hold a guest up, or a thread that ends pauses.
//!
//! A line that finds no room is left out and counted; the count is said as soon as there is room again. Nothing here has a thread: the
//! sandbox is put on while there is one.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use parking_lot::Mutex;
use rustix::fs::{fstat, open, FileType, Mode, OFlags};
use rustix::net::{send, SendFlags};
use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;

use crate::cli::LogFormat;
use crate::logging::{is_journal, priority};

/// A pipe takes as much as a whole or not at all (PIPE_BUF).
const WHOLE_BYTES: usize = 4096;

/// How a line is written.
enum Way {
    /// A file, which always takes it.
    Plain,
    /// A pipe or a terminal, opened again: the descriptor's own flags are shared with others.
    Again(File),
    /// A socket, such as the journal's.
    Socket,
}

#[derive(Default)]
struct State {
    left_out: u64,
    /// The last line has no end.
    torn: bool,
}

/// Standard error, written by whole lines.
pub struct Unread {
    way: Way,
    format: LogFormat,
    /// What a warning begins with.
    priority: &'static str,
    state: Mutex<State>,
}

impl Unread {
    /// Of this process.
    pub fn new(format: LogFormat) -> Self {
        let kind = fstat(io::stderr()).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let way = match kind {
            Ok(FileType::Fifo | FileType::CharacterDevice) => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
                // It may be another user's, and is written to as it is then.
                open("/proc/self/fd/2", flags, Mode::empty()).map_or(Way::Plain, |fd| Way::Again(fd.into()))
            }
            Ok(FileType::Socket) => Way::Socket,
            _ => Way::Plain,
        };
        let priority = if is_journal() { priority(Level::WARN) } else { "" };
        Self { way, format, priority, state: Mutex::default() }
    }

    /// Whether there was room for it, or for its begin.
    fn put(&self, line: &[u8], state: &mut State) -> bool {
        let mut written = 0;
        for piece in line.chunks(WHOLE_BYTES) {
            let put = match &self.way {
                Way::Plain => io::stderr().write_all(piece).map(|()| piece.len()),
                Way::Again(file) => { file }.write(piece),
                Way::Socket => {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    send(io::stderr().as_fd(), piece, flags).map_err(Into::into)
                }
            };
            written += put.as_ref().map_or(0, |bytes| *bytes);
            if put.ok() != Some(piece.len()) {
                break;
            }
        }
        state.torn = written > 0 && written < line.len();
        written > 0
    }

    fn loss(&self, lines: u64) -> String {
        let what = format!("{lines} lines of this log were dropped: its reader was too slow");
        match (self.format, self.priority) {
            (LogFormat::Text, "") => format!(" WARN {what}\n"),
            (LogFormat::Text, priority) => format!("{priority}{what}\n"),
            (LogFormat::Json, priority) => {
                format!("{priority}{{\"level\":\"WARN\",\"message\":\"{what}\"}}\n")
            }
        }
    }
}

impl Write for &Unread {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let state = &mut *self.state.lock();
        if state.torn && !self.put(b"\n", state) {
            state.torn = true;
            state.left_out += 1;
            return Ok(line.len());
        }
        if state.left_out > 0 && self.put(self.loss(state.left_out).as_bytes(), state) {
            state.left_out = 0;
        }
        if state.left_out > 0 || !self.put(line, state) {
            state.left_out += 1;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Unread {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn unread(file: File) -> Unread {
        Unread { way: Way::Again(file), format: LogFormat::Text, priority: "", state: Mutex::default() }
    }

    #[test]
    fn what_finds_no_room_is_counted_and_said_when_there_is_some() {
        let (mut reader, writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        rustix::io::ioctl_fionbio(&file, true).unwrap();
        let unread = unread(file);
        let line = [&[b'x'; 999][..], b"\n"].concat();
        for _ in 0..200 {
            (&unread).write_all(&line).unwrap();
        }
        assert!(unread.state.lock().left_out > 0);
        let mut read = vec![0; 1 << 17];
        let bytes = reader.read(&mut read).unwrap();
        (&unread).write_all(b"more\n").unwrap();
        let bytes = bytes + reader.read(&mut read[bytes..]).unwrap();
        let said = String::from_utf8(read[..bytes].to_vec()).unwrap();
        assert!(said.ends_with("lines of this log were dropped: its reader was too slow\nmore\n"), "{said}");
        // A count may have found room where a line had not.
        let left_out = said.lines().filter_map(|found| found.strip_prefix(" WARN ")?.split(' ').next());
        let left_out: usize = left_out.map(|count| count.parse::<usize>().unwrap()).sum();
        let whole = said.lines().filter(|found| found.len() == 999).count();
        assert!(left_out > 100 && whole > 50);
        assert_eq!(whole + left_out, 200);
    }
}
