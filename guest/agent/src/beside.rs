//! What iJournaling (§ 6.1) measures: a file that is synced again and again, beside a stream that nobody syncs.
//!
//! ```text
//!   sync-times   write 80 KiB ─► pause ─► fsync, timed ─► write 80 KiB ...
//!   stream       4 KiB after 4 KiB, so many bytes a second; the next file where one is long enough, and the last but one is removed
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use afterimage_protocol::report::{Agent, SyncTimes};

use crate::args::{invalid, Arguments, SIZE_BYTES_MAX};
use crate::report::Report;
use crate::sys;

const WRITE_BYTES: usize = 4096;
/// How often a stream looks at the clock.
const TURN: Duration = Duration::from_millis(5);

/// `sync-times`: for `--seconds`, at least once. What a disk has written meanwhile, of whomever, is read from its `stat` (`--stat FILE`).
pub fn sync_times(mut arguments: Arguments) -> io::Result<()> {
    let path = arguments.word("the file to write")?;
    let size = arguments.number_up_to("size", SIZE_BYTES_MAX)?.unwrap_or(80 << 10);
    let pause = Duration::from_millis(arguments.number("pause-ms")?.unwrap_or(100));
    let limit = Duration::from_secs(arguments.number("seconds")?.unwrap_or(30));
    let stat = arguments.option("stat").map(PathBuf::from);
    let report = Report::open(&mut arguments)?;
    arguments.finish()?;
    let written_bytes = || stat.as_ref().map_or(Ok(0), |path| written_bytes(&fs::read_to_string(path)?));
    let mut file = OpenOptions::new().append(true).create_new(true).open(path)?;
    file.sync_all()?;
    let block = vec![0x5a; size as usize];
    let mut times = SyncTimes::default();
    let started = Instant::now();
    while times.ns.is_empty() || started.elapsed() < limit {
        file.write_all(&block)?;
        std::thread::sleep(pause);
        let (bytes, before_ns) = (written_bytes()?, sys::monotonic_ns());
        file.sync_all()?;
        times.ns.push(sys::monotonic_ns() - before_ns);
        times.disk_bytes.push(written_bytes()?.saturating_sub(bytes));
    }
    report.say(&Agent::SyncTimes(times))
}

/// The seventh number of a disk's `stat` (Documentation/block/stat.rst): sectors of 512 bytes.
fn written_bytes(stat: &str) -> io::Result<u64> {
    let sectors = stat.split_whitespace().nth(6).and_then(|word| word.parse::<u64>().ok());
    Ok(sectors.ok_or_else(|| invalid(format!("'{}' is no disk's stat", stat.trim())))? * 512)
}

/// `stream`: for `--seconds`.
pub fn stream(mut arguments: Arguments) -> io::Result<()> {
    let folder = PathBuf::from(arguments.word("the folder to write in")?);
    let rate = arguments.number("bytes-per-s")?.unwrap_or(0);
    let file_bytes = arguments.number("file-bytes")?.unwrap_or(1 << 30);
    let limit = Duration::from_secs(arguments.number("seconds")?.unwrap_or(30));
    arguments.finish()?;
    if rate == 0 || file_bytes == 0 {
        return Err(invalid("--bytes-per-s and --file-bytes want more than 0".to_owned()));
    }
    let path = |number: u64| folder.join(format!("stream.{number}"));
    let block = [0xa5; WRITE_BYTES];
    let (mut number, mut written, mut total) = (0, 0, 0);
    let mut file = File::create_new(path(number))?;
    let started = Instant::now();
    while started.elapsed() < limit {
        // Who was held up makes up for it, as fio does.
        let due = (started.elapsed().as_secs_f64() * rate as f64) as u64;
        while total < due && started.elapsed() < limit {
            file.write_all(&block)?;
            (written, total) = (written + WRITE_BYTES as u64, total + WRITE_BYTES as u64);
            if written >= file_bytes {
                (number, written) = (number + 1, 0);
                file = File::create_new(path(number))?;
                if number > 1 {
                    fs::remove_file(path(number - 2))?;
                }
            }
        }
        std::thread::sleep(TURN);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disks_stat_is_read_whole_or_not_at_all() {
        assert_eq!(written_bytes("1 0 8 0 2 0 16 0 0 0 0 3 0 0 0 4 9\n").unwrap(), 16 * 512);
        assert!(written_bytes("1 0 8").is_err() && written_bytes("1 0 8 0 2 0 x 0").is_err());
    }
}
