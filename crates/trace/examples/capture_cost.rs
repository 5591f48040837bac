//! What a request costs the data path while `serve --trace` writes, and whether the file keeps up.
//! Run: `cargo run --release -p afterimage-trace --example capture_cost -- FOLDER`

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use afterimage_trace::capture::{Capture, CaptureOp, Class, Classify, FileId, Listen as _, Seen, TracedFile};

const REQUESTS: u64 = 2_000_000;

struct Home;

impl Classify for Home {
    fn class(&mut self, _seen: &Seen) -> Class {
        Class::Home
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("name a folder")?);
    for name in ["cost.trace", "cost.trace.zst"] {
        for threads in [1, 2] {
            let path = folder.join(name);
            let file = TracedFile { name: "disk0".to_owned(), bytes: 1 << 40, path: "disk.img".into() };
            let capture = Capture::start(File::create(&path)?, &path, "", &[file], Box::new(Home))?;
            let begin = Instant::now();
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let capture = &capture;
                    scope.spawn(move || {
                        for i in 0..REQUESTS / threads {
                            capture.note(
                                FileId(0),
                                CaptureOp::Write,
                                (i * 7919 + thread) % 262_144 * 4096,
                                4096,
                            );
                        }
                    });
                }
            });
            let noted = begin.elapsed();
            let done = capture.finish()?;
            println!(
                "{name}, {threads} threads: {:.0} ns a request; {} written, {} dropped, {:.1} M lines/s, {} bytes",
                noted.as_nanos() as f64 / REQUESTS as f64,
                done.lines,
                done.dropped,
                done.lines as f64 / begin.elapsed().as_secs_f64() / 1e6,
                std::fs::metadata(&path)?.len()
            );
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}
