//! The loops of filebench's personalities, one pass of one thread each.
//!
//! Source: filebench 1.4.9.1 and 1.5, `workloads/{varmail,fileserver,webserver}.f`; reimplemented from their
//! parameters, since Debian does not package filebench. vDrive § 6.1 names them by their ratio of whole-file
//! reads to writes (to fsyncs): 1:1:1, 1:2 and 10:1.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::fileset::{FileSet, Shape};
use crate::report::Latencies;
use crate::sys;

/// filebench's `$iosize`: the size of each read and write call.
pub const IO_BYTES: usize = 1 << 20;
/// filebench's `$meanappendsize`: an append is of 1 to this many bytes, uniformly.
const APPEND_BYTES_MAX: u64 = 16 << 10;

/// Which personality.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Personality {
    /// A mail server: delete, create+append+fsync, open+read+append+fsync, open+read.
    Varmail,
    /// A file server: create+write, open+append, open+read, delete, stat.
    Fileserver,
    /// A web server: ten times open+read, one append to a log that all threads share.
    Webserver,
}

impl Personality {
    /// Reads the name.
    pub fn named(name: &str) -> Option<Personality> {
        match name {
            "varmail" => Some(Personality::Varmail),
            "fileserver" => Some(Personality::Fileserver),
            "webserver" => Some(Personality::Webserver),
            _ => None,
        }
    }

    /// filebench's file set. Its 10 000 files of 128 KiB (fileserver) are more than a small guest's disk; the
    /// caller scales the number of files.
    pub fn shape(self) -> Shape {
        let (files, directory_width, size_mean_bytes, prealloc_percent) = match self {
            Personality::Varmail => (1000, 1_000_000, 16 << 10, 80),
            Personality::Fileserver => (10_000, 20, 128 << 10, 80),
            Personality::Webserver => (1000, 20, 16 << 10, 100),
        };
        Shape { files, directory_width, size_mean_bytes, prealloc_percent }
    }

    /// filebench's `$nthreads`.
    pub fn threads(self) -> u64 {
        match self {
            Personality::Varmail => 16,
            Personality::Fileserver => 50,
            Personality::Webserver => 100,
        }
    }
}

/// What one thread has done.
#[derive(Default)]
pub struct Tally {
    /// filebench's operations: every flowop counts as one.
    pub operations: u64,
    /// Whole passes.
    pub passes: u64,
    /// Whole-file reads.
    pub reads: u64,
    /// Appends and whole-file writes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Each fsync.
    pub fsyncs: Latencies,
}

impl Tally {
    /// Takes over another thread's.
    pub fn merge(&mut self, other: Tally) {
        self.operations += other.operations;
        self.passes += other.passes;
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.fsyncs.merge(other.fsyncs);
    }
}

/// One thread's hands.
pub struct Worker<'a> {
    /// The files.
    pub set: &'a FileSet,
    /// The webserver's log, shared by all threads.
    pub log: &'a File,
    /// The thread's own choices.
    pub random: ChaCha8Rng,
    /// At least [`IO_BYTES`]: what is written, shared by all threads.
    pub content: &'a [u8],
    /// [`IO_BYTES`] to read into: the thread's own, touched only as far as files are long.
    pub buffer: Vec<u8>,
    /// What has been done.
    pub tally: Tally,
}

impl Worker<'_> {
    /// One pass.
    pub fn pass(&mut self, personality: Personality) -> io::Result<()> {
        match personality {
            Personality::Varmail => self.varmail()?,
            Personality::Fileserver => self.fileserver()?,
            Personality::Webserver => self.webserver()?,
        }
        self.tally.passes += 1;
        Ok(())
    }

    fn varmail(&mut self) -> io::Result<()> {
        self.delete()?;
        let (_, mut file) = self.create()?;
        self.append(&mut file)?;
        self.fsync(&file)?;
        self.close(file);
        let mut file = self.open()?;
        self.read_whole(&mut file)?;
        self.append(&mut file)?;
        self.fsync(&file)?;
        self.close(file);
        let mut file = self.open()?;
        self.read_whole(&mut file)?;
        self.close(file);
        Ok(())
    }

    fn fileserver(&mut self) -> io::Result<()> {
        let (entry, mut file) = self.create()?;
        self.write_whole(&mut file, self.set.size_bytes(entry))?;
        self.close(file);
        let mut file = self.open()?;
        self.append(&mut file)?;
        self.close(file);
        let mut file = self.open()?;
        self.read_whole(&mut file)?;
        self.close(file);
        self.delete()?;
        self.stat()
    }

    fn webserver(&mut self) -> io::Result<()> {
        for _ in 0..10 {
            let mut file = self.open()?;
            self.read_whole(&mut file)?;
            self.close(file);
        }
        let mut log = self.log;
        self.append(&mut log)
    }

    fn delete(&mut self) -> io::Result<()> {
        let entry = self.set.choose_present(&mut self.random);
        fs::remove_file(self.set.path(entry))?;
        self.set.now_absent(entry);
        self.tally.operations += 1;
        Ok(())
    }

    fn create(&mut self) -> io::Result<(u32, File)> {
        let entry = self.set.choose_absent(&mut self.random);
        let file = OpenOptions::new().append(true).create_new(true).open(self.set.path(entry))?;
        self.set.now_present(entry);
        self.tally.operations += 1;
        Ok((entry, file))
    }

    fn open(&mut self) -> io::Result<File> {
        let entry = self.set.choose_present(&mut self.random);
        let file = OpenOptions::new().read(true).append(true).open(self.set.path(entry));
        self.set.now_present(entry);
        self.tally.operations += 1;
        file
    }

    fn close(&mut self, file: File) {
        drop(file);
        self.tally.operations += 1;
    }

    fn stat(&mut self) -> io::Result<()> {
        let entry = self.set.choose_present(&mut self.random);
        let found = fs::metadata(self.set.path(entry));
        self.set.now_present(entry);
        self.tally.operations += 1;
        found.map(drop)
    }

    fn append(&mut self, file: &mut impl Write) -> io::Result<()> {
        let size = self.random.random_range(1..=APPEND_BYTES_MAX) as usize;
        file.write_all(&self.content[..size])?;
        self.wrote(size)
    }

    fn write_whole(&mut self, file: &mut File, size: usize) -> io::Result<()> {
        let mut left = size;
        while left > 0 {
            let part = left.min(IO_BYTES);
            file.write_all(&self.content[..part])?;
            left -= part;
        }
        self.wrote(size)
    }

    fn wrote(&mut self, size: usize) -> io::Result<()> {
        self.tally.operations += 1;
        self.tally.writes += 1;
        self.tally.write_bytes += size as u64;
        Ok(())
    }

    fn read_whole(&mut self, file: &mut File) -> io::Result<()> {
        loop {
            let got = file.read(&mut self.buffer[..IO_BYTES])?;
            self.tally.read_bytes += got as u64;
            if got == 0 {
                break;
            }
        }
        self.tally.operations += 1;
        self.tally.reads += 1;
        Ok(())
    }

    fn fsync(&mut self, file: &File) -> io::Result<()> {
        let before_ns = sys::monotonic_ns();
        file.sync_all()?;
        self.tally.fsyncs.add(sys::monotonic_ns() - before_ns);
        self.tally.operations += 1;
        Ok(())
    }
}
