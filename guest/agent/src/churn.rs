//! `churn`: blocks that change hands: file data becomes a directory's, a directory's becomes file data, and files are
//! unlinked and cut short while they are open.
//!
//! ```text
//!   create ─► write ─► fsync? ─► truncate │ rename │ unlink, open or not ─► its blocks are somebody else's
//!   mkdir ─► hundreds of names ─► all removed (revoked) ─► its blocks are somebody else's
//! ```
//!
//! Every block of a file is stamped with the file's number, which no other file of any round has had: `churn-verify` tells
//! a block that belongs to somebody else, or to an older life of the disk, from one that was never written.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use afterimage_protocol::report::{self, Agent, ChurnVerify};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::args::{invalid, Arguments};
use crate::report::Report;
use crate::stamp::{Content, Stamp, BLOCK_BYTES};
use crate::sys;

/// The longest file, in blocks.
const FILE_BLOCKS_MAX: u64 = 48;
/// Names in a large directory: with names this long, several blocks.
const NAMES: u64 = 120;
/// Files and directories that live at the same time, unless the disk is full before.
const LIVING_MAX: usize = 60;
/// Files that were unlinked and are still open.
const ORPHANS_MAX: usize = 12;
/// Numbers of files: rounds lie this far apart.
const ROUND: u64 = 1_000_000;

enum Living {
    File { path: PathBuf, number: u64, blocks: u64 },
    Directory(PathBuf),
}

struct Churn {
    directory: PathBuf,
    random: ChaCha8Rng,
    next: u64,
    living: Vec<Living>,
    orphans: VecDeque<(File, u64)>,
    full: u64,
}

/// Works until it is killed, or for `--seconds`.
pub fn run(mut arguments: Arguments) -> io::Result<()> {
    let directory = PathBuf::from(arguments.word("the directory to work in")?);
    let seed = arguments.number("seed")?.unwrap_or(1);
    let round = arguments.number("round")?.unwrap_or(0);
    let seconds = arguments.number("seconds")?;
    let report = Report::open(&mut arguments)?;
    arguments.finish()?;
    fs::create_dir_all(&directory)?;
    let mut churn = Churn {
        random: ChaCha8Rng::seed_from_u64(seed ^ round),
        next: round * ROUND,
        living: earlier(&directory)?,
        orphans: VecDeque::new(),
        directory,
        full: 0,
    };
    let end_ns = seconds.map_or(u64::MAX, |s| sys::monotonic_ns() + s * 1_000_000_000);
    let mut steps = 0u64;
    while sys::monotonic_ns() < end_ns {
        match churn.step() {
            Ok(()) => {}
            // The disk is small on purpose: room is made, and blocks are used again at once.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => churn.make_room()?,
            Err(error) => return Err(error),
        }
        steps += 1;
        if steps == 20 {
            report.say(&Agent::Churn(report::Churn::Busy {}))?;
        }
    }
    report.say(&Agent::Churn(report::Churn::Done { steps, full: churn.full }))
}

/// What an earlier round left.
fn earlier(directory: &Path) -> io::Result<Vec<Living>> {
    let mut living = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        match (entry.file_type()?.is_dir(), number_of(&path)) {
            (true, _) => living.push(Living::Directory(path)),
            (false, Some(number)) => {
                let blocks = entry.metadata()?.len().div_ceil(BLOCK_BYTES as u64);
                living.push(Living::File { path, number, blocks });
            }
            (false, None) => fs::remove_file(path)?,
        }
    }
    Ok(living)
}

/// `f-NUMBER` or, renamed, `r-NUMBER`.
fn number_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("f-").or_else(|| name.strip_prefix("r-"))?.parse().ok()
}

fn write_blocks(file: &File, number: u64, from: u64, to: u64) -> io::Result<()> {
    let mut bytes = vec![0; to.saturating_sub(from) as usize * BLOCK_BYTES];
    for (index, block) in (from..to).zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
        Stamp { owner: number, version: 1, index }.fill(block);
    }
    file.write_all_at(&bytes, from * BLOCK_BYTES as u64)
}

