//! Synchronous positional I/O on raw segments: what the inline lane, the media and the fallbacks share.
//!
//! Short transfers are continued, EINTR and EAGAIN repeated. With O_DIRECT, what the kernel would refuse for its
//! alignment goes through an aligned copy of at most [`BOUNCE_BYTES`] at a time.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use afterimage_block::Buffers;

use crate::counters::{Counters, Shard};

/// The most segments that one system call takes (`UIO_MAXIOV`).
pub(crate) const SEGMENTS_MAX: usize = 1024;
/// The largest aligned copy, in bytes: a hostile guest may send requests of gigabytes.
pub(crate) const BOUNCE_BYTES: usize = 1 << 20;

/// An error of the same kind that names its file: who gets it may know only a [`afterimage_block::Medium`].
pub(crate) fn named<'a>(doing: &'a str, path: &'a Path, offset: u64) -> impl Fn(io::Error) -> io::Error + 'a {
    move |e| io::Error::new(e.kind(), format!("{doing} {} at byte {offset}: {e}", path.display()))
}

/// The alignment of direct I/O on one file, in bytes; both are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alignment {
    /// Of each segment's address.
    pub memory: u32,
    /// Of the file offset and each segment's length.
    pub offset: u32,
}

impl Alignment {
    /// Whether the kernel takes these segments as they are.
    pub fn fits(self, buffers: &Buffers) -> bool {
        let memory = self.memory as usize - 1;
        let length = self.offset as usize - 1;
        buffers.segments().iter().all(|s| s.iov_base as usize & memory == 0 && s.iov_len & length == 0)
    }
}

/// A file descriptor and what its I/O has to keep.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub file: &'a File,
    /// With O_DIRECT.
    pub alignment: Option<Alignment>,
    pub shard: &'a Shard,
}

