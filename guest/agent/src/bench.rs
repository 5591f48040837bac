//! `fsync-bench`: the latency of one fsync after one write.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;

use afterimage_protocol::report::{Agent, FsyncBench};

use crate::args::{Arguments, SIZE_BYTES_MAX};
use crate::report::{Latencies, Report};
use crate::sys;

/// Appends `--count` blocks of `--size` bytes, with an fsync after each, and reports the latencies.
pub fn run(mut arguments: Arguments) -> io::Result<()> {
    let path = arguments.word("the file to write")?;
    let count = arguments.number("count")?.unwrap_or(1000);
    let size_bytes = arguments.number_up_to("size", SIZE_BYTES_MAX)?.unwrap_or(4096);
    let name = arguments.option("name").unwrap_or_else(|| "fsync".to_owned());
    let report = Report::open(&mut arguments)?;
    arguments.finish()?;
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.sync_all()?;
    let block = vec![0x5a; size_bytes as usize];
    let mut fsyncs = Latencies::default();
    let start_ns = sys::monotonic_ns();
    for index in 0..count {
        file.write_all_at(&block, index * size_bytes)?;
        let before_ns = sys::monotonic_ns();
        file.sync_all()?;
        fsyncs.add(sys::monotonic_ns() - before_ns);
    }
    let elapsed_ns = sys::monotonic_ns() - start_ns;
    report.say(&Agent::FsyncBench(FsyncBench { name, size: size_bytes, elapsed_ns, fsync: fsyncs.summary() }))
}