impl Churn {
    fn step(&mut self) -> io::Result<()> {
        if self.living.len() >= LIVING_MAX {
            return self.end_one();
        }
        match self.random.random_range(0..10) {
            0..=3 => self.create(),
            4 | 5 => self.crowd(),
            6 => self.shorten(),
            7 => self.rename(),
            8 => self.orphan(),
            _ => self.end_one(),
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn create(&mut self) -> io::Result<()> {
        let number = self.number();
        let path = self.directory.join(format!("f-{number}"));
        let blocks = self.random.random_range(1..=FILE_BLOCKS_MAX);
        let file = File::create_new(&path)?;
        // Known before it is written: a disk that is full on the way leaves a file all the same.
        self.living.push(Living::File { path, number, blocks });
        write_blocks(&file, number, 0, blocks)?;
        if self.random.random_range(0..3) == 0 {
            file.sync_all()?;
        }
        Ok(())
    }

    /// A directory of many names.
    fn crowd(&mut self) -> io::Result<()> {
        let number = self.number();
        let path = self.directory.join(format!("d-{number}"));
        fs::create_dir(&path)?;
        self.living.push(Living::Directory(path.clone()));
        let first = path.join(format!("{:0>180}", 0));
        File::create_new(&first)?;
        for name in 1..NAMES {
            fs::hard_link(&first, path.join(format!("{name:0>180}")))?;
        }
        if self.random.random_range(0..2) == 0 {
            File::open(&path)?.sync_all()?;
        }
        Ok(())
    }

    fn file(&mut self) -> Option<usize> {
        let files: Vec<usize> =
            (0..self.living.len()).filter(|at| matches!(self.living[*at], Living::File { .. })).collect();
        let count = files.len() as u64;
        (count > 0).then(|| files[self.random.random_range(0..count) as usize])
    }

    /// Cut short, and perhaps made longer again: in between its last blocks may become somebody else's.
    fn shorten(&mut self) -> io::Result<()> {
        let Some(at) = self.file() else { return Ok(()) };
        let (keep, again, sync) = (
            self.random.random_range(0..8),
            self.random.random_range(0..2) == 0,
            self.random.random_range(0..4) == 0,
        );
        let Living::File { path, number, blocks } = &mut self.living[at] else { return Ok(()) };
        let file = OpenOptions::new().write(true).open(path)?;
        let keep = keep.min(*blocks);
        file.set_len(keep * BLOCK_BYTES as u64)?;
        if again {
            write_blocks(&file, *number, keep, *blocks)?;
        } else {
            *blocks = keep;
        }
        if sync {
            file.sync_all()?;
        }
        Ok(())
    }

    fn rename(&mut self) -> io::Result<()> {
        let Some(at) = self.file() else { return Ok(()) };
        let Living::File { path, number, .. } = &mut self.living[at] else { return Ok(()) };
        let other = path.with_file_name(format!("r-{number}"));
        fs::rename(&*path, &other)?;
        *path = other;
        Ok(())
    }

    /// Unlinked, but open and still written to.
    fn orphan(&mut self) -> io::Result<()> {
        while self.orphans.len() >= ORPHANS_MAX {
            self.orphans.pop_front();
        }
        let Some(at) = self.file() else { return Ok(()) };
        let Living::File { path, number, blocks } = self.living.swap_remove(at) else { return Ok(()) };
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        fs::remove_file(&path)?;
        write_blocks(&file, number, blocks, blocks + 4)?;
        if self.random.random_range(0..2) == 0 {
            file.set_len(0)?;
        }
        if self.random.random_range(0..2) == 0 {
            file.sync_all()?;
        }
        self.orphans.push_back((file, number));
        Ok(())
    }

    fn end_one(&mut self) -> io::Result<()> {
        let count = self.living.len() as u64;
        if count == 0 {
            return Ok(());
        }
        match self.living.swap_remove(self.random.random_range(0..count) as usize) {
            Living::File { path, .. } => fs::remove_file(path),
            Living::Directory(path) => fs::remove_dir_all(path),
        }
    }

    fn make_room(&mut self) -> io::Result<()> {
        self.full += 1;
        self.orphans.clear();
        for _ in 0..self.living.len() / 2 + 1 {
            self.end_one()?;
        }
        Ok(())
    }
}

/// `churn-verify`: no file holds a block that is not its own. Zeroes are fine: not everything was synced.
pub fn verify(mut arguments: Arguments) -> io::Result<()> {
    let directory = PathBuf::from(arguments.word("the directory")?);
    let report = Report::open(&mut arguments)?;
    arguments.finish()?;
    let (mut files, mut blocks, mut wrong) = (0u64, 0u64, Vec::new());
    if directory.is_dir() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let Some(number) = number_of(&path) else { continue };
            files += 1;
            let bytes = fs::read(&path)?;
            for (index, block) in (0u64..).zip(bytes.chunks(BLOCK_BYTES)) {
                blocks += 1;
                match Stamp::read(block) {
                    Content::Empty => {}
                    Content::Whole(stamp) if stamp.owner == number && stamp.index == index => {}
                    other => wrong.push(format!("{} block {index}: {other:?}", path.display())),
                }
            }
        }
    }
    report.say(&Agent::ChurnVerify(ChurnVerify { files, blocks, wrong: wrong.len() as u64 }))?;
    if wrong.is_empty() {
        return Ok(());
    }
    wrong.truncate(8);
    Err(invalid(format!("blocks that are somebody else's: {wrong:?}")))
}