/// Makes the file's data durable: the one place of this crate where that happens, for [`Syncs`](crate::syncs::Syncs).
/// An interrupted sync is a failed one: it may have taken an error with it that the next would not be told.
pub(crate) fn sync_data(
    file: &Arc<File>,
    counters: &Arc<Counters>,
) -> impl Fn() -> io::Result<()> + Send + Sync + 'static {
    let (file, counters) = (Arc::clone(file), Arc::clone(counters));
    move || {
        let synced = rustix::fs::fdatasync(&*file);
        counters.shard(0).synced();
        Ok(synced?)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

impl Target<'_> {
    /// Fills the buffers from `offset`.
    pub fn read(&self, buffers: &Buffers, offset: u64) -> io::Result<()> {
        self.transfer(Way::In, buffers, offset)
    }

    /// Fills the buffers from `offset`, as far as the file goes: with at least so many bytes. What is asked of the kernel is aligned where the
    /// buffers are, wherever the file ends.
    pub fn read_at_least(&self, buffers: &Buffers, offset: u64, least: usize) -> io::Result<()> {
        let grain = self.alignment.map_or(1, |alignment| alignment.offset as usize);
        let mut done = 0;
        while done < least {
            let from = done / grain * grain;
            let rest = buffers.slice(from, buffers.len() - from);
            match from + self.once(Way::In, rest.segments(), offset + from as u64)? {
                to if to <= done => return Err(nothing(Way::In)),
                to => done = to,
            }
        }
        Ok(())
    }

    /// Stores the buffers at `offset`.
    pub fn write(&self, buffers: &Buffers, offset: u64) -> io::Result<()> {
        self.transfer(Way::Out, buffers, offset)
    }

    /// Fills `buf` from `offset`.
    pub fn read_slice(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let segment = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        // SAFETY: the slice is borrowed mutably until this call returns, which is when the buffers are gone.
        self.read(&unsafe { Buffers::from_raw([segment], None) }, offset)
    }

    /// Stores `buf` at `offset`.
    pub fn write_slice(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let segment = libc::iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: buf.len() };
        // SAFETY: the slice is borrowed until this call returns, and `write` only reads from the buffers.
        self.write(&unsafe { Buffers::from_raw([segment], None) }, offset)
    }

    fn transfer(&self, way: Way, buffers: &Buffers, offset: u64) -> io::Result<()> {
        if self.alignment.is_some_and(|a| !a.fits(buffers)) {
            return self.bounced(way, buffers, offset);
        }
        let done = self.once(way, buffers.segments(), offset)?;
        if done == buffers.len() {
            return Ok(());
        }
        self.rest(way, buffers, offset, done)
    }

    /// Continues after a short transfer.
    fn rest(&self, way: Way, buffers: &Buffers, offset: u64, mut done: usize) -> io::Result<()> {
        while done < buffers.len() {
            let at = offset + done as u64;
            if way == Way::In {
                self.check_end(at)?;
            }
            let rest = buffers.slice(done, buffers.len() - done);
            if self.alignment.is_some_and(|a| !a.fits(&rest)) {
                return self.bounced(way, &rest, at);
            }
            match self.once(way, rest.segments(), at)? {
                0 => return Err(nothing(way)),
                n => done += n,
            }
        }
        Ok(())
    }

    fn bounced(&self, way: Way, buffers: &Buffers, offset: u64) -> io::Result<()> {
        let copy = Buffers::allocate(buffers.len().min(BOUNCE_BYTES));
        let mut done = 0;
        while done < buffers.len() {
            let n = (buffers.len() - done).min(BOUNCE_BYTES);
            let part = copy.slice(0, n);
            if way == Way::Out {
                buffers.copy_between(done, &part, 0, n);
            }
            let mut moved = 0;
            while moved < n {
                let at = offset + (done + moved) as u64;
                match self.once(way, part.slice(moved, n - moved).segments(), at)? {
                    0 => return Err(nothing(way)),
                    m => moved += m,
                }
            }
            if way == Way::In {
                part.copy_between(0, buffers, done, n);
            }
            done += n;
        }
        Ok(())
    }

    /// One successful system call; how many bytes it moved.
    fn once(&self, way: Way, segments: &[libc::iovec], offset: u64) -> io::Result<usize> {
        let fd = self.file.as_raw_fd();
        let segments = &segments[..segments.len().min(SEGMENTS_MAX)];
        let at = offset as libc::off_t;
        loop {
            // SAFETY: `Buffers` promises that its segments are mapped (a guest may unmap what it shares: that is
            // EFAULT, no undefined behaviour, because the kernel does the access) and writable for reads.
            let n = unsafe {
                match (way, segments) {
                    (Way::In, [one]) => libc::pread(fd, one.iov_base, one.iov_len, at),
                    (Way::Out, [one]) => libc::pwrite(fd, one.iov_base, one.iov_len, at),
                    (Way::In, many) => libc::preadv(fd, many.as_ptr(), many.len() as i32, at),
                    (Way::Out, many) => libc::pwritev(fd, many.as_ptr(), many.len() as i32, at),
                }
            };
            if n >= 0 {
                match way {
                    Way::In => self.shard.read(n as u64),
                    Way::Out => self.shard.wrote(n as u64),
                }
                return Ok(n as usize);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // Never spins on a file; a moment's lack of kernel memory is waited out.
                Some(libc::EAGAIN) => std::thread::yield_now(),
                _ => return Err(error),
            }
        }
    }

    /// An error where the file ends at or before `offset`: it was shortened under us.
    pub fn check_end(&self, offset: u64) -> io::Result<()> {
        let metadata = self.file.metadata()?;
        if metadata.is_file() && metadata.len() <= offset {
            return Err(shortened(metadata.len()));
        }
        Ok(())
    }
}

/// What a read past the end of a file that became shorter answers.
pub(crate) fn shortened(len: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("the file was shortened to {len} bytes while it was in use"),
    )
}

fn nothing(way: Way) -> io::Error {
    match way {
        Way::In => io::Error::new(io::ErrorKind::UnexpectedEof, "the file was shortened while it was in use"),
        Way::Out => io::Error::new(io::ErrorKind::WriteZero, "the file takes no more bytes"),
    }
}
