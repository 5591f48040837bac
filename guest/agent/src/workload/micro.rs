//! filebench's three micro-benchmarks as the VMA paper uses them (§ 5.1): appends, random overwrites, deletion.
//!
//! ```text
//!   append     an empty file ─► 8 KiB after 8 KiB until it is long enough
//!   overwrite  an existing file ─► 4 KiB at random places until enough has been written
//!   create     directories of files whose sizes are gamma-distributed (not measured by the paper)
//!   delete     the same files, in a random order, by several threads
//! ```
//! No fsync unless `create --fsync` asks for one a file, as in filebench's originals: the final sync is the caller's to measure. Each reports
//! its own time, from its first system call on files to its last.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use afterimage_protocol::report::{Agent, Micro};
use rand::seq::SliceRandom as _;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rand_distr::Distribution as _;

use crate::args::{invalid, Arguments};
use crate::report::Report;
use crate::sys;

/// Mean over median of a gamma distribution of [`super::SIZE_GAMMA`]: 1.5 / 1.18299.
const MEAN_OVER_MEDIAN: f64 = 1.267_97;
/// The largest file: the tail of the distribution must not fill a small disk.
const SIZE_BYTES_MAX: f64 = (1 << 20) as f64;

/// `micro`: one of them.
pub fn run(mut arguments: Arguments) -> io::Result<()> {
    let name = arguments.word("the benchmark: append, overwrite, create or delete")?;
    let path = PathBuf::from(arguments.word("the file or directory to work on")?);
    let mut number = |name: &str, default: u64| arguments.number(name).map(|n| n.unwrap_or(default));
    let bytes = number("bytes", 0)?;
    let size = number("size", 4096)?;
    let seed = number("seed", 1)?;
    let threads = number("threads", 16)?.max(1);
    let files = Files { count: number("files", 0)?, directories: number("directories", 100)?.max(1), seed };
    let median = number("median", 16 << 10)?;
    let fsync = arguments.flag("fsync")?;
    let report = Report::open(&mut arguments)?;
    arguments.finish()?;
    if !(1..=1 << 24).contains(&size) {
        return Err(invalid(format!("--size {size} is not a size of a write")));
    }
    let start_ns = sys::monotonic_ns();
    let operations = match name.as_str() {
        "append" => append(&path, bytes, size, seed)?,
        "overwrite" => overwrite(&path, bytes, size, seed)?,
        "create" => files.create(&path, median, fsync)?,
        "delete" => files.delete(&path, threads)?,
        _ => return Err(invalid(format!("'{name}' is none of append, overwrite, create, delete"))),
    };
    let elapsed_ns = sys::monotonic_ns() - start_ns;
    report.say(&Agent::Micro(Micro { name, operations, elapsed_ns }))
}

fn append(path: &Path, bytes: u64, size: u64, seed: u64) -> io::Result<u64> {
    let mut file = OpenOptions::new().append(true).create_new(true).open(path)?;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    // Bytes that do not compress.
    let mut buffer = vec![0; size as usize];
    random.fill_bytes(&mut buffer);
    let count = bytes / size;
    for number in 0..count {
        // Eight bytes are enough to make every write another one; filling all of it would measure that.
        buffer[..8.min(size as usize)].copy_from_slice(&number.to_le_bytes()[..8.min(size as usize)]);
        file.write_all(&buffer)?;
    }
    Ok(count)
}

fn overwrite(path: &Path, bytes: u64, size: u64, seed: u64) -> io::Result<u64> {
    let file = OpenOptions::new().write(true).open(path)?;
    let places = file.metadata()?.len() / size;
    if places == 0 {
        return Err(invalid(format!("{} is shorter than one write", path.display())));
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    // Bytes that do not compress.
    let mut buffer = vec![0; size as usize];
    random.fill_bytes(&mut buffer);
    let count = bytes / size;
    for number in 0..count {
        buffer[..8.min(size as usize)].copy_from_slice(&number.to_le_bytes()[..8.min(size as usize)]);
        file.write_all_at(&buffer, random.random_range(0..places) * size)?;
    }
    Ok(count)
}

/// A set of files that creation and deletion derive from the same numbers.
struct Files {
    count: u64,
    directories: u64,
    seed: u64,
}

impl Files {
    fn path(&self, root: &Path, file: u64) -> PathBuf {
        root.join(format!("{:03}", file % self.directories)).join(format!("{file:06}"))
    }

    fn create(&self, root: &Path, median: u64, fsync: bool) -> io::Result<u64> {
        for directory in 0..self.directories {
            fs::create_dir_all(root.join(format!("{directory:03}")))?;
        }
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let sizes = super::sizes(median as f64 * MEAN_OVER_MEDIAN)?;
        let mut content = vec![0; SIZE_BYTES_MAX as usize];
        random.fill_bytes(&mut content);
        for file in 0..self.count {
            let bytes = sizes.sample(&mut random).clamp(1.0, SIZE_BYTES_MAX);
            let mut made = File::create_new(self.path(root, file))?;
            made.write_all(&content[..bytes as usize])?;
            if fsync {
                made.sync_all()?;
            }
        }
        Ok(self.count)
    }

    fn delete(&self, root: &Path, threads: u64) -> io::Result<u64> {
        let mut order: Vec<u64> = (0..self.count).collect();
        let mut random = ChaCha8Rng::seed_from_u64(self.seed ^ 0x6465_6c65_7465);
        order.shuffle(&mut random);
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let worker = || {
                while let Some(file) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    fs::remove_file(self.path(root, *file))?;
                }
                Ok::<(), io::Error>(())
            };
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().try_for_each(|worker| {
                worker.join().unwrap_or_else(|_| Err(io::Error::other("a worker thread died")))
            })
        })?;
        Ok(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("afterimage-micro-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn what_is_created_is_deleted_and_half_of_it_is_smaller_than_the_median() {
        let root = folder("files");
        let files = Files { count: 2000, directories: 10, seed: 3 };
        files.create(&root, 1000, false).unwrap();
        let mut sizes: Vec<u64> =
            (0..2000).map(|file| fs::metadata(files.path(&root, file)).unwrap().len()).collect();
        sizes.sort_unstable();
        assert!((900..1100).contains(&sizes[1000]), "{}", sizes[1000]);
        files.delete(&root, 4).unwrap();
        assert!((0..2000).all(|file| !files.path(&root, file).exists()));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn appends_and_overwrites_write_what_they_say() {
        let root = folder("writes");
        let path = root.join("file");
        assert_eq!(append(&path, 64 << 10, 8192, 1).unwrap(), 8);
        let before = fs::read(&path).unwrap();
        assert_eq!(before.len(), 64 << 10);
        assert!(append(&path, 8192, 8192, 1).is_err(), "the file has to be new");
        assert_eq!(overwrite(&path, 4096, 4096, 1).unwrap(), 1);
        let after = fs::read(&path).unwrap();
        let changed = before.chunks(4096).zip(after.chunks(4096)).filter(|(a, b)| a != b).count();
        assert_eq!((after.len(), changed), (64 << 10, 1));
        fs::remove_dir_all(root).unwrap();
    }
}
