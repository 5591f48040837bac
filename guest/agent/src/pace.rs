//! `pace`: what a program is to read, one line after the other in its own time.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::thread;
use std::time::Duration;

use crate::args::Arguments;

/// Runs it. A reader that ends first is an error, as it is for `cat`.
pub fn run(mut arguments: Arguments) -> io::Result<()> {
    let path = arguments.word("the file to say")?;
    let pause = Duration::from_micros(arguments.number("pause-us")?.unwrap_or(0));
    arguments.finish()?;
    let mut lines = BufReader::new(File::open(path)?);
    if pause.is_zero() {
        return io::copy(&mut lines, &mut io::stdout().lock()).map(drop);
    }
    let (mut output, mut line) = (io::stdout().lock(), Vec::new());
    while lines.read_until(b'\n', &mut line)? > 0 {
        output.write_all(&line)?;
        output.flush()?;
        line.clear();
        thread::sleep(pause);
    }
    Ok(())
}
