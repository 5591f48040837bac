//! The other end of the control socket: what `ctl` speaks through.

use std::fs::File;
use std::io::{BufRead, BufReader, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{recvmsg, ControlMessageOwned, MsgFlags};

use super::protocol::{Answer, ImageAnswer, Request};
use crate::failure::Failure;
use crate::serve::sockets::check_path;

/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// A connection to a running daemon.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    /// Whether it has answered as a daemon's control socket does.
    known: bool,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there, or not for this user.
    pub fn connect(path: &Path) -> Result<Self, Failure> {
        check_path(path, "the control socket")?;
        let stream = UnixStream::connect(path).map_err(|e| {
            let advice = match e.kind() {
                std::io::ErrorKind::NotFound => "is `afterimage serve` running with --control and this path?",
                std::io::ErrorKind::ConnectionRefused if is_socket(path) => {
                    "the daemon that made it is gone; start it again"
                }
                std::io::ErrorKind::ConnectionRefused => "this is not a socket; check the path",
                std::io::ErrorKind::PermissionDenied => "only the daemon's own user may control it",
                _ => "check the path",
            };
            Failure::failed(format!("cannot connect to the control socket {}: {e}; {advice}", path.display()))
        })?;
        Ok(Self { path: path.to_owned(), stream: BufReader::new(stream), known: false })
    }

    /// One more connection to the same socket.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn another(&self) -> Result<Self, Failure> {
        Self::connect(&self.path)
    }

    /// How long an answer may take; without a limit where `None`.
    ///
    /// # Errors
    /// The system refuses.
    pub fn set_patience(&mut self, patience: Option<Duration>) -> Result<(), Failure> {
        self.stream.get_ref().set_read_timeout(patience).map_err(|e| self.lost(&e))
    }

    /// Asks and returns the answer's line and meaning. A refusal is a failure.
    ///
    /// # Errors
    /// The daemon refuses, is gone, or answers nothing that this version knows.
    pub fn ask(&mut self, request: &Request) -> Result<(String, Answer), Failure> {
        self.tell(request)?;
        let text = self.line()?.ok_or_else(|| self.lost(&"it closed the connection without an answer"))?;
        let answer = self.understand(&text)?;
        Ok((text, answer))
    }

    /// Asks and returns the answer, or why the daemon refuses.
    ///
    /// # Errors
    /// As [`Client::ask`], but for a refusal.
    pub fn ask_or_hear(&mut self, request: &Request) -> Result<Result<Answer, String>, Failure> {
        self.tell(request)?;
        let text = self.line()?.ok_or_else(|| self.lost(&"it closed the connection without an answer"))?;
        Ok(match self.parse(&text)? {
            Answer::Refused(refusal) => Err(refusal.error),
            answer => Ok(answer),
        })
    }

    /// Asks for the image of the disk in this place of the group: what it is, and its file for reading.
    ///
    /// # Errors
    /// As [`Client::ask`], or no file came along.
    pub fn ask_image(&mut self, disk: u64) -> Result<(ImageAnswer, File), Failure> {
        self.tell(&Request::Image { disk })?;
        // Nothing is buffered: every answer before has been taken. The descriptor comes with the first byte.
        let mut text = Vec::new();
        let mut file = None;
        while text.last() != Some(&b'\n') {
            let mut part = [0; 1024];
            let n = self.receive(&mut part, &mut file)?;
            text.extend_from_slice(&part[..n]);
            if n == 0 || text.len() as u64 > ANSWER_BYTES_MAX {
                return Err(self.lost(&"it closed the connection without an answer"));
            }
        }
        let answer = self.understand(&String::from_utf8_lossy(&text))?;
        match (answer, file) {
            (Answer::Image(image), Some(file)) => Ok((image, file)),
            _ => Err(self.lost(&"it did not hand the image over")),
        }
    }

    #[allow(unsafe_code)]
    fn receive(&self, part: &mut [u8], file: &mut Option<File>) -> Result<usize, Failure> {
        let mut room = nix::cmsg_space!(RawFd);
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let socket = self.stream.get_ref().as_raw_fd();
        let mut parts = [IoSliceMut::new(part)];
        let message = recvmsg::<()>(socket, &mut parts, Some(&mut room), flags).map_err(|e| self.lost(&e))?;
        for control in message.cmsgs().map_err(|e| self.lost(&e))? {
            if let ControlMessageOwned::ScmRights(numbers) = control {
                for number in numbers {
                    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows its number.
                    *file = Some(unsafe { File::from_raw_fd(number) });
                }
            }
        }
        Ok(message.bytes)
    }

    fn tell(&mut self, request: &Request) -> Result<(), Failure> {
        let mut line =
            serde_json::to_vec(request).map_err(|e| Failure::failed(format!("cannot ask: {e}")))?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(|e| self.lost(&e))
    }

    fn parse(&mut self, text: &str) -> Result<Answer, Failure> {
        let answer = serde_json::from_str(text).map_err(|_| {
            Failure::failed(format!(
                "{} gave an answer that this version does not know: use the afterimage that serves it",
                self.path.display()
            ))
        })?;
        self.known = true;
        Ok(answer)
    }

    fn understand(&mut self, text: &str) -> Result<Answer, Failure> {
        match self.parse(text)? {
            Answer::Refused(refusal) => Err(Failure::failed(format!(
                "the daemon at {} refuses: {}",
                self.path.display(),
                refusal.error
            ))),
            answer => Ok(answer),
        }
    }

    /// Whether [`Client::line`] has something to say: a line, the end of the connection, or that it broke.
    pub fn is_readable(&self) -> bool {
        !self.stream.buffer().is_empty() || afterimage_block::is_readable(self.as_fd())
    }

    /// The next line, or `None` when the daemon ended the connection.
    ///
    /// # Errors
    /// The daemon is gone, or too slow.
    pub fn line(&mut self) -> Result<Option<String>, Failure> {
        let mut text = String::new();
        let read = std::io::Read::take(&mut self.stream, ANSWER_BYTES_MAX).read_line(&mut text);
        match read {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(text.trim_end().to_owned())),
            Err(e) => Err(self.lost(&e)),
        }
    }

    pub(crate) fn lost(&self, why: &dyn std::fmt::Display) -> Failure {
        let path = self.path.display();
        // A disk's socket takes a connection, too, and drops it at the first word.
        let advice =
            if self.known { "" } else { "; is it the socket that `serve --control` names, and no disk's?" };
        Failure::failed(format!("lost the connection to the control socket {path}: {why}{advice}"))
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}
